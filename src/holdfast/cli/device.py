"""The torch device of Holdfast: engines and their devices, what computes each of torch's overloads.

An overload is computed by a kernel of the engine (native), by other overloads that torch
decomposes it into (decomposition), or by torch's own CPU kernels over the same memory (fallback).
HOLDFAST_STRICT=1 refuses the last. The shim makes small ops faster, with torch's own kernels, and
adds torch.Generator(device="holdfast"); nothing else needs it.

examples:
holdfast device                              engines, and OpenCL devices
holdfast device ops                          every overload, and what computes it
holdfast device ops --fallbacks              only those that fall back
holdfast device ops --only 'conv*'           names that fit a pattern
holdfast device ops --engine opencl --json   for scripts, of another engine
holdfast device build                        compile the C++ shim
"""

from __future__ import annotations

import argparse
import difflib
import fnmatch
import sys
from typing import TYPE_CHECKING, Any

from holdfast.base.config import Config
from holdfast.base.errors import HoldfastError, NotFound
from holdfast.base.registry import Entry, Registry
from holdfast.base.units import format_bytes
from holdfast.cli.parsing import Action, action, option
from holdfast.cli.tables import align, as_json
from holdfast.compute.engine import ENGINES
from holdfast.topology.render import words

if TYPE_CHECKING:
    from holdfast.compute.torch_device.dispatch.coverage import Row

# Loaded when it is called, not for the help; an error names the missing extra.
_PARTS: Registry[Any] = Registry(
    "command",
    {
        "device ops": Entry(
            "holdfast.compute.torch_device.dispatch.coverage", extra="torch,compute"
        ),
        "device build": Entry("holdfast.compute.torch_device.shim.build", extra="torch,compute"),
    },
)
_HEADINGS = ("overload", "form", "way", "op of the table")
ACTIONS: dict[str, Action] = {}


def run(args: argparse.Namespace) -> int:
    """Show engines, devices and the help."""
    print(_engines(), _opencl_devices(), args.format_help(), sep="\n\n", end="")
    return 0


def _engines() -> str:
    chosen = Config.load().engine
    rows = [
        [name, ENGINES.entry(name).summary, "chosen" if name == chosen else ""] for name in ENGINES
    ]
    return "\n".join(["engines", *align(rows, indent="  ")])


def _opencl_devices() -> str:
    """Every OpenCL device, or why there is none."""
    try:
        engine: Any = ENGINES["opencl"]
        from holdfast.memory.resources.opencl_devices import list_devices

        rows = [
            [
                one.name,
                f"{one.device} ({one.platform})",
                format_bytes(one.memory_bytes),
                words.count(one.units, "compute unit"),
                f"kernels for {engine.on(index).mapping.upper()}s",
            ]
            for index, one in enumerate(list_devices())
        ]
    except HoldfastError as exc:
        return f"OpenCL devices: none\n  {exc}"
    return "\n".join(["OpenCL devices", *align(rows, indent="  ")])


@action(
    ACTIONS,
    "how each overload of torch is computed",
    option("--engine ENGINE", f"one of {', '.join(ENGINES)} (default numpy)", "numpy"),
    option("--only PATTERN", "names that fit, such as add, add.Tensor or 'conv*'"),
    option("--fallbacks", "only what torch computes on the CPU"),
    option("--json", "print JSON instead of a table"),
)
def _ops(args: argparse.Namespace) -> int:
    """Show how each overload of torch is computed on the device."""
    ENGINES.entry(args.engine)  # raises NotFound before anything is loaded
    table = _PARTS["device ops"]
    rows: list[Row] = table.coverage(args.engine)
    if args.only is not None:
        rows = _filter(rows, args.only)
    total: dict[str, int] = table.counts(rows)
    if args.fallbacks:
        rows = [row for row in rows if row.way == table.FALLBACK]
    overloads = [row._asdict() for row in rows]
    document = {"engine": args.engine, "counts": total, "overloads": overloads}
    print(as_json(document) if args.json else _text(args.engine, rows, total))
    return 0


@action(ACTIONS, "compile the C++ shim for this torch")
def _build(_: argparse.Namespace) -> int:
    """Compile the C++ shim for the torch that is installed: about a minute."""
    print(f"shim  {_PARTS['device build'].build(lambda text: print(text, file=sys.stderr))}")
    return 0


def _filter(rows: list[Row], pattern: str) -> list[Row]:
    """Rows whose overload or op ("add" of "add_.Tensor") matches. Raises NotFound for none."""
    bases = {row.name: row.name.partition(".")[0].removesuffix("_") for row in rows}
    fits = fnmatch.fnmatchcase
    found = [row for row in rows if fits(row.name, pattern) or fits(bases[row.name], pattern)]
    if not found:
        known = sorted({*bases, *bases.values()})
        close = difflib.get_close_matches(pattern, known, n=1, cutoff=0.6)
        raise NotFound(
            f"no overload of the device fits {pattern!r}",
            expected="a name such as add or add.Tensor, or a pattern such as 'conv*'",
            hint=close[0] if close else "holdfast device ops",
        )
    return found


def _text(engine: str, rows: list[Row], total: dict[str, int]) -> str:
    numbers = ", ".join(f"{number} {way}" for way, number in total.items())
    lines = [f"engine {engine}: {words.count(sum(total.values()), 'overload')}: {numbers}"]
    if not rows:
        return "\n".join([*lines, "none of them falls back"])
    table = [[cell or "–" for cell in row] for row in (_HEADINGS, *rows)]
    return "\n".join([*lines, "", *align(table)])

"""Ports: models made to run on XLA, which is TPU, GPU and CPU through JAX, split over all devices.

`new` writes a folder for ComfyUI with its nodes. `check` makes a tiny random model of a class, runs
it in torch and on XLA, on one device and on several, and compares. `list` shows all ports.
Exit status: 0 all is well, 1 the check has found a problem, 2 bad input.

examples:
holdfast port new Wan21 --out ~/ComfyUI/custom_nodes
holdfast port new Wan21 --class diffusers:WanTransformer3DModel
holdfast port check diffusers:FluxTransformer2DModel
holdfast port check WanTransformer3DModel --devices 4 --dtype f32 --json
holdfast port list              the ports that come with Holdfast
holdfast port list --classes    the classes that can be checked
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.base.errors import BadInput
from holdfast.base.registry import Entry, Registry
from holdfast.base.units import format_bytes, format_seconds
from holdfast.cli.parsing import JSON, Action, action, option
from holdfast.cli.tables import align, as_json

if TYPE_CHECKING:
    from holdfast.xla.check.check import PortCheck
    from holdfast.xla.scaffold import Pack

# Loaded when the action is called; an error names the missing extra.
_PARTS: Registry[Any] = Registry(
    "command",
    {
        "port new": Entry("holdfast.xla.scaffold", extra="run,xla"),
        "port check": Entry("holdfast.xla.check.check", extra="run,xla"),
        "port list": Entry("holdfast.xla.port", extra="run,xla"),
        "port list --classes": Entry("holdfast.xla.tiny", extra="run,xla"),
        "quiet": Entry("holdfast.pipeline.model.quiet", extra="run,xla"),
        "class": Entry("holdfast.xla.scaffold.classes", extra="run,xla"),
    },
)
MOST_DEVICES = 512
_FLAG = "--xla_force_host_platform_device_count"
ACTIONS: dict[str, Action] = {}


# ---- new


@action(
    ACTIONS,
    "write a port and its nodes for ComfyUI",
    option("name NAME", "letters, digits, - and _"),
    option(
        "--class CLASS", "such as diffusers:WanTransformer3DModel (default: by NAME)", dest="cls"
    ),
    option("--out DIR", "where to, such as ComfyUI/custom_nodes (default: here)"),
    option("--force", "replace the files of an earlier one, leave all others"),
    JSON,
)
def _new(args: argparse.Namespace) -> int:
    """Write a folder ComfyUI-NAME-TPU: a port, its ComfyUI nodes and a test of them."""
    out = None if args.out is None else Path(args.out)
    pack = _PARTS["port new"].new(args.name, args.cls, out, args.force)
    if args.json:
        found = dataclasses.asdict(pack) | {"folder": str(pack.folder), "next": _next(pack)}
        print(as_json(found))
    else:
        *before, last = pack.files
        files = [*(f"├── {file}" for file in before), f"└── {last}"]
        commands = [f"  {command}" for command in _next(pack)]
        lines = [str(pack.folder), *files, "", *_remark(pack), "", "next:", *commands]
        print("\n".join(lines))
    return 0


def _remark(pack: Pack) -> list[str]:
    reasons = {
        "given": "",
        "guessed": ": its name fits best (--class names another)",
        "none fits": ": no name fits, so this is an example (--class names the right one)",
    }
    return [f"class {pack.cls}{reasons[pack.chosen]}", f"nodes {', '.join(pack.nodes)}"]


def _next(pack: Pack) -> list[str]:
    """Commands to run next: check the class, add the pack to ComfyUI, test it."""
    folder = shlex.quote(str(pack.folder))
    start = f"cd {shlex.quote(str(pack.folder.parent.parent))} && python main.py"
    return [
        f"holdfast port check {pack.cls}",
        start if pack.in_comfyui else f"ln -s {folder} COMFYUI/custom_nodes/",
        f"python {folder}/test_comfyui_api.py --url http://127.0.0.1:8188",
    ]


# ---- check


@action(
    ACTIONS,
    "compare a class on torch and on XLA",
    option("cls CLASS", "such as diffusers:FluxTransformer2DModel"),
    option(
        "--devices N",
        "split over so many; virtual ones where there is no such accelerator (default 8)",
        8,
    ),
    option("--dtype TYPE", "f32 or bf16 alone (default: both; f32 is also split)"),
    option("--json", "print JSON instead of a table"),
)
def _check(args: argparse.Namespace) -> int:
    """Run a tiny random model of a class in torch and on XLA, and compare. A class is a ClassName
    or library:ClassName, one of those that `holdfast port list --classes` shows.
    """
    if not 1 <= args.devices <= MOST_DEVICES:
        raise BadInput(
            f"cannot check on {args.devices} devices", expected=f"from 1 to {MOST_DEVICES}"
        )
    if args.dtype not in (None, "f32", "bf16"):
        raise BadInput(f"cannot check {args.dtype!r}", expected="--dtype f32 or --dtype bf16")
    request_devices(args.devices)
    check = _PARTS["port check"]
    with _PARTS["quiet"].quiet():
        name = _PARTS["class"].resolve(args.cls)
        found = check.check(name, args.devices, (args.dtype,) if args.dtype else check.DTYPES)
    print(as_json(_document(found)) if args.json else _table(found))
    return 0 if found.ok else 1


def request_devices(count: int) -> None:
    """Let JAX make `count` virtual CPU devices, unless XLA_FLAGS already sets a count.

    Works only before JAX starts. Accelerators are used all the same.
    """
    flags = os.environ.get("XLA_FLAGS", "")
    if _FLAG not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} {_FLAG}={count}".strip()


def _document(found: PortCheck) -> dict[str, Any]:
    """The result as JSON; infinite and NaN errors are null, and `problems` names them."""
    document = dataclasses.asdict(found)
    for key, value in document.items():
        if isinstance(value, float) and not abs(value) < float("inf"):
            document[key] = None
    return document | {"ok": found.ok, "problems": list(found.problems)}


def _table(found: PortCheck) -> str:
    moved = ", ".join(f"{number} {kind}" for kind, number in found.collectives.items())
    rows = {
        "f32, XLA to torch": _error(found.error_f32),
        f"f32, {found.devices} devices to one": _error(found.error_sharded),
        "bf16, XLA to torch in f32": _error(found.error_bf16),
        "bf16, torch to torch in f32": _error(found.torch_bf16_error),
        "tiny weights on each device": _share(found.bytes_per_device, found.ideal_bytes),
        "full size in bf16, each device": _share(
            found.full_bytes_per_device, found.full_ideal_bytes
        ),
        "between devices": moved or ("nothing" if found.error_sharded is not None else None),
        "time": format_seconds(found.seconds),
    }
    width = max(map(len, rows))
    lines = [f"{name.ljust(width)}  {value}" for name, value in rows.items() if value is not None]
    problems = [f"PROBLEM: {problem}" for problem in found.problems]
    return "\n".join([found.name, *(f"  {line}" for line in lines), *(problems or ["ok"])])


def _error(value: float | None) -> str | None:
    return None if value is None else f"{value:.1e}"


def _share(held: int | None, ideal: int | None) -> str | None:
    if not held or not ideal:
        return None
    return f"{format_bytes(held)}, ideal {format_bytes(ideal)} ({held / ideal:.3f} x)"


# ---- list


@action(
    ACTIONS,
    "the ports that are there",
    option("--classes", "the classes that `port check` has tiny models of"),
    JSON,
)
def _list(args: argparse.Namespace) -> int:
    """Show the ports that come with Holdfast."""
    if args.classes:
        rows = [{"name": name} for name in sorted(_PARTS["port list --classes"].tiny_models())]
    else:
        ports = _PARTS["port list"].PORTS
        rows = [
            {"name": name, "class": ports[name].network, "about": ports.entry(name).summary}
            for name in ports
        ]
    if args.json:
        print(as_json(rows))
        return 0
    print("\n".join(align([list(row.values()) for row in rows])))
    if not args.classes:
        print("more: holdfast port new NAME (holdfast port list --classes: what can be tried)")
    return 0

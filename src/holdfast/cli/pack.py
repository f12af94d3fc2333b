"""Pack a model without losing a bit: bf16 and fp16 weights take 0.68 to 0.75 of their bytes.

MODEL is a folder, a safetensors file, a built-in model or a hub id; OUT is a new folder or file
with the same tensors. `holdfast run`, `fit` and `batch` take it like the original and read less;
under a budget the weights stay packed until they are on the device. --unpack restores the original
files byte for byte. Each weight is decoded and compared before it is written, and has a checksum.
The original is only read; OUT gets its name when it is whole.

examples:
holdfast pack ~/FLUX.1-dev ~/FLUX.1-dev-packed
holdfast pack model.safetensors packed.safetensors --scheme flat
holdfast pack ~/FLUX.1-dev-packed ~/FLUX.1-dev-again --unpack
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from holdfast.base.errors import BadInput
from holdfast.base.files import expand_path
from holdfast.base.registry import Entry, Registry
from holdfast.base.units import format_bytes, format_seconds
from holdfast.cli.parsing import option
from holdfast.cli.progress import show_bar
from holdfast.cli.tables import as_json
from holdfast.pipeline.model import sources

SCHEMES = ("auto", "ranked", "flat")

# Loaded when a model is packed, not for the help; an error names the missing extra.
_PARTS: Registry[Any] = Registry(
    "command",
    {
        "pack": Entry("holdfast.residency.files.packed_folder:pack_model", extra="torch"),
        "unpack": Entry("holdfast.residency.files.packed_folder:unpack_model", extra="torch"),
        "decoder": Entry("holdfast.residency.packing.pack:decoder", extra="torch"),
        "torch": Entry("torch", extra="torch"),
    },
)

OPTIONS = (
    option("model MODEL", "what to pack: see above", nargs="?"),
    option("out OUT", "the new folder or file", nargs="?"),
    option("--unpack", "restore the original files instead"),
    option(
        "--scheme SCHEME",
        "ranked (smaller; GPUs with Triton decode it quickly), flat (every device does), or auto "
        "(default): what the device here decodes quickly",
        "auto",
    ),
    option("--device DEVICE", "what computes: cpu, cuda, cuda:1 (default: cuda if it is there)"),
    option("--json", "print JSON: bytes before and after, tensors, seconds"),
)


def run(args: argparse.Namespace) -> int:
    """Pack or unpack, and print what came of it."""
    if args.model is None or args.out is None:
        raise BadInput(
            "no model was named" if args.model is None else "no new folder or file was named",
            expected="a model and a place for the new one",
            hint="holdfast pack ~/FLUX.1-dev ~/FLUX.1-dev-packed",
        )
    if args.scheme not in SCHEMES:
        raise BadInput(f"unknown scheme {args.scheme!r}", expected=f"one of {', '.join(SCHEMES)}")
    source, target = _source(args.model), expand_path(args.out)
    begun = time.perf_counter()
    with _show_bytes("unpack" if args.unpack else "pack") as show:
        if args.unpack:
            result = _PARTS["unpack"](source, target, progress=show)
        else:
            device = _device(args.device)
            schemes = (args.scheme,) if args.scheme != "auto" else _schemes(device)
            result = _PARTS["pack"](source, target, device=device, schemes=schemes, progress=show)
    seconds = time.perf_counter() - begun
    if args.json:
        about = dataclasses.asdict(result) | {"out": str(target), "seconds": seconds}
        print(as_json(about))
        return 0
    sizes = f"{format_bytes(result.raw_bytes)} -> {format_bytes(result.file_bytes)}"
    ratio = result.file_bytes / result.raw_bytes
    print(f"{'restored' if args.unpack else 'packed'}  {target}")
    print(f"weights  {sizes} ({ratio:.3g}), {result.packed} of {result.tensors} tensors")
    print(f"time     {format_seconds(seconds)}")
    return 0


def _source(model: str) -> Path:
    with contextlib.suppress(OSError, ValueError):  # cannot be the name of a file
        path = expand_path(model)
        if path.exists():
            return path
    return sources.locate(model).folder


def _device(named: str | None) -> Any:
    torch = _PARTS["torch"]
    if named is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(named)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as exc:
        reason = (str(exc).splitlines() or [""])[0]
        raise BadInput(
            f"cannot pack on {named!r}: {reason}", expected="cpu, or a GPU that torch can use"
        ) from exc
    return device


def _schemes(device: Any) -> tuple[str, ...]:
    found: tuple[str, ...] = _PARTS["decoder"](device).schemes
    return found


@contextlib.contextmanager
def _show_bytes(label: str) -> Iterator[Callable[[int, int], None]]:
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    columns = TextColumn("{task.description}"), BarColumn(bar_width=None), DownloadColumn()
    with show_bar(*columns, TransferSpeedColumn(), TimeRemainingColumn()) as bars:
        task = bars.add_task(label, total=None)
        yield lambda done, total: bars.update(task, completed=done, total=total)

"""Find the fastest kernels for an OpenCL device, and remember them.

Products of matrices are timed with several parameters, for results that are small, square, tall and
wide, and the best are kept in the cache folder for this device and driver. CLBlast is among them
where it is installed (HOLDFAST_CLBLAST=off leaves it out). Every candidate's result is checked; one
that cannot be built or is wrong is skipped. Ctrl-C keeps what was found so far.

examples:
holdfast tune                        the first OpenCL device
holdfast tune --device opencl:1      another one; `holdfast device` lists them
holdfast tune --quick                smaller matrices, fewer candidates
holdfast tune --json                 for scripts
"""

from __future__ import annotations

import argparse
import contextlib
import re
from collections.abc import Callable, Iterator
from typing import Any

from holdfast.base.errors import BadInput
from holdfast.cli.parsing import option
from holdfast.cli.progress import show_bar
from holdfast.cli.tables import align, as_json
from holdfast.compute.engine import ENGINES

_HEADINGS = ("results", "m x n x k", "before", "after", "", "parameters")


OPTIONS = (
    option(
        "--device opencl:N",
        "which OpenCL device, as `holdfast device` counts them (default opencl:0)",
        "opencl:0",
    ),
    option("--quick", "smaller matrices and fewer candidates"),
    option("--json", "print JSON instead of a table"),
)


def run(args: argparse.Namespace) -> int:
    """Measure, store the best parameters, print them."""
    index = _index(args.device)
    engine: Any = ENGINES["opencl"].on(index)
    from holdfast.compute.engines.opencl.matrix import gemm_search
    from holdfast.compute.engines.opencl.runtime import tuned_parameters

    with _show_search(len(tuned_parameters.CLASSES)) as show:
        found = list(gemm_search.search(engine, args.quick, show))
    file = tuned_parameters.file_of(engine)
    text = f"{_table(engine, found)}\n\nkept in {file}"
    print(as_json(_record(engine, found, file)) if args.json else text)
    return 0


def _index(device: str) -> int:
    fits = re.fullmatch(r"opencl(?::(\d+))?", device)
    if fits is None:
        raise BadInput(
            f"cannot tune {device!r}",
            expected="opencl:0, or another OpenCL device",
            hint="holdfast device lists them",
        )
    return int(fits[1] or 0)


def _record(engine: Any, found: list[Any], file: Any) -> dict[str, Any]:
    return {
        "device": engine.place.name,
        "name": engine.place.device.name.strip(),
        "mapping": engine.mapping,
        "file": str(file),
        "results": [
            {
                **one._asdict(),
                "before_gflop_s": one.gflop_s(one.before_ms),
                "after_gflop_s": one.gflop_s(one.after_ms),
            }
            for one in found
        ],
    }


def _table(engine: Any, found: list[Any]) -> str:
    rows = [_HEADINGS, *map(_row, found)]
    name = engine.place.device.name.strip()
    return "\n".join(
        [f"{engine.place.name} ({name}), kernels for {engine.mapping.upper()}s", *align(rows)]
    )


def _row(one: Any) -> tuple[str, ...]:
    times = [f"{ms:.3g} ms, {one.gflop_s(ms):.3g} GF/s" for ms in (one.before_ms, one.after_ms)]
    parameters = " ".join(f"{name}={value}" for name, value in one.settings.items())
    gain = f"{one.before_ms / one.after_ms:.2f}x"
    return one.name, "x".join(map(str, one.size)), *times, gain, parameters


@contextlib.contextmanager
def _show_search(classes: int) -> Iterator[Callable[[str, int, int], None]]:
    """A bar of the search; yields a function for (class, candidates done, candidates)."""
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn

    columns = TextColumn("{task.description:<8}"), BarColumn(bar_width=None), TimeElapsedColumn()
    with show_bar(*columns) as bar:
        task, seen = bar.add_task("", total=classes), []

        def show(name: str, done: int, total: int) -> None:
            if name not in seen:
                seen.append(name)
            part = done / total if total else 1
            bar.update(task, description=name, completed=len(seen) - 1 + part)

        yield show

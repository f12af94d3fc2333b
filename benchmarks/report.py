"""What every benchmark shares: rows, a table with ratios, a JSON file with machine and date.

A row is one figure of one system on one subject. Rows of the same subject are compared: the
first system of a subject is ours, and `ratio` is ours over theirs, so below 1 is better for
times and above 1 for rates. A figure that comes from several runs knows how far they are apart.

Every script takes `--out` and `--quick` (fewer sizes and runs, for a look in a minute). Each row is
also told as soon as it is there, as a line of JSON in the file that BENCH_ROWS names, if it does:
`holdfast bench` shows how far a script is, and keeps what there is when it is broken off.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, Self

from rich.console import Console
from rich.table import Table

import holdfast
from holdfast.topology import Topology
from holdfast.topology.render import words

# A run goes here; one that is quoted is copied to benchmarks/results/ and committed.
RUNS = Path(__file__).parents[1] / "out" / "benchmarks"
ROWS = "BENCH_ROWS"
# By the names of their modules, where these differ.
PACKAGES = {
    "numpy": "numpy",
    "torch": "torch",
    "diffusers": "diffusers",
    "transformers": "transformers",
    "accelerate": "accelerate",
    "safetensors": "safetensors",
    "pyopencl": "pyopencl",
    "jax": "jax",
    "torchax": "torchax",
    "tinygrad": "tinygrad",
}


class Measured(float):
    """A figure, and between which values the runs lie that it comes from.

    Less a number, or times one, the span goes along; a number over it is a rate, with its span.
    """

    low: float
    high: float

    def __new__(cls, value: float, low: float, high: float) -> Self:
        made = super().__new__(cls, value)
        made.low, made.high = float(low), float(high)
        return made

    def _through(self, change: Callable[[float], float]) -> Measured:
        ends = sorted((change(self.low), change(self.high)))
        return Measured(change(float(self)), *ends)

    def __sub__(self, other: float) -> Measured:
        return self._through(lambda value: value - float(other))

    def __mul__(self, other: float) -> Measured:
        return self._through(lambda value: value * float(other))

    def __truediv__(self, other: float) -> Measured:
        return self._through(lambda value: value / float(other))

    def __rtruediv__(self, other: float) -> Measured:
        return self._through(lambda value: other / value)


def middle(runs: Sequence[float]) -> Measured:
    """The median; its span is the middle half of the runs (all of them, if there are few)."""
    if len(runs) < 4:
        return Measured(statistics.median(runs), min(runs), max(runs))
    low, value, high = statistics.quantiles(runs, n=4, method="inclusive")
    return Measured(value, low, high)


def best(runs: Sequence[float]) -> Measured:
    """The smallest, which is the least disturbed; its span is the quicker half of the runs."""
    return Measured(min(runs), min(runs), statistics.median(runs))


def exact(value: float) -> Measured:
    """A figure that every run would give: bytes, and ratios of them."""
    return Measured(value, value, value)


@dataclass(frozen=True)
class Row:
    """`value` of `system` on `subject`; `low` and `high` are the span of a `Measured`."""

    subject: str
    system: str
    value: float
    unit: str
    remark: str = ""
    low: float | None = None
    high: float | None = None

    def __post_init__(self) -> None:
        if isinstance(self.value, Measured) and self.low is None:
            object.__setattr__(self, "low", self.value.low)
            object.__setattr__(self, "high", self.value.high)
        object.__setattr__(self, "value", float(self.value))
        tell(asdict(self))


def tell(row: dict[str, Any]) -> None:
    """Let whoever started this script know of a row."""
    if file := os.environ.get(ROWS):
        with Path(file).open("a", encoding="utf-8") as rows:
            rows.write(json.dumps(row) + "\n")


def median_ms(work: Callable[[], object], repeats: int = 7) -> Measured:
    """The median time of `work`, after one call to warm up."""
    work()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append((time.perf_counter() - start) * 1000)
    return middle(times)


def best_us(
    work: Callable[[], object],
    count: int,
    repeats: int,
    clock: Callable[[], float] = time.process_time,
) -> Measured:
    """Microseconds for one call; the best of several, which is the least disturbed."""
    runs = []
    for _ in range(repeats):
        start = clock()
        for _ in range(count):
            work()
        runs.append((clock() - start) / count * 1e6)
    return best(runs)


def arguments(name: str, about: str) -> argparse.Namespace:
    """The options all benchmarks have."""
    parser = argparse.ArgumentParser(description=about)
    default = RUNS / f"{name}.json"
    parser.add_argument("--out", type=Path, default=default, help=f"JSON file (default {default})")
    add_quick(parser)
    return parser.parse_args()


def add_quick(parser: argparse.ArgumentParser) -> None:
    """The option that makes a benchmark a matter of seconds."""
    parser.add_argument("--quick", action="store_true", help="fewer sizes and runs")


def versions() -> dict[str, str]:
    """Python, and those packages that this process has loaded."""
    found = {"python": platform.python_version()}
    for module, distribution in PACKAGES.items():
        if module in sys.modules:
            found[module] = metadata.version(distribution)
    return found


def publish(name: str, rows: list[Row], machine: Topology, out: Path, **more: Any) -> None:
    """Print the table and write the JSON."""
    ours = {}
    for row in rows:
        ours.setdefault(row.subject, row)
    table = Table(title=f"{name} on {words.machine(machine)}")
    for column in ("subject", "system", "value", "ours ÷ theirs", "remark"):
        table.add_column(column, justify="right" if "÷" in column or column == "value" else "left")
    written = []
    for row in rows:
        first = ours[row.subject]
        ratio = first.value / row.value if row is not first and row.value else None
        value = f"{row.value:.4g} {row.unit}"
        shown = f"{ratio:.2f}" if ratio is not None else ""
        table.add_row(row.subject, row.system, value, shown, row.remark)
        figures = {key: value for key, value in asdict(row).items() if value is not None}
        written.append(figures | {"ratio": ratio})
    Console(width=None if Console().is_terminal else 160).print(table)
    document = {
        "benchmark": name,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "holdfast": holdfast.__version__,
        "machine": {
            "about": words.machine(machine),
            "cpu": machine.cpu_model,
            "cpus": len(machine.cpus),
            "gpus": [words.gpu_title(gpu) for gpu in machine.gpus],
        },
        "versions": versions(),
        "rows": written,
        **more,
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(document, indent=1) + "\n")
    Console(stderr=True).print(f"results: {out}")

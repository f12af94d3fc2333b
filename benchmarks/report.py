"""What every benchmark shares: rows, a table with ratios, a JSON file with machine and date.

A row is one figure of one system on one subject. Rows of the same subject are compared: the
first system of a subject is ours, and `ratio` is ours over theirs, so below 1 is better for
times and above 1 for rates.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

import holdfast
from holdfast.topology import Topology
from holdfast.topology.render import words

# A run goes here; one that is quoted is copied to benchmarks/results/ and committed.
RUNS = Path(__file__).parents[1] / "out" / "benchmarks"


@dataclass(frozen=True)
class Row:
    """`value` of `system` on `subject`."""

    subject: str
    system: str
    value: float
    unit: str
    remark: str = ""


def median_ms(work: Callable[[], object], repeats: int = 7) -> float:
    """The median time of `work`, after one call to warm up."""
    work()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append((time.perf_counter() - start) * 1000)
    return statistics.median(times)


def best_us(
    work: Callable[[], object],
    count: int,
    repeats: int,
    clock: Callable[[], float] = time.process_time,
) -> float:
    """Microseconds for one call; the best of several, which is the least disturbed."""
    best = float("inf")
    for _ in range(repeats):
        start = clock()
        for _ in range(count):
            work()
        best = min(best, (clock() - start) / count * 1e6)
    return best


def arguments(name: str, about: str) -> argparse.Namespace:
    """The options all benchmarks have."""
    parser = argparse.ArgumentParser(description=about)
    default = RUNS / f"{name}.json"
    parser.add_argument("--out", type=Path, default=default, help=f"JSON file (default {default})")
    return parser.parse_args()


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
        written.append(asdict(row) | {"ratio": ratio})
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
        "rows": written,
        **more,
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(document, indent=1) + "\n")
    Console(stderr=True).print(f"results: {out}")

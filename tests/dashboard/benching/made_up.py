"""Rows, reports and benchmark scripts that are made up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from holdfast.dashboard.bench.catalog import Benchmark
from holdfast.dashboard.bench.document import Machine, Report, Row, Table, Version

HERE = Machine("box · Linux 6.1 · x86_64 · 64 GB", "A Processor", 8, ("NVIDIA Card",))
TABLE = Table(
    "pool",
    "what the pool costs",
    date="2026-11-16T18:50:23+00:00",
    took_s=12.3,
    quick=False,
    rows=(
        Row("pair, 4 KB", "holdfast", 2.0, "ms", "no faults", low=1.9, high=2.1, ours=True),
        Row("pair, 4 KB", "holdfast, Python", 8.0, "ms", ours=True),
        Row("pair, 4 KB", "torch.empty", 3.0, "ms", low=2.9, high=3.2),
        Row("copy", "holdfast", 10.0, "GB/s", ours=True),
        Row("copy", "torch.empty", 20.0, "GB/s"),
        Row("copy", "aimdo", None, "GB/s", "does not start"),
    ),
    versions=(Version("torch", "2.13.0"),),
)


def report(
    *tables: Table, machine: Machine = HERE, date: str = "2026-11-16T18:00:00+00:00"
) -> Report:
    """A report of these tables; of one where there are none."""
    return Report(machine, date, "0.1.0", tables or (TABLE,), (Version("python", "3.11.7"),))


def benchmark(name: str, **more: Any) -> Benchmark:
    """A benchmark that needs nothing."""
    given = {"modules": {}, "times_s": (1.0, 1.0), "rows": (2, 2)}
    return Benchmark(name, f"what {name} measures", **(given | more))


# What every script here begins with: the protocol of benchmarks/report.py, by hand.
HEAD = """
import json, os, signal, subprocess, sys, time
out = sys.argv[sys.argv.index("--out") + 1]
rows = []
def row(subject, system, value):
    rows.append({"subject": subject, "system": system, "value": value, "unit": "ms", "remark": ""})
    with open(os.environ["BENCH_ROWS"], "a") as file:
        file.write(json.dumps(rows[-1]) + "\\n")
def publish():
    machine = {"about": "box", "cpu": None, "cpus": 1, "gpus": []}
    document = {"benchmark": "made up", "date": "2026-11-16T18:00:00+00:00", "machine": machine,
                "rows": rows, "versions": {"torch": "2.13.0"}, "quick": "--quick" in sys.argv}
    with open(out, "w") as file:
        json.dump(document, file)
"""


def script(folder: Path, name: str, body: str) -> Benchmark:
    """A benchmark of this name whose script does `body`."""
    (folder / "report.py").touch()
    made = benchmark(name)
    (folder / made.script).write_text(HEAD + body)
    return made


GOOD = """
row("s", "holdfast", 1.0)
row("s", "torch", 2.0)
publish()
"""

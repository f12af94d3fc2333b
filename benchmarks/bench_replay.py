"""How much memory each allocator takes for what full-size models ask for.

Every trace of benchmarks/traces/ (record_traces.py makes them) goes through our pool, our plan mode
and simulators of torch's CUDA allocator, RMM's pool and Genesis' buckets; their rules stand in
holdfast/memory/plan/simulators.py. The figure is the peak taken from the system over the most bytes
alive at once: 1.0 wastes nothing. Time for one block (asking and freeing) is given for ours alone,
since the others are simulated.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from report import Row, arguments, exact, middle, publish

from holdfast.base.config import Config
from holdfast.memory.core import pool_core
from holdfast.memory.plan.replay import (
    PLAN,
    POOL,
    Outcome,
    Requests,
    compare,
    replay,
    requests,
)
from holdfast.memory.pools.pool import Pool
from holdfast.memory.profile.recording import SUFFIX, Recording
from holdfast.memory.resources.resource import Virtual
from holdfast.topology import discover

TRACES = Path(__file__).parent / "traces"
# In the order of the documents.
ORDER = ("flux", "sdxl", "sdxl_12_sizes", "flux_train", "sdxl_train", "kv_cat")
QUICK = ("flux", "sdxl")
TARGETS = {POOL: 1.20, PLAN: 1.02}


def rows_of(name: str, outcomes: list[Outcome]) -> list[Row]:
    """The ratio of each allocator on one trace."""
    return [
        Row(name, one.name, exact(one.ratio), "x", f"{one.peak_reserved_bytes / 1e6:,.1f} MB")
        for one in outcomes
    ]


def times_of(name: str, wanted: Requests, repeats: int = 5) -> list[Row]:
    """Nanoseconds for one block in our pool: with the core that was chosen, and with Python's."""
    pools = {
        POOL: lambda: Pool(Virtual()),
        f"{POOL}, Python": lambda: Pool(Virtual(), core=pool_core),
    }
    rows = []
    for system, pool in pools.items():
        times = [replay(wanted, pool()).request_ns for _ in range(repeats)]
        rows.append(Row(f"{name}, a block", system, middle(times), "ns"))
    return rows


def trace(name: str) -> tuple[list[Row], list[Row], dict[str, Any], list[str]]:
    """Ratios, times, a description, and the targets that were missed."""
    recording = Recording.load(TRACES / f"{name}{SUFFIX}")
    wanted = requests(recording)
    outcomes = compare(wanted)
    plan = next(outcome for outcome in outcomes if outcome.name == PLAN)
    remark = f"made in {plan.prepare_seconds:.1f} s"
    times = [*times_of(name, wanted), Row(f"{name}, a block", PLAN, plan.request_ns, "ns", remark)]
    about = {
        "name": name,
        "title": recording.title,
        "blocks": len(wanted.sizes),
        "max_live_bytes": wanted.max_live_bytes,
        "notes": recording.notes,
    }
    missed = [
        f"{name}: {outcome.name} takes {outcome.ratio:.3f}, target {TARGETS[outcome.name]:.2f}"
        for outcome in outcomes
        if outcome.ratio > TARGETS.get(outcome.name, float("inf"))
    ]
    return rows_of(name, outcomes), times, about, missed


def main() -> None:
    args = arguments("replay", __doc__ or "")
    results = [trace(name) for name in (QUICK if args.quick else ORDER)]
    rows = [row for part in (0, 1) for result in results for row in result[part]]
    missed = [line for result in results for line in result[3]]
    traces = [result[2] for result in results]
    machine = discover(config=Config.load())
    more = {"quick": args.quick, "traces": traces, "missed": missed}
    publish("replay", rows, machine, args.out, **more)
    for line in missed or ["Every target is met."]:
        print(line)


if __name__ == "__main__":
    main()

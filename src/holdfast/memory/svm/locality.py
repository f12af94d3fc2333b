"""Metrics of a provider: local and remote pages, free memory, bandwidth, kernel counters.

Read only; a figure that is unknown is None or left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from holdfast.memory.svm.model import PAGE_BYTES, Layout, Metrics, Sample, Statistics, Where
from holdfast.topology.sysfs import read


def metrics(
    layout: Layout,
    found: Sequence[Where],
    cpus: tuple[int, ...],
    statistics: Statistics,
    history: tuple[Sample, ...],
) -> Metrics:
    """The metrics of the allocations whose pages are in `found`, used by `cpus`."""
    pages = sum((Counter(where.pages) for where in found), Counter[int]())
    local = _local(layout, pages, cpus)
    return Metrics(
        provider=layout.provider,
        pages=dict(sorted(pages.items())),
        untouched=sum(where.untouched for where in found),
        local_pages=local,
        remote_pages=None if local is None else pages.total() - local,
        page_bytes=PAGE_BYTES,
        verified=bool(found) and all(where.verified for where in found),
        cpus=cpus,
        free_bytes={d.id: d.free_bytes for d in layout.domains},
        bandwidth_gb_s=_bandwidth(layout),
        kernel=_kernel(layout),
        statistics=statistics,
        history=history,
        simulated=layout.simulated,
    )


def _local(layout: Layout, pages: Counter[int], cpus: Sequence[int]) -> int | None:
    """Pages local to the CPUs; None if no domain has CPUs.

    CPUs on several nodes count by their share: of 100 pages on a node with half of the CPUs, 50.
    """
    if not cpus or not any(d.cpus for d in layout.domains):
        return None
    shared = {d.id: len(set(d.cpus) & set(cpus)) / len(cpus) for d in layout.domains}
    return round(sum(pages[domain] * share for domain, share in shared.items()))


def _bandwidth(layout: Layout) -> dict[str, float]:
    measured = layout.topology.measurements if layout.topology else ()
    verbs = {"read": "{0.source} read by {0.target}", "write": "{0.target} written by {0.source}"}
    return {
        verbs.get(m.mode, "{0.source} to {0.target}, {0.mode}").format(m): m.bandwidth_gb_s
        for m in measured
        if m.bandwidth_gb_s is not None
    }


def _kernel(layout: Layout) -> dict[int, dict[str, int]]:
    found: dict[int, dict[str, int]] = {}
    for domain in layout.domains if not layout.simulated else ():
        number = domain.name.partition("node:")[2]
        lines = (read(Path(f"/sys/devices/system/node/node{number}/numastat")) or "").splitlines()
        pairs = (line.split() for line in lines)
        counters = {name: int(count) for name, count in pairs}
        if number and counters:
            found[domain.id] = counters
    return found

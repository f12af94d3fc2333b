"""Metrics of a provider: local and remote pages, free memory, bandwidth, kernel counters.

Read only; a figure that is unknown is None or left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.base.errors import UseAfterFree
from holdfast.memory.svm.model import PAGE_BYTES, Layout, Metrics, Where
from holdfast.topology.sysfs import read

if TYPE_CHECKING:
    from holdfast.memory.svm.allocation import Allocation
    from holdfast.memory.svm.interface import Provider


def metrics(provider: Provider, handle: Allocation | None) -> Metrics:
    """The metrics of one allocation of `provider`, or of all of them."""
    handles = provider.ledger.handles() if handle is None else [handle]
    layout = provider.discover()
    found = list(_where(provider, handles, named=handle is not None))
    pages = sum((Counter(where.pages) for where in found), Counter[int]())
    cpus = _cpus(provider, layout, handle)
    local = _local(layout, pages, cpus)
    return Metrics(
        provider=provider.name,
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
        statistics=provider.statistics(),
        history=tuple(provider.ledger.history),
        simulated=provider.simulated,
    )


def _where(provider: Provider, handles: list[Allocation], *, named: bool) -> Iterator[Where]:
    for handle in handles:
        try:
            yield provider.where(handle)
        except UseAfterFree:  # another thread freed it just now
            if named:
                raise


def _cpus(provider: Provider, layout: Layout, handle: Allocation | None) -> tuple[int, ...]:
    """The CPUs that run the work; in a simulated machine, those of the placement."""
    if not layout.simulated:
        return provider.running_on()
    if handle is not None:
        return handle.placement.cpus
    return next((d.cpus for d in layout.domains if d.cpus), ())


def _local(layout: Layout, pages: Counter[int], cpus: Sequence[int]) -> int | None:
    """Pages local to the CPUs; None if no domain has CPUs.

    CPUs on several nodes count by their share: of 100 pages on a node with half of the CPUs, 50.
    """
    if not cpus or not any(d.cpus for d in layout.domains):
        return None
    shared = {d.id: len(set(d.cpus) & set(cpus)) / len(cpus) for d in layout.domains}
    return round(sum(pages[domain] * share for domain, share in shared.items()))


def _bandwidth(layout: Layout) -> dict[str, float]:
    """The bandwidths that `topology.measure` stored for this machine."""
    measured = layout.topology.measurements if layout.topology else ()
    verbs = {"read": "{0.source} read by {0.target}", "write": "{0.target} written by {0.source}"}
    return {
        verbs.get(m.mode, "{0.source} to {0.target}, {0.mode}").format(m): m.bandwidth_gb_s
        for m in measured
        if m.bandwidth_gb_s is not None
    }


def _kernel(layout: Layout) -> dict[int, dict[str, int]]:
    """Hits and misses by node since the machine was started (numastat)."""
    found: dict[int, dict[str, int]] = {}
    for domain in layout.domains if not layout.simulated else ():
        number = domain.name.partition("node:")[2]
        lines = (read(Path(f"/sys/devices/system/node/node{number}/numastat")) or "").splitlines()
        pairs = (line.split() for line in lines)
        counters = {name: int(count) for name, count in pairs}
        if number and counters:
            found[domain.id] = counters
    return found

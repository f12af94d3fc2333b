"""How memory lies in the machine: local and remote pages, free memory, bandwidth, counters.

Promise: only looks; a figure nobody knows is None or not there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.base.errors import UseAfterFree
from holdfast.memory.svm.model import PAGE_BYTES, Domain, Layout, Metrics, Where
from holdfast.topology.sysfs import read

if TYPE_CHECKING:
    from holdfast.memory.svm.allocation import Allocation
    from holdfast.memory.svm.interface import Provider


def metrics(provider: Provider, handle: Allocation | None) -> Metrics:
    """The metrics of one allocation of `provider`, or of all of them."""
    handles = provider.ledger.handles() if handle is None else [handle]
    layout = provider.discover()
    places = list(_places(provider, handles, named=handle is not None))
    pages = sum((Counter(place.pages) for place in places), Counter[int]())
    cpus = _cpus(provider, layout, handle)
    local = _local(layout, pages, cpus)
    return Metrics(
        provider=provider.name,
        pages=dict(sorted(pages.items())),
        untouched=sum(place.untouched for place in places),
        local_pages=local,
        remote_pages=None if local is None else pages.total() - local,
        page_bytes=PAGE_BYTES,
        verified=bool(places) and all(place.verified for place in places),
        cpus=cpus,
        free_bytes={d.id: d.free_bytes for d in layout.domains},
        bandwidth_gb_s=_bandwidth(layout),
        kernel=_kernel(layout),
        statistics=provider.statistics(),
        history=tuple(provider.ledger.history),
        simulated=provider.simulated,
    )


def _places(provider: Provider, handles: list[Allocation], *, named: bool) -> Iterator[Where]:
    for handle in handles:
        try:
            yield provider.where(handle)
        except UseAfterFree:  # another thread gave it back just now
            if named:
                raise


def _cpus(provider: Provider, layout: Layout, handle: Allocation | None) -> tuple[int, ...]:
    """The CPUs that run the work; those of a made-up machine run none, so its plan counts."""
    if not layout.simulated:
        return provider.running_on()
    if handle is not None:
        return handle.placement.cpus
    return next((d.cpus for d in layout.domains if d.cpus), ())


def _local(layout: Layout, pages: Counter[int], cpus: Sequence[int]) -> int | None:
    """Pages beside the CPUs. Where these are on several nodes, what an access by any of them finds
    on average: of 100 pages on a node with half of the CPUs, 50.
    """
    if not cpus or not any(d.cpus for d in layout.domains):
        return None
    return round(sum(pages[d.id] * _share(d, cpus) for d in layout.domains))


def _share(domain: Domain, cpus: Sequence[int]) -> float:
    return len(set(domain.cpus) & set(cpus)) / len(cpus)


def _bandwidth(layout: Layout) -> dict[str, float]:
    """What `topology.measure` kept for this machine."""
    measured = layout.topology.measurements if layout.topology else ()
    verbs = {"read": "{0.source} read by {0.target}", "write": "{0.target} written by {0.source}"}
    return {
        verbs.get(m.mode, "{0.source} to {0.target}, {0.mode}").format(m): m.bandwidth_gb_s
        for m in measured
        if m.bandwidth_gb_s is not None
    }


def _kernel(layout: Layout) -> dict[int, dict[str, int]]:
    """Hits and misses of the nodes since the machine was started."""
    found: dict[int, dict[str, int]] = {}
    for domain in layout.domains if not layout.simulated else ():
        number = domain.name.partition("node:")[2]
        lines = (read(Path(f"/sys/devices/system/node/node{number}/numastat")) or "").splitlines()
        pairs = (line.split() for line in lines)
        counters = {name: int(count) for name, count in pairs}
        if number and counters:
            found[domain.id] = counters
    return found

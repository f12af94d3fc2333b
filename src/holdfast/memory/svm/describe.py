"""Text about layouts, allocations, migrations and metrics, for nodes and the command line.

Texts about a simulated machine begin with SIMULATED. MB and GB are powers of ten, MiB and GiB
powers of two. File names are escaped, so that they cannot control a terminal.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from holdfast.base.errors import HoldfastError
from holdfast.base.units import format_bytes
from holdfast.memory.svm.choice import Report
from holdfast.memory.svm.interface import Allocation, Provider
from holdfast.memory.svm.model import Domain, Layout, Metrics, Migration, Statistics, Where
from holdfast.memory.svm.process import Region
from holdfast.topology.render import words

SIMULATED = "SIMULATED: the machine is made up; nothing was measured or moved in hardware"


def layout_text(layout: Layout, reports: Sequence[Report] = ()) -> str:
    """The domains of a provider, and whether the other providers work."""
    count = len(layout.domains)
    lines = [f"provider {layout.provider}: {words.count(count, 'domain')}"]
    lines += _domains(layout)
    if reports:
        width = max(len(report.name) for report in reports)
        lines.append("providers, in the order they are tried:")
        for report in reports:
            reason = f": {report.reason}" if report.reason else ""
            lines.append(f"  {report.name:<{width}}  {report.status}{reason}")
    lines += [f"remark: {remark}" for remark in layout.remarks if not layout.simulated]
    return _text(lines, layout.simulated)


def allocation_text(handle: Allocation, *, threads: str | None = None) -> str:
    """Size, domains and reason of an allocation; `threads` replaces the text on thread binding."""
    placement = handle.placement
    named = ", ".join(map(str, placement.domains))
    lines = [
        f"allocated {format_bytes(handle.size, exact=True)} at {handle.address:#x} "
        f"by provider {handle.provider.name}",
        f"  placement: {placement.mode}, domain {named}",
        f"  reason: {placement.reason}",
        f"  pages: {where_text(handle.where())}",
        f"  threads: {threads or _threads(handle)}",
    ]
    return _text(lines, handle.provider.simulated)


def freed_text(handle: Allocation) -> str:
    """What was freed, and what its provider still has in use, if it can tell."""
    size = format_bytes(handle.size, exact=True)
    lines = [
        f"freed {size} at {handle.address:#x} of provider {handle.provider.name}",
        f"  in use now: {_in_use(handle.provider)}",
    ]
    return _text(lines, handle.provider.simulated)


def where_text(where: Where) -> str:
    """Pages by domain and how that is known, in one line."""
    parts = [f"{count} in domain {domain}" for domain, count in where.pages.items()]
    if where.untouched:
        parts.append(f"{where.untouched} never touched")
    parts += [f"{count} unknown ({reason})" for reason, count in where.unknown.items()]
    total = f"{where.total} of {format_bytes(where.page_bytes, exact=True)}"
    method = f" ({where.method})" if where.method else ""
    return f"{total}: {', '.join(parts) or 'none'}{method}"


def migration_text(migration: Migration) -> str:
    """The pages, bytes, time and bandwidth of a migration, what was not moved, and advice."""
    lines = [_describe_move(migration)]
    if migration.pages_elsewhere:
        left = words.count(migration.pages_elsewhere, "page")
        lines.append(f"  left alone: {left} outside of domain {migration.from_domain}")
    lines += [f"  not moved: {line}" for line in _left(migration.not_moved)]
    if migration.interrupted:
        lines.append("  stopped before the end; every page is intact, in one domain or the other")
    lines.append(f"  pages now: {where_text(migration.after)}")
    advice = _advice(migration)
    if advice:
        lines.append(f"  try: {advice}")
    return _text(lines, migration.simulated)


def metrics_text(metrics: Metrics) -> str:
    """Metrics, one per line."""
    lines = [
        f"provider {metrics.provider}: {statistics_text(metrics.statistics)}",
        f"  pages: {_pages(metrics)}",
        f"  local: {_local(metrics)}",
        f"  free: {_free(metrics)}",
        f"  bandwidth: {_bandwidth(metrics)}",
        f"  migrated: {format_bytes(metrics.statistics.migrated_bytes)} in "
        f"{words.count(metrics.statistics.migrations, 'migration')}",
    ]
    return _text(lines, metrics.simulated)


def statistics_text(statistics: Statistics) -> str:
    """Current, peak and total bytes in one line."""
    refused = f", {statistics.refused_count} refused" if statistics.refused_count else ""
    return (
        f"{format_bytes(statistics.current_bytes)} in "
        f"{words.count(statistics.current_count, 'allocation')}; "
        f"peak {format_bytes(statistics.peak_bytes)}, "
        f"total {format_bytes(statistics.total_bytes)}{refused}"
    )


def process_text(
    pid: int, found: Sequence[Region], where: Where, *, most: int | None = None
) -> str:
    """The memory of a process by node, then its mappings, at most `most` of them."""
    lines = [f"process {pid}: {format_bytes(where.total * where.page_bytes)} in memory"]
    lines += [
        f"  node {node}: {format_bytes(count * where.page_bytes)} ({count / where.total:.0%}), "
        f"{words.count(count, 'page')} of {format_bytes(where.page_bytes, exact=True)}"
        for node, count in where.pages.items()
    ]
    if not where.verified:
        lines.append(f"  not counted by node: {where.method}")
    used = [region for region in found if region.pages]
    shown = used if most is None else used[:most]
    lines += ["mappings, largest first:", *map(_region, shown)] if shown else []
    if len(shown) < len(used):
        rest = sum(region.resident_bytes for region in used[len(shown) :])
        lines.append(f"  and {len(used) - len(shown)} more with {format_bytes(rest)} (--all)")
    return "\n".join(lines)


def printable(text: str) -> str:
    """Escape non-printable characters (\\x1b); printable ones of any alphabet stay."""
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text
    )


def _text(lines: list[str], simulated: bool) -> str:
    return "\n".join([SIMULATED, *lines] if simulated else lines)


def _domains(layout: Layout) -> Iterator[str]:
    for domain in layout.domains:
        parts = [_room(domain)]
        parts.append(f"CPUs {words.ranges(domain.cpus)}" if domain.cpus else "no CPUs")
        if any(distance is not None for distance in domain.distances) and len(layout.domains) > 1:
            shown = ("?" if d is None else str(d) for d in domain.distances)
            parts.append(f"distances {' '.join(shown)} (10 is local)")
        kind = f", {domain.kind}" if domain.kind else ""
        yield f"  domain {domain.id} ({domain.name}{kind}): {', '.join(parts)}"


def _room(domain: Domain) -> str:
    known = domain.free_bytes is not None
    free = f"{format_bytes(domain.free_bytes or 0)} free" if known else "free unknown"
    total = "" if domain.total_bytes is None else f" of {format_bytes(domain.total_bytes)}"
    return free + total


def _region(region: Region) -> str:
    nodes = ", ".join(
        f"node {node} {format_bytes(count * region.page_bytes):>8}"
        for node, count in region.pages.items()
    )
    policy = "" if region.policy == "default" else f"  [{region.policy}]"
    return f"  {region.address:#014x}  {nodes}  {printable(region.name)}{policy}"


def _in_use(provider: Provider) -> str:
    try:
        return statistics_text(provider.statistics())
    except HoldfastError as exc:  # a library that cannot count; the memory is freed all the same
        return f"unknown: {exc.what}"


def _threads(handle: Allocation) -> str:
    grant = handle.provider.ledger.record(handle).grant
    if grant is None:
        return "not bound"
    count = "" if grant.bound_threads is None else f"{grant.bound_threads} "
    return f"{count}bound to CPUs {words.ranges(sorted(grant.cpus))} until it is freed"


def _describe_move(migration: Migration) -> str:
    source, target = migration.from_domain, migration.to_domain
    by = f"provider {migration.provider}"
    if source == target:
        return f"nothing to move: domain {source} is where it came from and where it goes ({by})"
    if not migration.pages_moved and not migration.not_moved and not migration.interrupted:
        return f"nothing to move: no page was in domain {source} ({by})"
    moved = f"moved {words.count(migration.pages_moved, 'page')}"
    size = format_bytes(migration.bytes_moved)
    return f"{moved} ({size}) from domain {source} to domain {target} by {by}{_speed(migration)}"


def _speed(migration: Migration) -> str:
    if migration.same_memory:
        return "; both are the same memory, so nothing was copied"
    if migration.bandwidth_gb_s is None:
        return ""
    speed = f": {migration.seconds * 1e3:.1f} ms, {migration.bandwidth_gb_s:.2f} GB/s"
    # A runtime may return before, or without, moving a byte.
    return speed if migration.after.verified else f"{speed} as reported by the runtime"


def _left(not_moved: dict[str, int]) -> Iterator[str]:
    for reason, count in not_moved.items():
        which = "it is intact where it was" if count == 1 else "they are intact where they were"
        yield f"{words.count(count, 'page')}, {reason}; {which}"


def _advice(migration: Migration) -> str | None:
    if migration.interrupted:
        return "migrate again for the rest"
    if not migration.not_moved:
        return None
    if any("no memory" in reason for reason in migration.not_moved):
        return "free memory in the target domain, then migrate again for the rest"
    return "migrate again; pages that are shared or in use stay until they are not"


def _pages(metrics: Metrics) -> str:
    how = "looked up page by page" if metrics.verified else "not looked up page by page"
    return where_text(
        Where(
            pages=metrics.pages,
            untouched=metrics.untouched,
            page_bytes=metrics.page_bytes,
            method=how if metrics.pages and not metrics.simulated else "",
        )
    )


def _local(metrics: Metrics) -> str:
    if metrics.local_pages is None or metrics.remote_pages is None:
        return "unknown: the domains of the provider have no CPUs"
    if metrics.local_ratio is None:
        return "no page is in use"
    return (
        f"{metrics.local_ratio:.0%} ({metrics.local_pages} pages local, "
        f"{metrics.remote_pages} remote) for CPUs {words.ranges(metrics.cpus)}"
    )


def _free(metrics: Metrics) -> str:
    shown = (
        f"domain {domain} {'unknown' if free is None else format_bytes(free)}"
        for domain, free in metrics.free_bytes.items()
    )
    return ", ".join(shown)


def _bandwidth(metrics: Metrics) -> str:
    measured = (f"{name} {speed:.1f} GB/s" for name, speed in metrics.bandwidth_gb_s.items())
    if metrics.bandwidth_gb_s:
        return ", ".join(measured)
    if metrics.simulated:
        return "none, the machine is made up"
    return "not measured (try: holdfast topo --measure)"

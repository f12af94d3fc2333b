"""Whole texts: they are what a person sees of shared virtual memory."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest

from holdfast.base.config import Config
from holdfast.base.errors import Unsupported
from holdfast.memory import svm
from holdfast.memory.svm import describe
from holdfast.memory.svm.affinity import Grant
from holdfast.memory.svm.process import Region, total
from holdfast.memory.svm.providers.simulated import SimulatedProvider

MADE_UP = "SIMULATED: the machine is made up; nothing was measured or moved in hardware\n"


@pytest.fixture
def provider() -> SimulatedProvider:
    return SimulatedProvider(Config.load(simulate="2x16GB,1x64GB:far"))


@pytest.fixture
def handle(provider: SimulatedProvider) -> Iterator[svm.Allocation]:
    with provider.alloc("4MiB") as made:
        yield made


def test_a_layout_lists_the_domains_and_how_providers_answered(provider) -> None:
    reports = (
        svm.Report("retryix", "unavailable", "no library is named"),
        svm.Report("numa", "available"),
        svm.Report("simulated", "chosen"),
    )
    assert describe.layout_text(provider.discover(), reports) == MADE_UP + (
        "provider simulated: 3 domains\n"
        "  domain 0 (node:0, dram): 16.0 GB free of 16.0 GB, CPUs 0-3, "
        "distances 10 20 30 (10 is local)\n"
        "  domain 1 (node:1, dram): 16.0 GB free of 16.0 GB, CPUs 4-7, "
        "distances 20 10 30 (10 is local)\n"
        "  domain 2 (node:2, cxl): 64.0 GB free of 64.0 GB, no CPUs, "
        "distances 30 30 10 (10 is local)\n"
        "providers, in the order they are tried:\n"
        "  retryix    unavailable: no library is named\n"
        "  numa       available\n"
        "  simulated  chosen"
    )


def test_a_layout_says_what_is_unknown() -> None:
    domains = (svm.Domain(id=4, name="card"),)
    layout = svm.Layout(provider="vendor", domains=domains, remarks=("old driver",))
    assert describe.layout_text(layout) == (
        "provider vendor: 1 domain\n  domain 4 (card): free unknown, no CPUs\nremark: old driver"
    )


def test_an_allocation_tells_where_it_is_and_why(handle: svm.Allocation) -> None:
    assert describe.allocation_text(handle) == MADE_UP + (
        f"allocated 4MiB at {handle.address:#x} by provider simulated\n"
        "  placement: bind, domain 0\n"
        "  reason: node:0 has the most free memory of those beside the CPUs: 16.0 GB\n"
        "  pages: 1024 of 4KiB: 1024 in domain 0 (recorded by the simulation)\n"
        "  threads: not bound"
    )


def test_an_allocation_tells_which_threads_are_bound_for_it(provider, handle) -> None:
    provider.ledger.record(handle).grant = Grant(frozenset({0, 1, 2, 5}), bound=3)
    bound = describe.allocation_text(handle).splitlines()[-1]
    provider.ledger.record(handle).grant = None
    assert bound == "  threads: 3 bound to CPUs 0-2,5 until it is freed"


def test_threads_that_nobody_counted_are_not_called_none(provider, handle) -> None:
    provider.ledger.record(handle).grant = Grant(frozenset({7}), bound=None)
    bound = describe.allocation_text(handle).splitlines()[-1]
    provider.ledger.record(handle).grant = None
    assert bound == "  threads: bound to CPUs 7 until it is freed"


def test_interleaved_memory_names_every_domain(provider) -> None:
    with provider.alloc("3MB", domain=[0, 2], mode="interleave") as handle:
        assert describe.allocation_text(handle).splitlines()[2:5] == [
            "  placement: interleave, domain 0, 2",
            "  reason: node:0 and node:2 were asked for",
            "  pages: 733 of 4KiB: 367 in domain 0, 366 in domain 2 (recorded by the simulation)",
        ]


def test_memory_that_was_given_back_leaves_the_counters(provider) -> None:
    handle = provider.alloc("4MiB")
    handle.free()
    assert describe.freed_text(handle) == MADE_UP + (
        f"freed 4MiB at {handle.address:#x} of provider simulated\n"
        "  in use now: 0 B in 0 allocations; peak 4.2 MB, total 4.2 MB"
    )


def test_memory_is_back_also_where_nobody_can_count(provider, monkeypatch) -> None:
    def broken() -> svm.Statistics:
        raise Unsupported("the library does not answer", expected="JSON")

    handle = provider.alloc("4MiB")
    handle.free()
    monkeypatch.setattr(provider, "statistics", broken)
    assert describe.freed_text(handle) == MADE_UP + (
        f"freed 4MiB at {handle.address:#x} of provider simulated\n"
        "  in use now: unknown: the library does not answer"
    )


def test_pages_that_are_nowhere_or_unknown_are_told() -> None:
    where = svm.Where(pages={0: 5, 1: 2}, untouched=3, unknown={"being written to disk": 1})
    assert describe.where_text(where) == (
        "11 of 4KiB: 5 in domain 0, 2 in domain 1, 3 never touched, 1 unknown "
        "(being written to disk)"
    )
    assert describe.where_text(svm.Where(pages={})) == "0 of 4KiB: none"


def test_a_made_up_migration_claims_no_speed(handle: svm.Allocation) -> None:
    assert describe.migration_text(handle.migrate(0, 2)) == MADE_UP + (
        "moved 1024 pages (4.2 MB) from domain 0 to domain 2 by provider simulated\n"
        "  pages now: 1024 of 4KiB: 1024 in domain 2 (recorded by the simulation)"
    )


def test_a_migration_with_nothing_to_move_says_so(handle: svm.Allocation) -> None:
    assert describe.migration_text(handle.migrate(1, 2)) == MADE_UP + (
        "nothing to move: no page was in domain 1 (provider simulated)\n"
        "  left alone: 1024 pages outside of domain 1\n"
        "  pages now: 1024 of 4KiB: 1024 in domain 0 (recorded by the simulation)"
    )
    assert describe.migration_text(handle.migrate(0, 0)) == MADE_UP + (
        "nothing to move: domain 0 is where it came from and where it goes (provider simulated)\n"
        "  pages now: 1024 of 4KiB: 1024 in domain 0 (recorded by the simulation)"
    )


REAL = svm.Migration(
    provider="numa",
    from_domain=0,
    to_domain=1,
    pages_moved=1000,
    pages_elsewhere=1,
    not_moved={"no memory left on the target": 2, "shared with another process": 1},
    seconds=0.004096,
    after=svm.Where(pages={0: 3, 1: 1001}, method="move_pages, page by page", verified=True),
)


def test_what_was_not_moved_is_told_with_its_reason_and_advice() -> None:
    assert describe.migration_text(REAL) == (
        "moved 1000 pages (4.1 MB) from domain 0 to domain 1 by provider numa: 4.1 ms, 1.00 GB/s\n"
        "  left alone: 1 page outside of domain 0\n"
        "  not moved: 2 pages, no memory left on the target; they are intact where they were\n"
        "  not moved: 1 page, shared with another process; it is intact where it was\n"
        "  pages now: 1004 of 4KiB: 3 in domain 0, 1001 in domain 1 (move_pages, page by page)\n"
        "  try: free memory in the target domain, then migrate again for the rest"
    )


def test_a_migration_that_was_stopped_says_so() -> None:
    stopped = dataclasses.replace(REAL, not_moved={}, pages_elsewhere=0, interrupted=True)
    assert describe.migration_text(stopped) == (
        "moved 1000 pages (4.1 MB) from domain 0 to domain 1 by provider numa: 4.1 ms, 1.00 GB/s\n"
        "  stopped before the end; every page is intact, in one domain or the other\n"
        "  pages now: 1004 of 4KiB: 3 in domain 0, 1001 in domain 1 (move_pages, page by page)\n"
        "  try: migrate again for the rest"
    )


def test_a_speed_that_only_a_runtime_vouches_for_is_called_that() -> None:
    told = dataclasses.replace(
        REAL, not_moved={}, after=svm.Where(pages={1: 1000}, method="where they were last sent")
    )
    assert describe.migration_text(told).splitlines()[0] == (
        "moved 1000 pages (4.1 MB) from domain 0 to domain 1 by provider numa: 4.1 ms, 1.00 GB/s "
        "as reported by the runtime"
    )


def test_metrics_tell_local_pages_free_memory_and_counters(provider, handle) -> None:
    handle.migrate(0, 1)
    assert describe.metrics_text(provider.metrics(handle)) == MADE_UP + (
        "provider simulated: 4.2 MB in 1 allocation; peak 4.2 MB, total 4.2 MB\n"
        "  pages: 1024 of 4KiB: 1024 in domain 1\n"
        "  local: 0% (0 pages local, 1024 remote) for CPUs 0-3\n"
        "  free: domain 0 16.0 GB, domain 1 16.0 GB, domain 2 64.0 GB\n"
        "  bandwidth: none, the machine is made up\n"
        "  migrated: 4.2 MB in 1 migration"
    )


def test_metrics_of_nothing_claim_nothing(provider) -> None:
    metrics = dataclasses.replace(
        provider.metrics(), simulated=False, local_pages=None, free_bytes={0: None}
    )
    assert describe.metrics_text(metrics) == (
        "provider simulated: 0 B in 0 allocations; peak 0 B, total 0 B\n"
        "  pages: 0 of 4KiB: none\n"
        "  local: unknown: the domains of the provider have no CPUs\n"
        "  free: domain 0 unknown\n"
        "  bandwidth: not measured (try: holdfast topo --measure)\n"
        "  migrated: 0 B in 0 migrations"
    )
    measured = dataclasses.replace(metrics, bandwidth_gb_s={"node:0 read by node:1": 11.24})
    assert "  bandwidth: node:0 read by node:1 11.2 GB/s" in describe.metrics_text(measured)


def test_refusals_are_counted() -> None:
    provider = SimulatedProvider(Config.load(simulate="1x1GB"))
    with pytest.raises(MemoryError):
        provider.alloc("2GB")
    assert describe.statistics_text(provider.statistics()) == (
        "0 B in 0 allocations; peak 0 B, total 0 B, 1 refused"
    )


def test_a_process_is_shown_by_node_then_by_mapping() -> None:
    found = [
        Region(address=0x7F0000000000, length=8192000, name="anonymous", policy="bind:0-1",
               pages={0: 1000, 1: 1000}),
        Region(address=0x550000001000, length=409600, name="[heap]", policy="default",
               pages={1: 100}),
        Region(address=0x560000000000, length=4096, name="/bin/x", policy="default", pages={2: 1}),
    ]  # fmt: skip
    assert describe.process_text(7, found, total(found), most=2) == (
        "process 7: 8.6 MB in memory\n"
        "  node 0: 4.1 MB (48%), 1000 pages of 4KiB\n"
        "  node 1: 4.5 MB (52%), 1100 pages of 4KiB\n"
        "  node 2: 4.1 KB (0%), 1 page of 4KiB\n"
        "mappings, largest first:\n"
        "  0x7f0000000000  node 0   4.1 MB, node 1   4.1 MB  anonymous  [bind:0-1]\n"
        "  0x550000001000  node 1   410 KB  [heap]\n"
        "  and 1 more with 4.1 KB (--all)"
    )


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("/tmp/\x1b[2J\x07 x", r"/tmp/\x1b[2J\x07 x"),
        ("/tmp/a\r\x9b0m\n", r"/tmp/a\r\x9b0m\n"),
        ("/tmp/\u202egpj.exe", r"/tmp/\u202egpj.exe"),
        ("/tmp/Füße/图 (deleted)", "/tmp/Füße/图 (deleted)"),
        ("/tmp/\udcff", r"/tmp/\udcff"),
    ],
    ids=["escape", "controls", "right to left", "printable", "not UTF-8"],
)
def test_the_name_of_a_file_cannot_steer_the_terminal(name: str, shown: str) -> None:
    found = [Region(address=0x1000, length=4096, name=name, policy="default", pages={0: 1})]
    assert describe.process_text(7, found, total(found)).splitlines()[-1] == (
        f"  0x000000001000  node 0   4.1 KB  {shown}"
    )


def test_a_process_without_memory_of_its_own_has_nothing_to_show() -> None:
    assert describe.process_text(7, [], total([])) == "process 7: 0 B in memory"

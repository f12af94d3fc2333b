"""The policy over tables of cases and over made-up machines; doing it; the thread."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from holdfast import memory
from holdfast.base.config import Config
from holdfast.base.errors import BadInput, HoldfastError, InUse, OutOfMemory
from holdfast.memory.svm import Allocation
from holdfast.memory.svm.balance import REST_ROUNDS, Autobalance, look
from holdfast.memory.svm.model import PAGE_BYTES, Domain, Layout, Placement
from holdfast.memory.svm.policy import AllocationState, Proposal, home_of, low_bytes, propose
from holdfast.memory.svm.providers.simulated import SimulatedProvider
from holdfast.topology import numa
from holdfast.topology.model import Measurement, Topology
from tests.examples import examples
from tests.memory.svm.providers import NAMES, make
from tests.needs import needs

GB, MiB = 10**9, 1 << 20
NO_NUMA = None if numa.is_supported() else "there are no NUMA calls here"


def machine(text: str = "2x16GB,1x64GB:far") -> SimulatedProvider:
    return SimulatedProvider(Config.load(simulate=text))


def layout(*free: int | None, **more: Any) -> Layout:
    """Domains of 10 GB: the first two with CPUs 0-1 and 2-3, the others far and without."""
    count = len(free)
    return Layout(
        provider="a table",
        domains=tuple(
            Domain(
                id=n,
                name=f"node:{n}",
                total_bytes=10 * GB,
                free_bytes=free[n],
                cpus=(2 * n, 2 * n + 1) if n < 2 else (),
                distances=tuple(_distance(n, m) for m in range(count)),
            )
            for n in range(count)
        ),
        **more,
    )


def _distance(source: int, target: int) -> int:
    if source == target:
        return 10
    return 30 if max(source, target) > 1 else 20


def state(
    key: int, cpus: tuple[int, ...] = (), near: str | None = None, **pages: int
) -> AllocationState:
    """An allocation with so many pages of 1 MiB in node n: `state(1, n0=5)`."""
    by_domain = {int(name[1:]): count for name, count in pages.items()}
    placement = Placement(domains=tuple(by_domain), mode="bind", reason="for the test", near=near)
    return AllocationState(
        key=key,
        size=sum(by_domain.values()) * MiB,
        pages=by_domain,
        placement=placement,
        cpus=cpus,
        page_bytes=MiB,
    )


def moves(proposals: tuple[Proposal, ...]) -> list[tuple[int, int, int, int]]:
    return [(p.key, p.from_domain, p.to_domain, p.bytes // MiB) for p in proposals]


ROOMY = layout(8 * GB, 8 * GB, 8 * GB)
NEARLY = 500_000_000  # what a domain of 10 GB should keep free


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        ([], []),
        ([state(1, (0, 1), n0=10)], []),
        ([state(1, (0, 1), n1=10)], [(1, 1, 0, 10)]),
        ([state(1, (2,), n0=10)], [(1, 0, 1, 10)]),
        ([state(1, (0,), n0=5, n1=10, n2=20)], [(1, 2, 0, 20), (1, 1, 0, 10)]),
        ([state(1, (0,), n1=10), state(2, (0,), n1=30)], [(2, 1, 0, 30), (1, 1, 0, 10)]),
        ([state(1, (0, 2), n2=10)], []),
        ([state(1, (), n2=10)], []),
        ([state(1, (99,), n2=10)], []),
        ([state(1, (0,), near="node:1", n0=10)], [(1, 0, 1, 10)]),
        ([state(1, (0,), near="node:1", n1=10)], []),
        ([state(1, (0,), near="cpu:3", n0=10)], [(1, 0, 1, 10)]),
        ([state(1, (0,), near="gpu:0", n1=10)], []),
    ],
    ids=[
        "nothing is there",
        "all is local",
        "remote pages go beside the CPUs",
        "one CPU is enough to tell",
        "from every remote domain, largest first",
        "the larger allocation first",
        "CPUs on two nodes have no home",
        "nobody knows who uses it",
        "CPUs that are on no node",
        "what was asked for near a node goes there, not to the CPUs",
        "what is near its node stays",
        "what was asked for near a CPU goes there",
        "what was near a card that is gone stays",
    ],
)
def test_pages_go_beside_what_uses_them(
    states: list[AllocationState], expected: list[tuple[int, ...]]
) -> None:
    assert moves(propose(ROOMY, states)) == expected


def test_what_is_interleaved_was_spread_on_purpose_and_stays() -> None:
    placement = Placement(domains=(0, 1), mode="interleave", reason="for the test")
    spread = AllocationState(key=1, size=2, pages={0: 1, 1: 1}, placement=placement, cpus=(0, 1))
    assert home_of(ROOMY, spread) is None
    assert propose(ROOMY, [spread]) == ()


def test_pages_go_home_only_as_long_as_home_keeps_enough() -> None:
    three = [state(n, (0,), n1=1000 * n) for n in (1, 2, 3)]
    tight = layout(NEARLY + 4000 * MiB, 8 * GB)
    assert moves(propose(tight, three)) == [(3, 1, 0, 3000), (1, 1, 0, 1000)]
    short = layout(NEARLY + 4000 * MiB - 1, 8 * GB)
    assert moves(propose(short, three)) == [(3, 1, 0, 3000)]


@pytest.mark.parametrize(
    ("free", "states", "expected"),
    [
        ((NEARLY, 8 * GB), [state(1, n0=100)], []),
        ((NEARLY - 1, 8 * GB), [state(1, n0=100)], [(1, 0, 1, 100)]),
        ((0, 8 * GB), [state(1, n0=100), state(2, n0=300)], [(2, 0, 1, 300)]),
        ((0, 8 * GB, 9 * GB), [state(1, n0=100)], [(1, 0, 1, 100)]),
        ((0, 0, 9 * GB), [state(1, n0=100)], [(1, 0, 2, 100)]),
        ((0, NEARLY + 200 * MiB), [state(1, n0=100), state(2, n0=300)], [(1, 0, 1, 100)]),
        ((0, NEARLY), [state(1, n0=100)], []),
        ((0, None), [state(1, n0=100)], []),
        ((None, 8 * GB), [state(1, n0=100)], []),
        ((0, 8 * GB), [state(1, (0,), n0=100)], []),
        ((0, 8 * GB), [state(1, (0,), n0=900)], [(1, 0, 1, 900)]),
        ((0, 8 * GB), [state(1, (2,), n0=100)], [(1, 0, 1, 100)]),
        ((0, 8 * GB), [state(1, n1=100)], []),
        ((0, 0, 9 * GB), [state(1, n0=1, n1=2)], [(1, 0, 2, 1)]),
        ((0, 0, 9 * GB), [state(1, n0=1), state(2, n1=2)], [(1, 0, 2, 1), (2, 1, 2, 2)]),
        ((0, 0), [state(1, n0=1), state(2, n1=2)], []),
    ],
    ids=[
        "just enough is free",
        "a byte less is nearly full",
        "the largest goes",
        "to the nearest",
        "to the nearest with room",
        "the largest that has a place to go",
        "nowhere to go",
        "nobody knows what the other has",
        "nobody knows whether it is full",
        "it is local, and others filled the domain",
        "it is local, and we filled the domain",
        "it is remote, whoever filled the domain",
        "nothing of ours is there",
        "of one allocation only one part in a round",
        "one out of each full domain",
        "all are full",
    ],
)
def test_a_domain_that_is_nearly_full_gives_up_its_largest(
    free: tuple[int | None, ...], states: list[AllocationState], expected: list[tuple[int, ...]]
) -> None:
    assert moves(propose(layout(*free), states)) == expected


def test_a_small_domain_keeps_128_mib_and_a_large_one_a_twentieth() -> None:
    small = Domain(id=0, name="node:0", total_bytes=GB)
    assert low_bytes(small) == 128 * MiB
    assert low_bytes(Domain(id=0, name="node:0", total_bytes=100 * GB)) == 5 * GB
    assert low_bytes(Domain(id=0, name="node:0")) == 128 * MiB


def test_memory_of_a_gpu_is_no_place_to_put_things_away() -> None:
    full, card = layout(0, 8 * GB).domains
    card = Domain(id=1, name="node:1", kind="gpu", total_bytes=10 * GB, free_bytes=8 * GB)
    assert propose(Layout(provider="a table", domains=(full, card)), [state(1, n0=9)]) == ()


def test_a_move_counts_on_those_before_it() -> None:
    # Node 0 is nearly full; what goes home from it makes room, so nothing else has to leave.
    crowded = layout(NEARLY - 100 * MiB, 8 * GB)
    states = [state(1, (2,), n0=200), state(2, (0,), n0=900)]
    assert moves(propose(crowded, states)) == [(1, 0, 1, 200)]
    # What is ours there when the first has left would not be enough: the pressure is not ours.
    states = [state(1, (2,), n0=200), state(2, (0,), n0=250)]
    assert moves(propose(layout(0, 8 * GB), states)) == [(1, 0, 1, 200)]


def test_what_rests_is_not_moved() -> None:
    states = [state(1, (0,), n1=10), state(2, (0,), n1=30)]
    assert moves(propose(ROOMY, states, resting={2})) == [(1, 1, 0, 10)]
    assert propose(layout(0, 8 * GB), [state(1, n0=5)], resting=[1]) == ()


def test_reasons_give_the_figures() -> None:
    [near] = propose(ROOMY, [state(1, (0,), n1=1000)])
    assert near.reason == (
        "1.0 GB are on node:1 (distance 20), and the CPUs that use it are those of node:0 "
        "(distance 10), which has 8.0 GB free"
    )
    [asked] = propose(ROOMY, [state(1, near="cpu:3", n2=1000)])
    assert asked.reason == (
        "1.0 GB are on node:2 (distance 30), and CPU 3 is on node:1 (distance 10), which has "
        "8.0 GB free"
    )
    [full] = propose(layout(GB // 10, 8 * GB), [state(1, n0=1000)])
    assert full.reason == (
        "node:0 has 100 MB free, and should keep 500 MB; node:1 is the nearest with room for "
        "1.0 GB: it has 8.0 GB free"
    )


def test_the_gain_is_that_of_the_distances_where_nothing_was_measured() -> None:
    near, far = propose(ROOMY, [state(1, (0,), n1=9), state(2, (0,), n2=8)])
    assert [(p.gain, p.measured) for p in (near, far)] == [(2.0, False), (3.0, False)]
    [worse] = propose(layout(0, 8 * GB), [state(1, (0,), n0=900)])
    assert (worse.gain, worse.rule) == (0.5, "pressure")
    [unknown] = propose(layout(0, 8 * GB), [state(1, n0=9)])
    assert unknown.gain is None


def test_the_gain_is_that_of_the_bandwidths_where_they_were_measured() -> None:
    rates = {"node:0": 30.0, "node:1": 12.0}
    measured = tuple(
        Measurement(source=name, target="node:0", mode="read", bandwidth_gb_s=rate)
        for name, rate in rates.items()
    )
    known = layout(8 * GB, 8 * GB, topology=Topology(measurements=measured))
    [move] = propose(known, [state(1, (0,), n1=9)])
    assert (move.gain, move.measured) == (2.5, True)


# ---- over made-up machines

SIZES = st.integers(1, 40).map(lambda n: n * 10_000_000)
NODE = st.tuples(st.integers(2, 12), st.sampled_from(["", ":far", ":cpus=1"]))


@st.composite
def worlds(draw: st.DrawFn) -> tuple[SimulatedProvider, list[Allocation]]:
    """A machine of a few nodes, and allocations that came to lie anywhere in it."""
    nodes = draw(st.lists(NODE, min_size=2, max_size=4))
    provider = machine(",".join(f"1x{count * 100}MB{word}" for count, word in nodes))
    anywhere = st.integers(0, len(nodes) - 1)
    held = []
    for size in draw(st.lists(SIZES, min_size=3, max_size=10)):
        mode = draw(st.sampled_from(["bind", "bind", "preferred", "interleave"]))
        near = draw(st.none() | anywhere.map("node:{}".format))
        try:
            handle = provider.alloc(size, mode=mode, near=near)
            held.append(handle)
            handle.migrate(handle.placement.domains[0], draw(anywhere))
        except OutOfMemory:
            continue
    for domain in provider.discover().domains:
        left = draw(st.none() | st.integers(70, 140))
        more = (domain.free_bytes or 0) - (left or 0) * MiB
        if left is not None and more > 0:
            held.append(provider.alloc(more, domain=domain.id))
    return provider, held


def check_books(provider: SimulatedProvider, held: list[Allocation]) -> None:
    used = {d.id: 0 for d in provider.discover().domains}
    for handle in held:
        pages = handle.where().pages
        assert sum(pages.values()) == -(-handle.size // PAGE_BYTES)
        for domain, count in pages.items():
            used[domain] += count * PAGE_BYTES
    for domain in provider.discover().domains:
        assert domain.free_bytes == (domain.total_bytes or 0) - used[domain.id] >= 0


@pytest.mark.slow
@given(worlds())
@settings(max_examples=examples(25))
def test_moves_overfill_nothing_lose_nothing_and_come_to_an_end(
    world: tuple[SimulatedProvider, list[Allocation]],
) -> None:
    provider, held = world
    balance = memory.autobalance(provider=provider, apply=True)
    for handle in held:
        handle.view()[:8] = handle.generation.to_bytes(8, "little")
    quiet = 0
    for _ in range(100):
        before = {d.id: d.free_bytes or 0 for d in provider.discover().domains}
        done = balance.round()
        check_books(provider, held)
        assert all(o.status == "moved" for o in done.outcomes), balance.text()
        for domain in provider.discover().domains:
            least = min(before[domain.id], low_bytes(domain))
            assert (domain.free_bytes or 0) >= least, "a move brought a domain near full"
        for proposal in done.proposals:
            event(proposal.rule)
        quiet = 0 if done.proposals else quiet + 1
        if quiet > REST_ROUNDS:
            break
    assert quiet > REST_ROUNDS
    assert propose(provider.discover(), look(provider)) == ()
    for handle in held:
        assert handle.view()[:8] == handle.generation.to_bytes(8, "little")
        handle.free()


@given(worlds())
@settings(max_examples=examples(10))
def test_every_proposal_is_about_pages_that_are_there(
    world: tuple[SimulatedProvider, list[Allocation]],
) -> None:
    provider, held = world
    states = {s.key: s for s in look(provider)}
    assert set(states) == {handle.generation for handle in held}
    for p in propose(provider.discover(), list(states.values())):
        assert p.bytes == states[p.key].bytes_in(p.from_domain) > 0
        assert p.from_domain != p.to_domain
    for handle in held:
        handle.free()


# ---- looking and doing


def displaced(provider: SimulatedProvider, size: str = "64MB") -> Allocation:
    """An allocation that belongs to node 0 and is in node 1."""
    handle = provider.alloc(size, near="node:0")
    handle.migrate(0, 1)
    return handle


def test_without_apply_moves_are_only_proposed() -> None:
    provider = machine()
    handle = displaced(provider)
    balance = memory.autobalance(provider=provider)
    assert moves(balance.propose()) == [(1, 1, 0, 61)]
    assert balance.history == ()
    done = balance.round()
    assert (done.proposals, done.outcomes, done.moved_bytes) == (balance.propose(), (), 0)
    assert handle.domains == {1: 15625}
    assert balance.text() == (
        "simulated, a made-up machine: 1 round, moves are only proposed\n"
        "proposed: allocation 1, 64.0 MB from domain 1 to 0: 64.0 MB are on node:1 (distance 20), "
        "and node:0 was asked for (distance 10), which has 16.0 GB free; 2 times as near"
    )


def test_with_apply_they_are_done() -> None:
    provider = machine()
    handle = displaced(provider)
    balance = memory.autobalance(provider=provider, apply=True)
    [outcome] = balance.round().outcomes
    assert (outcome.status, outcome.why) == ("moved", None)
    assert outcome.migration is not None
    assert outcome.migration.simulated
    assert handle.domains == {0: 15625}
    assert balance.text().startswith(
        "simulated, a made-up machine: 1 round, 1 move of 64.0 MB\nmoved: allocation 1, "
    )
    balance.round()
    assert balance.text() == (
        "simulated, a made-up machine: 2 rounds, 1 move of 64.0 MB\n"
        "nothing to move in the last round"
    )
    assert [r.number for r in balance.history] == [1, 2]
    assert [r.moved_bytes for r in balance.history] == [64_000_000, 0]


def test_what_was_moved_stays_for_some_rounds() -> None:
    provider = machine()
    handle = displaced(provider)
    balance = memory.autobalance(provider=provider, apply=True)
    balance.round()
    handle.migrate(0, 1)  # somebody wants it there
    rounds = [balance.round() for _ in range(REST_ROUNDS + 1)]
    assert [len(r.proposals) for r in rounds] == [0] * REST_ROUNDS + [1]
    assert handle.domains == {0: 15625}


def test_a_round_moves_no_more_than_its_limit() -> None:
    provider = machine()
    sizes = ("64MB", "48MB", "32MB")
    handles = [displaced(provider, size) for size in sizes]
    balance = memory.autobalance(provider=provider, apply=True, limit_bytes="50MB")
    first = balance.round()
    assert [o.status for o in first.outcomes] == ["skipped", "moved", "skipped"]
    assert [o.why for o in first.outcomes] == [
        "64.0 MB after 0 B is more than the 50.0 MB that a round may move",
        None,
        "32.0 MB after 48.0 MB is more than the 50.0 MB that a round may move",
    ]
    assert [o.status for o in balance.round().outcomes] == ["skipped", "moved"]
    assert [h.domains.keys() for h in handles] == [{1}, {0}, {0}]


def test_what_is_freed_in_between_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    provider = machine()
    handles = [displaced(provider), displaced(provider)]
    balance = memory.autobalance(provider=provider, apply=True)
    real = provider.migrate

    def free_the_other(*arguments: Any, **options: Any) -> Any:
        if len(handles) == 2:
            handles.pop().free()
        return real(*arguments, **options)

    monkeypatch.setattr(provider, "migrate", free_the_other)
    done = balance.round()
    assert [(o.status, o.why) for o in done.outcomes] == [
        ("moved", None),
        ("skipped", "it was freed meanwhile"),
    ]


def test_what_is_freed_at_the_last_moment_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    provider = machine()
    handle = displaced(provider)
    balance = memory.autobalance(provider=provider, apply=True)
    real = provider.migrate

    def free_it(*arguments: Any, **options: Any) -> Any:
        handle.free()
        return real(*arguments, **options)

    monkeypatch.setattr(provider, "migrate", free_it)
    [outcome] = balance.round().outcomes
    assert (outcome.status, outcome.why) == ("skipped", "it was freed meanwhile")


def test_a_move_that_fails_is_kept_and_the_next_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    provider = machine()
    handles = [displaced(provider), displaced(provider, "32MB")]
    balance = memory.autobalance(provider=provider, apply=True)
    real = provider.migrate

    def refuse_one(handle: Allocation, *arguments: Any, **options: Any) -> Any:
        if handle is handles[0]:
            raise InUse("a view looks at it", expected="no view")
        return real(handle, *arguments, **options)

    monkeypatch.setattr(provider, "migrate", refuse_one)
    done = balance.round()
    assert [(o.status, o.why) for o in done.outcomes] == [
        ("failed", "a view looks at it\n  expected: no view"),
        ("moved", None),
    ]
    assert [h.domains.keys() for h in handles] == [{1}, {0}]
    assert balance.round().proposals == (), "what failed is tried again at once"


def test_room_that_is_gone_by_now_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    provider = machine("2x1GB")
    handle = displaced(provider)
    balance = memory.autobalance(provider=provider, apply=True)
    proposals = balance.propose()
    monkeypatch.setattr(balance, "propose", lambda: proposals)
    filler = provider.alloc("850MB", domain=0)
    [outcome] = balance.round().outcomes
    assert (outcome.status, outcome.why) == ("skipped", "node:0 has 150 MB free by now")
    assert handle.domains == {1: 15625}
    filler.free()


def test_an_allocation_that_is_being_moved_is_not_looked_at() -> None:
    provider = machine()
    handle = displaced(provider)
    seen: list[tuple[AllocationState, ...]] = []
    handle.migrate(1, 2, progress=lambda *_: seen.append(look(provider)))
    assert seen
    assert set(seen) == {()}
    assert [s.pages for s in look(provider)] == [{2: 15625}]


def test_a_round_that_breaks_off_is_in_the_history(monkeypatch: pytest.MonkeyPatch) -> None:
    provider = machine()
    first, second = displaced(provider), displaced(provider, "32MB")
    balance = memory.autobalance(provider=provider, apply=True)
    real = provider.migrate

    def interrupted(handle: Allocation, *arguments: Any, **options: Any) -> Any:
        if handle is second:
            raise KeyboardInterrupt
        return real(handle, *arguments, **options)

    monkeypatch.setattr(provider, "migrate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        balance.round()
    [done] = balance.history
    assert (done.error, done.moved_bytes, len(done.proposals)) == ("interrupted", 64_000_000, 2)
    assert (first.domains, second.domains) == ({0: 15625}, {1: 7813})
    monkeypatch.undo()
    assert moves(balance.propose()) == [(2, 1, 0, 30)]


@pytest.mark.parametrize("name", NAMES)
def test_every_provider_can_be_watched(name: str, request: pytest.FixtureRequest) -> None:
    provider = make(name, request)
    with provider.alloc(10 * PAGE_BYTES) as handle:
        balance = memory.autobalance(provider=provider, apply=True)
        done = balance.round()
        assert done.error is None
        assert all(o.status == "moved" for o in done.outcomes), balance.text()
        assert balance.propose() == ()
        assert handle.where().total >= 10
    assert look(provider) == ()


@needs(NO_NUMA)
def test_a_machine_with_one_node_has_nothing_to_propose() -> None:
    provider = memory.svm.provider("numa")
    if len(provider.discover().domains) != 1:
        pytest.skip("this machine has several nodes")
    allowed = os.sched_getaffinity(0)
    with provider.alloc("16MB") as handle, provider.alloc("1MB", set_affinity=True) as bound:
        states = {s.key: s for s in look(provider)}
        assert sum(states[handle.generation].pages.values()) == handle.size // PAGE_BYTES + 1
        expected = tuple(cpu for cpu in bound.placement.cpus if cpu in allowed)
        assert states[bound.generation].cpus == expected
        assert memory.autobalance(provider="numa", apply=True).round().proposals == ()


def test_the_provider_may_be_named_and_is_chosen_where_not(monkeypatch: pytest.MonkeyPatch) -> None:
    assert memory.autobalance(provider="simulated").provider.name == "simulated"
    monkeypatch.setenv("HOLDFAST_SIMULATE", "3x1GB")
    assert len(memory.autobalance().provider.discover().domains) == 3


# ---- the thread


def test_in_a_block_a_thread_looks_again_and_again() -> None:
    provider = machine()
    with memory.autobalance(provider=provider, apply=True, every_s=0.001) as balance:
        assert balance.running
        handle = displaced(provider)
        until(lambda: handle.domains == {0: 15625})
        until(lambda: len(balance.history) > 5)
        assert balance.start() is balance, "a second start does nothing"
        count = threading.active_count()
    assert not balance.running
    until(lambda: threading.active_count() == count - 1)


@pytest.mark.slow
def test_it_watches_while_threads_allocate_move_and_free() -> None:
    provider = machine("2x4GB,1x4GB:far")
    wrong: list[BaseException] = []

    def work(home: int) -> None:
        try:
            for n in range(60):
                handle = provider.alloc("20MB", near=f"node:{home}")
                handle.migrate(home, (home + 1 + n % 2) % 3)
                assert handle.where().total == 4883
                if n % 10 == 0:
                    until(lambda handle=handle: handle.domains == {home: 4883})
                until(lambda handle=handle: freed(handle))
        except BaseException as exc:  # noqa: BLE001  raised below
            wrong.append(exc)

    with memory.autobalance(provider=provider, apply=True, every_s=0.001) as balance:
        threads = [threading.Thread(target=work, args=(n % 3,)) for n in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert wrong == []
    assert not [r.error for r in balance.history if r.error]
    assert any(r.moved_bytes for r in balance.history)
    statistics = provider.statistics()
    assert (statistics.current_count, statistics.total_count) == (0, 360)
    assert [d.free_bytes for d in provider.discover().domains] == [4 * GB] * 3


def freed(handle: Allocation) -> bool:
    """Try to give it back, which cannot be while it is moved; whether it is now."""
    with contextlib.suppress(InUse):
        handle.free()
    return handle.freed


def test_without_a_pause_no_thread_is_started() -> None:
    count = threading.active_count()
    with memory.autobalance(provider=machine()) as balance:
        assert threading.active_count() == count
        assert not balance.running
    with pytest.raises(BadInput) as error:
        balance.start()
    assert str(error.value) == (
        "cannot start a thread without every_s\n"
        "  expected: seconds between two rounds\n"
        "  try: memory.autobalance(every_s=5)"
    )


def test_it_can_be_stopped_twice_and_started_again() -> None:
    balance = memory.autobalance(provider=machine(), every_s=100)
    for rounds in (1, 2):
        balance.start()
        until(lambda rounds=rounds: len(balance.history) == rounds)
        balance.stop()
        balance.stop()
    assert [r.number for r in balance.history] == [1, 2]


def test_stop_leaves_a_move_after_its_part_and_the_rest_goes_on_later() -> None:
    provider = machine()
    handle = displaced(provider, "64MiB")  # four parts
    balance = memory.autobalance(provider=provider, apply=True, every_s=100)
    record = provider.ledger.record(handle)
    real, begun, go_on = record.backing.move, threading.Event(), threading.Event()

    def slowly(*arguments: int) -> Any:
        begun.set()
        go_on.wait(60)
        return real(*arguments)

    record.backing.move = slowly  # type: ignore[method-assign]
    balance.start()
    assert begun.wait(60)
    threading.Timer(0.05, go_on.set).start()
    balance.stop()
    [outcome] = balance.history[0].outcomes
    assert (outcome.status, outcome.why) == ("partly", "autobalance was stopped")
    assert handle.domains == {0: 4096, 1: 12288}
    assert record.busy is None
    [rest] = balance.round().outcomes
    assert (rest.status, handle.domains) == ("moved", {0: 16384})


def test_what_goes_wrong_in_the_thread_is_kept_and_it_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    provider = machine()
    real, wrong = provider.discover, [ZeroDivisionError("of a vendor"), HoldfastError("of ours")]

    def discover(refresh: bool = False) -> Layout:
        if wrong:
            raise wrong.pop(0)
        return real(refresh)

    monkeypatch.setattr(provider, "discover", discover)
    with memory.autobalance(provider=provider, every_s=0.001) as balance:
        until(lambda: len(balance.history) >= 3)
    assert [r.error for r in balance.history[:3]] == [
        "ZeroDivisionError: of a vendor",
        "HoldfastError: of ours",
        None,
    ]
    wrong.append(HoldfastError("once more"))
    with pytest.raises(HoldfastError, match="once more"):
        balance.round()
    assert balance.text().endswith("the last round failed: HoldfastError: once more")


@pytest.mark.parametrize("pause", [0, -1, float("nan"), float("inf")])
def test_a_pause_that_is_none_is_refused(pause: float) -> None:
    with pytest.raises(BadInput) as error:
        Autobalance("simulated", every_s=pause)
    assert str(error.value) == (
        f"cannot look every {pause} s\n  expected: a number of seconds above 0, or None"
    )


def test_a_limit_that_is_none_is_refused() -> None:
    with pytest.raises(BadInput, match="cannot read 'much' as a size in bytes"):
        memory.autobalance(provider="simulated", limit_bytes="much")


FORGOTTEN = """
from holdfast import memory
balance = memory.autobalance(provider="simulated", apply=True, every_s=0.01)
held = balance.provider.alloc("64MB", near="node:0")
balance.start()
"""


@pytest.mark.slow
def test_a_program_that_forgets_to_stop_it_ends_all_the_same(script: Callable[..., str]) -> None:
    assert script(FORGOTTEN, timeout_s=60) == ""


INTERRUPTED = """
import sys, time
from holdfast import memory
provider = memory.svm.provider("simulated")
held = provider.alloc("1GB", near="node:0")
with memory.autobalance(provider=provider, apply=True, every_s=0.001) as balance:
    held.migrate(0, 1)
    try:
        print("ready", flush=True)
        time.sleep(60)
    finally:
        balance.stop()
        print(balance.running, held.freed, sum(held.domains.values()), flush=True)
"""


@pytest.mark.slow
def test_ctrl_c_ends_the_thread_and_leaves_the_memory_whole() -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with child:
        assert child.stdout is not None
        assert child.stderr is not None
        assert child.stdout.readline() == "ready\n"
        child.send_signal(signal.SIGINT)
        assert child.stdout.read() == "False False 244141\n"
        assert child.stderr.read().endswith("KeyboardInterrupt\n")
    assert child.returncode == -signal.SIGINT


def until(true: Callable[[], bool], seconds: float = 60) -> None:
    """Wait for another thread."""
    wait = threading.Event()
    for _ in range(int(seconds / 0.005)):
        if true():
            return
        wait.wait(0.005)
    raise AssertionError("it did not come to that")

from __future__ import annotations

import gc
import os
import signal
import threading
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.base.errors import ForeignPointer, Misuse, OutOfMemory
from holdfast.memory.plan.planned_allocator import Planned, StepPlan, _Arena
from holdfast.memory.pools.pool import Pool
from holdfast.memory.resources.resource import Virtual
from tests.examples import examples

KB = 1024


class Memory:
    """An upstream of real bytes that remembers what it allocated."""

    device = "cpu"
    base = 4096

    def __init__(self, most: int = 1 << 30) -> None:
        self.content = bytearray()
        self.most = most
        self.live: dict[int, int] = {}
        self.asked = 0
        self._spare: dict[int, list[int]] = {}

    def allocate(self, size: int) -> int:
        if sum(self.live.values()) + size > self.most:
            raise OutOfMemory("no room")
        self.asked += 1
        length = -(-max(size, 1) // 512) * 512
        spare = self._spare.get(length)
        address = spare.pop() if spare else self.base + len(self.content)
        if not spare and address == self.base + len(self.content):
            self.content.extend(bytes(length))
        self.live[address] = length
        return address

    def free(self, address: int) -> None:
        self._spare.setdefault(self.live.pop(address), []).append(address)

    def owns(self, address: int) -> bool:
        return address in self.live


def run(planned: Planned, sizes: list[int]) -> list[int]:
    """A step that keeps two blocks at a time; the addresses it got."""
    got: list[int] = []
    with planned.step():
        for number, size in enumerate(sizes):
            got.append(planned.allocate(size))
            if number:
                planned.free(got[-2])
        planned.free(got[-1])
    return got


SIZES = [4 * KB, 8 * KB, 2 * KB, 8 * KB, 4 * KB]


def test_a_step_that_repeats_is_served_from_one_block() -> None:
    memory = Memory()
    planned = Planned(memory)
    run(planned, SIZES)
    assert (planned.hits, planned.plans, len(memory.live)) == (0, 1, 1)
    asked = memory.asked
    first, second = run(planned, SIZES), run(planned, SIZES)
    assert memory.asked == asked
    assert first == second
    assert (planned.hits, planned.misses) == (10, 0)
    assert planned.plan_bytes == 12 * KB  # the largest two that live at once
    assert planned.live_blocks == 0


def test_the_block_takes_the_place_of_what_the_recorded_step_used() -> None:
    pool = Pool(Virtual())
    planned = Planned(pool)
    sizes = [3 << 20, 5 << 20, 2 << 20, 900 << 10]
    run(planned, sizes)
    run(planned, sizes)
    assert planned.plan_bytes == 8 << 20
    assert pool.reserved_bytes == 8 << 20


def test_what_is_asked_outside_of_a_step_comes_from_upstream() -> None:
    memory = Memory()
    planned = Planned(memory)
    run(planned, SIZES)
    address = planned.allocate(SIZES[0])
    assert memory.owns(address)
    planned.free(address)
    assert planned.hits == 0


def test_a_block_of_another_size_comes_from_upstream_and_the_others_do_not() -> None:
    memory = Memory()
    planned = Planned(memory)
    run(planned, SIZES)
    run(planned, [SIZES[0], 3 * KB, *SIZES[1:]])
    assert (planned.hits, planned.misses) == (5, 1)


def test_a_block_that_outlives_its_step_is_not_planned() -> None:
    memory = Memory()
    planned = Planned(memory)
    for number in range(3):
        with planned.step():
            kept = planned.allocate(4 * KB)
            planned.free(planned.allocate(4 * KB))
        assert memory.owns(kept)
        planned.free(kept)
        assert (planned.hits, planned.misses) == (number, 0)
    assert planned.plan_bytes == 4 * KB


def test_a_block_that_lives_longer_than_it_was_recorded_keeps_its_place() -> None:
    memory = Memory()
    planned = Planned(memory)
    run(planned, SIZES)
    with planned.step():
        late = planned.allocate(SIZES[0])
        others = [planned.allocate(size) for size in SIZES[1:]]
    assert planned.misses > 0
    places = sorted(zip([late, *others], SIZES, strict=True))
    assert all(a + size <= b for (a, size), (b, _) in pairwise(places))
    run(planned, SIZES)  # with all of them still alive
    assert planned.live_blocks == planned.hits
    for address in (late, *others):
        planned.free(address)
    assert planned.live_blocks == 0


def test_a_late_block_keeps_what_lies_in_the_middle_of_it() -> None:
    plan = StepPlan.of([(8 * KB, 0, 1), (4 * KB, 1, 3), (3 * KB, 2, 3)])
    assert plan.offsets == {8 * KB: (0,), 4 * KB: (0,), 3 * KB: (4 * KB,)}
    memory = Memory()
    planned = Planned(memory, plan)
    with planned.step():
        late = planned.allocate(8 * KB)
        assert memory.owns(planned.allocate(4 * KB))
        assert memory.owns(planned.allocate(3 * KB))
        assert (planned.hits, planned.misses) == (1, 2)
        planned.free(late)


def test_steps_that_differ_too_much_are_recorded_anew() -> None:
    memory = Memory()
    planned = Planned(memory)
    run(planned, SIZES)
    other = [1 * KB, 16 * KB, 1 * KB]
    run(planned, other)  # found nothing
    assert planned.plan is None
    assert planned.plan_bytes == 0
    run(planned, other)  # recorded
    run(planned, other)
    assert (planned.hits, planned.plans, planned.plan_bytes) == (3, 2, 17 * KB)
    assert len(memory.live) == 1


def test_steps_that_never_repeat_are_recorded_less_and_less_often() -> None:
    planned = Planned(Memory())
    for number in range(1, 200):
        run(planned, [number * KB, 2 * number * KB])
    assert planned.plans == 8


def test_steps_that_take_turns_keep_the_plan_of_one() -> None:
    planned = Planned(Memory())
    for _ in range(20):
        run(planned, SIZES)
        run(planned, [1 * KB, 16 * KB])
    assert planned.plans == 2
    assert planned.hits >= 17 * 2


def test_an_empty_step_says_nothing_about_the_plan() -> None:
    planned = Planned(Memory())
    run(planned, SIZES)
    for _ in range(5):
        with planned.step():
            pass
    run(planned, SIZES)
    assert planned.hits == 5


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_step_that_breaks_off_leaves_all_usable(error: type[BaseException]) -> None:
    planned = Planned(Memory())
    held: list[int] = []

    def broken() -> None:
        with planned.step():
            held.append(planned.allocate(SIZES[0]))
            raise error

    with pytest.raises(error):
        broken()
    assert planned.plans == 0  # half a step is no recording
    run(planned, SIZES)
    with pytest.raises(error):
        broken()
    run(planned, SIZES)
    for address in held:
        planned.free(address)
    assert planned.live_blocks == 0
    run(planned, SIZES)  # recorded anew: the block that was left stood in the way
    before = planned.hits
    run(planned, SIZES)
    assert planned.hits == before + 5


def test_a_step_within_a_step_is_refused() -> None:
    planned = Planned(Memory())
    with planned.step():
        with pytest.raises(Misuse) as caught, planned.step():
            pass
        planned.free(planned.allocate(5))
    assert str(caught.value) == (
        "a step began within a step\n"
        "  expected: one `with planned.step():` at a time, on one thread"
    )
    assert planned.plans == 1


def test_a_planned_block_cannot_be_freed_twice() -> None:
    planned = Planned(Memory())
    run(planned, SIZES)
    address = run(planned, SIZES)[0]
    with pytest.raises(ForeignPointer) as caught:
        planned.free(address)
    assert str(caught.value) == (
        f"there is no planned block at {address:#x}\n"
        "  expected: an address that allocate() returned and that was not freed since"
    )


def test_close_gives_the_block_back_once_nothing_lives_in_it() -> None:
    memory = Memory()
    planned = Planned(memory)
    run(planned, SIZES)
    with planned.step():
        held = planned.allocate(SIZES[0])
        planned.close()
        assert memory.owns(planned.allocate(SIZES[1]))
    assert planned.owns(held)
    assert planned.plan_bytes == 12 * KB
    planned.free(held)
    assert planned.plan_bytes == 0
    assert len(memory.live) == 1  # the block that came from upstream
    run(planned, SIZES)
    assert planned.plans == 1  # closed: nothing is recorded any more
    planned.close()


def test_without_room_for_a_plan_upstream_serves_all() -> None:
    memory = Memory(most=12 * KB)
    planned = Planned(memory)
    held = planned.allocate(1)  # 512 bytes: a step fits one by one, the plan does not
    with planned.step():
        for _ in range(2):
            planned.free(planned.allocate(11 * KB))
            planned.free(planned.allocate(10 * KB))
    assert planned.plans == 1
    planned.close()
    memory.most = 11 * KB
    tight = Planned(memory)
    with tight.step():
        block = tight.allocate(10 * KB)
        memory.most = 5 * KB
        tight.free(block)
    assert (tight.plans, tight.plan) == (0, None)
    memory.most = 1 << 20
    run(tight, SIZES)
    assert tight.plans == 0
    planned.free(held)


def test_a_plan_can_be_given() -> None:
    plan = StepPlan.of([(4 * KB, 0, 2), (8 * KB, 1, 3), (4 * KB, 2, 4), (KB, 3, None), (0, 3, 4)])
    assert plan.offsets[KB] == (-1,)
    assert plan.offsets[0] == (-1,)
    assert (plan.blocks, plan.size_bytes) == (3, 12 * KB)
    memory = Memory()
    planned = Planned(memory, plan)
    run(planned, [4 * KB, 8 * KB, 4 * KB])
    assert (planned.hits, memory.asked) == (3, 1)


def test_a_free_in_the_middle_of_a_request_takes_effect_after_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    planned = Planned(Memory())
    run(planned, SIZES)
    take = _Arena.take
    with planned.step():
        held = planned.allocate(SIZES[0])

        def interrupted(arena: _Arena, offset: int, size: int) -> int | None:
            planned.free(held)  # as a __del__ does
            assert planned.owns(planned.allocate(SIZES[2]))  # and one that asks: from upstream
            return take(arena, offset, size)

        monkeypatch.setattr(_Arena, "take", interrupted)
        block = planned.allocate(SIZES[1])
        monkeypatch.setattr(_Arena, "take", take)
        assert planned.live_blocks == 1
        planned.free(block)
    assert planned.live_blocks == 0


@pytest.mark.slow
def test_blocks_that_die_in_a_cycle_come_back() -> None:
    planned = Planned(Memory())

    class Holder:
        def __init__(self, size: int) -> None:
            self.me = self
            self.address = planned.allocate(size)

        def __del__(self) -> None:
            planned.free(self.address)

    threshold = gc.get_threshold()
    gc.set_threshold(1)  # in the middle of everything
    try:
        for _ in range(5):
            with planned.step():
                for size in SIZES * 20:
                    Holder(size)
            gc.collect()
    finally:
        gc.set_threshold(*threshold)
    gc.collect()
    assert planned.live_blocks == 0


@pytest.mark.slow
def test_threads_share_a_step_without_overlap() -> None:
    pool = Pool(Virtual())
    planned = Planned(pool)
    live: dict[int, int] = {}
    guard = threading.Lock()
    wrong: list[object] = []

    def work(seed: int) -> None:
        mine: list[int] = []
        try:
            for number in range(200):
                size = (1 + (seed + number) % 7) * KB
                address = planned.allocate(size)
                with guard:
                    if any(a < address + size and address < a + s for a, s in live.items()):
                        wrong.append((address, size))
                    live[address] = size
                mine.append(address)
                if len(mine) > 3 or number == 199:
                    for gone in mine if number == 199 else [mine.pop(0)]:
                        with guard:
                            del live[gone]
                        planned.free(gone)
        except BaseException as exc:
            wrong.append(exc)
            raise

    for _ in range(4):
        with planned.step():
            threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    assert not wrong
    assert planned.hits > 0
    assert planned.live_blocks == 0
    planned.close()
    assert pool.allocated_bytes == 0


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_fork_while_another_thread_allocates_leaves_both_usable() -> None:
    planned = Planned(Memory())
    run(planned, SIZES * 4)
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            planned.free(planned.allocate(SIZES[0]))

    thread = threading.Thread(target=work)
    with planned.step():
        thread.start()
        try:
            for _ in range(10):
                child = os.fork()
                if not child:
                    signal.alarm(20)  # a lock left locked would hang it
                    planned.free(planned.allocate(SIZES[1]))
                    os._exit(0)
                assert os.waitpid(child, 0)[1] == 0
        finally:
            stop.set()
            thread.join()
    assert planned.live_blocks == 0


Move = tuple[int, int]  # 0: ask for one of a few sizes; 1: free one
steps = st.lists(
    st.lists(st.tuples(st.integers(0, 1), st.integers(0, 9)), min_size=1, max_size=25),
    min_size=1,
    max_size=4,
)


@given(kinds=steps, order=st.lists(st.integers(0, 3), min_size=1, max_size=12), keep=st.booleans())
@settings(deadline=None, max_examples=examples(200))
def test_contents_survive_steps_that_vary(
    kinds: list[list[Move]], order: list[int], keep: bool
) -> None:
    memory = Memory()
    planned = Planned(memory, effort=2000)
    live: dict[int, tuple[int, int]] = {}
    count = 0

    def check_and_free(address: int) -> None:
        size, mark = live.pop(address)
        start = address - memory.base
        assert memory.content[start : start + size] == bytes([mark]) * size
        planned.free(address)

    for choice in order:
        with planned.step():
            for frees, number in kinds[choice % len(kinds)]:
                if frees and live:
                    check_and_free(list(live)[number % len(live)])
                    continue
                size = 300 * (1 + number)
                address = planned.allocate(size)
                count += 1
                start = address - memory.base
                memory.content[start : start + size] = bytes([count % 251]) * size
                live[address] = (size, count % 251)
                places = sorted((a, s) for a, (s, _) in live.items())
                assert all(a + s <= b for (a, s), (b, _) in pairwise(places))
            if not keep:
                for address in list(live):
                    check_and_free(address)
    for address in list(live):
        check_and_free(address)
    assert planned.live_blocks == 0
    planned.close()
    assert not memory.live

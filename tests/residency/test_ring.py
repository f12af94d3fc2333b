"""The ring: replayed byte by byte, with an owner for each."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.residency.stream.ring import ALIGNMENT, RingSlot, aligned, lay_out

PASSES = 3


@st.composite
def sequences(draw: st.DrawFn) -> list[tuple[int, int, int]]:
    """Stays in the order of their first uses; some stay open over many others."""
    stays: list[tuple[int, int, int]] = []
    first = 0
    for _ in range(draw(st.integers(1, 14))):
        first += draw(st.integers(0, 2))
        length = draw(st.sampled_from((0, 0, 0, 1, 2, 7)))
        stays.append((draw(st.integers(1, 9)), first, first + length))
    return stays


def needed(stays: list[tuple[int, int, int]]) -> int:
    """The most that is open at once."""
    last = max(end for _, _, end in stays)
    return max(sum(s for s, f, n in stays if f <= use <= n) for use in range(last + 1))


def test_sizes_are_rounded_up_to_what_kernels_like() -> None:
    assert [aligned(n) for n in (0, 1, ALIGNMENT, ALIGNMENT + 1)] == [
        0,
        ALIGNMENT,
        ALIGNMENT,
        2 * ALIGNMENT,
    ]


@given(sequences(), st.integers(0, 40))
def test_stays_that_overlap_in_time_never_overlap_in_memory(
    stays: list[tuple[int, int, int]], more: int
) -> None:
    slots = lay_out(stays, needed(stays) + more)
    if slots is None:
        return
    for i, (size, first, last) in enumerate(stays):
        a = slots[i]
        assert a.nbytes == size
        assert 0 <= a.offset <= a.offset + size <= needed(stays) + more
        for j in range(i):
            b, (_, other_first, other_last) = slots[j], stays[j]
            if first <= other_last and other_first <= last:
                assert a.offset + a.nbytes <= b.offset or b.offset + b.nbytes <= a.offset


@given(sequences(), st.integers(0, 40))
def test_whoever_waits_for_the_stays_it_names_takes_only_bytes_that_are_free(
    stays: list[tuple[int, int, int]], more: int
) -> None:
    ring_bytes = needed(stays) + more
    slots = lay_out(stays, ring_bytes)
    if slots is not None:
        replay(stays, slots, ring_bytes)


def replay(stays: list[tuple[int, int, int]], slots: list[RingSlot], ring_bytes: int) -> None:
    """Fill as early as `after` allows, and look at who owned each byte before."""
    count = len(stays)
    owner: list[int | None] = [None] * ring_bytes  # the number of a stay over all passes
    over = [-1] * count  # the latest stay of each that is over
    filled = 0

    def fill_ahead() -> None:
        nonlocal filled
        while filled < PASSES * count:
            slot = slots[filled % count]
            if not all(over[i] >= _latest_before(filled, i, count) for i in slot.after):
                return
            for byte in range(slot.offset, slot.offset + slot.nbytes):
                before = owner[byte]
                assert before is None or over[before % count] >= before
                owner[byte] = filled
            filled += 1

    last_use = max(end for _, _, end in stays)
    for number in range(PASSES):
        for use in range(last_use + 1):
            fill_ahead()
            for i, (size, first, last) in enumerate(stays):
                if first <= use <= last:
                    stay = number * count + i
                    assert filled > stay, "nobody will ever make room for it"
                    place = slots[i].offset
                    assert owner[place : place + size] == [stay] * size
            for i, (_, _, last) in enumerate(stays):
                if last == use:
                    over[i] = number * count + i


def _latest_before(number: int, index: int, count: int) -> int:
    """The number of the latest stay of `index` before stay `number`, found by looking."""
    return next(n for n in range(number - 1, number - count - 1, -1) if n % count == index)


@given(sequences())
def test_a_ring_with_room_for_every_stay_is_never_refused(
    stays: list[tuple[int, int, int]],
) -> None:
    assert lay_out(stays, sum(size for size, _, _ in stays)) is not None


def test_what_cannot_fit_is_none() -> None:
    assert lay_out([(10, 0, 1), (10, 1, 1)], 19) is None
    assert lay_out([(10, 0, 0)], 9) is None


def test_nothing_needs_no_ring() -> None:
    assert lay_out([], 0) == []


def test_a_stay_alone_waits_for_itself_in_the_pass_before() -> None:
    assert lay_out([(10, 0, 0)], 10) == [RingSlot(0, 10, (0,))]


def test_a_place_that_two_left_is_taken_when_both_are_over() -> None:
    slots = lay_out([(4, 0, 0), (4, 1, 1), (8, 2, 2)], 8)
    assert slots == [RingSlot(0, 4, (2,)), RingSlot(4, 4, (2,)), RingSlot(0, 8, (1, 0))]

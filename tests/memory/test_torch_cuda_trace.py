"""Events of torch's CUDA allocator among those of a recording."""

from __future__ import annotations

from holdfast.memory.profile.recording import Event, Kind, MemoryPlace, Recording
from holdfast.memory.profile.torch_cuda_trace import merge

POOL, TORCH = MemoryPlace("pool", "cuda:0", "mine"), MemoryPlace("torch", "cuda:0")


def theirs(*rows: tuple[int, Kind, int, int], started_s: float = 100.0) -> Recording:
    made = Recording(started_s=started_s, places_table=[TORCH])
    for time_ns, kind, address, size in rows:
        made.add(Event(time_ns, kind, address, size, 0, 0, 0))
    return made


def ours(*rows: tuple[int, Kind, int, int], tags: tuple[str, ...] = ()) -> Recording:
    made = Recording(started_s=100.0, places_table=[POOL], tags_table=["", *tags])
    for time_ns, kind, address, size in rows:
        made.add(Event(time_ns, kind, address, size, 0, 0, 0))
    return made


def test_events_are_put_in_order_of_time_whenever_each_began():
    mine = ours((10, Kind.ALLOC, 1, 512), (4_000_000_000, Kind.FREE, 1, 512))
    merge(mine, theirs((5, Kind.ALLOC, 9, 100), started_s=101.0))
    assert [(e.time_ns, e.address) for e in mine.events()] == [
        (10, 1),
        (1_000_000_005, 9),
        (4_000_000_000, 1),
    ]
    assert mine.places_table == [POOL, TORCH]


def test_events_from_before_are_at_the_beginning():
    mine = ours((10, Kind.ALLOC, 1, 512))
    merge(mine, theirs((5, Kind.ALLOC, 9, 100), started_s=99.0))
    assert [e.time_ns for e in mine.events()] == [0, 10]


def test_what_our_pools_took_from_torch_is_counted_once():
    mine = ours((1, Kind.RESERVE, 4096, 1 << 20), (2, Kind.ALLOC, 4096, 512))
    merge(
        mine,
        theirs(
            (1, Kind.ALLOC, 4096, 1 << 20),
            (3, Kind.ALLOC, 1 << 30, 77),
            (4, Kind.FREE, 4096, 1 << 20),
        ),
    )
    assert [block.size for block in mine.lifetimes()] == [512, 77]


def test_events_without_a_tag_get_the_one_of_their_time():
    mine = ours(tags=("text", "decode"))
    events = [(n, Kind.ALLOC, n, 100) for n in (5, 15, 25, 35)]
    merge(mine, theirs(*events), switches=[(10, 1), (20, 2), (30, 0)])
    assert [mine.tags_table[e.tag] for e in mine.events()] == ["", "text", "decode", ""]

from __future__ import annotations

import gc
import tempfile
import weakref
from typing import Any

import pytest

from holdfast.base.errors import InUse, OutOfMemory, UseAfterFree
from holdfast.memory.pools.memory_pool import MemoryPool
from holdfast.memory.pools.movable import Movable
from tests.memory.conftest import audit

KB, MB = 1 << 10, 1 << 20


def written(people: MemoryPool, size: int, pattern: int, **options: Any) -> Movable:
    """A movable block full of `pattern`."""
    made = people.allocate_movable(size, **options)
    with made as block:
        block.array()[:] = pattern
    return made


def content(movable: Movable) -> set[int]:
    with movable as block:
        return set(bytes(block.view()))


def test_a_handle_says_where_its_memory_is(people: MemoryPool) -> None:
    movable = people.allocate_movable("2MB")
    assert repr(movable) == "<Movable of 2.0 MB, in memory>"
    with movable:
        assert movable.place == "held"
    assert movable.spill() == 2_000_000
    assert movable.place == "on disk"
    movable.free()
    assert movable.place == "freed"
    with pytest.raises(UseAfterFree) as caught, movable:
        pass
    assert str(caught.value) == (
        "<Movable of 2.0 MB, freed> cannot be used\n  expected: one that was not freed"
    )


def test_what_was_spilled_comes_back_as_it_was(people: MemoryPool) -> None:
    movable = written(people, 17 * MB + 5, 7)
    assert movable.spill() == 17 * MB + 5
    assert audit(people.pool.core) == {}
    assert movable.spill() == 0
    assert content(movable) == {7}
    assert people.total_allocated == 17 * MB + 5


def test_a_handle_that_is_held_does_not_move(people: MemoryPool) -> None:
    hole = people.allocate(MB)
    movable = written(people, MB, 1)
    with movable as block:
        address = block.address
        del hole
        people.compact()
        assert movable.spill() == 0
        assert movable._block is block
        assert block.address == address
        with pytest.raises(InUse) as caught:
            movable.free()
    assert str(caught.value) == (
        "<Movable of 1.0 MB, held> cannot be freed\n  expected: one that is not in a `with` block"
    )


def test_an_array_that_was_kept_holds_the_memory_in_its_place(people: MemoryPool) -> None:
    hole = people.allocate(100 * KB)
    movable = written(people, 100 * KB, 1)
    with movable as block:
        array = block.array()
    del block, hole
    assert movable.spill() == 0
    people.compact()
    array[:] = 5
    assert content(movable) == {5}
    del array
    assert movable.spill() == 100 * KB


def test_compaction_moves_blocks_down_with_their_content(people: MemoryPool) -> None:
    holes: list[Any] = []
    movables = []
    for number in range(8):
        holes.append(people.allocate(100 * KB))
        movables.append(written(people, 100 * KB, number))
    holes.clear()
    people.compact()
    assert [content(movable) for movable in movables] == [{n} for n in range(8)]
    used = sorted(audit(people.pool.core))
    assert used[-1] - used[0] == 7 * 100 * KB, "they lie side by side"


def test_compaction_of_a_full_pool_makes_no_room(people: MemoryPool) -> None:
    people.set_limit(4 * MB)
    pressed: list[int] = []
    people.pool.on_pressure.append(lambda pool, size: pressed.append(size))
    first, second = written(people, 3 * MB // 2, 1), written(people, 3 * MB // 2, 2)
    people.compact()
    assert (first.place, second.place, pressed) == ("in memory", "in memory", [])
    assert (content(first), content(second)) == ({1}, {2})


def test_when_memory_runs_out_the_largest_are_spilled_first(people: MemoryPool) -> None:
    people.set_limit(8 * MB)
    small, large = written(people, 2 * MB, 1), written(people, 4 * MB, 2)
    keep = people.allocate(4 * MB)
    assert (small.place, large.place) == ("in memory", "on disk")
    del keep
    assert (content(small), content(large)) == ({1}, {2})


def test_what_may_not_be_spilled_is_not(people: MemoryPool) -> None:
    people.set_limit(4 * MB)
    movable = written(people, 3 * MB, 1, spill=False)
    with pytest.raises(OutOfMemory):
        people.allocate(3 * MB)
    assert movable.place == "in memory"


def test_a_full_disk_leaves_the_content_in_memory(
    people: MemoryPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full:
        closed = False

        def write(self, data: object) -> None:
            raise OSError(28, "No space left on device")

        def close(self) -> None:
            self.closed = True

    disk = Full()
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda **_: disk)
    movable = written(people, MB, 4)
    assert movable.spill() == 0
    assert disk.closed
    assert content(movable) == {4}


def test_a_disk_where_no_file_can_be_made_leaves_the_content_in_memory(
    people: MemoryPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(**_: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    movable = written(people, MB, 4)
    assert movable.spill() == 0
    assert content(movable) == {4}


def test_no_room_to_come_back_leaves_it_on_disk(people: MemoryPool) -> None:
    people.set_limit(4 * MB)
    movable = written(people, 3 * MB, 6)
    movable.spill()
    wall = people.allocate(3 * MB)
    with pytest.raises(OutOfMemory), movable:
        pass
    assert movable.place == "on disk"
    del wall
    assert content(movable) == {6}


def test_a_dropped_handle_gives_its_memory_back(people: MemoryPool) -> None:
    movable = written(people, MB, 1)
    del movable
    assert audit(people.pool.core) == {}


def test_a_dropped_handle_closes_its_file(people: MemoryPool) -> None:
    movable = written(people, MB, 1)
    movable.spill()
    file = movable._file
    assert file is not None
    del movable
    assert file.closed


def test_a_file_is_closed_quietly_when_it_is_garbage_together_with_its_handle(
    people: MemoryPool,
) -> None:
    cycle: list[Any] = [written(people, MB, 1)]
    cycle[0].spill()
    file = cycle[0]._file
    kept = [cycle]
    gc.collect()  # puts the file, which has a name here, before the handle, which has none
    cycle.append(cycle)
    gone, closed = weakref.ref(cycle[0]), weakref.ref(file)
    del cycle, file, kept
    gc.collect()  # an open file that goes warns, and a warning fails the test
    assert (gone(), closed()) == (None, None)


def test_an_interrupt_while_it_is_spilled_leaves_no_file_open(
    people: MemoryPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Interrupted:
        closed = False

        def write(self, data: object) -> None:
            raise KeyboardInterrupt

        def close(self) -> None:
            self.closed = True

    disk = Interrupted()
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda **_: disk)
    movable = written(people, MB, 4)
    with pytest.raises(KeyboardInterrupt):
        movable.spill()
    assert disk.closed
    assert content(movable) == {4}

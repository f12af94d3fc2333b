from __future__ import annotations

import threading
from types import ModuleType

import pytest

from holdfast.base.errors import BadInput
from holdfast.memory.core import tags
from holdfast.memory.core.stats import Counter
from holdfast.memory.core.tags import tag
from holdfast.memory.pools.memory_pool import MemoryPool
from holdfast.memory.pools.pool import Pool

pytestmark = pytest.mark.usefixtures("chosen")


@pytest.fixture
def tagged(chosen: ModuleType) -> MemoryPool:
    """A pool of the core that tags are counted by."""
    return MemoryPool(resource=Pool(core=chosen))


def test_a_tag_counts_what_is_allocated_inside(tagged: MemoryPool) -> None:
    before = tagged.allocate(7)
    with tag("vae") as vae:
        kept = tagged.allocate(1000)
        tagged.allocate(500)
        assert vae.counter == Counter(1000, 1500, 1500, 1, 2, 2)
    after = tagged.allocate(9)
    assert (vae.peak_bytes, vae.peak_count) == (1500, 2)
    assert (vae.allocated_bytes, vae.allocated_count) == (1500, 2)
    assert tags.counter("vae").current_bytes == 1000
    assert [info.tag for info in tagged.allocated_blocks.values()].count("vae") == 1
    del kept, before, after
    assert tags.counter("vae") == Counter(0, 1500, 1500, 0, 2, 2)
    assert tags.counters() == {"vae": tags.counter("vae")}


def test_a_tag_counts_what_the_tags_inside_it_count(tagged: MemoryPool) -> None:
    with tag("vae") as outer:
        tagged.allocate(100)
        with tag("decoder") as inner:
            block = tagged.allocate(1000)
    assert (outer.path, inner.path) == ("vae", "vae/decoder")
    assert (outer.peak_bytes, inner.peak_bytes) == (1000, 1000)
    assert (outer.allocated_bytes, inner.allocated_bytes) == (1100, 1000)
    (info,) = tagged.allocated_blocks.values()
    assert info.tag == "vae/decoder"
    del block
    assert tags.counter("vae").current_bytes == tags.counter("vae/decoder").current_bytes == 0


def test_one_name_in_two_places_is_two_tags(tagged: MemoryPool) -> None:
    with tag("a"), tag("x"):
        tagged.allocate(10)
    with tag("b"), tag("x"):
        tagged.allocate(20)
    assert tags.counter("a/x").total_bytes == 10
    assert tags.counter("b/x").total_bytes == 20
    assert tags.counter("x") == Counter()


def test_a_tag_used_again_has_peaks_of_its_own_and_common_totals(tagged: MemoryPool) -> None:
    with tag("step") as first:
        tagged.allocate(1000)
    with tag("step") as second:
        tagged.allocate(300)
    assert (first.peak_bytes, second.peak_bytes) == (1000, 300)
    assert (first.allocated_bytes, second.allocated_bytes) == (1000, 300)
    assert tags.counter("step") == Counter(0, 1000, 1300, 0, 1, 2)


def test_one_tag_object_may_be_used_again_and_inside_itself(tagged: MemoryPool) -> None:
    mine = tag("mine")
    for size in (10, 20):
        with mine:
            tagged.allocate(size)
        assert mine.allocated_bytes == size
    with mine, mine:
        tagged.allocate(30)
    block = tagged.allocate(1)
    (info,) = tagged.allocated_blocks.values()
    assert info.tag == "", "the tag before was not put back"
    assert tags.counter("mine/mine").total_bytes == 30
    del block


def test_an_error_inside_puts_the_tag_before_back(tagged: MemoryPool) -> None:
    with tag("outer"):
        with pytest.raises(KeyboardInterrupt), tag("inner"):
            raise KeyboardInterrupt
        block = tagged.allocate(5)
        (info,) = tagged.allocated_blocks.values()
        assert info.tag == "outer"
    outside = tagged.allocate(5)
    assert tagged.allocated_blocks[outside.address].tag == ""
    del block


def test_a_block_counts_for_its_tag_wherever_it_is_freed(tagged: MemoryPool) -> None:
    with tag("a"):
        block = tagged.allocate(100)
    with tag("b") as b:
        del block
    assert tags.counter("a").current_bytes == 0
    assert b.counter == Counter()


def test_each_thread_has_a_tag_of_its_own(tagged: MemoryPool) -> None:
    ready, seen = threading.Barrier(5), []

    def work(number: int) -> None:
        ready.wait()
        with tag(f"thread {number}") as mine:
            blocks = [tagged.allocate(100) for _ in range(200)]
            ready.wait()
            assert mine.counter.current_bytes == 20_000
            del blocks
        seen.append(mine.allocated_count)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    with tag("main") as main:
        for thread in threads:
            thread.start()
        ready.wait()
        ready.wait()
        for thread in threads:
            thread.join()
    assert seen == [200] * 4
    assert main.allocated_count == 0
    assert [tags.counter(f"thread {n}").current_bytes for n in range(4)] == [0] * 4


@pytest.mark.parametrize("name", ["", "a/b"])
def test_what_is_no_name_is_refused(name: str) -> None:
    with pytest.raises(BadInput) as caught:
        tag(name)
    assert str(caught.value) == (
        f"cannot use {name!r} as a tag\n  expected: some text without a slash"
    )


def test_too_many_tags_are_refused_and_the_tag_before_stays(
    tagged: MemoryPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tags, "_names", [""] * 4096)
    with pytest.raises(BadInput) as caught, tag("one more"):
        pass
    assert str(caught.value) == (
        "cannot use the tag 'one more': tag number 4096 below 0, of 4096\n"
        "  expected: a few thousand different tags at most\n"
        "  try: a tag for a kind of thing, not for each thing"
    )
    tagged.allocate(1)
    assert tags.counters() == {}


def test_events_carry_the_tag(tagged: MemoryPool, chosen: ModuleType) -> None:
    log = chosen.Log(depth=0)
    tagged.pool.core.watch(log, 0)
    with tag("vae"):
        block = tagged.allocate(10)
    del block
    kinds, numbers = log.columns()[1], memoryview(log.columns()[6]).cast("H")
    names = tags.names()
    assert [(kind, names[n]) for kind, n in zip(kinds, numbers, strict=True) if kind < 2] == [
        (0, "vae"),
        (1, "vae"),
    ]


def test_two_threads_in_one_tag_have_each_their_own_peak(tagged: MemoryPool) -> None:
    inside, done = threading.Event(), threading.Event()

    def second() -> None:
        with tags.tag("shared"):
            inside.set()
            done.wait(10)

    with tags.tag("shared") as first:
        block = tagged.allocate(50_000)
        del block
        thread = threading.Thread(target=second)
        thread.start()
        inside.wait(10)
    done.set()
    thread.join()
    assert first.peak_bytes == 50_000
    assert tags.counter("shared").peak_bytes == 50_000

from __future__ import annotations

import json

import pytest

from holdfast.memory.profile import lifetimes
from holdfast.memory.profile.recording import Event, Frame, Kind, Lifetime, MemoryPlace, Recording
from holdfast.memory.profile.report import MemoryShare, Report, format_ns
from tests.memory import samples
from tests.memory.samples import MS

LOAD = "/home/me/few.py:20 in load"
FORWARD = "/home/me/few.py:12 in forward"


def test_the_peak_is_the_most_that_was_alive_at_once() -> None:
    report = Report(samples.few())
    assert (report.peak_bytes, report.peak_ns) == (150, 30 * MS)
    assert (report.end_bytes, report.total_bytes) == (100, 150)
    assert report.rss_peak == (30 * MS, 900)


def test_the_blocks_at_a_time_are_those_begun_and_not_ended() -> None:
    report = Report(samples.few())
    assert [block.size for block in report.at(0)] == []
    assert [block.size for block in report.at(20 * MS)] == [100, 30]
    assert [block.size for block in report.at()] == [100, 30, 20]
    assert [block.size for block in report.at(40 * MS)] == [100, 20]
    assert [block.size for block in report.at(99 * MS)] == [100]
    assert [block.size for block in report.largest(2)] == [100, 30]


def test_a_peak_that_lasted_no_time_is_still_seen() -> None:
    made = Recording(places_table=[MemoryPlace("pool", "cpu")], duration_ns=9)
    made.add(Event(5, Kind.ALLOC, 1, 70, 0, 0, 0))
    made.add(Event(5, Kind.FREE, 1, 0, 0, 0, 0))
    report = Report(made)
    assert [block.size for block in report.at(report.peak_ns)] == [70]
    assert report.by_place() == [MemoryShare("pool cpu", 70, 1)]


def test_shares_are_added_up_by_line_tag_and_place() -> None:
    report = Report(samples.few())
    assert report.by_location() == [MemoryShare(LOAD, 100, 1), MemoryShare(FORWARD, 50, 2)]
    assert report.by_tag() == [MemoryShare("(no tag)", 100, 1), MemoryShare("vae", 50, 2)]
    assert report.by_place() == [
        MemoryShare("pool cuda:0 (weights)", 100, 1),
        MemoryShare("torch cpu", 50, 2),
    ]
    assert report.by_location(20 * MS) == [MemoryShare(LOAD, 100, 1), MemoryShare(FORWARD, 30, 1)]
    assert report.allocated_by_location() == [
        MemoryShare(LOAD, 100, 1),
        MemoryShare(FORWARD, 50, 2),
    ]
    assert report.left_by_location() == [MemoryShare(LOAD, 100, 1)]


def test_the_summary_is_a_page_of_text() -> None:
    assert (
        Report(samples.few()).summary()
        == """\
few.py
recorded  60.0 ms, 7 events, 3 blocks, 150 B allocated
peak      150 B in 3 blocks, 30.0 ms after the start
at end    100 B in 1 block
process   900 B resident at most, 30.0 ms after the start

at the peak, by tag
      100 B   67 %         1 block  (no tag)
       50 B   33 %        2 blocks  vae

at the peak, by place
      100 B   67 %         1 block  pool cuda:0 (weights)
       50 B   33 %        2 blocks  torch cpu

at the peak, by source line
      100 B   67 %         1 block  /home/me/few.py:20 in load
       50 B   33 %        2 blocks  /home/me/few.py:12 in forward

allocated in all, by source line
      100 B   67 %         1 block  /home/me/few.py:20 in load
       50 B   33 %        2 blocks  /home/me/few.py:12 in forward

still there at the end, by source line
      100 B  100 %         1 block  /home/me/few.py:20 in load

notes
  2 events were lost"""
    )


def test_past_ten_rows_the_rest_is_added_up() -> None:
    made = Recording(places_table=[MemoryPlace("pool", "cpu")])
    for number in range(12):
        made.stacks_table.append((Frame("a.py", number, "f"),))
        made.add(Event(number, Kind.ALLOC, number, 10 + number, number + 1, 0, 0))
    lines = Report(made).summary().splitlines()
    assert "       21 B    11 %" not in lines
    assert lines.count("       21 B                         in 2 more") == 3


def test_an_empty_recording_has_a_summary() -> None:
    assert (
        Report(Recording()).summary()
        == """\
memory recording
recorded  0 µs, 0 events, 0 blocks, 0 B allocated
peak      0 B in 0 blocks, 0 µs after the start
at end    0 B in 0 blocks
note      no block came from NumPy, torch or a pool of Holdfast; Python's own objects are not \
recorded"""
    )


def test_the_document_holds_what_the_summary_says_and_stacks() -> None:
    document = json.loads(json.dumps(Report(samples.few()).to_dict()))
    assert document["peak_bytes"] == 150
    assert document["at_peak"]["by_tag"][1] == {"name": "vae", "bytes": 50, "blocks": 2}
    largest = document["at_peak"]["largest"][0]
    assert (largest["bytes"], largest["end_ns"], largest["location"]) == (100, None, LOAD)
    assert largest["stack"][0] == {"file": "/home/me/few.py", "line": 20, "function": "load"}
    assert document["rss_peak_bytes"] == 900
    assert Report(Recording()).to_dict()["rss_peak_bytes"] is None


@pytest.mark.parametrize("made", [samples.few(), samples.unet(2), samples.many(3000)], ids=len)
def test_pairs_of_events_are_the_lifetimes(made: Recording) -> None:
    found: list[Lifetime] = []
    alive: dict[tuple[int, int], int] = {}
    for event in made.events():
        if event.kind in (Kind.ALLOC, Kind.FREE):
            row = alive.pop((event.place, event.address), None)
            if row is not None:
                found[row] = found[row]._replace(end_ns=event.time_ns)
        if event.kind == Kind.ALLOC:
            alive[event.place, event.address] = len(found)
            known = (event.address, event.size, event.time_ns, None)
            found.append(Lifetime(*known, event.stack, event.place, event.tag))
    assert found == made.lifetimes()


def test_totals_are_the_sums_of_what_is_alive() -> None:
    made = samples.unet(1)
    blocks = made.pair()
    totals = lifetimes.totals(made, blocks)
    for event in range(0, len(made), 97):
        alive = lifetimes.alive_after(blocks, event)
        assert totals[event] == sum(made.sizes[blocks.begins[row]] for row in alive)


@pytest.mark.parametrize(
    ("files", "found"),
    [
        (["/v/site-packages/torch/a.py", "/v/site-packages/numpy/b.py", "my.py"], "my.py:1 in f"),
        (["/v/dist-packages/numpy/core/b.py", "/w/numpy/mine.py"], "/w/numpy/mine.py:1 in f"),
        (["/w/src/holdfast/memory/pools/pool.py", "/w/src/mine/a.py"], "/w/src/mine/a.py:1 in f"),
        (["C:\\v\\site-packages\\torch\\a.py", "C:\\mine.py"], "C:\\mine.py:1 in f"),
        (["/v/site-packages/torchvision/a.py", "/me/my.py"], "torchvision/a.py:1 in f"),
        (["<frozen importlib._bootstrap>", "/me/my.py"], "/me/my.py:1 in f"),
        (["/v/site-packages/torch/a.py", "/v/site-packages/torch/b.py"], "torch/a.py:1 in f"),
        ([], "(no stack recorded)"),
    ],
)
def test_a_block_is_put_down_to_the_line_that_asked(files: list[str], found: str) -> None:
    assert lifetimes.location(tuple(Frame(file, 1, "f") for file in files)) == found


def _segments(*events: tuple[Kind, int, int]) -> list[tuple[int, int, int, int]]:
    made = Recording(places_table=[MemoryPlace("pool", "cpu")])
    for number, (kind, address, size) in enumerate(events):
        made.add(Event(number, kind, address, size, 0, 0, 0))
    return [segment[:4] for segment in lifetimes.segments(made)]


def test_a_release_ends_the_range_that_was_reserved() -> None:
    assert _segments((Kind.RESERVE, 0, 100), (Kind.RESERVE, 200, 50), (Kind.RELEASE, 0, 0)) == [
        (0, 2, 0, 100),
        (1, 3, 200, 50),
    ]


def test_a_release_of_the_middle_leaves_both_ends() -> None:
    assert _segments((Kind.RESERVE, 0, 100), (Kind.RELEASE, 40, 20)) == [
        (0, 1, 0, 100),
        (1, 2, 0, 40),
        (1, 2, 60, 40),
    ]


def test_one_release_may_end_several_ranges() -> None:
    assert _segments((Kind.RESERVE, 0, 10), (Kind.RESERVE, 10, 10), (Kind.RELEASE, 0, 20)) == [
        (0, 2, 0, 10),
        (1, 2, 10, 10),
    ]


@pytest.mark.parametrize(
    ("time_ns", "text"),
    [
        (0, "0 µs"),
        (812_000, "812 µs"),
        (43_100_000, "43.1 ms"),
        (12_340_000_000, "12.34 s"),
        (250 * 10**9, "4 min 10 s"),
    ],
)
def test_times_are_formatted_in_units_of_their_size(time_ns: int, text: str) -> None:
    assert format_ns(time_ns) == text

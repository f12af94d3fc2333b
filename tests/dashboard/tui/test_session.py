from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

import pytest

from holdfast.dashboard.snapshot.snapshot import LinkUse
from holdfast.dashboard.tui import history, rows, session
from holdfast.dashboard.tui.session import Session
from tests.dashboard.tui.made_up import GB, machine, model, process, run, snapshot


def _names(found: list[session.Watched]) -> list[int]:
    return [one.process.pid for one in found]


def test_link_use_comes_from_two_snapshots() -> None:
    seen = Session()
    for at in range(6):
        links = (LinkUse("cuda:0", at * GB, 25.0), LinkUse("cuda:1", at * 2 * GB, None))
        seen.add(snapshot(1000.0 + at / 2, process(links=links)))
        one = next(iter(seen.watched.values()))
        assert at or one.link_gb_s() is None
    assert one.link_gb_s("cuda:0") == pytest.approx(2.0)
    assert one.link_gb_s() == pytest.approx(6.0)
    assert one.link_gb_s("cuda:7") is None


def test_a_process_that_ends_stays_with_its_history_and_one_that_is_silent_is_not_ended() -> None:
    alive = {1, 2}
    seen = Session(running=alive.__contains__)
    seen.add(snapshot(1000.0, process(1), process(2), process(3)))
    seen.add(snapshot(1001.0, process(1)))
    states = {one.process.pid: one.state for one in seen.watched.values()}
    assert states == {1: "alive", 2: "silent", 3: "ended"}
    seen.add(snapshot(1002.0, process(1), process(2)))
    states = {one.process.pid: one.state for one in seen.watched.values()}
    assert states == {1: "alive", 2: "alive", 3: "ended"}
    ended = next(one for one in seen.watched.values() if one.process.pid == 3)
    assert [sample.at_s for sample in ended.track.samples] == [1000.0]
    assert _names(rows.sort_processes(seen.watched.values(), "pid", turned=True)) == [2, 1, 3]


def test_a_number_that_comes_again_is_another_process() -> None:
    seen = Session(running=lambda pid: True)
    seen.add(snapshot(1000.0, process(1)))
    seen.add(snapshot(1001.0, process(1, began_s=1000.5)))
    assert [one.state for one in seen.watched.values()] == ["ended", "alive"]


def test_only_so_many_that_ended_are_kept() -> None:
    seen = Session(running=lambda pid: False)
    for pid in range(100):
        seen.add(snapshot(1000.0 + pid, process(pid)))
    assert len(seen.watched) == session.MOST_ENDED + 1
    assert _names(list(seen.watched.values()))[-1] == 99


def test_whether_a_process_runs_is_asked_of_the_system() -> None:
    assert session.is_running(os.getpid())
    child = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # it is over, and nobody took it in
    assert not session.is_running(child.pid)
    child.wait()
    assert not session.is_running(child.pid)


def test_a_process_whose_model_runs_computes() -> None:
    seen = Session()
    for passes, expected in ((7, "rests"), (8, "computes"), (8, "rests")):
        found = process(run=None, models=(model(running=False, passes=passes),))
        seen.add(snapshot(1000.0 + passes, found))
        one = next(iter(seen.watched.values()))
        assert rows.cells(one, rows.widths(120))[5].plain == expected


@pytest.mark.parametrize(
    ("by", "order"),
    [
        ("pid", [1, 2, 3]),
        ("name", [2, 1, 3]),
        ("rss", [3, 2, 1]),
        ("device", [2, 1, 3]),
        ("left", [3, 1, 2]),
    ],
)
def test_processes_are_sorted_by_any_column_and_the_unknown_come_last(
    by: str, order: list[int]
) -> None:
    device = process().devices[0]
    seen = Session()
    seen.add(
        snapshot(
            1000.0,
            process(1, name="b", rss_bytes=1, run=run()),
            process(
                2,
                name="a",
                rss_bytes=2,
                run=None,
                devices=(replace(device, reserved_bytes=8 * GB),),
            ),
            process(3, name="c", rss_bytes=3, devices=(), run=replace(run(), left_s=1.0)),
        )
    )
    assert _names(rows.sort_processes(seen.watched.values(), by)) == order


def test_history_is_bounded_and_keeps_every_peak() -> None:
    seen = Session()
    high = 60 * GB
    for at in range(3 * history.MOST):
        used = high if at == 777 else 10 * GB + at
        rss = high if at == 1234 else GB + at
        seen.add(snapshot(1000.0 + at, process(rss_bytes=rss), of=machine(ram_used=used)))
    one = next(iter(seen.watched.values()))
    assert len(seen.machine.samples) <= history.MOST
    assert len(one.track.samples) <= history.MOST
    assert max(sample.ram_bytes for sample in seen.machine.samples) == high
    assert max(sample.ram_bytes for sample in one.track.samples) == high
    assert one.track.samples[-1].at_s == 1000.0 + 3 * history.MOST - 1


def test_the_last_seconds_in_columns_have_the_most_of_each() -> None:
    track = history.process_track()
    for at, count in enumerate([1, 9, 2, 2, 5, 3]):
        track.add(history.process_sample(float(at), process(rss_bytes=count)))
    columns = track.columns(lambda sample: sample.ram_bytes, 3, 6.0, 5.0)
    assert columns == [9, 2, 5]
    assert track.columns(lambda sample: sample.ram_bytes, 2, 2.0, 5.0) == [5, 3]


def test_two_pools_of_one_name_are_told_apart() -> None:
    pool = process().pools[0]
    sample = history.process_sample(1.0, process(pools=(pool, pool)))
    assert sample.pools == (("scratch", 2 * GB), ("scratch (2)", 2 * GB))

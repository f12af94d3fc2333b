"""An hour of the page in some seconds: real snapshots, sent again and again with later times."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import pytest

from holdfast.base.errors import NotFound
from holdfast.dashboard.ipc.client import Attached
from holdfast.dashboard.snapshot.snapshot import GpuUse, Process, Snapshot
from holdfast.dashboard.web import serving
from holdfast.topology.model import Gpu, Node, Topology
from tests.dashboard.web.page_stage import stage, until, window
from tests.memory.browser import browser, missing
from tests.needs import needs

pytestmark = [pytest.mark.browser, pytest.mark.slow, needs(missing())]

HOUR = 7200  # snapshots, two in a second
FIRST = 600
TABS = ["overview", "machine", "memory", "models", "holders", "leaks", "runs"]


class Replay:
    """A watcher that shows what was seen before, half a second later each time.

    Now and then a process ends and another one begins.
    """

    def __init__(self, seen: Sequence[Snapshot]) -> None:
        self.seen, self.count, self.began_s = seen, 0, time.time()

    def look(self) -> Snapshot:
        shown = self.seen[self.count % len(self.seen)]
        life = self.count // 400
        processes = tuple(_later(one, life, self.count) for one in shown.processes)
        self.count += 1
        at_s = self.began_s + self.count * 0.5
        return dataclasses.replace(shown, at_s=at_s, processes=processes)

    def attached(self, pid: int) -> AbstractContextManager[Attached]:
        raise NotFound(f"process {pid} has ended")


def _later(process: Process, life: int, count: int) -> Process:
    rss = process.rss_bytes + count % 97 * 1_000_000
    return dataclasses.replace(process, pid=process.pid + life, rss_bytes=rss)


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> list[Snapshot]:
    """Real snapshots of a real process."""
    with stage(tmp_path_factory.mktemp("hour")) as made:
        guest = made.guest()
        guest.do("hold")
        guest.do("manage")
        server = made.serve()
        found = []
        for _ in range(12):
            found.append(Snapshot.from_dict(server.get("/api/v1/snapshot")))
            time.sleep(0.1)
    assert all(one.process(guest.pid) for one in found)
    return found


@pytest.fixture(scope="module")
def running() -> Iterator[Any]:
    with browser() as made:
        yield made


class Weight(NamedTuple):
    """What a page holds, all garbage gone."""

    heap_bytes: int
    numbers_bytes: int  # the timelines'
    nodes: int
    listeners: int


def _weight(devtools: Any) -> Weight:
    for _ in range(2):
        devtools.send("HeapProfiler.collectGarbage")
    used = devtools.send("Runtime.getHeapUsage")
    counted = devtools.send("Memory.getDOMCounters")
    return Weight(
        used["usedSize"],
        used["backingStorageSize"],
        counted["nodes"],
        counted["jsEventListeners"],
    )


def _walk(shown: Any, until_count: int) -> None:
    """Through all views, on and on, until so many snapshots have come; back to the first."""
    while shown.snapshots() < until_count:
        for tab in TABS:
            shown.go(tab)
            shown.page.wait_for_timeout(120)
        shown.forgive("status of 404")  # nobody can be asked for holders
    shown.go("memory")
    shown.page.wait_for_timeout(300)


def test_an_hour_of_updates_leaves_the_page_as_light_as_it_was(
    running: Any, seen: list[Snapshot]
) -> None:
    replay = Replay(seen)
    with (
        serving(watcher=replay, port=0, interval_s=0.002) as server,
        window(running, server.url) as shown,
    ):
        devtools = shown.page.context.new_cdp_session(shown.page)
        _walk(shown, FIRST)
        before = _weight(devtools)
        _walk(shown, HOUR)
        after = _weight(devtools)
        shown.until_live()
    # Code that was compiled meanwhile, and texts that were not yet collected; anything that stayed
    # of each snapshot would be thousands.
    assert after.heap_bytes < before.heap_bytes + 1_000_000, (before, after)
    assert after.numbers_bytes < 2_000_000, (before, after)
    assert after.nodes < before.nodes + 150, (before, after)
    assert after.listeners <= before.listeners, (before, after)


def test_a_timeline_keeps_its_bounds_and_its_peaks(running: Any, seen: list[Snapshot]) -> None:
    with (
        serving(watcher=Replay(seen), port=0, interval_s=0.5) as server,
        window(running, server.url) as shown,
    ):
        found = shown.page.evaluate(
            """async () => {
              const { Timeline } = await import('/static/points.js')
              const made = new Timeline(64)
              for (let at = 0; at < 20000; at += 1) {
                made.push(at, [[`p${Math.floor(at / 500)}`, 'p', at === 1234 ? 9e9 : 1e6]])
              }
              const kept = [...made.times.subarray(0, made.length)]
              const most = Math.max(...made.totals.subarray(0, made.length))
              return { length: made.length, kept, most, series: made.series.size }
            }"""
        )
    assert found["length"] <= 64
    assert found["kept"] == sorted(found["kept"])
    assert 1234 in found["kept"]
    assert found["most"] == 9e9
    assert found["series"] <= 40


def test_a_process_that_missed_some_looks_keeps_its_memory_in_the_timeline(
    running: Any, seen: list[Snapshot]
) -> None:
    with (
        serving(watcher=Replay(seen), port=0, interval_s=0.5) as server,
        window(running, server.url) as shown,
    ):
        found = shown.page.evaluate(
            """async () => {
              const { Timeline } = await import('/static/points.js')
              const made = new Timeline(64)
              const at = (time, ...values) => made.push(time, values.map(([k, v]) => [k, k, v]))
              at(0, ['a', 10], ['b', 1])
              at(1, ['b', 1])
              at(2, ['b', 1])
              at(3, ['a', 40], ['b', 1])
              at(4, ['b', 1])
              at(30, ['a', 40], ['b', 1])
              return [...made.totals.subarray(0, made.length)]
            }"""
        )
    assert found == [11, 21, 31, 41, 1, 41]


# ---- the picture of a machine with GPUs


def _machine() -> Topology:
    node = Node(id=0, cpus=(0, 1), total_bytes=64_000_000_000, free_bytes=60_000_000_000)
    gpu = Gpu(
        id=0, name="Card", numa_node=0, torch="cuda:0",
        memory_bytes=24_000_000_000, free_bytes=24_000_000_000,
    )  # fmt: skip
    return Topology(nodes=(node,), gpus=(gpu,))


class Busy(Replay):
    """The same with a card that is nearly full, and weights that go there."""

    def look(self) -> Snapshot:
        shown = super().look()
        card = GpuUse(0, "Card", 24_000_000_000, 23_000_000_000, 0.8, 25.0)
        processes = tuple(_sending(one, self.count) for one in shown.processes)
        machine = dataclasses.replace(shown.machine, gpus=(card,))
        return dataclasses.replace(shown, machine=machine, processes=processes)


def _sending(process: Process, count: int) -> Process:
    links = tuple(
        dataclasses.replace(link, device="cuda:0", copied_bytes=count * 3_000_000_000)
        for link in process.links
    )
    return dataclasses.replace(process, links=links)


def test_the_picture_shows_how_full_a_card_is_and_what_goes_there(
    running: Any, seen: list[Snapshot]
) -> None:
    with (
        serving(watcher=Busy(seen), port=0, interval_s=0.1, machine=_machine) as server,
        window(running, server.url) as shown,
    ):
        shown.go("machine")
        page = shown.page
        page.locator("[data-gpu='0'][data-part=card][data-level=hot]").wait_for()
        texts = until(lambda: _told(page), "what goes to the card")
        assert texts == ["96 %", "6.0 GB/s"]
        facts = page.locator(".topology text", has_text="of 24.0 GB free").text_content()
        assert facts.startswith("1.0 GB of 24.0 GB free")


def _told(page: Any) -> list[str] | None:
    part = page.locator("[data-gpu='0'][data-part=bar] ~ .live-text").first.text_content()
    rate = page.locator(".live-rate").first.text_content()
    return [part, rate] if rate else None

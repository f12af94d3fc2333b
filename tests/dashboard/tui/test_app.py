"""The screen, with a machine that is made up; test_terminal has a real one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot
from textual.widgets import Input, Static

from holdfast.base.errors import BadInput, Misuse
from holdfast.dashboard.snapshot.snapshot import Freed, Holder, LeakFound, LeakState
from holdfast.dashboard.tui import dialogs
from holdfast.dashboard.tui.app import TopApp
from holdfast.dashboard.tui.table import SteadyTable
from tests.dashboard.tui.made_up import GB, MadeUpWatcher, machine, model, process, snapshot

pytestmark = pytest.mark.slow


@asynccontextmanager
async def _shown(
    watcher: MadeUpWatcher, size: tuple[int, int] = (120, 40), **options: Any
) -> AsyncIterator[tuple[TopApp, Pilot[int]]]:
    app = TopApp(watcher, interval_s=0.2, **options)
    try:
        async with app.run_test(size=size, notifications=True) as pilot:
            await _until(pilot, lambda: app.session.snapshot is not None)
            yield app, pilot
    finally:
        app.stop()


async def _until(pilot: Pilot[int], done: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not done():
        assert time.monotonic() < end, _text(pilot.app)
        await pilot.pause(0.02)
    await pilot.pause()


def _text(app: Any) -> str:
    """What is on the screen."""
    width, height = app.size
    lines = app.screen._compositor.render_strips()
    return "\n".join(line.text[:width].rstrip() for line in lines[:height])


async def _see(pilot: Pilot[int], text: str) -> None:
    await _until(pilot, lambda: text in _text(pilot.app))


def _run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(test())


@pytest.mark.parametrize("size", [(80, 24), (160, 50)])
def test_the_screen_shows_the_machine_the_processes_and_the_one_that_is_chosen(
    size: tuple[int, int],
) -> None:
    async def test() -> None:
        watcher = MadeUpWatcher(snapshot(1000.0, process(1), process(2, name="other", run=None)))
        async with _shown(watcher, size) as (app, pilot):
            await _see(pilot, "flux-dev: denoises")
            text = _text(app)
            for part in ("workshop", "node 1", "gpu 0", "link 25.2 GB/s", "? Help"):
                assert part in text
            row = next(line for line in text.splitlines() if " 1  run flux-dev" in line)
            assert "3.0 GB" in row
            assert "7.0 GB" in row
            assert "denoise" in row
            assert "━" in row
            await pilot.press("3")
            await _see(pilot, "scratch")
            await pilot.press("2")
            await _see(pilot, "812.5 ms")
            await pilot.press("4")
            await _see(pilot, "latents")
            await pilot.press("7")
            await _see(pilot, "RSS: 3.0 GB now")
            await pilot.press("1", "down")
            await _see(pilot, "No run is under way.")

    _run(test)


def test_the_order_changes_by_key_and_by_click_and_the_choice_stays() -> None:
    async def test() -> None:
        watcher = MadeUpWatcher(
            snapshot(1000.0, process(1, rss_bytes=GB), process(2, rss_bytes=2 * GB), process(3))
        )
        async with _shown(watcher) as (app, pilot):
            table = app.query_one("#processes", SteadyTable)
            await _until(pilot, lambda: table.row_count == 3)
            await pilot.press("down")
            assert app.chosen is not None
            assert app.chosen.process.pid == 2
            await pilot.press("s", "s")
            assert app.sort_key == "rss"
            order = [str(table.get_row_at(at)[0]) for at in range(3)]
            assert order == ["3", "2", "1"]
            assert app.chosen.process.pid == 2
            await pilot.press("S")
            assert [str(table.get_row_at(at)[0]) for at in range(3)] == ["1", "2", "3"]
            await pilot.click("#processes", offset=(5, 0))
            await _until(pilot, lambda: app.sort_key == "pid")
            await pilot.click("#processes", offset=(5, 0))
            await _until(pilot, lambda: app.turned)
            assert [str(table.get_row_at(at)[0]) for at in range(3)] == ["3", "2", "1"]
            assert app.chosen.process.pid == 2

    _run(test)


def test_pausing_holds_the_screen_still_while_the_history_goes_on() -> None:
    async def test() -> None:
        watcher = MadeUpWatcher(snapshot(1000.0, process(1)))
        async with _shown(watcher) as (app, pilot):
            await _see(pilot, "3.0 GB")
            await pilot.press("space")
            await _see(pilot, "paused")
            watcher.now = snapshot(1001.0, process(1, rss_bytes=5 * GB))
            await _until(pilot, lambda: app.session.snapshot is watcher.now)
            row = next(line for line in _text(app).splitlines() if "run flux-dev" in line)
            assert "3.0 GB" in row
            await pilot.press("p")
            await _see(pilot, "5.0 GB")
            assert app.chosen is not None
            assert app.chosen.track.samples[-1].ram_bytes == 5 * GB

    _run(test)


def test_a_process_that_ends_is_shown_as_ended_and_cannot_be_asked() -> None:
    async def test() -> None:
        watcher = MadeUpWatcher(snapshot(1000.0, process(2**22 + 1)))  # above any number there is
        async with _shown(watcher) as (app, pilot):
            await _see(pilot, "denoise")
            watcher.now = snapshot(1005.0)
            await _see(pilot, "It has ended; this was seen 5.0 s ago.")
            await pilot.press("7")
            await _see(pilot, "RSS: 3.0 GB now")
            await pilot.press("h")
            await _see(pilot, f"process {2**22 + 1} has ended")
            assert watcher.asked == []
            assert app.is_running

    _run(test)


def test_a_stuck_look_freezes_nothing() -> None:
    async def test() -> None:
        watcher = MadeUpWatcher(snapshot(1000.0, process(1)))
        async with _shown(watcher) as (app, pilot):
            await _see(pilot, "run flux-dev")
            watcher.gate.clear()
            app._looked_at -= 10  # as if it had been stuck for so long
            await _see(pilot, "last look 1")
            await pilot.press("3")
            await _see(pilot, "scratch")
            await pilot.press("question_mark")
            await _see(pilot, "dark or light")
            await pilot.press("escape", "t")
            assert app.theme == "textual-light"
            watcher.gate.set()

    _run(test)


def test_freeing_asks_what_and_says_what_came_of_it() -> None:
    async def test() -> None:
        watcher = MadeUpWatcher(snapshot(1000.0, process(1)))
        watcher.answers["free"] = Freed(1, GB, 0, 1, "1.0 GB of RAM")
        async with _shown(watcher) as (app, pilot):
            await _see(pilot, "run flux-dev")
            await pilot.press("f")
            await _see(pilot, "Free memory of 1 (run flux-dev)")
            await pilot.press("escape")
            await _until(pilot, lambda: not isinstance(app.screen, dialogs.Dialog))
            await pilot.press("f")
            await _see(pilot, "Free memory of 1 (run flux-dev)")
            await pilot.press("space", "f")
            await _see(pilot, "nothing is marked")
            await pilot.press("tab", "space", "f")
            await _see(pilot, "freed 1.0 GB of RAM")
            assert watcher.asked == [
                (1, "free", {"caches": False, "models": True, "garbage": False})
            ]

    _run(test)


def test_a_budget_that_is_refused_is_explained_in_the_window() -> None:
    async def test() -> None:
        watcher = MadeUpWatcher(snapshot(1000.0, process(1, models=(model(), model(id="b")))))
        watcher.answers["set_budget"] = BadInput(
            "transformer cannot run inside of 1.0 GB", expected="a budget of at least 2.0 GB"
        )
        async with _shown(watcher) as (app, pilot):
            await _see(pilot, "run flux-dev")
            await pilot.press("2", "enter")
            await pilot.press("down", "enter")
            await _see(pilot, "Budget of transformer on cuda:0")
            assert "budget now 6.0 GB, at least 2.0 GB" in _text(app)
            await pilot.press(*"much", "enter")
            await _see(pilot, "cannot read 'much' as a size in bytes")
            app.screen.query_one(Input).value = "1GB"
            await pilot.press("enter")
            await _see(pilot, "expected: a budget of at least 2.0 GB")
            watcher.answers["set_budget"] = model(budget_bytes=8 * GB)
            app.screen.query_one(Input).value = "8GB"
            await pilot.press("enter")
            await _see(pilot, "the budget of transformer is 8.0 GB now")
            assert [(one[2], one[3]) for one in watcher.asked] == [("b", GB), ("b", 8 * GB)]

    _run(test)


def test_a_budget_that_cannot_be_changed_is_refused_before_it_is_asked_for() -> None:
    async def test() -> None:
        watcher = MadeUpWatcher(snapshot(1000.0, process(1, models=())))
        async with _shown(watcher) as (app, pilot):
            await _see(pilot, "run flux-dev")
            await pilot.press("b")
            await _see(pilot, "has no model whose budget can be changed")
            watcher.now = snapshot(1001.0, process(1, models=(model(adjustable=False),)))
            await pilot.press("2")
            await _see(pilot, "6.0 GB, fixed")
            await pilot.press("b")
            await _see(pilot, "the budget of transformer cannot be changed while it lives")
            assert not isinstance(app.screen, dialogs.Dialog)

    _run(test)


def test_holders_and_leaks_fill_their_tabs_and_belong_to_one_process() -> None:
    async def test() -> None:
        watcher = MadeUpWatcher(snapshot(1000.0, process(1), process(2)))
        watcher.answers |= {
            "holders": (Holder(1, GB, "cpu", "latents", "draw.py:7 in draw"),),
            "leaks": Misuse("leaks cannot be found in process 1"),
            "set_debugging": LeakState(True, None, None, None),
        }
        async with _shown(watcher) as (_, pilot):
            await _see(pilot, "run flux-dev")
            await pilot.press("h")
            await _see(pilot, "draw.py:7 in draw")
            await pilot.press("down")
            await _see(pilot, "Press h to see the largest blocks in use.")
            await pilot.press("up", "l")
            await _see(pilot, "leaks cannot be found in process 1")
            await _see(pilot, "Press d to record them from now on.")
            await pilot.press("d")
            await _see(pilot, "blocks are recorded from now on")
            watcher.answers["leaks"] = (
                LeakFound(1, GB, "cpu", "", "draw.py:9 in keep", 4.0, ("a list in draw.py",)),
            )
            await pilot.press("l")
            await _see(pilot, "draw.py:9 in keep")
            await _see(pilot, "a list in draw.py")

    _run(test)


def test_stopping_a_run_asks_first() -> None:
    async def test() -> None:
        watcher = MadeUpWatcher(snapshot(1000.0, process(1), process(2, run=None)))
        watcher.answers["interrupt"] = True
        async with _shown(watcher) as (_, pilot):
            await _see(pilot, "run flux-dev")
            await pilot.press("i")
            await _see(pilot, "Stop the run of 1 (run flux-dev)?")
            await pilot.press("n", "i", "y")
            await _see(pilot, "the run is being stopped")
            assert watcher.asked == [(1, "interrupt", {})]
            await pilot.press("down", "i")
            await _see(pilot, "2 (run flux-dev) runs nothing")

    _run(test)


def test_a_timeline_is_saved_and_a_file_that_is_there_is_replaced_only_when_asked_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    page = tmp_path / "holdfast-timeline.html"

    async def test() -> None:
        watcher = MadeUpWatcher(snapshot(1000.0, process(1)))
        async with _shown(watcher) as (app, pilot):
            await _see(pilot, "run flux-dev")
            await pilot.press("w", "enter")
            await _see(pilot, "saved holdfast-timeline.html")
            assert "RAM of the machine" in page.read_text()
            page.write_text("mine")
            await pilot.press("w", "enter")
            await _see(pilot, "enter once more replaces")
            assert page.read_text() == "mine"
            await pilot.press("enter")
            await _until(pilot, lambda: "RAM of the machine" in page.read_text())
            await _until(pilot, lambda: not isinstance(app.screen, dialogs.Dialog))
            await pilot.press("w")
            app.screen.query_one(Input).value = "seen.png"
            await pilot.press("enter")
            await _see(pilot, "cannot save a timeline as 'seen.png'")

    _run(test)


def test_nobody_to_watch_is_said_with_what_to_try() -> None:
    async def test() -> None:
        watcher = MadeUpWatcher(snapshot(1000.0, of=machine(nodes=1, gpus=0)))
        async with _shown(watcher, (80, 24)) as (app, pilot):
            await _see(pilot, "try: holdfast run tiny-flux")
            await pilot.press("f")
            await _see(pilot, "no process is chosen")
            watcher.now = snapshot(1001.0, process(5))
            await _see(pilot, "run flux-dev")
            assert not app.query_one("#nobody", Static).display

    _run(test)

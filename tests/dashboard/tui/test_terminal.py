"""`holdfast top` in a real terminal, beside a real process: keys act there."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.dashboard.ipc.client import Attached
from tests.dashboard.tui.terminal import Screen, Terminal

TOP = [sys.executable, "-m", "holdfast", "top"]
EMPTY = "\x15"  # Ctrl-U empties the line
CHILD = Path(__file__).with_name("child.py")


@pytest.fixture(autouse=True)
def nobody_else(own_meeting_place: Path) -> None:
    """Only processes of a test are seen in it."""


@pytest.fixture
def child(nobody_else: None) -> Iterator[subprocess.Popen[str]]:
    """The process of child.py, once its model has run and its smallest budget is known."""
    started = subprocess.Popen(
        [sys.executable, str(CHILD)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert started.stdout is not None
    assert started.stdin is not None
    assert started.stdout.readline() == "ready\n"
    with Attached(started.pid) as attached:
        end = time.monotonic() + 60
        while attached.process().models[0].smallest_bytes is None:
            assert time.monotonic() < end
            time.sleep(0.1)
    yield started
    if not started.stdin.closed:
        started.stdin.close()
    started.wait(20)
    started.stdout.close()


def _leak(child: subprocess.Popen[str]) -> None:
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write("leak\n")
    child.stdin.flush()
    assert child.stdout.readline() == "leaked\n"


@pytest.mark.slow
def test_keys_act_in_the_process_and_the_terminal_is_as_it_was(
    child: subprocess.Popen[str], tmp_path: Path
) -> None:
    command = [*TOP, str(child.pid), "--interval", "0.2"]
    with Terminal(command, folder=tmp_path) as top, Attached(child.pid) as attached:
        before = attached.process()
        (pool,) = (one for one in before.pools if one.name == "scratch of a test")
        assert pool.cached_bytes > 20e6
        top.wait_for("child.py")
        top.press("3")
        top.wait_for("scratch of a test")

        top.press("f")
        top.wait_for("Free memory of")
        top.press("f")
        top.wait_for("freed ")
        (pool,) = (one for one in attached.process().pools if one.name == "scratch of a test")
        assert pool.cached_bytes < 2e6

        top.press("2")
        top.wait_for("Sequential  ")
        top.press("b")
        top.wait_for("Budget of Sequential")
        top.press("1KB\r")
        top.wait_for("Sequential cannot run inside of 1.0 KB")
        top.press(EMPTY)
        top.wait_for("a size such as")  # what an empty line shows
        top.press("6MB\r")
        top.wait_for("the budget of Sequential is 6.0 MB now")
        assert [one.budget_bytes for one in attached.process().models] == [6_000_000]

        top.press("l")
        top.wait_for("Press d to record them")
        top.press("d")
        top.wait_for("were not looked for yet")
        _leak(child)
        top.press("l")
        top.wait_for("1 block leaked")
        top.press("h")
        top.wait_for("kept on purpose")

        top.press("w")
        top.wait_for("Save what was seen so far")
        top.wait_for("holdfast-timeline.html")
        top.press(EMPTY)
        top.wait_until_gone("holdfast-timeline.html")
        top.press("seen.json\r")
        top.wait_for("saved seen.json")
        seen = json.loads((tmp_path / "seen.json").read_text())
        pools = next(panel for panel in seen["panels"] if panel["kind"] == "pools")
        layers = {layer["name"]: layer["nbytes"] for layer in pools["layers"]}
        assert layers["scratch of a test"][0] == 8_000_000

        assert child.stdin is not None
        child.stdin.close()
        child.wait(20)
        top.press("1")
        top.wait_for("It has ended")
        top.press("q")
        assert top.ended() == 0
        assert top.restored


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "status"), [("\x03", 130), (signal.SIGINT, 130), (signal.SIGTERM, 143)]
)
def test_the_terminal_is_as_it_was_however_it_ends(how: str | signal.Signals, status: int) -> None:
    with Terminal(TOP, size=(80, 24)) as top:
        top.wait_for("No process of Holdfast is running")
        assert not top.restored
        if isinstance(how, str):
            top.press(how)
        else:
            os.kill(top.program.pid, how)
        assert top.ended() == status
        assert top.restored


def test_the_reader_of_screens_puts_text_where_it_belongs() -> None:
    screen = Screen(10, 3)
    for part in ("\x1b[?1049h\x1b[2;3Hab\x1b[1", "mc\x1b[0m\r\nx", "\x1b[1;9Hlong"):
        screen.feed(part)
    assert screen.text == "        lo\n  abc\nx"
    assert screen.modes == {"?1049"}

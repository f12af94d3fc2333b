from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.base.registry import Entry
from holdfast.cli import top
from holdfast.cli.main import main
from holdfast.dashboard.snapshot.snapshot import Snapshot
from tests.dashboard.tui.conftest import own_meeting_place

__all__ = ["own_meeting_place"]

CHILD = """
import sys
from holdfast.memory import MemoryPool
pool = MemoryPool("cpu", name="of a script")
block = pool.allocate("3MB")
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def no_other_process(own_meeting_place: Path) -> None:
    """Only processes of a test are seen in it."""


@pytest.fixture
def script(no_other_process: None) -> Iterator[int]:
    """The number of a process with a pool."""
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        yield child.pid
        assert child.stdin is not None
        child.stdin.close()


def test_a_pipe_gets_one_look_as_text(script: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", str(script)]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines[1].startswith("RAM ")
    assert any(line.startswith(f"{script} ") for line in lines)
    assert any(line.startswith("of a script 3.0 MB") for line in lines)


@pytest.mark.parametrize("text", ["x", "-5", "1.5", ""])
def test_a_pid_that_is_not_a_number_is_refused(
    text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["top", "--once", "--", text])
    assert ended.value.code == 2
    assert capsys.readouterr().err.splitlines()[-1] == (
        f"holdfast top: error: argument PID: {text!r} is not a process ID; "
        "holdfast top --once lists them"
    )


def test_json_is_a_line_for_each_look(script: int, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["top", str(script), "--json", "--interval", "0.05", "--count", "3"]
    assert main(arguments) == 0
    looks = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    found = [Snapshot.from_dict(look) for look in looks]
    assert [[one.pid for one in look.processes] for look in found] == [[script]] * 3
    assert found[0].at_s < found[1].at_s < found[2].at_s
    assert found[0].processes[0].pools[0].allocated_bytes == 3_000_000


@pytest.mark.parametrize("more", [[], ["--once"], ["--once", "--interval", "1"]])
def test_one_look_as_json_without_more(
    more: list[str], script: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["top", "--json", *more]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert [one["pid"] for one in json.loads(line)["processes"]] == [script]


def test_no_process_to_watch_is_no_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "--once"]) == 0
    assert capsys.readouterr().out.endswith(
        "No process of Holdfast is running here that can be watched.\n"
        '  try: holdfast run tiny-flux --prompt "a handwritten seven", in another terminal\n'
        "A script can be watched once it has made a memory pool or manages a model.\n"
    )


def test_a_process_that_is_not_there_or_offers_nothing_is_an_error(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["top", str(2**22 + 1)]) == 2
    assert capsys.readouterr().err.startswith(f"holdfast: error: there is no process {2**22 + 1}\n")
    assert main(["top", str(os.getppid())]) == 2
    assert capsys.readouterr().err.startswith(
        f"holdfast: error: process {os.getppid()} offers nothing to look at\n"
    )


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (
            ["--sort", "size"],
            "cannot sort by 'size'\n  expected: one of pid, name, rss, device, model, left, link",
        ),
        (
            ["--interval", "0"],
            "cannot look every 0 seconds\n  expected: --interval from 0.05 to 3600",
        ),
        (["--json", "--count", "0"], "cannot look 0 times\n  expected: --json --count 1 or more"),
        (["--count", "3"], "--count is for --json\n  expected: --json --count 1 or more"),
        (
            ["--once", "--json", "--count", "3"],
            "cannot use --count with --once\n  expected: one of them",
        ),
        (
            ["--interval", "nan"],
            "cannot look every nan seconds\n  expected: --interval from 0.05 to 3600",
        ),
    ],
)
def test_what_cannot_be_used_is_refused(
    arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["top", *arguments]) == 2
    assert capsys.readouterr().err == f"holdfast: error: {text}\n"


def test_text_and_json_need_no_extra_package(script: int) -> None:
    program = (
        "import sys; sys.modules['textual'] = None; sys.modules['aiohttp'] = None\n"
        "from holdfast.cli.main import main\n"
        f"sys.exit(main(['top', '{script}', '--once']) or main(['top', '--json']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_the_screen_without_its_package_says_what_to_install(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    for name in [one for one in sys.modules if one.partition(".")[0] == "textual"]:
        monkeypatch.delitem(sys.modules, name)
    for name in [one for one in sys.modules if one.startswith("holdfast.dashboard.tui.a")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "textual", None)
    monkeypatch.setattr(top.SCREENS, "_loaded", {})
    assert isinstance(top.SCREENS.entry("top"), Entry)
    assert main(["top"]) == 2
    assert capsys.readouterr().err == (
        "holdfast: error: cannot load screen 'top': the package 'textual' is not installed\n"
        "  expected: the packages of the extra 'dashboard'\n"
        "  try: pip install 'holdfast[dashboard]'\n"
    )

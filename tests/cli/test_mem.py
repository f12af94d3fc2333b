from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli.main import main
from holdfast.memory.profile.diff import diff
from holdfast.memory.profile.export import torch_snapshot
from holdfast.memory.profile.recording import Recording
from holdfast.memory.profile.report import Report
from tests.memory import samples


@pytest.fixture
def few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return samples.few().save(Path("few.hfmem"))


def _refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["mem", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err


def test_without_an_action_the_help_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["mem"]) == 0
    out = capsys.readouterr().out
    assert "holdfast mem report train.hfmem --html run.html" in out


# ---- report


def test_the_report_is_the_summary(few: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["mem", "report", "few.hfmem"]) == 0
    captured = capsys.readouterr()
    assert captured.out == Report(samples.few()).summary() + "\n"
    assert captured.err == ""


def test_the_report_as_json(few: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["mem", "report", "few.hfmem", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == Report(samples.few()).to_dict()


def test_every_form_is_written_beside_the_report(
    few: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    forms = {
        "html": ("a.html", b"<!DOCTYPE html>"),
        "png": ("a.png", b"\x89PNG"),
        "perfetto": ("a.json", b'{"displayTimeUnit"'),
        "snapshot": ("a.pickle", b"\x80\x04"),
        "collapsed": ("a.txt", b"<module> (/home/me/few.py:2);load"),
    }
    options = [part for form, (name, _) in forms.items() for part in (f"--{form}", name)]
    assert main(["mem", "report", "few.hfmem", *options]) == 0
    for name, start in forms.values():
        assert Path(name).read_bytes().startswith(start)
    captured = capsys.readouterr()
    assert captured.out == Report(samples.few()).summary() + "\n"
    assert captured.err == "".join(f"{form}: {name}\n" for form, (name, _) in forms.items())


def test_a_snapshot_of_torch_is_read_as_well(few: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("torch.pickle").write_bytes(torch_snapshot(samples.few()))
    assert main(["mem", "report", "torch.pickle"]) == 0
    assert capsys.readouterr().out.startswith("torch.pickle\nrecorded  ")


def test_two_recordings_are_compared(few: Path, capsys: pytest.CaptureFixture[str]) -> None:
    samples.unet(1).save("unet.hfmem")
    found = diff(samples.few(), samples.unet(1))
    assert main(["mem", "report", "unet.hfmem", "--diff", "few.hfmem"]) == 0
    assert capsys.readouterr().out == found.summary() + "\n"
    assert main(["mem", "report", "unet.hfmem", "--diff", "few.hfmem", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == found.to_dict()


def test_a_file_that_is_there_is_replaced(few: Path) -> None:
    Path("a.html").write_text("old")
    assert main(["mem", "report", "few.hfmem", "--html", "a.html"]) == 0
    assert Path("a.html").read_text().startswith("<!DOCTYPE html>")


OURS = "  expected: a .hfmem file written by `holdfast mem record` or Recording.save\n"
TORCHS = (
    "  expected: the pickle that torch.cuda.memory._dump_snapshot writes, or the dictionary in it\n"
)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["no.hfmem"], f"there is no file 'no.hfmem'\n{OURS}"),
        (["text.txt"], f"'text.txt' is not a memory recording: File is not a zip file\n{OURS}"),
        (["."], f"cannot read '.': Is a directory\n{OURS}"),
        (
            ["list.pickle"],
            f"cannot use 'list.pickle': this is not a torch memory snapshot\n{TORCHS}",
        ),
        (["few.hfmem", "--diff", "no.hfmem"], f"there is no file 'no.hfmem'\n{OURS}"),
        (
            ["few.hfmem", "--html", "no/a.html"],
            "cannot write 'no/a.html': there is no folder 'no'\n"
            "  expected: a path in a folder that exists\n",
        ),
        (
            ["few.hfmem", "--perfetto", "."],
            "cannot write '.': it is a folder\n  expected: the name of a file\n",
        ),
        (
            ["few.hfmem", "--html", "a", "--collapsed", "./a"],
            "cannot use 'a' for --collapsed: --html is that file\n"
            "  expected: a different name for each file\n",
        ),
        (
            ["few.hfmem", "--snapshot", "few.hfmem"],
            "cannot use 'few.hfmem' for --snapshot: few.hfmem is that file\n"
            "  expected: a different name for each file\n",
        ),
        (
            ["few.hfmem", "--png", "a.gif"],
            "cannot draw 'a.gif'\n  expected: a name that ends in .png, .svg or .pdf\n",
        ),
    ],
)
def test_what_cannot_be_reported_is_refused_before_anything_is_written(
    arguments: list[str], message: str, few: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("text.txt").write_text("hello")
    Path("list.pickle").write_bytes(pickle.dumps([1]))
    before = sorted(Path().iterdir())
    assert _refused(["report", *arguments], capsys) == f"holdfast: error: {message}"
    assert sorted(Path().iterdir()) == before


# ---- record


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple[Any, ...]]:
    """What `record` asks for; the program is not run, and ends with status 3."""
    seen: list[tuple[Any, ...]] = []

    def run_script(
        argv: list[str], module: bool, out: Path, depth: int, sources: tuple[str, ...]
    ) -> int:
        seen.append((argv, module, out, depth, sources))
        samples.few().save(out)
        return 3

    monkeypatch.setattr("holdfast.memory.profile.script.run_script", run_script)
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("")
    return seen


def test_recording_passes_the_arguments_on_and_returns_the_status(
    calls: list[tuple[Any, ...]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["mem", "record", "train.py", "--json", "-m", "x"]) == 3
    argv = ["train.py", "--json", "-m", "x"]
    assert calls == [(argv, False, Path("train.hfmem").absolute(), 16, ("pool", "numpy", "torch"))]
    assert capsys.readouterr().err == "recording: train.hfmem\n"


def test_options_before_the_script_are_ours(calls: list[tuple[Any, ...]]) -> None:
    options = ["--out", "a.hfmem", "--depth", "4", "--sources", "numpy, pool,numpy"]
    assert main(["mem", "record", *options, "--html", "a.html", "-m", "json.tool", "--help"]) == 3
    assert calls == [
        (["json.tool", "--help"], True, Path("a.hfmem").absolute(), 4, ("numpy", "pool"))
    ]
    assert Path("a.html").read_text().startswith("<!DOCTYPE html>")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["no.py"],
            "cannot run 'no.py': there is no such file\n"
            "  expected: a Python script, with the options of `record` before it\n",
        ),
        (
            ["."],
            "cannot run '.': it is a folder\n"
            "  expected: a Python script, with the options of `record` before it\n",
        ),
        (
            ["-m", "no_such_module.at_all"],
            "there is no module 'no_such_module.at_all'\n"
            "  expected: a name that `python -m` would take\n",
        ),
        (
            ["--out", "no/a.hfmem", "train.py"],
            "cannot write 'no/a.hfmem': there is no folder 'no'\n"
            "  expected: a path in a folder that exists\n",
        ),
        (
            ["--depth", "many", "train.py"],
            "cannot keep 'many' frames of a stack\n  expected: a number from 1 to 1000\n",
        ),
        (
            ["--sources", "numpy,cuda", "train.py"],
            "cannot record 'cuda'\n"
            "  expected: some of pool, numpy, torch, python, separated by commas\n",
        ),
        (
            ["--sources", ",", "train.py"],
            "cannot record ','\n"
            "  expected: some of pool, numpy, torch, python, separated by commas\n",
        ),
    ],
)
def test_what_cannot_be_recorded_is_refused_before_the_program_runs(
    arguments: list[str],
    message: str,
    calls: list[tuple[Any, ...]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert _refused(["record", *arguments], capsys) == f"holdfast: error: {message}"
    assert calls == []


def test_no_script_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["mem", "record", "--out", "a.hfmem"])
    assert caught.value.code == 2
    assert "the following arguments are required: SCRIPT" in capsys.readouterr().err


def test_a_recording_that_cannot_be_written_is_refused(
    calls: list[tuple[Any, ...]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("holdfast.memory.profile.script.run_script", full)
    assert _refused(["record", "train.py"], capsys) == (
        "holdfast: error: cannot write 'train.hfmem': No space left on device\n"
        "  expected: a path in a folder that exists\n"
    )


PROGRAM = """
import sys
import numpy

def hold():
    return numpy.ones(3_000_000)

kept = hold()
print(sys.argv)
sys.exit(int(sys.argv[1]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("status", [0, 7])
def test_a_real_program_is_recorded_with_its_lines_and_its_status(
    status: int, tmp_path: Path
) -> None:
    pytest.importorskip("numpy")
    (tmp_path / "program.py").write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, "-m", "holdfast", "mem", "record", "program.py", str(status), "--flag"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == status, done.stderr
    assert done.stdout == f"['program.py', '{status}', '--flag']\n"
    report = Report(Recording.load(tmp_path / "program.hfmem"))
    largest = report.largest(1)[0]
    assert largest.size == 24_000_000
    assert report.by_location()[0].name.endswith("program.py:6 in hold")


# ---- replay


def test_a_replay_prints_the_table_of_allocators(
    few: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from holdfast.memory.plan.replay import names

    assert main(["mem", "replay", "few.hfmem"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in names())
    assert main(["mem", "replay", "few.hfmem", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in rows] == list(names())
    assert all(row["ratio"] >= 1 for row in rows)


def test_a_replay_of_a_missing_file_is_refused(
    few: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    message = f"holdfast: error: there is no file 'no.hfmem'\n{OURS}"
    assert _refused(["replay", "no.hfmem"], capsys) == message


def test_the_program_itself_is_never_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("good.py").write_text("x = 1\n")
    for option in ("--out", "--html"):
        assert _refused(["record", option, "good.py", "good.py"], capsys) == (
            f"holdfast: error: cannot use 'good.py' for {option}: good.py is that file\n"
            "  expected: a different name for each file\n"
        )
    assert Path("good.py").read_text() == "x = 1\n"


def test_a_program_that_goes_elsewhere_is_recorded_where_it_was_started(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    program = "import os, pathlib\nos.chdir('sub')\nassert pathlib.Path(__file__).exists()\n"
    (tmp_path / "cd.py").write_text(program)
    done = subprocess.run(
        [sys.executable, "-m", "holdfast", "mem", "record", "--html", "p.html", "cd.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "recording: cd.hfmem\npage: p.html\n")
    assert (tmp_path / "cd.hfmem").exists()
    assert (tmp_path / "p.html").exists()


def test_threads_of_a_program_find_its_classes_to_the_end(tmp_path: Path) -> None:
    (tmp_path / "late.py").write_text(
        "import pickle, threading, time\n"
        "class C: pass\n"
        "def late():\n"
        "    time.sleep(0.3)\n"
        "    print(type(pickle.loads(pickle.dumps(C()))).__name__)\n"
        "threading.Thread(target=late).start()\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "holdfast", "mem", "record", "late.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "C\n")

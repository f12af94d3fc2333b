from __future__ import annotations

import io
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from holdfast.cli.main import main
from holdfast.pipeline.batch.manifest import NAME, parse
from holdfast.pipeline.output.media import read_settings
from tests.needs import ALL

PROGRAM = """
import sys
from holdfast.__main__ import command
print("started", flush=True)
sys.exit(command())
"""
# The same, and after some pictures it waits until a file is there.
PAUSING = """
import os, sys, time
from holdfast.pipeline.batch.folder import Folder
keep, kept = Folder.keep, []
def keep_and_pause(self, *args, **options):
    kept.append(keep(self, *args, **options))
    while len(kept) == int(os.environ["PAUSE_AFTER"]) and not os.path.exists("go"):
        time.sleep(0.01)
    return kept[-1]
Folder.keep = keep_and_pause
"""

Start = Callable[..., subprocess.Popen[bytes]]
# So small that the model is not what takes the time.
SMALL = ["--height", "32", "--width", "32", "--steps", "4"]


def _prompts(folder: Path, count: int) -> tuple[Path, list[str]]:
    prompts = [f"a handwritten {number}" for number in range(count)]
    file = folder / "prompts.jsonl"
    file.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts))
    return file, prompts


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start the command, in processes that never outlive the test."""
    started: list[subprocess.Popen[bytes]] = []

    def command(*arguments: str, pause_after: int | None = None) -> subprocess.Popen[bytes]:
        program = PROGRAM if pause_after is None else PAUSING + PROGRAM
        child = subprocess.Popen(
            [sys.executable, "-c", program, "batch", *arguments],
            start_new_session=True,  # a group of its own, as a terminal gives it
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=tmp_path,
            # Others want the CPU, too.
            env=os.environ | {"OMP_WAIT_POLICY": "PASSIVE", "PAUSE_AFTER": str(pause_after)},
        )
        started.append(child)
        assert child.stdout is not None
        assert child.stdout.readline() == b"started\n"
        return child

    yield command
    for child in started:
        if child.poll() is None:
            child.kill()
            child.communicate()


def _records(out: Path, event: str) -> list[dict[str, Any]]:
    if not (out / NAME).exists():
        return []
    return [r for r in parse((out / NAME).read_bytes())[0] if r["event"] == event]


def _wait_for_pictures(out: Path, count: int) -> None:
    deadline = time.monotonic() + 300
    while len(_records(out, "done")) < count:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _assert_exactly_once(out: Path, prompts: list[str]) -> None:
    done = _records(out, "done")
    assert Counter(r["settings"]["prompt"] for r in done) == Counter(prompts)
    files = sorted(p for p in out.rglob("*") if p.is_file() and p.name != NAME)
    assert files == sorted(out / r["file"] for r in done)
    assert Counter(read_settings(file)["prompt"] for file in files) == Counter(prompts)


# ---- without a model


def test_bad_lines_are_refused_and_nothing_is_made(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    Path("prompts.jsonl").write_text('{"prompt": "a"}\n{"prompt": "b", "step": 4}\n')
    assert main(["batch", "prompts.jsonl"]) == 2
    assert capsys.readouterr().err == (
        "holdfast: error: cannot use 'prompts.jsonl': 1 bad line, nothing was started\n"
        "  line 2: unknown key 'step', probably 'steps'\n"
        "  expected: one JSON object in each line, with prompt and, where wanted, negative, "
        "height, width, steps, seed, guidance, num_frames, out\n"
    )
    assert not Path("out").exists()


def test_an_unknown_model_is_refused_before_anything_is_made(tmp_path: Path, capsys) -> None:
    file, _ = _prompts(tmp_path, 2)
    out = tmp_path / "out"
    assert main(["batch", str(file), "--model", "tiny-flx", "--out", str(out)]) == 2
    assert capsys.readouterr().err.startswith("holdfast: error: cannot find model 'tiny-flx'\n")
    assert not out.exists()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--workers", "0"], "cannot use --workers 0\n  expected: 1 or more"),
        (["--retries", "-1"], "cannot use --retries -1\n  expected: 0 or more"),
        (["--ray", ""], 'cannot use --ray ""\n  expected: HOST:PORT, auto, or no address'),
        (["--fps", "0"], "cannot use --fps 0\n  expected: 1 or more"),
        (
            ["--steps", "0"],
            "cannot use these options: steps is '0', not an integer from 1\n"
            "  expected: values that a line of the file could have",
        ),
        (
            ["--precision", "fp8"],
            "unknown precision 'fp8'\n  expected: one of auto, fp32, bf16, fp16",
        ),
        (
            ["--device", "cudda"],
            "unknown device 'cudda'\n"
            "  expected: auto, or one of cpu, cuda, xpu, mps, holdfast, opencl, xla, simulated\n"
            "  try: cuda",
        ),
        (
            ["--budget", "much"],
            "cannot read 'much' as a size in bytes\n"
            '  expected: a size such as "2GB", "512MiB" or "80%"',
        ),
        (
            ["--ray", "--device", "cuda:1"],
            "cannot use --device cuda:1 with --ray: every worker of a cluster has a GPU of its "
            "own, and that is its number 0\n"
            "  expected: a kind of device without a number\n"
            "  try: --device cuda",
        ),
        (
            ["--format", "bmp"],
            "cannot write '.bmp' files\n  expected: one of .png, .webp, .jpg, .jpeg, .gif, .mp4",
        ),
    ],
)
def test_options_that_cannot_be_used_are_refused(
    tmp_path: Path, capsys, options: list[str], text: str
) -> None:
    file, _ = _prompts(tmp_path, 1)
    out = tmp_path / "out"
    assert main(["batch", str(file), "--out", str(out), *options]) == 2
    assert capsys.readouterr().err == f"holdfast: error: {text}\n"
    assert not out.exists()


def test_a_missing_file_is_refused(tmp_path: Path, capsys) -> None:
    assert main(["batch", str(tmp_path / "none.jsonl")]) == 2
    assert "No such file or directory" in capsys.readouterr().err
    assert main(["batch"]) == 2
    assert capsys.readouterr().err == (
        "holdfast: error: there is no file of prompts\n"
        "  expected: a FILE\n"
        "  try: holdfast batch prompts.jsonl\n"
    )


def test_a_dry_run_says_what_would_be_done_and_makes_nothing(
    tmp_path: Path, monkeypatch, capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    _prompts(tmp_path, 2)
    # The file stands where an address could: it is meant as the file.
    assert (
        main(["batch", "--dry-run", "--steps", "4", "--seed", "7", "--ray", "prompts.jsonl"]) == 0
    )
    assert capsys.readouterr().out == (
        "2 to do, 0 done; pictures: out/batch/prompts\n"
        '  line 1: 0000-a-handwritten-0.png  {"seed": 7, "steps": 4, '
        '"prompt": "a handwritten 0"}\n'
        '  line 2: 0001-a-handwritten-1.png  {"seed": 8, "steps": 4, '
        '"prompt": "a handwritten 1"}\n'
    )
    assert not Path("out").exists()


def test_a_dry_run_knows_videos(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    Path("prompts.jsonl").write_text('{"prompt": "a"}\n{"prompt": "b", "num_frames": 1}\n')
    assert main(["batch", "--dry-run", "--model", "tiny-wan", "prompts.jsonl"]) == 0
    assert capsys.readouterr().out == (
        "2 to do, 0 done; pictures: out/batch/prompts\n"
        '  line 1: 0000-a.gif  {"seed": 0, "prompt": "a"}\n'
        '  line 2: 0001-b.png  {"seed": 1, "prompt": "b", "num_frames": 1}\n'
    )


def test_a_dry_run_needs_no_torch(tmp_path: Path) -> None:
    file, _ = _prompts(tmp_path, 1)
    program = PROGRAM.replace("sys.exit(", "code = (") + "assert 'torch' not in sys.modules\n"
    subprocess.run(
        [sys.executable, "-c", program, "batch", str(file), "--dry-run"],
        check=True,
        capture_output=True,
    )


# ---- with the model that comes with Holdfast


@pytest.mark.slow
def test_a_batch_from_standard_input_and_what_a_second_run_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = (
        '{"prompt": "a seven", "steps": 2}\n{"prompt": "a ü", "steps": 2, "out": "sub/u.webp"}\n'
        '{"prompt": "a two", "steps": 2, "seed": 5}\n'
    )

    def batch(text: str, *options: str) -> int:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
        return main(["batch", "-", "--device", "cpu", *options])

    monkeypatch.chdir(tmp_path)
    first = subprocess.run(
        [sys.executable, "-m", "holdfast", "batch", "-", "--device", "cpu", "--json"],
        input=lines,
        text=True,
        capture_output=True,
        check=False,
    )
    assert first.returncode == 0, first.stderr
    assert json.loads(first.stdout) == {
        "folder": "out/batch/stdin",
        "total": 3,
        "done_before": 0,
        "found": 0,
        "done_now": 3,
        "failed": [],
        "renamed": [],
    }
    out = tmp_path / "out/batch/stdin"
    assert read_settings(out / "sub/u.webp")["seed"] == 1
    assert read_settings(out / "0002-a-two.png")["seed"] == 5
    assert batch(lines.replace("a two", "a three")) == 0
    second = capsys.readouterr()
    assert second.out == "1 done now, 2 done before, 0 failed; pictures: out/batch/stdin\n"
    assert "pictures of other jobs in 'out/batch/stdin': 1; they stay" in second.err
    assert batch(lines.replace('"seed": 5', '"height": 7')) == 2
    assert capsys.readouterr().err.partition("error: ")[2] == (
        "cannot use '-': 1 bad line, nothing was started\n"
        "  line 3: cannot draw height=7; expected a multiple of 16 from 16 to 8192\n"
        "  expected: settings that this model can draw\n"
    )
    assert len(_records(out, "done")) == 4


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["1", "2"])
def test_killed_in_the_middle_and_started_again(tmp_path: Path, start: Start, workers: str) -> None:
    file, prompts = _prompts(tmp_path, count := 60 if ALL else 16)
    out = tmp_path / "out"
    arguments = [str(file), "--out", str(out), *SMALL, "--workers", workers]
    child = start(*arguments, pause_after=5)
    _wait_for_pictures(out, 5)
    children = psutil.Process(child.pid).children(recursive=True)
    child.kill()
    child.communicate()
    assert psutil.wait_procs(children, timeout=300)[1] == []
    before = {path: path.stat().st_mtime_ns for path in out.glob("*.png")}
    assert len(before) == 5
    again = start(*arguments, "--json")
    stdout, stderr = again.communicate(timeout=300)
    assert again.returncode == 0, stderr.decode()
    summary = json.loads(stdout)
    assert summary["done_before"] + summary["found"] == len(before)
    assert summary["done_now"] == count - len(before)
    assert {path: path.stat().st_mtime_ns for path in before} == before
    _assert_exactly_once(out, prompts)


@pytest.mark.slow
def test_a_killed_worker_is_replaced(tmp_path: Path, start: Start) -> None:
    file, prompts = _prompts(tmp_path, 60)
    out = tmp_path / "out"
    arguments = [str(file), "--out", str(out), *SMALL, "--workers", "2", "--json"]
    child = start(*arguments, pause_after=3)
    _wait_for_pictures(out, 3)
    workers = [
        p for p in psutil.Process(child.pid).children() if "spawn_main" in " ".join(p.cmdline())
    ]
    os.kill(workers[0].pid, signal.SIGKILL)
    (tmp_path / "go").touch()
    stdout, stderr = child.communicate(timeout=300)
    assert child.returncode == 0, stderr.decode()
    assert "died and is replaced: it was ended by signal 9" in stderr.decode()
    assert json.loads(stdout)["done_now"] == 60
    _assert_exactly_once(out, prompts)


@pytest.mark.slow
def test_ctrl_c_at_random_moments_and_started_again_until_all_is_done(
    tmp_path: Path, start: Start
) -> None:
    file, prompts = _prompts(tmp_path, 200)
    out, moments = tmp_path / "out", random.Random(1)
    arguments = [str(file), "--out", str(out), *SMALL, "--workers"]
    interrupted = 0
    for number in range(6):
        child = start(*arguments, "12"[number % 2])
        if number % 3:  # one in three while it loads, the others while it draws
            _wait_for_pictures(out, min(199, len(_records(out, "done")) + 1))
            time.sleep(moments.uniform(0, 0.3))
        else:
            time.sleep(moments.uniform(0, 5))
        children = psutil.Process(child.pid).children(recursive=True)
        os.killpg(child.pid, signal.SIGINT)
        _, error = child.communicate(timeout=120)  # within a step
        stderr = error.decode()
        assert psutil.wait_procs(children, timeout=300)[1] == []
        assert "Traceback" not in stderr
        assert child.returncode in (0, 130), stderr
        interrupted += child.returncode == 130
        if number % 3 and child.returncode == 130:
            assert f"of 200 are done, in {out}; the same command goes on from there\n" in stderr
        assert [p.name for p in out.rglob(".*")] == []
        for picture in out.glob("*.png"):
            assert read_settings(picture)["prompt"] in prompts
    assert interrupted  # how many depends on how fast it draws
    last = start(*arguments, "2")
    _, error = last.communicate(timeout=300)
    assert last.returncode == 0, error.decode()
    _assert_exactly_once(out, prompts)


def test_a_dry_run_for_scripts_and_a_folder_below_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    file, _ = _prompts(tmp_path, 1)
    assert main(["batch", str(file), "--out", "~/x", "--dry-run", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["folder"] == str(tmp_path / "x")
    assert [job["file"] for job in plan["to_do"]] == ["0000-a-handwritten-0.png"]
    assert main(["batch", str(file), "--out", ""]) == 2

"""The runs of this user so far."""

from __future__ import annotations

import dataclasses
import io
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
from PIL import Image

from holdfast.base.errors import BadInput
from holdfast.pipeline import Pipeline
from holdfast.pipeline.output import history
from holdfast.pipeline.output.history import RunRecord
from holdfast.pipeline.run import live_runs
from holdfast.pipeline.run.progress import Event
from holdfast.residency.interrupt import (
    InterruptProcessingException,
    processing_interrupted,
    throw_exception_if_processing_interrupted,
)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOLDFAST_HISTORY_DIR", str(tmp_path / "runs"))
    return tmp_path / "runs"


@pytest.fixture(scope="module")
def pipe() -> Iterator[Pipeline]:
    with Pipeline.load("tiny-flux", device="cpu") as loaded:
        yield loaded


def record(number: int, **changes: Any) -> RunRecord:
    made = RunRecord(
        id=f"{number:012x}-{os.getpid():x}-1",
        pid=os.getpid(),
        began_s=float(number),
        took_s=1.0,
        model="tiny-flux",
        prompt="seven",
        status="done",
        error=None,
        device="cpu",
        seed=1,
        width=64,
        height=64,
        steps=4,
        frames=1,
        load_s=None,
        text_ms=1.0,
        step_ms=2.0,
        decode_ms=3.0,
        peak_bytes=None,
        saved_to=None,
    )
    return dataclasses.replace(made, **changes)


# ---- runs of a pipeline


def test_a_run_is_remembered_with_what_it_cost_and_a_small_picture(
    pipe: Pipeline, tmp_path: Path
) -> None:
    result = pipe("a handwritten seven", steps=3, seed=5)
    (run,) = history.runs()
    assert run.id == result.run_id
    assert (run.model, run.prompt, run.status) == ("tiny-flux", "a handwritten seven", "done")
    assert (run.seed, run.steps, run.frames, run.device) == (5, 3, 1, "cpu")
    assert (run.width, run.height) == result.frames.shape[2:0:-1]
    assert run.step_ms == round(result.cost.mean_step_ms, 3)
    assert run.text_ms == round(result.cost.text_ms, 3)
    assert run.decode_ms == round(result.cost.decode_ms, 3)
    assert run.peak_bytes == max(result.cost.peak_bytes.values())
    assert (run.error, run.saved_to, run.pid) == (None, None, os.getpid())
    data = history.picture(run.id)
    assert data is not None
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(data))), result.frames[0])
    saved = result.save(tmp_path / "seven.png")
    assert [one.saved_to for one in history.runs()] == [str(saved)]


def test_loading_is_counted_to_the_first_run_alone() -> None:
    with Pipeline.load("tiny-flux", device="cpu") as own:
        own("one", steps=1)
        own("two", steps=1)
    second, first = history.runs()
    assert (first.prompt, first.load_s) == ("one", round(own.load_s, 3))
    assert (second.prompt, second.load_s) == ("two", None)


def test_a_run_that_a_listener_stops_is_told_as_such(pipe: Pipeline) -> None:
    def stop(event: Event) -> None:
        if event.stage == "denoise" and event.done:
            raise KeyError("enough")

    with pytest.raises(KeyError):
        pipe("never", steps=2, progress=stop)
    (run,) = history.runs()
    assert (run.status, run.error, run.frames) == ("stopped", None, 0)
    assert (run.step_ms, run.peak_bytes) == (None, None)
    assert history.picture(run.id) is None


def test_a_run_that_fails_is_told_with_its_reason(
    pipe: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise BadInput("the decoder has no bits left", hint="more bits")

    monkeypatch.setattr(pipe, "decode", broken)
    with pytest.raises(BadInput):
        pipe("never", steps=1)
    (run,) = history.runs()
    assert (run.status, run.error) == ("failed", "BadInput: the decoder has no bits left")


def test_what_is_refused_before_it_begins_is_no_run(pipe: Pipeline) -> None:
    with pytest.raises(BadInput):
        pipe("never", steps=0)
    assert history.runs() == ()


# ---- the run under way


def test_a_run_tells_where_it_is_also_when_nobody_listens(pipe: Pipeline) -> None:
    seen: list[live_runs.RunStatus | None] = []
    told = live_runs.LiveRun.report

    def spying(working: live_runs.LiveRun, event: Event) -> None:
        told(working, event)
        seen.append(live_runs.current())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(live_runs.LiveRun, "report", spying)
        result = pipe("a seven", steps=3)
    assert live_runs.current() is None
    moments = [now for now in seen if now is not None]
    assert [(now.stage, now.done, now.total) for now in moments] == [
        *(("text", 0, 1), ("text", 1, 1)),
        *(("denoise", done, 3) for done in range(4)),
        *(("decode", 0, 1), ("decode", 1, 1)),
    ]
    assert {(now.id, now.model, now.prompt) for now in moments} == {
        (result.run_id, "tiny-flux", "a seven")
    }
    left = [now.left_s for now in moments if now.stage == "denoise"]
    assert left[0] is None
    assert left[1] is not None
    assert left[1] > 0
    assert left[-1] == 0


def test_loading_is_track_too() -> None:
    seen: list[live_runs.RunStatus | None] = []
    Pipeline.load("tiny-flux", device="cpu", progress=lambda _: seen.append(live_runs.current()))
    assert {now.stage for now in seen if now is not None} == {"load"}
    assert [now.label for now in seen if now is not None][:2] == [
        "finding files",
        "importing torch and diffusers",
    ]
    assert live_runs.current() is None


def test_a_run_that_is_asked_to_stop_stops_and_the_next_one_does_not(pipe: Pipeline) -> None:
    def ask(event: Event) -> None:
        if event.stage == "denoise" and event.done == 1:
            assert live_runs.stop_current()

    with pytest.raises(InterruptProcessingException):
        pipe("never", steps=3, progress=ask)
    assert not processing_interrupted()
    assert len(pipe("a seven", steps=1).frames) == 1
    assert [run.status for run in history.runs()] == ["done", "stopped"]


def test_a_request_that_comes_too_late_stops_nothing(pipe: Pipeline) -> None:
    def ask(event: Event) -> None:
        if event.stage == "decode" and event.done == 1:
            assert live_runs.stop_current()

    pipe("a seven", steps=1, progress=ask)
    assert not processing_interrupted()
    assert not live_runs.stop_current()
    pipe("another", steps=1)


def test_of_several_runs_the_newest_is_shown() -> None:
    first, second = live_runs.LiveRun("first"), live_runs.LiveRun("second")

    def shown() -> str | None:
        now = live_runs.current()
        return None if now is None else now.model

    with live_runs.track(first):
        with live_runs.track(second):
            assert shown() == "second"
        assert shown() == "first"
    assert shown() is None


def test_how_long_loading_takes_is_told_by_bytes() -> None:
    working = live_runs.LiveRun("large")
    working._stage_began -= 10.0
    working.report(Event("load", 1, 7, "transformer", 25, 100))
    left = working.status().left_s
    assert left is not None
    assert 29 < left < 31


# ---- the files


def test_the_newest_come_first_and_the_oldest_are_forgotten(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_HISTORY", "3")
    frame = np.zeros((1, 300, 600, 3), np.uint8)
    for number in (2, 5, 1, 4, 3):
        history.keep(record(number), frame)
    assert [run.began_s for run in history.runs()] == [5, 4, 3]
    assert [run.began_s for run in history.runs(2)] == [5, 4]
    assert len(list(folder.iterdir())) == 6
    data = history.picture(history.runs()[0].id)
    assert data is not None
    assert Image.open(io.BytesIO(data)).size == (256, 128)


def test_nothing_is_written_where_nothing_shall_be_remembered(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_HISTORY", "0")
    history.keep(record(1))
    assert not folder.exists()
    assert history.runs() == ()


def test_the_folder_is_for_this_user_alone(folder: Path) -> None:
    history.keep(record(1))
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_files_that_are_broken_or_strange_are_left_out_and_left_alone(folder: Path) -> None:
    history.keep(record(1))
    (folder / f"{9:012x}-1-1.json").write_text('{"id": 1}')
    (folder / f"{8:012x}-1-1.json").write_text("not JSON")
    (folder / "notes.json").write_text("{}")
    assert [run.began_s for run in history.runs()] == [1.0]
    assert len(list(folder.iterdir())) == 4


@pytest.mark.parametrize("name", ["../secret", "", "x", "/etc/passwd", "0" * 12])
def test_a_name_that_is_no_runs_has_no_picture(name: str, folder: Path) -> None:
    folder.mkdir()
    (folder.parent / "secret.png").write_bytes(b"secret")
    assert history.picture(name) is None


def test_a_disk_that_is_full_breaks_no_run(
    pipe: Pipeline, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(history, "write_whole", full)
    pipe("a seven", steps=1).save(tmp_path / "seven.png")
    assert history.runs() == ()


def test_a_folder_that_cannot_be_made_breaks_no_run(
    pipe: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_HISTORY_DIR", "/proc/nowhere")
    pipe("a seven", steps=1)
    assert history.runs() == ()


def test_without_pillow_a_run_is_remembered_without_a_picture(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    history.keep(record(1), np.zeros((1, 8, 8, 3), np.uint8))
    (run,) = history.runs()
    assert history.picture(run.id) is None


def test_a_file_is_not_noted_for_a_run_that_was_forgotten(folder: Path, tmp_path: Path) -> None:
    folder.mkdir()
    history.note_file(record(1).id, tmp_path / "x.png")
    assert list(folder.iterdir()) == []


def test_several_processes_write_at_the_same_time_and_lose_nothing() -> None:
    program = (
        "import sys\n"
        "from holdfast.pipeline.output import history\n"
        "from holdfast.pipeline.run import live_runs\n"
        "from holdfast.base.codec import decode\n"
        "import json\n"
        "made = json.loads(sys.argv[1])\n"
        "for _ in range(20):\n"
        "    made['id'] = live_runs.LiveRun('x').id\n"
        "    history.keep(decode(history.RunRecord, made))\n"
    )
    import json

    from holdfast.base.codec import encode

    command = [sys.executable, "-c", program, json.dumps(encode(record(1)))]
    writers = [subprocess.Popen(command) for _ in range(3)]
    assert [writer.wait() for writer in writers] == [0, 0, 0]
    assert len({run.id for run in history.runs()}) == 60


# ---- what must not happen


def test_of_several_runs_the_one_that_was_meant_stops_and_no_other() -> None:
    first, second = live_runs.LiveRun("first"), live_runs.LiveRun("second")
    with live_runs.track(first), live_runs.track(second):
        assert live_runs.stop_current()
        throw_exception_if_processing_interrupted()  # a layer of the first
        first.report(Event("denoise", 1, 3))
        with pytest.raises(InterruptProcessingException):
            second.report(Event("denoise", 1, 3))
    with live_runs.track(first):
        first.report(Event("denoise", 2, 3))


def test_a_request_that_other_work_took_stops_the_run_all_the_same() -> None:
    working = live_runs.LiveRun("only")
    with live_runs.track(working):
        assert live_runs.stop_current()
        with pytest.raises(InterruptProcessingException):
            throw_exception_if_processing_interrupted()  # a module that is no part of the run
        with pytest.raises(InterruptProcessingException):
            working.report(Event("denoise", 1, 3))
    assert not processing_interrupted()


@pytest.mark.skipif(sys.platform == "win32", reason="files have no modes there")
def test_nobody_else_can_read_what_was_drawn(folder: Path) -> None:
    folder.mkdir(mode=0o755)  # made by somebody before
    history.keep(record(1), np.zeros((1, 8, 8, 3), np.uint8))
    assert {one.suffix: one.stat().st_mode & 0o777 for one in folder.iterdir()} == {
        ".json": 0o600,
        ".png": 0o600,
    }


@pytest.mark.parametrize(
    ("changes", "frames"),
    [
        ({"seed": np.int64(3)}, None),
        ({}, np.zeros((1, 8, 8, 3), np.float32)),
        ({}, ()),
    ],
    ids=["a seed that is no JSON", "a frame that is no picture", "no frame"],
)
def test_what_cannot_be_written_down_fails_no_run(changes: dict[str, Any], frames: Any) -> None:
    history.keep(record(1, **changes), frames)
    assert history.runs() == ()


def test_without_a_home_no_run_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> NoReturn:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", homeless)
    history.keep(record(1))
    history.note_file("0123456789ab-1-1", Path("seven.png"))


def test_a_picture_without_its_record_is_forgotten_too(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_HISTORY", "1")
    folder.mkdir()
    alone = folder / f"{record(1).id}.png"
    alone.write_bytes(b"")
    history.keep(record(2))
    assert not alone.exists()

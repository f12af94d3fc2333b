from __future__ import annotations

import tempfile
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.base.errors import BadInput, HoldfastError, OutOfMemory, Unsupported
from holdfast.base.registry import Entry, Registry
from holdfast.pipeline.batch.folder import Folder
from holdfast.pipeline.batch.jobs import Job
from holdfast.pipeline.batch.runner import Runner
from holdfast.pipeline.batch.show import Show
from holdfast.pipeline.batch.workers import (
    Answer,
    Check,
    Checked,
    Died,
    Draw,
    Drawn,
    Failed,
    InProcess,
    Loaded,
    LoadModel,
    Order,
    Watch,
    Worker,
    WorkerPool,
)
from holdfast.pipeline.output import media
from tests.pipeline.batch.fakes import (
    FakeLoad,
    FakePipe,
    assert_exactly_once,
    jobs,
    records,
    told,
)

Script = Callable[[int, Job], Answer]


class Scripted(WorkerPool):
    """Workers that answer as a test says, in the order they were asked."""

    def __init__(self, count: int, paint: Script, load: Answer | None = None) -> None:
        super().__init__(count)
        self.paint, self.load = paint, load or Loaded()
        self.problems: dict[str, HoldfastError] = {}
        self.started: list[int] = []
        self.asked: list[tuple[int, Order]] = []
        self.orders: list[tuple[int, Order]] = []

    def _start(self, worker: int) -> None:
        self.started.append(worker)

    def _send(self, worker: int, order: Order) -> None:
        self.orders.append((worker, order))
        self.asked.append((worker, order))

    def _receive(self, watch: Watch) -> list[tuple[int, Answer]]:
        worker, order = self.orders.pop(0)
        if isinstance(order, LoadModel):
            return [(worker, self.load)]
        if isinstance(order, Check):
            return [(worker, Checked(self.problems))]
        return [(worker, self.paint(worker, order.job))]

    def __exit__(self, *_: object) -> None:
        return None


class Notes(Show):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


def _good(worker: int, task: Job) -> Answer:
    import numpy

    frames = numpy.zeros((1, 2, 2, 3), numpy.uint8)
    settings = {**task.settings, "job": task.identity}
    return Drawn(media.encode(frames, ".png", settings), ".png", settings, 0.1)


def _run(
    tmp_path: Path, pool: WorkerPool, work: list[Job], retries: int = 1, show: Show | None = None
) -> Runner:
    with Folder(tmp_path) as folder:
        runner = Runner(
            work,
            folder,
            pool,
            show or Show(),
            retries=retries,
            file="prompts.jsonl",
            everything=work,
        )
        runner.run()
    return runner


def _drawn(pool: Scripted) -> list[tuple[int, str]]:
    return [
        (worker, order.job.settings["prompt"])
        for worker, order in pool.asked
        if isinstance(order, Draw)
    ]


def test_jobs_go_to_whoever_is_free(tmp_path: Path) -> None:
    pool = Scripted(2, _good)
    runner = _run(tmp_path, pool, jobs("a", "b", "c", "d"))
    assert sorted(prompt for _, prompt in _drawn(pool)) == ["a", "b", "c", "d"]
    assert {worker for worker, _ in _drawn(pool)} == {0, 1}
    assert len(runner.outcome.kept) == len(records(tmp_path, "done")) == 4


def test_settings_are_checked_once_and_before_anything_is_drawn(tmp_path: Path) -> None:
    pool, work = Scripted(2, _good), jobs("a", "b", "c")
    pool.problems = {
        work[0].identity: BadInput("cannot draw height=9", expected="a multiple of 8"),
        work[2].identity: BadInput("cannot draw num_frames=2"),
    }
    with pytest.raises(BadInput) as caught:
        _run(tmp_path, pool, work)
    assert str(caught.value) == (
        "cannot use 'prompts.jsonl': 2 bad lines, nothing was started\n"
        "  line 1: cannot draw height=9; expected a multiple of 8\n"
        "  line 3: cannot draw num_frames=2\n"
        "  expected: settings that this model can draw"
    )
    assert _drawn(pool) == []
    assert sum(isinstance(order, Check) for _, order in pool.asked) == 1


def test_the_job_of_a_dead_worker_is_done_by_another(tmp_path: Path) -> None:
    def first_dies(worker: int, task: Job) -> Answer:
        mine = [prompt for who, prompt in _drawn(pool) if who == 1]
        dies = worker == 1 and len(mine) == 1
        return Died("it was ended by signal 9") if dies else _good(worker, task)

    pool, show = Scripted(2, first_dies), Notes()
    runner = _run(tmp_path, pool, jobs("a", "b", "c"), show=show)
    assert len(runner.outcome.kept) == 3
    assert pool.started == [0, 1, 1]
    assert show.notes[0] == "worker 1 died and is replaced: it was ended by signal 9"
    assert sorted(r["settings"]["prompt"] for r in records(tmp_path, "done")) == ["a", "b", "c"]


def test_a_job_that_kills_its_workers_is_given_up_and_the_others_are_done(tmp_path: Path) -> None:
    def poison(worker: int, task: Job) -> Answer:
        deadly = task.settings["prompt"] == "b"
        return Died("it was ended by signal 9") if deadly else _good(worker, task)

    pool = Scripted(2, poison)
    runner = _run(tmp_path, pool, jobs("a", "b", "c"), retries=2)
    assert [prompt for _, prompt in _drawn(pool)].count("b") == 3
    (failure,) = runner.outcome.failures
    assert (failure.where, failure.attempts) == ("line 2", 3)
    assert failure.reason == "its worker died: it was ended by signal 9"
    assert len(runner.outcome.kept) == 2
    assert records(tmp_path, "failed")[0]["reason"] == failure.reason


@pytest.mark.parametrize(("again", "attempts"), [(True, 2), (False, 1)])
def test_a_failure_is_tried_again_only_where_that_can_help(
    tmp_path: Path, again: bool, attempts: int
) -> None:
    def fails(worker: int, task: Job) -> Answer:
        return Failed(Unsupported("no luck", expected="luck"), again)

    runner = _run(tmp_path, Scripted(1, fails), jobs("a"))
    (failure,) = runner.outcome.failures
    assert (failure.reason, failure.attempts) == ("no luck\n  expected: luck", attempts)


def test_a_failure_that_passes_is_kept_as_done(tmp_path: Path) -> None:
    answers = [Failed(Unsupported("no luck"), again=True)]
    pool = Scripted(1, lambda worker, task: answers.pop() if answers else _good(worker, task))
    runner = _run(tmp_path, pool, jobs("a"))
    assert (len(runner.outcome.kept), runner.outcome.failures) == (1, [])
    assert records(tmp_path, "done")[0]["attempts"] == 2


def test_a_model_that_nobody_can_load_is_the_error_of_the_batch(tmp_path: Path) -> None:
    error = Unsupported("cannot load", expected="a model")
    pool = Scripted(2, _good, load=Failed(error, again=True))
    with pytest.raises(Unsupported) as caught:
        _run(tmp_path, pool, jobs("a"))
    assert caught.value is error


def test_one_worker_that_cannot_load_leaves_the_work_to_the_others(tmp_path: Path) -> None:
    class Uneven(Scripted):
        def _receive(self, watch: Watch) -> list[tuple[int, Answer]]:
            self.load = Loaded() if self.orders[0][0] == 0 else Failed(Unsupported("x"), True)
            return super()._receive(watch)

    show = Notes()
    runner = _run(tmp_path, Uneven(2, _good), jobs("a", "b"), show=show)
    assert len(runner.outcome.kept) == 2
    assert show.notes == ["one worker less: x"]


def test_workers_that_die_while_loading_are_not_started_for_ever(tmp_path: Path) -> None:
    pool = Scripted(1, _good, load=Died("it was ended by signal 9"))
    with pytest.raises(Unsupported) as caught:
        _run(tmp_path, pool, jobs("a"))
    assert str(caught.value) == (
        "a worker died 3 times while it loaded the model: it was ended by signal 9\n"
        "  expected: a process that has the memory for the model\n"
        "  try: fewer --workers, a smaller --precision, or `dmesg` for what ended it"
    )
    assert pool.started == [0, 0, 0]


def test_a_check_that_kills_workers_is_an_error(tmp_path: Path) -> None:
    class Deadly(Scripted):
        def _receive(self, watch: Watch) -> list[tuple[int, Answer]]:
            if isinstance(self.orders[0][1], Check):
                return [(self.orders.pop(0)[0], Died("it ended with status 1"))]
            return super()._receive(watch)

    with pytest.raises(Unsupported, match="checking the settings has ended a worker"):
        _run(tmp_path, Deadly(1, _good), jobs("a"))


def test_a_name_that_was_taken_is_told(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"mine")
    runner = _run(tmp_path, Scripted(1, _good), jobs("a", out="a.png"))
    assert runner.outcome.renamed == [("a.png", "a-2.png")]


def test_this_process_can_be_the_worker(tmp_path: Path) -> None:
    out, log = tmp_path / "out", tmp_path / "log"
    runner = _run(out, InProcess(FakeLoad(str(log)), "cpu"), jobs("a", "b", "an error"))
    assert told(log, "load") == ["cpu"]
    assert told(log, "begin") == ["a", "b", "an error", "an error"]
    assert runner.outcome.failures[0].reason == "RuntimeError: a vendor's library has failed"
    log.write_text("".join(x for x in log.read_text().splitlines(True) if "error" not in x))
    assert_exactly_once(out, ["a", "b"], log)


def test_ctrl_c_wrapped_by_a_library_is_still_ctrl_c(tmp_path: Path) -> None:
    def load(device: str, progress: object) -> Any:
        raise RuntimeError("import failed") from KeyboardInterrupt()

    with pytest.raises(KeyboardInterrupt):
        _run(tmp_path, InProcess(load, "cpu"), jobs("a"))


def test_ctrl_c_wrapped_in_an_error_of_ours_is_still_ctrl_c(tmp_path: Path) -> None:
    def load(device: str, progress: object) -> Any:
        raise Unsupported("import failed") from KeyboardInterrupt()

    with pytest.raises(KeyboardInterrupt):
        _run(tmp_path, InProcess(load, "cpu"), jobs("a"))


def test_a_video_does_not_go_into_a_picture_file(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with pytest.raises(BadInput) as caught:
        _run(
            tmp_path / "out",
            InProcess(FakeLoad(str(log)), "cpu"),
            jobs("a", out="a.png", num_frames=9),
        )
    assert caught.value.what == (
        "cannot use 'prompts.jsonl': 1 bad line, nothing was started\n"
        "  line 1: cannot write 9 frames to '.png': a PNG file holds one; "
        "expected .gif or .mp4 for a video"
    )


def test_formats_are_asked_about_once_each_and_leave_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, int]] = []
    original = media.check_format

    def check(suffix: str, num_frames: int, path: Path | None = None) -> None:
        if num_frames > 1:  # not those of encoding
            asked.append((suffix, num_frames))
        original(suffix, num_frames, path)

    monkeypatch.setattr(media, "check_format", check)
    for name in ("TemporaryFile", "NamedTemporaryFile", "mkstemp"):
        monkeypatch.setattr(tempfile, name, None)
    worker = Worker(FakeLoad(str(tmp_path / "log")), "cpu")
    worker.answer(LoadModel(), lambda _: None)
    frames = [(".gif", 2), (".gif", 3), (".png", 3)] * 20
    jobs = tuple(
        Job(
            identity=f"{n}",
            where=f"line {n}",
            position=n,
            settings={"prompt": "a", "num_frames": count},
            out=None,
            suffix=suffix,
            fps=8,
        )
        for n, (suffix, count) in enumerate(frames)
    )
    answer = worker.answer(Check(jobs), lambda _: None)
    assert isinstance(answer, Checked)
    assert sorted(map(int, answer.problems)) == list(range(2, 60, 3))
    assert asked == [(".gif", 2), (".gif", 3), (".png", 3)]


def test_a_format_without_its_library_is_refused_before_anything_is_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        media, "_LIBRARIES", Registry("format", {".mp4": Entry("no_such_av", extra="video")})
    )
    log = tmp_path / "log"
    with pytest.raises(BadInput) as caught:
        _run(tmp_path / "out", InProcess(FakeLoad(str(log)), "cpu"), jobs("a", out="a.mp4"))
    assert caught.value.what == (
        "cannot use 'prompts.jsonl': 1 bad line, nothing was started\n"
        "  line 1: cannot load format '.mp4': the package 'no_such_av' is not installed; "
        "expected the packages of the extra 'video'"
    )
    assert told(log, "begin") == []


class Tensor:
    """Something large."""


def test_a_failed_attempt_has_let_go_of_its_memory_before_the_next_one(tmp_path: Path) -> None:
    attempts: list[tuple[weakref.ref[Tensor], bool]] = []

    class Pipe(FakePipe):
        def __call__(self, prompt: str, **settings: Any) -> Any:
            alive = any(tensor() is not None for tensor, _ in attempts)
            tensor = Tensor()
            attempts.append((weakref.ref(tensor), alive))
            try:
                raise RuntimeError("CUDA out of memory")
            except RuntimeError as exc:
                kept = exc  # a circle: the exception has this frame, and this frame has it
                raise OutOfMemory("no room", expected="room", hint="less") from kept

    runner = _run(
        tmp_path / "out",
        InProcess(lambda *_: Pipe(FakeLoad(str(tmp_path / "log"))), "cpu"),
        jobs("a"),
        retries=2,
    )
    assert [alive for _, alive in attempts] == [False, False, False]
    assert runner.outcome.failures[0].reason == "no room\n  expected: room\n  try: less"


def test_the_error_in_an_answer_is_the_same_without_where_it_came_from(tmp_path: Path) -> None:
    def load(device: str, progress: object) -> Any:
        raise OutOfMemory("no room", expected="room", hint="less") from RuntimeError("why")

    answer = Worker(load, "cpu").answer(LoadModel(), lambda _: None)
    assert isinstance(answer, Failed)
    error = answer.error
    assert type(error) is OutOfMemory
    assert (error.what, error.expected, error.hint) == ("no room", "room", "less")
    assert (error.__traceback__, error.__cause__, error.__context__) == (None, None, None)


def test_a_video_without_a_name_becomes_a_gif(tmp_path: Path) -> None:
    runner = _run(
        tmp_path / "out", InProcess(FakeLoad(str(tmp_path / "log")), "cpu"), jobs("a", num_frames=3)
    )
    assert runner.outcome.kept == ["0000-a.gif"]

"""The parts together: what a second run does with what a first one has left."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.base.errors import BadInput, HoldfastError, Unsupported
from holdfast.pipeline.batch import Batch, Options, Row, Show, WorkerOptions
from holdfast.pipeline.batch import batch as module
from holdfast.pipeline.batch.folder import Folder
from holdfast.pipeline.batch.local import gpus
from holdfast.pipeline.batch.manifest import NAME
from holdfast.pipeline.model.sources import BUILT_IN
from tests.pipeline.batch.fakes import FakeLoad, assert_exactly_once, records, rows, told


class Notes(Show):
    def __init__(self) -> None:
        self.notes: list[str] = []
        self.begun: list[tuple[int, int]] = []

    def note(self, text: str) -> None:
        self.notes.append(text)

    def begin(self, total: int, done: int) -> None:
        self.begun.append((total, done))


def _batch(tmp_path: Path, lines: list[Row], **options: Any) -> Batch:
    hands = WorkerOptions(device="cpu", workers=1, load=FakeLoad(str(tmp_path / "log")))
    return Batch(
        lines, Options(**{"model": "m", **options}), hands, tmp_path / "out", "prompts.jsonl"
    )


def test_a_second_run_has_nothing_to_do_and_loads_nothing(tmp_path: Path) -> None:
    _batch(tmp_path, rows("a", "b")).run()
    summary = _batch(tmp_path, rows("a", "b")).run()
    assert (summary.done_before, summary.done_now, summary.left) == (2, 0, 0)
    assert len(told(tmp_path / "log", "load")) == 1
    assert len(records(tmp_path / "out", "run")) == 1


def test_lines_that_are_moved_added_and_changed(tmp_path: Path) -> None:
    _batch(tmp_path, rows("a", "b", "c")).run()
    show = Notes()
    summary = _batch(tmp_path, rows("c", "new", "B", "a")).run(show)
    assert (summary.done_before, summary.done_now) == (2, 2)
    assert show.begun == [(4, 2)]
    assert show.notes == [
        f"pictures of other jobs in {str(tmp_path / 'out')!r}: 1; "
        "they stay, new ones are put next to them"
    ]
    assert_exactly_once(tmp_path / "out", ["a", "b", "c", "new", "B"], tmp_path / "log")


def test_another_model_is_told_and_its_pictures_are_put_next_to_the_old(tmp_path: Path) -> None:
    _batch(tmp_path, rows("a")).run()
    old = (tmp_path / "out/0000-a.png").read_bytes()
    show = Notes()
    assert _batch(tmp_path, rows("a"), model="n", defaults={"steps": 2}).run(show).done_now == 1
    assert show.notes == [
        f"pictures of other jobs in {str(tmp_path / 'out')!r}: 1 "
        "(model: m before, n now, defaults: {} before, {'steps': 2} now); "
        "they stay, new ones are put next to them"
    ]
    assert (tmp_path / "out/0000-a.png").read_bytes() == old
    assert (tmp_path / "out/0000-a-2.png").exists()
    assert _batch(tmp_path, rows("a")).run().done_before == 1


def test_a_manifest_that_was_deleted_is_made_again_from_the_pictures(tmp_path: Path) -> None:
    _batch(tmp_path, rows("a", "b")).run()
    (tmp_path / "out" / NAME).unlink()
    show = Notes()
    summary = _batch(tmp_path, rows("a", "b")).run(show)
    assert (summary.found, summary.done_now) == (2, 0)
    assert show.notes == ["pictures found without a record, and kept: 2"]
    assert_exactly_once(tmp_path / "out", ["a", "b"], tmp_path / "log")


def test_a_picture_that_was_deleted_is_made_again(tmp_path: Path) -> None:
    _batch(tmp_path, rows("a", "b")).run()
    (tmp_path / "out/0000-a.png").unlink()
    assert _batch(tmp_path, rows("a", "b")).run().done_now == 1
    assert told(tmp_path / "log", "begin") == ["a", "b", "a"]
    assert (tmp_path / "out/0000-a.png").exists()


def test_ctrl_c_keeps_what_is_done_and_the_summary_says_it(tmp_path: Path) -> None:
    class Stop(Show):
        def finished(self, job: object, file: str | None) -> None:
            raise KeyboardInterrupt

    batch = _batch(tmp_path, rows("a", "b", "c"))
    with pytest.raises(KeyboardInterrupt):
        batch.run(Stop())
    assert (batch.summary().done_now, batch.summary().left) == (1, 2)
    assert _batch(tmp_path, rows("a", "b", "c")).run().done_now == 2
    assert_exactly_once(tmp_path / "out", ["a", "b", "c"], tmp_path / "log")


def test_looking_makes_nothing(tmp_path: Path) -> None:
    assert len(_batch(tmp_path, rows("a")).status().to_do) == 1
    assert not (tmp_path / "out").exists()


def test_two_batches_in_one_folder_are_refused(tmp_path: Path) -> None:
    with Folder(tmp_path / "out") as folder:
        folder.begin()
        with pytest.raises(Unsupported, match="is working in it"):
            _batch(tmp_path, rows("a")).run()


def test_damaged_lines_are_told(tmp_path: Path) -> None:
    _batch(tmp_path, rows("a")).run()
    with (tmp_path / "out" / NAME).open("ab") as file:
        file.write(b"\0\0\n")
    show = Notes()
    assert _batch(tmp_path, rows("a")).run(show).done_before == 1
    assert show.notes == ["damaged lines in the manifest, passed over: 1"]


@pytest.mark.parametrize(
    ("device", "workers", "seen", "used"),
    [
        ("auto", None, ["cuda:0", "cuda:1"], ["cuda:0", "cuda:1"]),
        ("auto", 3, ["cuda:0", "cuda:1"], ["cuda:0", "cuda:1", "cuda:0"]),
        ("auto", None, ["cuda:0"], ["auto"]),
        ("auto", None, [], ["auto"]),
        ("auto", 2, [], ["auto", "auto"]),
        ("auto", 1, ["cuda:0", "cuda:1"], ["auto"]),
        ("cuda:1", None, ["cuda:0", "cuda:1"], ["cuda:1"]),
        ("cuda:1", 2, ["cuda:0", "cuda:1"], ["cuda:1", "cuda:1"]),
        ("cuda", 2, ["cuda:0", "cuda:1"], ["cuda:0", "cuda:1"]),
        ("cuda", None, ["cuda:0", "cuda:1"], ["cuda:0", "cuda:1"]),
        ("cuda", 2, ["cuda:0"], ["cuda", "cuda"]),
        ("cuda", 1, ["cuda:0", "cuda:1"], ["cuda"]),
        ("cpu", 2, ["cuda:0", "cuda:1"], ["cpu", "cpu"]),
        ("text=cpu", 2, ["cuda:0", "cuda:1"], ["text=cpu", "text=cpu"]),
    ],
)
def test_every_gpu_gets_a_worker_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
    device: str,
    workers: int | None,
    seen: list[str],
    used: list[str],
) -> None:
    monkeypatch.setattr(module, "gpus", lambda wanted: seen)
    monkeypatch.setattr(module, "_any_gpu", lambda: bool(seen))
    assert module._devices(WorkerOptions(device=device, workers=workers)) == used


class Cards:
    def __init__(self, kind: str, count: int) -> None:
        self.kind, self.count = kind, count

    def __call__(self, index: int | None) -> Any:
        reason = None if (index or 0) < self.count else "there is no such card"
        return SimpleNamespace(name=f"{self.kind}:{index}", unusable=lambda: reason)


@pytest.mark.parametrize(
    ("wanted", "seen"),
    [
        ("auto", ["xpu:0"]),
        ("xpu", ["xpu:0"]),
        ("cuda", []),
        ("cpu", []),
        ("cuda:1", []),
        ("text=xpu", []),
    ],
)
def test_gpus_are_those_of_the_kind_that_is_wanted(
    monkeypatch: pytest.MonkeyPatch, wanted: str, seen: list[str]
) -> None:
    machine = {"cuda": Cards("cuda", 0), "xpu": Cards("xpu", 1), "cpu": Cards("cpu", 1)}
    monkeypatch.setattr("holdfast.pipeline.devices.device.DEVICES", machine)
    assert gpus(wanted) == seen


@pytest.mark.parametrize(
    ("hands", "options", "text"),
    [
        ({}, {"precision": "fp8"}, "unknown precision 'fp8'\n  expected: one of "),
        ({"budget": "much"}, {}, "cannot read 'much' as a size in bytes\n  expected: a size"),
        ({"device": "cudda"}, {}, "unknown device 'cudda'\n  expected: auto, or one of cpu, cuda"),
        ({"device": "cuda:x"}, {}, "cannot read device 'cuda:x'\n  expected: a name such as"),
        (
            {"device": "text=cpu,denoise=gpu"},
            {},
            "unknown device 'gpu'\n  expected: auto",
        ),
        ({"device": "paint=cpu"}, {}, "unknown stage 'paint'\n  expected: one of"),
        ({"device": "text="}, {}, "cannot read device 'text='\n  expected: such as"),
    ],
)
def test_what_no_machine_has_is_refused_before_the_folder_is_touched(
    tmp_path: Path, hands: dict[str, Any], options: dict[str, Any], text: str
) -> None:
    with pytest.raises(HoldfastError) as caught:
        Batch(
            rows("a"),
            Options(model="m", **options),
            WorkerOptions(load=FakeLoad(str(tmp_path / "log")), **hands),
            tmp_path / "out",
            "prompts.jsonl",
        )
    assert str(caught.value).startswith(text)
    assert not (tmp_path / "out").exists()


def test_devices_that_some_machine_has_are_not_refused(tmp_path: Path) -> None:
    for device in ("auto", "cpu", "cuda", "cuda:1", "text=cpu,denoise=cuda", "text=auto"):
        hands = WorkerOptions(device=device, budget="6GB")
        Batch(rows("a"), Options(model="m"), hands, tmp_path / "out", "prompts.jsonl")


def test_the_number_of_a_gpu_is_refused_on_a_cluster(tmp_path: Path) -> None:
    hands = WorkerOptions(device="text=cuda:1,denoise=cuda:12", ray="auto")
    with pytest.raises(BadInput) as caught:
        Batch(rows("a"), Options(model="m"), hands, tmp_path / "out", "prompts.jsonl")
    assert str(caught.value) == (
        "cannot use --device text=cuda:1,denoise=cuda:12 with --ray: every worker of a cluster "
        "has a GPU of its own, and that is its number 0\n"
        "  expected: a kind of device without a number\n"
        "  try: --device text=cuda,denoise=cuda"
    )


@pytest.mark.parametrize(
    ("model", "values", "suffix", "name"),
    [
        ("tiny-flux", {}, None, "0000-a.png"),
        ("tiny-wan", {}, None, "0000-a.gif"),
        ("tiny-wan", {"num_frames": 1}, None, "0000-a.png"),
        ("tiny-wan", {}, ".mp4", "0000-a.mp4"),
        ("someone/something", {"num_frames": 5}, None, "0000-a.gif"),
        ("someone/something", {}, None, "0000-a.png"),
        ("tiny-flx", {}, None, "0000-a.png"),
        ("tiny-wan", {"out": "b.webp"}, None, "b.webp"),
    ],
)
def test_a_name_is_known_before_it_is_drawn(
    tmp_path: Path, model: str, values: dict[str, Any], suffix: str | None, name: str
) -> None:
    options = Options(model=model, suffix=suffix)
    batch = Batch(rows("a", **values), options, WorkerOptions(), tmp_path / "out", "prompts.jsonl")
    assert batch.name(batch.jobs[0]) == name


def test_a_folder_of_wan_without_defaults_makes_videos(tmp_path: Path) -> None:
    shutil.copytree(BUILT_IN / "tiny-wan", tmp_path / "wan")
    (tmp_path / "wan/holdfast.json").unlink()
    options = Options(model=str(tmp_path / "wan"))
    batch = Batch(rows("a"), options, WorkerOptions(), tmp_path / "out", "prompts.jsonl")
    assert batch.name(batch.jobs[0]) == "0000-a.gif"

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.base.errors import BadInput, Unsupported
from holdfast.pipeline.batch.folder import Folder
from holdfast.pipeline.batch.jobs import Job, fold_name
from holdfast.pipeline.batch.manifest import NAME, Manifest
from holdfast.pipeline.output import media
from tests.examples import examples
from tests.pipeline.batch.fakes import jobs, records

FRAMES = numpy.zeros((1, 2, 2, 3), numpy.uint8)


def _picture(job: Job) -> bytes:
    return media.encode(FRAMES, ".png", {**job.settings, "job": job.identity})


def _keep(folder: Folder, job: Job, everything: list[Job] | None = None) -> str:
    reserved = {fold_name(j.out): j.identity for j in everything or [] if j.out}
    return folder.keep(job, _picture(job), ".png", reserved=reserved, settings=dict(job.settings))


def _names(folder: Path) -> list[str]:
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())


def test_a_picture_is_there_and_recorded(tmp_path: Path) -> None:
    work = jobs("a", "b")
    with Folder(tmp_path) as folder:
        assert folder.status(work).to_do == tuple(work)
        assert _keep(folder, work[0]) == "0000-a.png"
    assert _names(tmp_path) == ["0000-a.png", NAME]
    with Folder(tmp_path) as folder:
        status = folder.status(work)
    assert (status.done, status.to_do) == ((work[0].identity,), (work[1],))


def test_a_picture_whose_record_was_lost_is_found_by_what_is_inside_it(tmp_path: Path) -> None:
    work = jobs("a", "b")
    (tmp_path / "renamed-by-hand.png").write_bytes(_picture(work[1]))
    (tmp_path / "mine.png").write_bytes(b"not a picture")
    with Folder(tmp_path) as folder:
        status = folder.status(work)
        folder.adopt()
    assert (status.found, status.to_do) == ((work[1].identity,), (work[0],))
    assert [r["file"] for r in records(tmp_path, "done")] == ["renamed-by-hand.png"]
    with Folder(tmp_path) as folder:
        assert folder.status(work).done == (work[1].identity,)


@settings(max_examples=examples(60), deadline=None)
@given(cut=st.floats(0, 1), cuts=st.integers(1, 3))
def test_cutting_the_manifest_anywhere_makes_no_picture_twice(
    tmp_path_factory: pytest.TempPathFactory, cut: float, cuts: int
) -> None:
    path, work, drawn = tmp_path_factory.mktemp("cut"), jobs("a", "b", "a", "c"), []
    for _ in range(cuts):
        with Folder(path) as folder:
            folder.begin(model="m")
            status = folder.status(work)
            folder.adopt()
            for job in status.to_do[:2]:
                drawn.append(job.identity)
                _keep(folder, job)
        content = (path / NAME).read_bytes()
        (path / NAME).write_bytes(content[: round(cut * len(content))])
    with Folder(path) as folder:
        status = folder.status(work)
        folder.adopt()
        assert sorted([*status.done, *status.found]) == sorted(drawn)
    assert len(set(drawn)) == len(drawn)
    assert sorted(r["job"] for r in records(path, "done")) == sorted(drawn)


def test_a_picture_that_was_deleted_is_made_again_under_its_name(tmp_path: Path) -> None:
    work = jobs("a")
    with Folder(tmp_path) as folder:
        _keep(folder, work[0])
        (tmp_path / "0000-a.png").unlink()
        assert folder.status(work).to_do == tuple(work)
        assert _keep(folder, work[0]) == "0000-a.png"


@pytest.mark.parametrize("content", [b"", b"garbage"])
def test_a_picture_that_was_broken_is_made_again_beside_it(tmp_path: Path, content: bytes) -> None:
    [job] = jobs("a")
    with Folder(tmp_path) as folder:
        file = _keep(folder, job)
    (tmp_path / file).write_bytes(content)
    with Folder(tmp_path) as folder:
        assert folder.status([job]).to_do == (job,)
        again = _keep(folder, job)
    assert again != file
    with Folder(tmp_path) as folder:
        assert folder.status([job]).to_do == ()


def test_a_picture_that_was_packed_anew_is_still_ours(tmp_path: Path) -> None:
    [job] = jobs("a")
    with Folder(tmp_path) as folder:
        file = _keep(folder, job)
    (tmp_path / file).write_bytes(_picture(job) + b"more at the end")
    with Folder(tmp_path) as folder:
        assert folder.status([job]).to_do == ()


def test_nothing_of_others_is_written_over(tmp_path: Path) -> None:
    (tmp_path / "0000-a.png").write_bytes(b"mine")
    (tmp_path / "0000-a-2.png").symlink_to("nowhere")
    first, second = jobs("a")[0], jobs("a", steps=3)[0]
    with Folder(tmp_path) as folder:
        assert _keep(folder, first) == "0000-a-3.png"
        (tmp_path / "0000-a-3.png").unlink()  # still the first one's name
        assert _keep(folder, second) == "0000-a-4.png"
        assert _keep(folder, first) == "0000-a-3.png"
    assert (tmp_path / "0000-a.png").read_bytes() == b"mine"


def test_a_name_that_a_line_has_asked_for_is_not_given_to_another(tmp_path: Path) -> None:
    plain, asked = jobs("a")[0], jobs("z", out="0000-A.png")[0]
    with Folder(tmp_path) as folder:
        assert _keep(folder, plain, [plain, asked]) == "0000-a-2.png"
        assert _keep(folder, asked, [plain, asked]) == "0000-A.png"


def test_names_with_folders_make_them(tmp_path: Path) -> None:
    job = jobs("a", out="deep/er/a.png")[0]
    with Folder(tmp_path) as folder:
        assert _keep(folder, job) == "deep/er/a.png"
    (tmp_path / NAME).unlink()
    with Folder(tmp_path) as folder:
        assert folder.status([job]).found == (job.identity,)


def test_a_link_does_not_lead_out_of_the_folder(tmp_path: Path) -> None:
    outside, inside = tmp_path / "outside", tmp_path / "inside"
    outside.mkdir()
    inside.mkdir()
    (inside / "sub").symlink_to(outside)
    with Folder(inside) as folder, pytest.raises(BadInput, match="a link in it leads out"):
        _keep(folder, jobs("a", out="sub/a.png")[0])
    assert list(outside.iterdir()) == []


def test_what_a_crash_has_left_half_written_is_removed(tmp_path: Path) -> None:
    drafts = tmp_path / ".holdfast-batch"
    drafts.mkdir()
    (drafts / ".holdfast-0123").write_bytes(b"half")
    (tmp_path / ".holdfast-0123").write_bytes(b"somebody else's draft")
    with Folder(tmp_path):
        assert not drafts.exists()
    assert (tmp_path / ".holdfast-0123").exists()


def test_a_failure_is_recorded_and_is_still_to_do(tmp_path: Path) -> None:
    work = jobs("a")
    with Folder(tmp_path) as folder:
        folder.fail(work[0], "no luck", 2)
    with Folder(tmp_path) as folder:
        assert folder.status(work).to_do == tuple(work)
    record: dict[str, Any] = records(tmp_path, "failed")[0]
    assert (record["where"], record["reason"], record["attempts"]) == ("line 1", "no luck", 2)


def test_pictures_of_other_jobs_are_counted(tmp_path: Path) -> None:
    with Folder(tmp_path) as folder:
        _keep(folder, jobs("old")[0])
        assert folder.status(jobs("new")).strangers == 1


def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("")
    with pytest.raises(BadInput) as caught:
        Folder(tmp_path / "out")
    assert str(caught.value) == (
        f"cannot write into {str(tmp_path / 'out')!r}: File exists\n"
        "  expected: a folder for the pictures"
    )


def test_a_full_disk_is_told_and_leaves_nothing_half_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, data: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("holdfast.pipeline.batch.folder.write_whole", full)
    with Folder(tmp_path) as folder, pytest.raises(Unsupported) as caught:
        _keep(folder, jobs("a")[0])
    assert str(caught.value) == (
        f"cannot write into {str(tmp_path)!r}: No space left on device\n"
        "  expected: a folder with room for the pictures\n"
        "  try: make room, then the same command: it goes on where it stopped"
    )
    assert _names(tmp_path) == [NAME]


def test_a_crash_between_picture_and_record_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = jobs("a")

    def crash(self: Manifest, event: str, **values: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Manifest, "append", crash)
        with Folder(tmp_path) as folder, pytest.raises(KeyboardInterrupt):
            _keep(folder, work[0])
    with Folder(tmp_path) as folder:
        assert folder.status(work).found == (work[0].identity,)


def test_a_folder_is_free_for_others_however_it_was_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(path: Path, **_: Any) -> None:
        raise KeyboardInterrupt

    folder = Folder(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr("holdfast.pipeline.batch.folder.shutil.rmtree", interrupted)
        with pytest.raises(KeyboardInterrupt), folder:
            pass
    with Folder(tmp_path):
        pass


def test_records_are_plain_json(tmp_path: Path) -> None:
    with Folder(tmp_path) as folder:
        _keep(folder, jobs("日本 ü")[0])
    line = (tmp_path / NAME).read_text().splitlines()[0]
    assert json.loads(line)["settings"]["prompt"] == "日本 ü"

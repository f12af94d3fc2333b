from __future__ import annotations

import os
import stat
import sys
import threading
from pathlib import Path

import pytest

from holdfast.base.errors import BadInput
from holdfast.base.files import expand_path, read_json_object, resolve_path, write_whole


def test_a_file_is_replaced_and_readable_by_others(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")
    write_whole(path, "new ü")
    assert path.read_text(encoding="utf-8") == "new ü"
    assert path.stat().st_mode & 0o044
    assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]


def test_an_interrupted_write_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes(b"old")

    def interrupted(self: Path, target: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_whole(path, b"new")
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["a.bin"]


@pytest.mark.parametrize("stage", ["open", "replace"])
def test_ctrl_c_just_after_a_step_leaves_no_draft(
    stage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = getattr(Path, stage)

    def done_and_interrupted(self: Path, *arguments: object) -> None:
        done = real(self, *arguments)
        if stage == "open":
            done.close()
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, stage, done_and_interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_whole(tmp_path / "a.bin", b"new")
    left = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    assert left == ({} if stage == "open" else {"a.bin": b"new"})


def test_a_file_is_on_the_disk_before_it_gets_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, synced = tmp_path / "a.bin", []

    def fsync(number: int) -> None:
        synced.append((os.fstat(number).st_size, path.exists()))

    monkeypatch.setattr(os, "fsync", fsync)
    write_whole(path, b"12345")
    assert synced == [(5, False)]


def test_the_usual_rights_are_given(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_whole(tmp_path / "a", "x")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o640


def test_a_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("real")
    write_whole(tmp_path / "link", "text")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "text"


def test_a_name_of_the_greatest_length_can_be_written(tmp_path: Path) -> None:
    path = tmp_path / ("a" * 255)
    write_whole(path, "text")
    assert path.read_text() == "text"


def test_a_pipe_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    pipe, got = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: got.append(pipe.read_bytes()))
    reader.start()
    write_whole(pipe, "text")
    reader.join()
    assert got == [b"text"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError):
        write_whole(tmp_path, "text")
    assert list(tmp_path.iterdir()) == []


def test_the_home_of_an_unknown_user_is_refused() -> None:
    with pytest.raises(BadInput) as caught:
        expand_path("~no-such-user/x")
    assert str(caught.value) == (
        "cannot use '~no-such-user/x': there is no such user, or no home folder\n"
        "  expected: a path\n"
        "  try: ./~no-such-user/x for a name that begins with ~"
    )


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="resolving follows a circle no further")
def test_links_that_lead_in_a_circle_are_refused(tmp_path: Path) -> None:
    circle = tmp_path / "circle"
    circle.symlink_to("circle")
    with pytest.raises(BadInput) as caught:
        resolve_path(circle)
    assert str(caught.value) == (
        f"cannot use {str(circle)!r}: Too many levels of symbolic links\n"
        "  expected: a path that leads somewhere"
    )
    with pytest.raises(OSError, match="Too many levels of symbolic links"):
        write_whole(circle, "text")


def test_json_that_never_ends_its_lists_is_no_json(tmp_path: Path) -> None:
    file = tmp_path / "deep.json"
    file.write_text("[" * 100_000, encoding="utf-8")
    with pytest.raises(BadInput, match="it is not JSON"):
        read_json_object(file)

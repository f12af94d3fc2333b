from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.base.files import write_whole


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

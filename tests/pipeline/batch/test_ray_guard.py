"""The process that clears away after Ray, without a Ray."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest

from holdfast.pipeline.batch import ray_guard
from holdfast.pipeline.batch.ray_guard import guard_folder


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where folders for Ray are made."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_the_folder_is_gone_when_the_block_is_left(place: Path) -> None:
    with guard_folder() as folder:
        Path(folder, "log").write_text("")
    assert list(place.iterdir()) == []


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
def test_no_folder_is_left_where_no_guard_could_be_started(
    place: Path, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(ray_guard.subprocess, "Popen", fails)
    with pytest.raises(error), guard_folder():
        pass
    assert list(place.iterdir()) == []


def test_a_guard_that_takes_long_is_left_to_itself(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[subprocess.Popen[bytes]] = []

    class Recorded(subprocess.Popen[bytes]):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            started.append(self)

    monkeypatch.setattr(ray_guard.subprocess, "Popen", Recorded)
    monkeypatch.setattr(ray_guard, "_WAIT_S", 0.0)
    with guard_folder():
        pass
    assert started[0].wait(60) == 0
    assert list(place.iterdir()) == []

"""A meeting place of their own for the processes of a test."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest


@pytest.fixture
def own_meeting_place(
    own_settings: None, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """A folder with a short name, as the path of a socket may not be long."""
    folder = tmp_path_factory.mktemp("meet")
    folder.chmod(0o700)
    monkeypatch.setenv("HOLDFAST_RUNTIME_DIR", str(folder))
    monkeypatch.setenv("TMPDIR", str(folder))  # the other folder where processes meet is in it
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder

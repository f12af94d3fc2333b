"""A meeting place of their own for the processes of a test."""

from __future__ import annotations

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
    return folder

"""The tutorial about ComfyUI does what it says, against a real one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.comfyui import models
from tests.comfyui.client import Client
from tests.docs.test_tutorials import ROOT, read, said


def test_in_comfyui_does_what_it_says(
    comfy: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models.install(models.make(), comfy.server.base)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    here = [f"--with=http://127.0.0.1:8188={comfy.url}", f"--with=~/ComfyUI={comfy.server.base}"]
    assert read("in-comfyui.md", tmp_path, *here) == said("in-comfyui.md")

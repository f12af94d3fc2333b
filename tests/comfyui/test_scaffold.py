"""A port that `holdfast port new` has written, in a real ComfyUI: its own test passes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.comfyui.client import Client
from tests.comfyui.conftest import PORT

pytest.importorskip("jax")
NODES = [f"{PORT}{stage}" for stage in ("TextEncoder", "Sampler", "VAEDecoder", "Pipeline")]


@pytest.fixture(scope="module")
def script(comfy: Client) -> Path:
    return comfy.server.custom_nodes / f"ComfyUI-{PORT}-TPU" / "test_comfyui_api.py"


def run(script: Path, url: str, *options: str) -> tuple[int, str, str]:
    """As a user does, with a Python that has nothing installed."""
    command = [sys.executable, "-I", "-S", str(script), "--url", url, "--timeout", "180"]
    command += ["--model", "tiny-flux", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    return done.returncode, done.stdout, done.stderr


def test_its_nodes_are_there_beside_those_of_holdfast(comfy: Client) -> None:
    known = comfy.object_info()
    assert [known[node]["category"] for node in NODES] == [f"TPU/{PORT}"] * 4


@pytest.mark.parametrize("options", [(), ("--pipeline",)], ids=["stages", "pipeline"])
def test_its_own_test_passes(
    options: tuple[str, ...], script: Path, comfy: Client, tmp_path: Path
) -> None:
    out = tmp_path / "picture.png"
    told = run(script, comfy.url, "--out", str(out), *options)
    assert told[0] == 0, told
    lines = told[1].splitlines()
    assert lines[0] == f"ComfyUI at {comfy.url} knows {', '.join(NODES)}"
    assert lines[-1] == "ok"
    assert out.stat().st_size > 100


def test_its_own_test_fails_with_the_words_of_the_node(script: Path, comfy: Client) -> None:
    status, _, told = run(script, comfy.url, "--height", "24")
    assert status == 1
    assert told.startswith(
        f"FAILED: node 2 ({PORT}Sampler) failed: holdfast.base.errors.BadInput: "
    )

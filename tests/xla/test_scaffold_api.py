"""test_comfyui_api.py of a new pack, against a server that speaks ComfyUI's API."""

from __future__ import annotations

import importlib.util
import io
import random
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("PIL")
from PIL import Image

from holdfast.xla.scaffold.names import name_parts
from holdfast.xla.scaffold.rendering import render
from tests.xla.comfyui_api import Fake, serving

WAN = "diffusers:WanTransformer3DModel"
FLUX = "diffusers:FluxTransformer2DModel"
NODES = {"FluxTextEncoder", "FluxSampler", "FluxVAEDecoder", "FluxPipeline", "SaveImage"}


def png(mode: str = "RGB", size: tuple[int, int] = (9, 7), colours: int = 3, **how: Any) -> bytes:
    """A picture with something on it, or of one colour."""
    pick = random.Random(1)
    shades = [bytes(pick.randrange(256) for _ in mode) for _ in range(colours)]
    pixels = b"".join(pick.choice(shades) for _ in range(size[0] * size[1]))
    image = Image.frombytes(mode, size, pixels)
    file = io.BytesIO()
    image.save(file, "PNG", **how)
    return file.getvalue()


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("pack") / "test_comfyui_api.py"
    file.write_text(render(name_parts("Flux"), FLUX)["test_comfyui_api.py"])
    return file


@pytest.fixture(scope="module")
def module(script: Path) -> Any:
    spec = importlib.util.spec_from_file_location("scaffolded_test", script)
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def run(script: Path, url: str, *options: str) -> tuple[int, str, str]:
    """As a user does, with a Python that has nothing installed."""
    command = [sys.executable, "-I", "-S", str(script), "--url", url, *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    return done.returncode, done.stdout, done.stderr


def test_a_picture_is_drawn_fetched_and_found_good(script: Path, tmp_path: Path) -> None:
    out = tmp_path / "picture.png"
    with serving(Fake(NODES, png())) as comfy:
        told = run(script, comfy.url, "--out", str(out), "--prompt", "a cat", "--steps", "2")
    assert told[0] == 0, told
    lines = told[1].splitlines()
    knows = "FluxTextEncoder, FluxSampler, FluxVAEDecoder, FluxPipeline"
    assert lines[:2] == [f"ComfyUI at {comfy.url} knows {knows}", "queued as the-number"]
    assert lines[2].startswith("done after 0.")
    assert lines[3:] == [f"1 x 9 x 7 pixels, 3 colours, written to {out}", "ok"]
    assert out.read_bytes() == comfy.picture
    kinds = [node["class_type"] for node in comfy.workflow.values()]
    assert kinds == ["FluxTextEncoder", "FluxSampler", "FluxVAEDecoder", "SaveImage"]
    assert comfy.workflow["1"]["inputs"]["prompt"] == "a cat"
    assert comfy.workflow["2"]["inputs"]["steps"] == 2
    assert [path for path, _ in comfy.posted] == ["/prompt"]


def test_one_node_can_do_it_all(script: Path) -> None:
    with serving(Fake(NODES, png())) as comfy:
        assert run(script, comfy.url, "--pipeline")[0] == 0
    kinds = [node["class_type"] for node in comfy.workflow.values()]
    assert kinds == ["FluxPipeline", "SaveImage"]


def test_a_video_model_is_asked_for_frames(tmp_path: Path) -> None:
    script = tmp_path / "test_comfyui_api.py"
    script.write_text(render(name_parts("Wan"), WAN)["test_comfyui_api.py"])
    nodes = {"WanTextEncoder", "WanSampler", "WanVAEDecoder", "WanPipeline", "SaveImage"}
    with serving(Fake(nodes, png())) as comfy:
        assert run(script, comfy.url, "--num-frames", "5")[0] == 0
        assert comfy.workflow["2"]["inputs"]["num_frames"] == 5
        assert comfy.workflow["3"]["inputs"] == {"samples": ["2", 0], "fps": 16}
        comfy.polls = 0
        assert run(script, comfy.url, "--pipeline")[0] == 0
        assert comfy.workflow["3"]["inputs"]["fps"] == 16


def test_no_comfyui_is_told_with_the_way_to_start_one(script: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
        assert run(script, url) == (
            1,
            "",
            f"FAILED: ComfyUI cannot be reached at {url}: [Errno 111] Connection refused\n"
            "  try: python main.py --listen 127.0.0.1 --port 8188    (in ComfyUI's folder)\n",
        )
    status, _, told = run(script, "localhost")
    assert status == 1
    assert told.startswith("FAILED: ComfyUI cannot be reached at localhost: unknown url type")


def test_a_pack_that_is_not_loaded_is_told(script: Path) -> None:
    with serving(Fake(NODES - {"FluxSampler", "FluxPipeline"}, png())) as comfy:
        assert run(script, comfy.url) == (
            1,
            "",
            "FAILED: ComfyUI does not know FluxSampler, FluxPipeline\n"
            "  try: put ComfyUI-Flux-TPU into custom_nodes, start ComfyUI again, and look at what "
            "it prints about this folder\n",
        )


def test_what_comfyui_refuses_is_told_in_its_words(script: Path) -> None:
    with serving(Fake(NODES, png())) as comfy:
        assert run(script, comfy.url, "--steps", "2000")[::2] == (
            1,
            "FAILED: ComfyUI refused the workflow: Prompt outputs failed\n"
            "  node 2 (FluxSampler): Value bigger than max (steps)\n",
        )
    with serving(Fake(NODES - {"SaveImage"}, png())) as comfy:
        assert run(script, comfy.url)[::2] == (
            1,
            "FAILED: ComfyUI refused the workflow: Cannot execute because node SaveImage is "
            "unknown\n",
        )


def test_a_node_that_fails_is_told_in_its_words_and_nothing_is_cancelled(script: Path) -> None:
    error = {
        "node_id": "2",
        "node_type": "FluxSampler",
        "exception_type": "holdfast.base.errors.BadInput",
        "exception_message": "cannot draw height=1000\n  expected: a multiple of 16\n",
    }
    with serving(Fake(NODES, png(), error=error)) as comfy:
        assert run(script, comfy.url)[::2] == (
            1,
            "FAILED: node 2 (FluxSampler) failed: holdfast.base.errors.BadInput: "
            "cannot draw height=1000\n  expected: a multiple of 16\n",
        )
    assert [path for path, _ in comfy.posted] == ["/prompt"]


CANCELLED = [("/queue", {"delete": ["the-number"]}), ("/interrupt", {"prompt_id": "the-number"})]


def test_a_run_that_takes_too_long_is_cancelled(script: Path) -> None:
    with serving(Fake(NODES, png(), polls=-1)) as comfy:
        assert run(script, comfy.url, "--timeout", "0.3")[::2] == (
            1,
            "FAILED: no picture after 0.3 s\n  try: --timeout 0.6\n",
        )
    assert comfy.posted[1:] == CANCELLED


def test_ctrl_c_cancels_the_run(script: Path) -> None:
    with serving(Fake(NODES, png(), polls=-1)) as comfy:
        command = [sys.executable, "-I", "-S", str(script), "--url", comfy.url]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
            assert child.stdout is not None
            child.stdout.readline()
            child.stdout.readline()
            child.send_signal(signal.SIGINT)
            _, told = child.communicate(timeout=300)
        assert (child.returncode, told) == (130, b"stopped by Ctrl-C\n")
    assert comfy.posted[1:] == CANCELLED


@pytest.mark.parametrize(
    ("picture", "told"),
    [
        (png(colours=1), "the picture has one colour everywhere: (68, 32, 130)"),
        (b"<html>", "what ComfyUI gives is no PNG: b'<html>'"),
        (png("L"), "the PNG is not of 8 bits of red, green and blue"),
        (png()[:60], "the PNG is damaged: Error -5 while decompressing data: incomplete or "),
        (b"\x89PNG\r\n\x1a\n", "the PNG is damaged: it has no header"),
    ],
)
def test_a_picture_that_shows_nothing_fails(script: Path, picture: bytes, told: str) -> None:
    with serving(Fake(NODES, picture, polls=0)) as comfy:
        status, _, found = run(script, comfy.url)
    assert status == 1
    assert found.startswith(f"FAILED: {told}")


@pytest.mark.parametrize("mode", ["RGB", "RGBA"])
@pytest.mark.parametrize("how", [{}, {"optimize": True}, {"compress_level": 0}])
def test_pixels_are_read_as_pillow_reads_them(mode: str, how: dict[str, Any], module: Any) -> None:
    for colours in (1, 2, 300):
        data = png(mode, (33, 17), colours, **how)
        width, height, rows = module.pixels(data)
        assert (width, height) == (33, 17)
        assert b"".join(rows) == Image.open(io.BytesIO(data)).convert("RGB").tobytes()


def test_all_ways_of_packing_a_row_are_undone(module: Any) -> None:
    """A row may be packed in five ways; here each row says which."""
    pick = random.Random(2)
    size, height = 12, 20
    rows = [bytearray(pick.randrange(256) for _ in range(size)) for _ in range(height)]
    raw, above = bytearray(), bytearray(size)
    for number, row in enumerate(rows):
        raw.append(number % 5)
        for at, value in enumerate(row):
            left, corner = (row[at - 3], above[at - 3]) if at >= 3 else (0, 0)
            raw.append((value - module._guess(number % 5, left, above[at], corner)) & 255)
        above = row
    assert module._rows(bytes(raw), size, height, 3) == rows

"""`holdfast pack`: a model in less room draws the same picture, and comes back as it was."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from PIL import Image

from holdfast.cli.main import main
from holdfast.pipeline.model.sources import BUILT_IN


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("models") / "packed"
    assert main(["pack", "tiny-flux", str(target), "--scheme", "ranked", "--device", "cpu"]) == 0
    return target


def test_it_says_what_it_did(
    packed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    again = tmp_path / "again"
    assert main(["pack", str(packed), str(again), "--unpack"]) == 0
    assert f"restored  {again}\n" in capsys.readouterr().out
    file = "transformer/diffusion_pytorch_model.safetensors"
    once = tmp_path / "once.safetensors"
    options = ["--scheme", "ranked", "--device", "cpu", "--json"]
    assert main(["pack", str(again / file), str(once), *options]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["raw_bytes"] == (again / file).stat().st_size
    assert told["file_bytes"] == once.stat().st_size < told["raw_bytes"]
    assert 0 < told["packed"] < told["tensors"]
    assert told["out"] == str(once)


def test_the_model_comes_back_byte_for_byte(packed: Path, tmp_path: Path) -> None:
    assert main(["pack", str(packed), str(tmp_path / "again"), "--unpack"]) == 0
    folder = BUILT_IN / "tiny-flux"
    for path in folder.rglob("*"):
        if path.is_file():
            again = tmp_path / "again" / path.relative_to(folder)
            assert again.read_bytes() == path.read_bytes()


@pytest.mark.parametrize("where", [("cpu",), ("simulated", "--budget", "14MB")])
def test_the_picture_is_the_same(packed: Path, tmp_path: Path, where: tuple[str, ...]) -> None:
    pixels = []
    for number, model in enumerate(("tiny-flux", str(packed))):
        file = tmp_path / f"{number}.png"
        line = ["run", model, "--prompt", "a seven", "--seed", "3", "--steps", "3"]
        assert main([*line, "--device", *where, "--out", str(file)]) == 0
        with Image.open(file) as picture:
            pixels.append(picture.tobytes())
    assert pixels[0] == pixels[1]


def test_a_damaged_model_is_refused_before_anything_is_drawn(
    packed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(packed, copy)
    file = copy / "vae" / "diffusion_pytorch_model.safetensors"
    data = bytearray(file.read_bytes())
    data[-100_000] ^= 1
    file.write_bytes(data)
    target = tmp_path / "seven.png"
    assert main(["run", str(copy), "--prompt", "a seven", "--out", str(target)]) == 2
    told = capsys.readouterr().err
    assert "cannot read weights" in told
    assert "is wrong" in told
    assert "try: copy or pack it again" in told
    assert not target.exists()


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ([], "no model was named"),
        (["tiny-flux"], "no new folder or file was named"),
        (["tiny-flux", "new", "--scheme", "huffman"], "expected: one of auto, ranked, flat"),
        (["tiny-flux", "new", "--device", "nowhere"], "cannot pack on 'nowhere'"),
        (["tiny-flux", "nowhere/new"], "try: mkdir -p nowhere"),
        (["tiny-flux", "new", "--unpack"], "it is not packed"),
        (["no-such-model", "new"], "cannot find model 'no-such-model'"),
        (["empty", "../new"], "cannot find weights in 'empty'"),
    ],
)
def test_what_cannot_be_done_is_refused(
    line: list[str],
    text: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "here" / "empty").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "here")
    assert main(["pack", *line]) == 2
    assert text in capsys.readouterr().err
    assert [path.name for path in tmp_path.rglob("*")] == ["here", "empty"]

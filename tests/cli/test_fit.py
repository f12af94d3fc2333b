from __future__ import annotations

import json
from pathlib import Path

import pytest

from holdfast.cli.main import main
from holdfast.pipeline.model.sources import BUILT_IN

SIMULATED = ["--device", "simulated"]


def test_a_model_that_fits_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", "tiny-sdxl", *SIMULATED, "--budget", "40MB", "--size", "64x64"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "tiny-sdxl on simulated, budget 40.0 MB, 64x64, fp16"
    assert lines[1] == "fits: all 4.6 MB of weights stay"
    assert lines[2].startswith("step      ")
    assert lines[2].endswith("; simulated)")
    assert lines[3].startswith("peak      ")
    table = lines.index("network         weights  streams  peak    pass")
    names = [line.split()[0] for line in lines[table + 1 : table + 5]]
    assert names == ["unet", "text_encoder", "text_encoder_2", "vae"]


def test_a_model_that_does_not_fit_has_status_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", "tiny-sdxl", *SIMULATED, "--budget", "1KB", "--size", "64x64"]) == 1
    line = capsys.readouterr().out.splitlines()[1]
    assert line.startswith("does not fit: ")
    assert line.endswith(" is the least for unet, text_encoder, text_encoder_2, vae")


def test_json_holds_everything(capsys: pytest.CaptureFixture[str]) -> None:
    place = str(BUILT_IN / "tiny-flux" / "transformer")
    options = ["--budget", "8MB", "--size", "64x64", "--precision", "bf16", "--no-pack", "--json"]
    assert main(["fit", place, *SIMULATED, *options]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["model"], answer["precision"], answer["size"]) == (
        "transformer",
        "bf16",
        "64x64",
    )
    assert answer["budget_bytes"] == 8_000_000
    assert answer["streamed_bytes"] == answer["link_bytes"] > 0
    assert answer["peak_bytes"] <= 8_000_000
    assert answer["more"]["step_ms"] <= answer["step_ms"] <= answer["less"]["step_ms"]


def test_a_built_in_model_knows_its_size(capsys: pytest.CaptureFixture[str]) -> None:
    place = BUILT_IN / "tiny-wan"
    assert main(["fit", "tiny-wan", *SIMULATED, "--budget", "1GB"]) == 0
    defaults = json.loads((place / "holdfast.json").read_text())["defaults"]
    size = f"{defaults['width']}x{defaults['height']}, {defaults['num_frames']} frames"
    assert f", {size}, " in capsys.readouterr().out.splitlines()[0]


def test_a_single_file_is_completed_by_a_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weights = BUILT_IN / "tiny-flux" / "transformer"
    file = next(weights.glob("*.safetensors"))
    copy = tmp_path / "mine.safetensors"
    copy.write_bytes(file.read_bytes())
    arguments = ["--config", "tiny-flux", "--budget", "1GB", "--size", "64x64", "--json"]
    assert main(["fit", str(copy), *SIMULATED, *arguments]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["model"], answer["way"]) == ("mine", "simulated")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (
            [],
            "no model was named\n"
            "  expected: a folder, a .safetensors file, a hub id, or one of tiny-flux, tiny-sdxl, "
            "tiny-wan\n"
            "  try: holdfast fit tiny-flux\n",
        ),
        (
            ["tiny-fluks"],
            "cannot find model 'tiny-fluks'\n"
            "  expected: one of tiny-flux, tiny-sdxl, tiny-wan, a diffusers folder, a .safetensors "
            "file or a hub id\n"
            "  try: tiny-flux\n",
        ),
        (
            ["tiny-flux", "--size", "big"],
            "cannot use shape='big'\n"
            '  expected: (height, width), (frames, height, width), or text such as "1024x768" '
            "with the width first\n",
        ),
        (
            ["tiny-flux", "--frames", "-1"],
            "cannot use frames='-1'\n  expected: an integer, 1 or more\n",
        ),
        (
            ["tiny-flux", "--precision", "int1"],
            "unknown precision 'int1'\n  expected: auto, or one of fp32, bf16, fp16, fp8\n",
        ),
        (
            ["tiny-flux", "--budget", "much"],
            "cannot read 'much' as a size in bytes\n"
            '  expected: a size such as "2GB", "512MiB" or "80%"\n',
        ),
        (
            ["tiny-flux", "--device", "toaster"],
            "cannot move weights to device 'toaster'\n"
            "  expected: one of cuda, xpu, npu, mlu, mps, cpu, simulated\n",
        ),
    ],
)
def test_wrong_input_is_refused(
    arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = arguments if "--device" in arguments else [*arguments, *SIMULATED]
    assert main(["fit", *given]) == 2
    assert capsys.readouterr().err == f"holdfast: error: {text}"


def test_frames_need_a_size(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = str(BUILT_IN / "tiny-wan" / "transformer")
    assert main(["fit", place, *SIMULATED, "--frames", "9"]) == 2
    assert capsys.readouterr().err == (
        "holdfast: error: cannot use frames='9' alone\n  expected: --size 832x480 beside it\n"
    )

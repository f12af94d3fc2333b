from __future__ import annotations

import json
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from holdfast.cli.main import main
from holdfast.pipeline.model.sources import BUILT_IN
from holdfast.pipeline.output import media

QUICK = ["--steps", "2", "--height", "64", "--width", "64", "--seed", "1", "--device", "cpu"]


def draw(*arguments: str) -> int:
    return main(["run", "tiny-flux", "--prompt", "a handwritten seven", *QUICK, *arguments])


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_picture_is_drawn_and_reported(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert draw("--out", "seven.png") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "picture  seven.png  (64x64, seed 1)"
    assert lines[1] == "device   cpu: asked for; fp32"
    assert lines[2].startswith("time     load ")
    assert "2 steps of " in lines[2]
    assert lines[3].startswith("memory   peak ")
    assert names(here) == ["seven.png"]
    settings = media.read_settings(Path("seven.png"))
    assert (settings["prompt"], settings["seed"]) == ("a handwritten seven", 1)


def test_the_same_seed_gives_the_same_file(here: Path) -> None:
    draw("--out", "one.png")
    draw("--out", "two.png")
    assert Path("one.png").read_bytes() == Path("two.png").read_bytes()


def test_json_holds_everything(capsys: pytest.CaptureFixture[str]) -> None:
    assert draw("--out", "seven.webp", "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["file"] == "seven.webp"
    assert report["settings"]["steps"] == 2
    assert report["why"] == "cpu: asked for"
    assert len(report["cost"]["step_ms"]) == 2
    assert report["cost"]["peak_bytes"]["cpu"] > 0


def test_without_a_name_the_model_and_seed_are_the_name(here: Path) -> None:
    draw()
    draw()
    assert names(here) == ["tiny-flux-1-2.png", "tiny-flux-1.png"]


def test_a_built_in_model_knows_what_to_draw(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "tiny-flux", *QUICK, "--json"]) == 0
    settings = json.loads(capsys.readouterr().out)["settings"]
    assert settings["prompt"] == "a handwritten seven"


def test_a_video_becomes_a_gif(here: Path) -> None:
    assert main(["run", "tiny-wan", "--steps", "1", "--seed", "1", "--frames", "5"]) == 0
    assert names(here) == ["tiny-wan-1.gif"]
    with Image.open("tiny-wan-1.gif") as video:
        assert getattr(video, "n_frames", 1) == 5


def test_a_video_does_not_fit_a_png(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "tiny-wan", "--steps", "1", "--out", "three.png"]) == 2
    assert ".gif" in capsys.readouterr().err
    assert names(here) == []


def test_the_timeline_is_a_page_with_the_picture(here: Path) -> None:
    assert draw("--out", "seven.png", "--timeline", "run.html") == 0
    page = Path("run.html").read_text()
    assert "a handwritten seven" in page
    assert "data:image/png;base64," in page
    assert "denoise" in page


def test_a_device_for_each_stage(capsys: pytest.CaptureFixture[str]) -> None:
    assert draw("--device", "text=cpu,denoise=cuda:99") == 2
    assert "cannot use device 'cuda:99'" in capsys.readouterr().err
    assert draw("--device", "text=cpu,denoise=cpu,decode=cpu") == 0


def test_a_folder_with_dots_gives_its_whole_name(here: Path) -> None:
    shutil.copytree(BUILT_IN / "tiny-flux", here / "Tiny.1-dev")
    assert main(["run", "./Tiny.1-dev", *QUICK]) == 0
    assert "Tiny.1-dev-1.png" in names(here)


def test_without_the_extra_the_command_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['PIL'] = None\n"
        "from holdfast.cli.main import main; sys.exit(main(['run', '--help']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 2
    assert "pip install 'holdfast[run]'" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["run", "tiny-fluks"], "cannot find model 'tiny-fluks'"),
        (["run"], "no model was named"),
        (["run", "tiny-flux", "--steps", "0"], "cannot use steps='0'"),
        (["run", "tiny-flux", "--height", "100"], "cannot draw height='100'"),
        (["run", "tiny-flux", "--width", "-16"], "cannot draw width='-16'"),
        (["run", "tiny-flux", "--frames", "9"], "this model draws single pictures"),
        (["run", "tiny-flux", "--device", "cuda:99"], "cannot use device 'cuda:99'"),
        (["run", "tiny-flux", "--device", "text="], "cannot read device 'text='"),
        (["run", "tiny-flux", "--precision", "int1"], "unknown precision 'int1'"),
        (
            ["run", "tiny-flux", "--budget", "6GB", "--device", "cpu"],
            "cannot keep a run on the CPU",
        ),
        (
            ["run", "tiny-flux", "--out", "a.png", "--timeline", "./a.png"],
            "cannot write the picture and the page to the same file",
        ),
        (["run", "tiny-flux", "--seed", "x"], "cannot use seed='x'"),
        (["run", "tiny-flux", "--device", "text=cpu,text=cpu"], "cannot read device"),
        (["run", "tiny-flux", "--fps", "99999999999"], "frames a second\n  expected: 1 to 240"),
        (["run", "tiny-flux", "--fps", "0"], "cannot write 0 frames a second"),
        (["run", "tiny-flux", "--timeline", "."], "cannot write '.': it is a folder"),
        (
            ["run", "tiny-flux", "--hosts", "127.0.0.1:1234,0/2"],
            "cannot draw together with other hosts on device 'auto'\n"
            "  expected: --device xla, for all stages or for some\n"
            "  try: --device xla, or neither --hosts nor HOLDFAST_HOSTS to draw alone\n",
        ),
        (["run", "tiny-flux", "--out", "x.bmp"], "cannot write"),
        (["run", "tiny-flux", "--out", "no/such/folder/x.png"], "cannot write"),
        (["run", "tiny-flux", "--timeline", "no/such/t.html"], "cannot write 'no/such/t.html'"),
    ],
)
def test_bad_input_is_refused_and_nothing_is_written(
    arguments: list[str], text: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith("holdfast: error: ")
    assert text in error
    assert names(here) == []


@pytest.mark.slow
def test_a_full_disk_leaves_what_was_there(here: Path) -> None:
    """A limit on the size of files makes writing fail as a full disk does."""
    Path("seven.png").write_bytes(b"what was there")
    arguments = ["run", "tiny-flux", *QUICK, "--out", "seven.png"]
    done = subprocess.run(
        [sys.executable, "-m", "holdfast", *arguments],
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (500, 500)),
    )
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert done.stderr.startswith("holdfast: error: cannot write 'seven.png'")
    assert Path("seven.png").read_bytes() == b"what was there"
    assert names(here) == ["seven.png"]


@pytest.mark.slow
def test_two_processes_draw_the_same(here: Path) -> None:
    draw("--out", "here.png")
    command = [sys.executable, "-m", "holdfast", "run", "tiny-flux", *QUICK, "--out", "there.png"]
    subprocess.run(command, check=True, capture_output=True)
    with Image.open("here.png") as one, Image.open("there.png") as other:
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other))

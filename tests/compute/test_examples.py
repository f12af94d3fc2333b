"""The runnable examples run, and learn."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def example(name: str, *args: object) -> str:
    command = [sys.executable, "-W", "error", str(EXAMPLES / name), *map(str, args)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_digits_example_explains_itself() -> None:
    text = example("train_digits.py", "--help")
    assert "Train a small convolutional network on handwritten digits" in text
    assert all(f"--{name}" in text for name in ("epochs", "batch", "lr", "seed", "out"))


@pytest.mark.slow
def test_it_refuses_to_train_not_at_all() -> None:
    command = [sys.executable, str(EXAMPLES / "train_digits.py"), "--epochs", "0"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.endswith("error: --epochs and --batch are at least 1\n")


@pytest.mark.slow
def test_the_digits_example_learns_and_saves(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import load_file

    out = tmp_path / "digits.safetensors"
    lines = example("train_digits.py", "--epochs", 6, "--out", out).splitlines()
    assert lines[:2] == ["1437 digits to train with, 360 held back", "6186 parameters"]
    shape = r"epoch +(\d) of 6: loss (\d\.\d{4}), accuracy (\d+\.\d)%, \d+\.\d s"
    epochs = [re.fullmatch(shape, line) for line in lines[2:-1]]
    assert [found and found[1] for found in epochs] == list("123456")
    losses = [float(found[2]) for found in epochs if found]
    assert losses[-1] < 0.2 * losses[0]
    found = re.fullmatch(r"accuracy (\d+\.\d)%; weights are in (.+)", lines[-1])
    assert found
    assert float(found[1]) >= 97
    assert found[2] == str(out)
    theirs = torch.nn.Sequential(
        *(torch.nn.Conv2d(1, 16, 3, padding=1), torch.nn.BatchNorm2d(16)),
        *(torch.nn.ReLU(), torch.nn.MaxPool2d(2)),
        *(torch.nn.Conv2d(16, 32, 3, padding=1), torch.nn.BatchNorm2d(32)),
        *(torch.nn.ReLU(), torch.nn.MaxPool2d(2)),
        *(torch.nn.Flatten(), torch.nn.Dropout(0.2), torch.nn.Linear(128, 10)),
    )
    theirs.load_state_dict(load_file(out))

"""Recognise the digit in a picture, with a classifier that has only seen the real digits.

Covers: pictures back to 8x8 counts, a support vector machine, the score of a model folder.
Promise: `recognise` is trained on scikit-learn's raw 8x8 digits and never on a drawn picture.

    python training/judge.py src/holdfast/pipeline/models/tiny-flux
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
from pathlib import Path

import numpy as np
from digits import NAMES, load_counts


def ink_map(picture: np.ndarray) -> np.ndarray:
    """A picture uint8 [H, W, 3] -> ink 0..1 [H, W]: 0 is the border's colour, 1 the farthest."""
    pixels = picture.astype(np.float32)
    border = np.concatenate([pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1]])
    paper = np.median(border, axis=0)
    away = np.linalg.norm(pixels - paper, axis=2)
    ink = np.median(pixels[away >= np.quantile(away, 0.98)], axis=0)
    axis = ink - paper
    return np.clip((pixels - paper) @ axis / max(float(axis @ axis), 1.0), 0.0, 1.0)


def frame(ink: np.ndarray) -> np.ndarray:
    """The square around the ink, as high as the ink: the data set is framed like this too."""
    rows, columns = (np.flatnonzero(ink.max(axis=axis) > 0.5) for axis in (1, 0))
    if not len(rows):
        return ink
    top, bottom = rows[0], rows[-1] + 1
    side = max(bottom - top, columns[-1] + 1 - columns[0])
    left = (columns[0] + columns[-1] + 1 - side) // 2
    top = (top + bottom - side) // 2
    padded = np.pad(ink, side)
    return padded[top + side : top + 2 * side, left + side : left + 2 * side]


def counts_of(ink: np.ndarray) -> np.ndarray:
    """Ink of any size -> its mean over 8x8 equal areas, times 16 [64]."""
    for axis in (0, 1):
        side = ink.shape[axis]
        total = np.insert(np.cumsum(ink, axis=axis), 0, 0.0, axis=axis)
        edges = np.linspace(0, side, 9)
        low = np.minimum(edges.astype(int), side - 1)
        part = np.expand_dims(edges - low, 1 - axis)
        at = np.take(total, low, axis=axis) * (1 - part) + np.take(total, low + 1, axis=axis) * part
        ink = np.diff(at, axis=axis) * 8 / side
    return ink.reshape(64) * 16


@functools.cache
def classifier():
    """A support vector machine on the 1797 real digits."""
    from sklearn.svm import SVC

    counts, labels = load_counts()
    return SVC(gamma=0.001, C=10.0).fit(counts.reshape(-1, 64), labels)


def recognise(pictures: np.ndarray) -> np.ndarray:
    """Pictures uint8 [N, H, W, 3] -> the digits 0..9 they show [N]."""
    return classifier().predict(np.stack([counts_of(frame(ink_map(one))) for one in pictures]))


def sheet(pictures: np.ndarray, columns: int = 10) -> np.ndarray:
    """Pictures uint8 [N, H, W, 3] side by side in rows, as one picture."""
    rows = [
        np.concatenate(list(pictures[at : at + columns]), axis=1)
        for at in range(0, len(pictures), columns)
    ]
    return np.concatenate(rows)


def draw(pipe, prompts: list[str], seeds: list[int], **options) -> np.ndarray:
    """One picture per prompt and seed, uint8 [N, H, W, 3].  Of a video, the middle frame."""
    import torch

    makers = [torch.Generator("cpu").manual_seed(seed) for seed in seeds]
    result = pipe(prompts, generator=makers, output_type="np", **options)
    images = result.images if "images" in result else result.frames
    if images.ndim == 5:
        images = images[:, images.shape[1] // 2]
    return np.round(images * 255).astype(np.uint8)


# What `main` asks of each pipeline class: the defaults that the README recommends.
OPTIONS = {
    "FluxPipeline": {
        "height": 128,
        "width": 128,
        "num_inference_steps": 20,
        "guidance_scale": 3.5,
        "max_sequence_length": 32,
    },
    "StableDiffusionXLPipeline": {
        "height": 128,
        "width": 128,
        "num_inference_steps": 20,
        "guidance_scale": 3.0,
    },
    "WanPipeline": {
        "height": 64,
        "width": 64,
        "num_frames": 9,
        "num_inference_steps": 20,
        "guidance_scale": 3.0,
        "max_sequence_length": 32,
    },
}


def options_of(folder: Path) -> dict:
    """The recommended options for the pipeline in `folder`."""
    return OPTIONS[json.loads((folder / "model_index.json").read_text())["_class_name"]]


def score(pipe, seeds: int = 10, **options) -> tuple[int, np.ndarray]:
    """How many of 10 x `seeds` pictures are recognised, and the pictures, one digit per row."""
    right, rows = 0, []
    for digit, name in enumerate(NAMES):
        pictures = draw(pipe, [f"a handwritten {name}"] * seeds, list(range(seeds)), **options)
        right += int((recognise(pictures) == digit).sum())
        rows.append(pictures)
    return right, np.concatenate(rows)


def main() -> None:
    import torch
    from diffusers import DiffusionPipeline
    from PIL import Image

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--sheet", type=Path, help="also write the pictures as one PNG")
    asked = parser.parse_args()
    pipe = DiffusionPipeline.from_pretrained(asked.folder, dtype=torch.float32)
    pipe.set_progress_bar_config(disable=True)
    right, pictures = score(pipe, asked.seeds, **options_of(asked.folder))
    if asked.sheet:
        Image.fromarray(sheet(pictures, asked.seeds)).save(asked.sheet)
    sys.stdout.write(f"{asked.folder.name}: {right} of {len(pictures)} recognised\n")


if __name__ == "__main__":
    main()

"""Draw docs/images/tiny-flux.png: each row a prompt, each column a seed.

python tools/contact_sheet.py
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from holdfast.pipeline import Pipeline

PROMPTS = (
    "a handwritten seven",
    "a red handwritten three on yellow paper",
    "a white eight on a black board",
    "the digit 5 in blue ink",
    "a green 0 on pink paper",
)
SEEDS = range(8)


def main() -> None:
    """Draw all, side by side, as one picture of few colours."""
    pipe = Pipeline.load("tiny-flux", device="cpu")
    rows = [
        np.concatenate([pipe(prompt, seed=seed).frames[0] for seed in SEEDS], axis=1)
        for prompt in PROMPTS
    ]
    picture = Image.fromarray(np.concatenate(rows)).quantize(128)
    picture.save(Path(__file__).parents[1] / "docs" / "images" / "tiny-flux.png", optimize=True)


if __name__ == "__main__":
    main()

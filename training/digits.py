"""Handwritten digits as colour pictures, and the prompts that name them.

Covers: the scikit-learn digits as sharp ink, pictures of any size in named colours, phrasings.
Leaves to others: tokens (vocabulary), latents (autoencoder).
Promise: the same seeds give the same pictures and prompts on the same kind of device.

The data set counts the black pixels in 4x4 blocks of a 32x32 bitmap.  `sharpen` goes the other way:
it looks for a smooth field whose ink, averaged over the same blocks, gives the same counts.  A
field can be enlarged to any size and still has a clean edge.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")

COLOURS = {
    "black": (22, 22, 28),
    "white": (250, 250, 248),
    "red": (208, 30, 36),
    "orange": (240, 130, 24),
    "yellow": (250, 214, 48),
    "green": (32, 140, 62),
    "blue": (32, 74, 196),
    "purple": (116, 44, 156),
    "pink": (244, 148, 184),
    "brown": (112, 66, 34),
    "grey": (138, 140, 144),
    "turquoise": (40, 184, 184),
}
ALIASES = {"grey": ("grey", "gray"), "purple": ("purple", "violet")}

SUBJECTS = (
    "a {ink} handwritten {digit}",
    "a handwritten {ink} {digit}",
    "a {ink} {digit}",
    "the {ink} digit {digit}",
    "the {ink} number {digit}",
    "a {ink} handwritten digit {digit}",
    "{ink} {digit}",
    "a picture of a {ink} {digit}",
    "a drawing of a {ink} {digit}",
    "a photo of a {ink} handwritten {digit}",
    "the number {digit} written in {ink} ink",
    "a handwritten {digit} in {ink} ink",
    "the digit {digit} in {ink}",
)
PLAIN_SUBJECTS = SUBJECTS[:10]  # the others make no sense without a colour
GROUNDS = (" on {paper} paper", " on a {paper} background", " on a {paper} board", " on {paper}")
TAILS = (", please", ", clean lines", ", high quality", ", in the middle", ", simple", "!", ".")

FIELD = 64  # side of a field; a digit's own frame of 8x8 counts covers all of it
SHARPNESS = 20.0  # slope of the ink's edge, per unit of the field
FILL = 0.80  # side of the digit's frame as a part of the picture's shorter side


Size = tuple[int, int]  # height and width in pixels


@dataclass(frozen=True)
class Wish:
    """What a prompt asks for.  `None` is a colour that the prompt leaves open."""

    digit: int
    ink: str | None = None
    paper: str | None = None

    def colours(self) -> tuple[str, str]:
        """Ink and paper: black on white, turned round where that would not be seen."""
        ink = self.ink or ("white" if self.paper == "black" else "black")
        paper = self.paper or ("black" if ink == "white" else "white")
        return ink, paper


def draw_wish(rng: random.Random) -> Wish:
    """A wish as people make them: almost half of them name no colour."""
    digit, fate = rng.randrange(10), rng.random()
    ink, paper = rng.sample(sorted(COLOURS), 2)
    if fate < 0.45:
        return Wish(digit)
    if fate < 0.65:
        return Wish(digit, ink=ink)
    if fate < 0.75:
        return Wish(digit, paper=paper)
    return Wish(digit, ink, paper)


def phrase(wish: Wish, rng: random.Random) -> str:
    """One of many ways to say `wish`."""
    digit = NAMES[wish.digit] if rng.random() < 0.7 else str(wish.digit)
    subject = rng.choice(SUBJECTS if wish.ink else PLAIN_SUBJECTS)
    text = subject.format(digit=digit, ink=_spoken(wish.ink, rng))
    if wish.paper:
        text += rng.choice(GROUNDS).format(paper=_spoken(wish.paper, rng))
    if rng.random() < 0.15:
        text += rng.choice(TAILS)
    if rng.random() < 0.05:
        text += " " + _babble(rng)
    return " ".join(text.split())


def _spoken(colour: str | None, rng: random.Random) -> str:
    return rng.choice(ALIASES.get(colour, (colour,))) if colour else ""


def _babble(rng: random.Random) -> str:
    """A word that means nothing, so that unknown words do no harm."""
    return "".join(rng.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(rng.randint(3, 8)))


def load_counts() -> tuple[np.ndarray, np.ndarray]:
    """The 1797 pictures of scikit-learn as counts 0..16 [N, 8, 8], and their digits [N]."""
    from sklearn.datasets import load_digits

    data = load_digits()
    return data.images.astype(np.float32), data.target.astype(np.int64)


def sharpen(counts: torch.Tensor, rounds: int = 150) -> torch.Tensor:
    """Counts 0..16 [N, 8, 8] -> smooth fields [N, 1, FIELD, FIELD]; ink is where they pass 0."""
    wanted = counts[:, None] / 16.0
    coarse = wanted * 2 - 1
    for _ in range(rounds):
        inked = F.avg_pool2d(ink_of(_enlarge(coarse)), FIELD // 8)
        coarse = (coarse + 0.3 * (wanted - inked)).clamp(-2.5, 2.5)
    return _enlarge(coarse)


def _enlarge(coarse: torch.Tensor) -> torch.Tensor:
    padded = F.pad(coarse, (1, 1, 1, 1), value=-1.0)
    big = F.interpolate(padded, scale_factor=FIELD // 8, mode="bicubic", align_corners=False)
    edge = FIELD // 8
    return big[..., edge:-edge, edge:-edge]


def ink_of(field: torch.Tensor) -> torch.Tensor:
    """How much ink lies at each point of a field, 0..1."""
    return torch.sigmoid(SHARPNESS * field)


class Digits:
    """All digits as fields on one device, ready to be drawn.

    Chance comes from torch's generator of that device, and nothing is copied between devices in
    `draw` and `draw_any`, so that both can be part of a recorded CUDA graph.
    """

    def __init__(self, device: torch.device | str = "cpu") -> None:
        counts, labels = load_counts()
        self.device = torch.device(device)
        self.fields = sharpen(torch.tensor(counts, dtype=torch.float32, device=self.device))
        self.palette = torch.tensor(list(COLOURS.values()), device=self.device).float()
        self.by_digit = [np.flatnonzero(labels == digit) for digit in range(10)]

    def rows_for(self, wishes: list[Wish], rng: random.Random) -> torch.Tensor:
        """The number of one real example for each wish."""
        rows = [int(rng.choice(self.by_digit[wish.digit])) for wish in wishes]
        return torch.tensor(rows, device=self.device)

    def colours_for(self, wishes: list[Wish]) -> torch.Tensor:
        """Ink and paper for each wish, [N, 2, 3] of 0..255."""
        names = list(COLOURS)
        pairs = [[names.index(name) for name in wish.colours()] for wish in wishes]
        return self.palette[torch.tensor(pairs, device=self.device)]

    def draw(self, rows: torch.Tensor, colours: torch.Tensor, size: Size) -> torch.Tensor:
        """Pictures [N, 3, height, width] in -1..1, each a little different from the next."""
        ink = render(self.fields[rows], shake(len(rows), self.device), size)
        return paint(ink, (colours + 2.5 * torch.randn_like(colours)).clamp(0, 255))

    def draw_any(self, count: int, size: Size, wild: float = 0.3) -> torch.Tensor:
        """Any digits in any two colours, a part `wild` of them outside the named ones."""
        rows = torch.randint(len(self.fields), (count,), device=self.device)
        named = self.palette[torch.randint(len(self.palette), (count, 2), device=self.device)]
        plain = torch.rand(count, 1, 1, device=self.device) < 0.4
        named = torch.where(plain, self.palette[:2], named)
        free = torch.rand(count, 1, 1, device=self.device) < wild
        return self.draw(rows, torch.where(free, 255 * torch.rand_like(named), named), size)


def shake(count: int, device: torch.device) -> torch.Tensor:
    """Small turns, sizes and shifts: what `render` takes, [N, 4] (angle, scale, dx, dy)."""
    angle = 0.06 * torch.randn(count, 1, device=device)
    scale = 0.92 + 0.14 * torch.rand(count, 1, device=device)
    shift = 0.07 * torch.rand(count, 2, device=device) - 0.035
    return torch.cat([angle, scale, shift], dim=1)


def render(fields: torch.Tensor, turns: torch.Tensor, size: Size) -> torch.Tensor:
    """Fields turned, sized and shifted on an empty sheet -> ink [N, 1, height, width], 0..1."""
    angle, scale, dx, dy = (part[:, None, None] for part in turns.unbind(1))
    height, width = size
    x, y = _places(width, min(size), fields.device), _places(height, min(size), fields.device)
    x, y = x[None, None, :] - dx, y[None, :, None] - dy
    cos, sin, side = torch.cos(angle), torch.sin(angle), scale * FILL
    grid = torch.stack([(cos * x - sin * y) / side, (sin * x + cos * y) / side], dim=-1)
    # Outside its frame a field is paper (-1): sample its distance from paper, which is 0 there.
    field = F.grid_sample(fields + 1, grid, mode="bicubic", align_corners=False) - 1
    return ink_of(field)


def _places(length: int, short: int, device: torch.device) -> torch.Tensor:
    """Pixel centres around 0, where the shorter side of the picture goes from -1 to 1."""
    return (2 * torch.arange(length, device=device) + 1 - length) / short


def paint(ink: torch.Tensor, colours: torch.Tensor) -> torch.Tensor:
    """Ink 0..1 [N, 1, H, W] in colours [N, 2 (ink, paper), 3] of 0..255 -> pictures in -1..1."""
    front, ground = (colours[:, which, :, None, None] / 127.5 - 1 for which in (0, 1))
    return ground + ink * (front - ground)

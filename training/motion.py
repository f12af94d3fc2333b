"""Digits that move: short videos, and the prompts that say how they move.

Covers: the table of motions, frames drawn on the device, phrasings.
Leaves to others: the digits, their colours and the words for them (digits).
Promise: `draw_video` copies nothing between devices, so it can be part of a recorded CUDA graph.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch
from digits import Digits, Wish, draw_wish, paint, phrase, render, shake

# What a digit does from the first frame to the last, and around which size it does it:
# angle in radians, factor of size (as its logarithm), right, down; size.
MOTIONS = {
    "standing still": (0.0, 0.0, 0.0, 0.0, 1.0),
    "moving right": (0.0, 0.0, 0.3, 0.0, 0.72),
    "moving left": (0.0, 0.0, -0.3, 0.0, 0.72),
    "moving up": (0.0, 0.0, 0.0, -0.3, 0.72),
    "moving down": (0.0, 0.0, 0.0, 0.3, 0.72),
    "turning": (0.7, 0.0, 0.0, 0.0, 0.9),
    "growing": (0.0, 0.35, 0.0, 0.0, 0.72),
    "shrinking": (0.0, -0.35, 0.0, 0.0, 0.72),
}
STILL = "standing still"

Clip = tuple[int, int, int]  # frames, height and width


@dataclass(frozen=True)
class Scene:
    """A digit and what it does."""

    wish: Wish
    motion: str = STILL


def draw_scene(rng: random.Random) -> Scene:
    """A quarter of the scenes stand still."""
    motion = STILL if rng.random() < 0.15 else rng.choice(list(MOTIONS))
    return Scene(draw_wish(rng), motion)


def say(scene: Scene, rng: random.Random) -> str:
    """One of many ways to ask for `scene`; a digit that stands still often goes without saying."""
    text = phrase(scene.wish, rng)
    if scene.motion == STILL and rng.random() < 0.7:
        return text
    return f"{text} {scene.motion}"


def motion_rows(scenes: list[Scene], device: torch.device) -> torch.Tensor:
    """The row of the table for each scene, [N, 5]."""
    return torch.tensor([MOTIONS[scene.motion] for scene in scenes], device=device)


def draw_video(
    digits: Digits, rows: torch.Tensor, colours: torch.Tensor, moves: torch.Tensor, clip: Clip
) -> torch.Tensor:
    """Videos [N, 3, frames, height, width] in -1..1."""
    (frames, height, width), count = clip, len(rows)
    time = 2 * torch.arange(frames, device=digits.device) / max(frames - 1, 1) - 1
    angle, scale, dx, dy = (part[:, None] for part in shake(count, digits.device).unbind(1))
    turn, grow, right, down, size = (part[:, None] for part in moves.unbind(1))
    path = [angle + turn * time, scale * size * torch.exp(grow * time)]
    path += [dx + right * time, dy + down * time]
    turns = torch.stack(path, dim=-1)
    fields = digits.fields[rows].repeat_interleave(frames, dim=0)
    ink = render(fields, turns.flatten(0, 1), (height, width))
    colours = (colours + 2.5 * torch.randn_like(colours)).clamp(0, 255)
    pictures = paint(ink, colours.repeat_interleave(frames, dim=0))
    return pictures.unflatten(0, (count, frames)).transpose(1, 2)


def draw_any_video(digits: Digits, table: torch.Tensor, count: int, clip: Clip) -> torch.Tensor:
    """Any digits in any two named colours doing anything; `table` is `MOTIONS` on the device."""
    rows = torch.randint(len(digits.fields), (count,), device=digits.device)
    pairs = torch.randint(len(digits.palette), (count, 2), device=digits.device)
    plain = torch.rand(count, 1, 1, device=digits.device) < 0.4
    colours = torch.where(plain, digits.palette[:2], digits.palette[pairs])
    moves = table[torch.randint(len(table), (count,), device=digits.device)]
    return draw_video(digits, rows, colours, moves, clip)

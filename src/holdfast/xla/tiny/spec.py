"""How a tiny model is written down: its configuration, and what to call it with.

Covers: `Tiny` and the words its inputs are made of.
Leaves to others: the models (`images_*`, `videos_*`, `audio`, `autoencoders`, `unets`, `encoders`),
making one (`making`).
Promise: importing this needs the standard library alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Random:
    """Normal numbers of a shape."""

    shape: tuple[int, ...]


@dataclass(frozen=True)
class Whole:
    """Whole numbers from 0 to `below` - 1."""

    shape: tuple[int, ...]
    below: int


@dataclass(frozen=True)
class Full:
    """One value everywhere; True and False make a mask."""

    shape: tuple[int, ...]
    value: float


@dataclass(frozen=True)
class Values:
    """Exactly these numbers, in nested lists: time steps, masks with holes, positions."""

    values: Any


@dataclass(frozen=True)
class Draws:
    """A generator of the CPU: what a model draws for itself is the same each time."""

    seed: int = 0


def random(*shape: int) -> Random:
    return Random(shape)


def whole(*shape: int, below: int) -> Whole:
    return Whole(shape, below)


def full(*shape: int, value: float = 1.0) -> Full:
    return Full(shape, value)


def mask(*shape: int) -> Full:
    """True everywhere."""
    return Full(shape, True)


def values(given: Any) -> Values:
    return Values(given)


@dataclass(frozen=True)
class Tiny:
    """A model that is made and run in a second or two."""

    config: Mapping[str, Any]
    inputs: Mapping[str, Any]  # values, the words above, and lists, tuples and dicts of them
    method: str = "forward"
    notes: Mapping[str, str] = field(default_factory=dict)  # what is odd about it, by input
    static: tuple[str, ...] = ()  # inputs that shapes or branches depend on: constants on XLA
    bound: float = 1e-4  # how far XLA may be from torch in float32; notes say why it is another
    apart: float = 1e-5  # how far several devices may be from one

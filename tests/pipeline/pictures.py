"""Digits to ask for, and how far two pictures are apart."""

from __future__ import annotations

import numpy as np

NAMES = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]


def furthest(one: np.ndarray, other: np.ndarray) -> int:
    """The largest difference, in 255ths."""
    return int(np.abs(one.astype(int) - other.astype(int)).max())

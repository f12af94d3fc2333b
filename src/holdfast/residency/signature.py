"""What of a call decides how much memory it takes: entry, shapes, dtypes, plain values.

Integers stand apart: a number of frames decides much, a number of the step nothing.

Promise: two calls with the same signature run the same operations on the same shapes, unless values
of tensors or state of the module decide otherwise.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import torch
from torch import nn

Signature = tuple[Hashable, tuple[int, ...]]  # all but integers, and those
_MOST = 5000  # parts of a call that are looked at
_PLAIN = (bool, str, bytes, type(None), torch.dtype, torch.device, torch.Size)


class _TooMuchError(Exception):
    """A call with too many parts to be told from others."""


def sign(entry: str, args: Any, kwargs: Any) -> tuple[Signature | None, int]:
    """The signature of a call (None: it is like no other), and the bytes of all its tensors."""
    look = _Look()
    try:
        shape = look.describe((args, kwargs))
    except (_TooMuchError, RecursionError):
        return None, look.nbytes
    modes = (torch.is_autocast_enabled(), torch.is_inference_mode_enabled())
    return ((entry, modes, shape), tuple(look.integers)), look.nbytes


class _Look:
    """Walks through the parts of one call."""

    def __init__(self) -> None:
        self.nbytes = 0
        self.integers: list[int] = []  # many count steps and change nothing else
        self._left = _MOST
        self._seen: set[int] = set()

    def describe(self, x: Any) -> Hashable:
        self._left -= 1
        if self._left < 0:
            raise _TooMuchError
        if isinstance(x, torch.Tensor):
            self.nbytes += x.numel() * x.element_size()
            return tuple(x.shape), x.dtype, x.device.type
        if isinstance(x, _PLAIN):
            return type(x), x
        if isinstance(x, int):
            self.integers.append(x)
            return int
        if isinstance(x, float | complex):
            return type(x)
        if isinstance(x, list | tuple):
            return type(x), *map(self.describe, x)
        if isinstance(x, dict):
            return type(x), *((repr(name), self.describe(value)) for name, value in x.items())
        if isinstance(x, torch.Generator):
            return torch.Generator
        return self._describe_object(x)

    def _describe_object(self, x: Any) -> Hashable:
        """An object that holds more: a cache, a configuration."""
        if id(x) in self._seen:
            return "again"
        self._seen.add(id(x))
        if isinstance(x, nn.Module) or callable(x) or not hasattr(x, "__dict__"):
            return type(x), id(x)
        return type(x), self.describe(vars(x))

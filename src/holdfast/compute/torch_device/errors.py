"""Errors of the device, each also of the class that torch would have raised.

`error_translation` makes them of the errors of the op table.
"""

from __future__ import annotations

import torch

from holdfast.base.errors import BadInput, OutOfMemory


class Refused(BadInput, RuntimeError):
    """An op was called with tensors that it cannot take."""


class BadIndex(BadInput, IndexError, RuntimeError):
    """A dimension or index out of range; torch raises either class, depending on the op."""


class NoMemory(OutOfMemory, torch.OutOfMemoryError):
    """The device has no memory for a result."""

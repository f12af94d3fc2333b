"""CPU tensors as NumPy and JAX arrays, and back.

Bit for bit, bfloat16 and float8 included; 64-bit integers and floats become 32-bit ones in JAX,
which has no others by default.
"""

from __future__ import annotations

from typing import Any

import jax
import ml_dtypes
import numpy as np
import torch

# Dtypes that NumPy has only through ml_dtypes, with the integer dtype of the same width.
_EXTRA = {
    torch.bfloat16: (torch.int16, ml_dtypes.bfloat16),
    torch.float8_e4m3fn: (torch.int8, ml_dtypes.float8_e4m3fn),
    torch.float8_e5m2: (torch.int8, ml_dtypes.float8_e5m2),
}
_BACK = {np.dtype(numpy): (whole, torch_) for torch_, (whole, numpy) in _EXTRA.items()}


def to_numpy(tensor: torch.Tensor) -> np.ndarray:
    """A tensor as a NumPy array; shares memory where possible."""
    tensor = tensor.detach().cpu().contiguous()
    if tensor.dtype not in _EXTRA:
        return tensor.numpy()
    whole, numpy = _EXTRA[tensor.dtype]
    return tensor.view(whole).numpy().view(numpy)


def to_jax(tensor: torch.Tensor) -> jax.Array:
    """A copy on JAX's default device."""
    return jax.numpy.array(to_numpy(tensor))


def to_torch(array: Any) -> torch.Tensor:
    """A copy on the CPU."""
    found = np.array(array)
    if found.dtype not in _BACK:
        return torch.from_numpy(found)
    whole, torch_ = _BACK[found.dtype]
    return torch.from_numpy(found.view(np.int16 if whole is torch.int16 else np.int8)).view(torch_)


def dtype_of(wanted: torch.dtype) -> np.dtype:
    """The NumPy dtype of a torch dtype."""
    if wanted in _EXTRA:
        return np.dtype(_EXTRA[wanted][1])
    return to_numpy(torch.empty(0, dtype=wanted)).dtype

"""Arrays for attention, torch's answer and how far ours is from it."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import numpy as np
import torch

from holdfast.xla.attention import attention

SPLASH: dict[str, Any] = {"engine": "splash", "interpret": True}


def made(*shapes: tuple[int, ...]) -> list[Any]:
    """Random numbers, the same each time."""
    random = np.random.default_rng(sum(map(sum, shapes)))
    return [random.standard_normal(shape, dtype=np.float32) for shape in shapes]


def of_torch(*arrays: Any, **options: Any) -> Any:
    """What torch says."""
    tensors: Any = [torch.from_numpy(np.asarray(array)) for array in arrays]
    return torch.nn.functional.scaled_dot_product_attention(*tensors, **options).numpy()


def compiled(**options: Any) -> Any:
    """Attention in one program. Compiling takes most of the time of a test, so it is kept short."""
    quickly = {"xla_backend_optimization_level": 0}
    return jax.jit(partial(attention, **options), compiler_options=quickly)


def difference(*arrays: Any, way: dict[str, Any], **options: Any) -> float:
    """How far from torch, as a part of the largest number of its answer."""
    want = of_torch(*arrays, **options)
    got = np.asarray(compiled(**options, **way)(*arrays))
    assert got.shape == want.shape
    assert got.dtype == want.dtype
    return float(np.abs(got - want).max() / np.abs(want).max())

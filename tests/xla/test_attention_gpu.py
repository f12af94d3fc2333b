"""Attention by cuDNN on a real card, against torch in float64.

Run where JAX has CUDA: JAX_PLATFORMS=cuda,cpu pytest tests/xla/test_attention_gpu.py
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
jax = pytest.importorskip("jax")

import jax.numpy as jnp  # noqa: E402

from holdfast.xla.attention import attention  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.xla,
    pytest.mark.skipif(jax.default_backend() != "gpu", reason="JAX has no GPU here"),
]


def error(queries: int, keys: int, dim: int = 128, mask: Any = None, **options: Any) -> float:
    """How far from the exact answer to the same rounded inputs."""
    heads, key_heads = 6, options.pop("key_heads", 6)
    value_dim = options.pop("value_dim", dim)
    random = np.random.default_rng(queries + keys)
    shapes = ((2, heads, queries, dim), (2, key_heads, keys, dim), (2, key_heads, keys, value_dim))
    arrays = [jnp.asarray(random.standard_normal(shape), "bfloat16") for shape in shapes]
    options["enable_gqa"] = key_heads != heads
    got = jax.jit(partial(attention, engine="cudnn", **options))(*arrays, mask)
    tensors = [torch.from_numpy(np.array(one.astype("float32"))).double() for one in arrays]
    if mask is not None:
        mask = torch.from_numpy(np.array(mask if mask.dtype == bool else mask.astype("float32")))
        mask = mask if mask.dtype == torch.bool else mask.double()
    want = torch.nn.functional.scaled_dot_product_attention(*tensors, mask, **options).numpy()
    return float(np.abs(np.asarray(got.astype("float32")) - want).max() / np.abs(want).max())


@pytest.mark.parametrize(
    ("queries", "keys"), [(1, 1), (3, 7), (65, 63), (127, 129), (1031, 1021), (1031, 77), (1, 509)]
)
@pytest.mark.parametrize("is_causal", [False, True])
def test_every_length_is_right(queries: int, keys: int, is_causal: bool) -> None:
    assert error(queries, keys, is_causal=is_causal) < 1e-2


@pytest.mark.parametrize(("dim", "value_dim"), [(40, 40), (72, 72), (64, 33), (33, 64), (256, 256)])
def test_every_dim_is_right(dim: int, value_dim: int) -> None:
    assert error(197, 129, dim, value_dim=value_dim) < 1e-2


@pytest.mark.parametrize("key_heads", [1, 2, 3])
def test_grouped_heads_are_right(key_heads: int) -> None:
    assert error(197, 129, key_heads=key_heads) < 1e-2


@pytest.mark.parametrize("shape", [(2, 1, 1, 129), (1, 129), (2, 1, 197, 129), (2, 6, 197, 129)])
@pytest.mark.parametrize("kind", ["bool", "float"])
def test_every_mask_is_right(shape: tuple[int, ...], kind: str) -> None:
    mask = np.random.default_rng(1).standard_normal(shape)
    chosen = jnp.asarray(
        mask > 0 if kind == "bool" else mask, bool if kind == "bool" else "bfloat16"
    )
    assert error(197, 129, mask=chosen) < 1e-2


@pytest.mark.parametrize("rows", [1, 197])
@pytest.mark.parametrize("kind", ["bool", "float"])
def test_no_key_to_attend_to_gives_zeros(kind: str, rows: int) -> None:
    mask = np.random.default_rng(1).random((2, 1, rows, 129)) > 0.5
    mask[1, :, :1] = False
    chosen = jnp.asarray(mask) if kind == "bool" else jnp.where(mask, 0, -jnp.inf)
    assert error(197, 129, mask=chosen if kind == "bool" else chosen.astype("bfloat16")) < 1e-2

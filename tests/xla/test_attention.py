"""Attention on XLA says what torch says, by every engine that runs here, at any length."""

from __future__ import annotations

import inspect
from functools import partial
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
jax = pytest.importorskip("jax")

import jax.numpy as jnp  # noqa: E402

from holdfast.xla.attention import attention, scaled_dot_product_attention  # noqa: E402
from tests.tolerance import assert_near, bound, distance, no_worse  # noqa: E402
from tests.xla.attention_cases import SPLASH, compiled, difference, made, of_torch  # noqa: E402

pytestmark = pytest.mark.xla

WAYS: dict[str, dict[str, Any]] = {
    "xla": {"engine": "xla"},
    "in runs": {"engine": "xla", "score_bytes": 1 << 16},
    "splash": SPLASH,
}
FEW = (1, 65, 197, 4999)
NEAR = bound("float32", FEW[-1])
LENGTHS = (1, 2, 3, 7, 63, 65, 127, 129, 197, 509, 1021, 1031, 2053, 4999)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "length",
    [one if one in FEW else pytest.param(one, marks=pytest.mark.slow) for one in LENGTHS],
)
def test_every_length_agrees_with_torch(length: int, way: str) -> None:
    shape = (1, 1, length, 64)
    runs = {"score_bytes": 4 * length * max(length // 3, 1)} if way == "in runs" else {}
    assert difference(*made(shape, shape, shape), way=WAYS[way] | runs) < NEAR


@pytest.mark.parametrize("way", ["xla", "splash"])
@pytest.mark.parametrize(("queries", "keys"), [(1, 4999), (4999, 1), (2053, 77)])
def test_queries_and_keys_of_different_length_agree_with_torch(
    queries: int, keys: int, way: str
) -> None:
    arrays = made((1, 2, queries, 64), (1, 2, keys, 64), (1, 2, keys, 64))
    assert difference(*arrays, way=WAYS[way]) < NEAR


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("queries", "keys"), [(131, 300), (300, 131)])
def test_causal_order_starts_at_the_first_key(queries: int, keys: int, way: str) -> None:
    arrays = made((1, 2, queries, 16), (1, 2, keys, 16), (1, 2, keys, 16))
    assert difference(*arrays, way=WAYS[way], is_causal=True) < NEAR


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("rank", [2, 4])
def test_masked_keys_are_never_attended(way: str, rank: int) -> None:
    query, key, value = made((3, 2, 70, 16), (3, 2, 130, 16), (3, 2, 130, 16))
    keep = np.random.default_rng(0).random((3, 1, 1, 130)) > 0.5
    keep[1] = False  # nothing to attend to: zeros
    if rank == 2:
        keep = keep[0, 0]
    else:
        value[~np.broadcast_to(np.moveaxis(keep, 3, 2), value.shape)] = 1e6
    assert difference(query, key, value, keep, way=WAYS[way]) < NEAR


@pytest.mark.parametrize("shape", [(70, 130), (1, 130), (70, 1), (2, 1, 70, 130), (4, 70, 130)])
@pytest.mark.parametrize("kind", ["bool", "float"])
def test_masks_broadcast_as_in_torch(kind: str, shape: tuple[int, ...]) -> None:
    arrays = made((2, 4, 70, 16), (2, 4, 130, 16), (2, 4, 130, 16))
    mask = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    if kind == "bool":
        mask = mask > 0
    elif shape == (70, 130):
        mask[3] = -np.inf  # nothing to attend to: zeros
        mask[4, :100] = -np.inf
    way = WAYS["in runs" if len(shape) == 2 else "xla"]
    assert difference(*arrays, mask, way=way) < NEAR


def test_a_mask_for_each_head_needs_no_row_for_each_query() -> None:
    query, key, value = made((2, 4, 70, 16), (2, 4, 130, 16), (2, 4, 130, 16))
    mask = np.random.default_rng(1).random((2, 4, 1, 130)) > 0.5
    want = of_torch(query, key, value, np.broadcast_to(mask, (2, 4, 70, 130)).copy())
    np.testing.assert_allclose(compiled()(query, key, value, mask), want, atol=NEAR)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("key_heads", [1, 2])
def test_grouped_heads_share_their_keys(key_heads: int, way: str) -> None:
    keys = (2, key_heads, 65, 16)
    arrays = made((2, 6, 33, 16), keys, keys)
    keep = np.random.default_rng(1).random((2, 1, 1, 65)) > 0.5
    assert difference(*arrays, keep, way=WAYS[way], enable_gqa=True) < NEAR


@pytest.mark.parametrize("way", ["xla", "splash"])
@pytest.mark.parametrize(
    "shapes",
    [
        ((33, 16), (65, 16), (65, 16)),
        ((5, 33, 16), (5, 65, 16), (5, 65, 16)),
        ((2, 3, 2, 33, 16), (2, 3, 2, 65, 16), (2, 3, 2, 65, 16)),
        ((2, 33, 16), (3, 1, 65, 16), (65, 16)),
        ((1, 2, 33, 48), (1, 2, 65, 48), (1, 2, 65, 200)),
        ((1, 2, 33, 200), (1, 2, 65, 200), (1, 2, 65, 3)),
    ],
)
def test_dimensions_are_taken_as_torch_takes_them(shapes: Any, way: str) -> None:
    assert difference(*made(*shapes), way=WAYS[way], scale=0.3) < NEAR


def test_no_keys_at_all_give_zeros() -> None:
    arrays = made((1, 2, 5, 16), (1, 2, 0, 16), (1, 2, 0, 8))
    np.testing.assert_array_equal(attention(*arrays), np.zeros((1, 2, 5, 8), np.float32))


def test_no_queries_at_all_give_nothing() -> None:
    arrays = made((1, 2, 0, 16), (1, 2, 5, 16), (1, 2, 5, 8))
    assert attention(*arrays).shape == (1, 2, 0, 8)


@pytest.mark.parametrize("way", ["xla", "splash"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_is_as_good_as_torchs(dtype: str, way: str) -> None:
    halves = [torch.randn(1, 2, 300, 64).to(getattr(torch, dtype)) for _ in range(3)]
    exact = torch.nn.functional.scaled_dot_product_attention(*(one.double() for one in halves))
    theirs = torch.nn.functional.scaled_dot_product_attention(*halves)
    arrays = (jnp.asarray(one.float().numpy(), dtype) for one in halves)
    ours = compiled(**WAYS[way])(*arrays)
    assert ours.dtype == dtype
    found = np.asarray(ours.astype(jnp.float32))
    assert no_worse(distance(found, exact), distance(theirs, exact), dtype)


def test_a_float32_mask_is_not_rounded_to_half_precision() -> None:
    query, key, value = (jnp.asarray(one, "bfloat16") for one in made(*[(1, 1, 9, 8)] * 3))
    mask = made((9, 9))[0] * 1e-3 + 300
    got = compiled()(query, key, value, mask)
    want = compiled()(query, key, value, mask - 300)
    assert_near(got, want, "bfloat16")


def test_runs_keep_the_scores_small() -> None:
    arg = jax.ShapeDtypeStruct((1, 8, 4999, 16), "float32")

    def temporary_bytes(limit: int) -> int:
        call = jax.jit(partial(attention, engine="xla", score_bytes=limit))
        return call.lower(arg, arg, arg).compile().memory_analysis().temp_size_in_bytes

    assert temporary_bytes(1 << 40) > 8 * 4999 * 4999 * 4
    assert temporary_bytes(8 << 20) < 60 << 20


def test_torchs_own_arguments_are_taken_in_their_order() -> None:
    *first, ours = inspect.signature(scaled_dot_product_attention).parameters
    assert first == [
        *("query", "key", "value", "attn_mask"),
        *("dropout_p", "is_causal", "scale", "enable_gqa"),
    ]
    assert ours == "ours"
    arrays = made((2, 6, 9, 8), (2, 3, 7, 8), (2, 3, 7, 8), (9, 7))
    call = jax.jit(partial(scaled_dot_product_attention, scale=0.5, enable_gqa=True))
    want = of_torch(*arrays, scale=0.5, enable_gqa=True)
    np.testing.assert_allclose(call(*arrays), want, atol=NEAR)

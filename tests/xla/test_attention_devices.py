"""Attention over eight virtual devices, and lowered for a TPU that is not here."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
jax = pytest.importorskip("jax")

from jax import export  # noqa: E402
from jax.sharding import AxisType, NamedSharding  # noqa: E402
from jax.sharding import PartitionSpec as P  # noqa: E402

from holdfast.xla.attention import attention  # noqa: E402
from holdfast.xla.attention.problem import problem  # noqa: E402
from holdfast.xla.attention.splitting import Cut, cut  # noqa: E402
from tests.tolerance import bound  # noqa: E402
from tests.xla.attention_cases import SPLASH, difference, made, of_torch  # noqa: E402

pytestmark = pytest.mark.xla

NEAR = bound("float32", 4999)

FLUX = (1, 24, 4608, 128)


def mesh_of(shape: tuple[int, ...], names: tuple[str, ...]) -> Any:
    return jax.make_mesh(shape, names, axis_types=(AxisType.Auto,) * len(shape))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("heads", "key_heads", "shape", "names"),
    [
        (8, 8, (8,), ("tp",)),
        (8, 1, (8,), ("tp",)),
        (8, 4, (8,), ("tp",)),
        (3, 3, (8,), ("tp",)),  # heads do not divide: queries do
        (4, 4, (2, 4), ("dp", "tp")),
        (3, 3, (2, 4), ("dp", "tp")),
        (4, 4, (8,), ("dp",)),  # nothing divides: computed everywhere
    ],
)
def test_devices_together_agree_with_torch(
    heads: int, key_heads: int, shape: Any, names: Any
) -> None:
    mesh = mesh_of(shape, names)
    arrays = made((2, heads, 131, 16), (2, key_heads, 65, 16), (2, key_heads, 65, 16))
    keep = np.random.default_rng(1).random((2, 1, 1, 65)) > 0.5
    assert difference(*arrays, keep, way={**SPLASH, "mesh": mesh}, enable_gqa=True) < NEAR


def test_the_current_mesh_is_used_where_none_is_given() -> None:
    arrays = made(*[(1, 8, 131, 16)] * 3)
    with jax.set_mesh(mesh_of((8,), ("tp",))):
        text = jax.jit(partial(attention, **SPLASH)).lower(*arrays).as_text()
        assert difference(*arrays, way=SPLASH) < NEAR
    assert "manual_computation" in text


def test_causal_order_is_kept_over_devices() -> None:
    mesh = mesh_of((8,), ("tp",))
    for heads in (8, 3):
        arrays = made(*[(1, heads, 131, 16)] * 3)
        assert difference(*arrays, way={**SPLASH, "mesh": mesh}, is_causal=True) < NEAR


def test_a_device_that_has_its_part_already_computes_it_alone() -> None:
    mesh = mesh_of((8,), ("tp",))
    arrays = made(*[(1, 8, 131, 16)] * 3)
    own = partial(attention, **SPLASH, mesh=mesh)
    spec = P(None, "tp")
    split = jax.shard_map(own, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
    np.testing.assert_allclose(jax.jit(split)(*arrays), of_torch(*arrays), atol=NEAR)


def test_splash_leaves_heads_on_their_devices() -> None:
    mesh = mesh_of((8,), ("tp",))
    placed = [
        jax.device_put(one, NamedSharding(mesh, P(None, "tp")))
        for one in made(*[(1, 8, 131, 16)] * 3)
    ]
    compiled = jax.jit(partial(attention, **SPLASH, mesh=mesh)).lower(*placed).compile()
    text = compiled.as_text()
    assert not [word for word in ("all-gather", "all-reduce", "all-to-all") if word in text]


def test_the_cut_over_a_mesh() -> None:
    def of(shape: tuple[int, ...], names: tuple[str, ...], heads: int, **options: Any) -> Cut:
        devices = np.array(jax.devices()).reshape(shape)
        arrays = made(*[(2, heads, 9, 8)] * 3)
        return cut(jax.sharding.Mesh(devices, names), problem(*arrays, **options))

    assert of((8,), ("tp",), 8) == Cut(None, "tp", None)
    assert of((8,), ("tp",), 12) == Cut(None, None, "tp")
    assert of((8,), ("tp",), 12, is_causal=True) == Cut(None, None, None)
    assert of((2, 4), ("dp", "tp"), 8) == Cut(("dp",), "tp", None)
    assert of((4, 2), ("dp", "tp"), 8) == Cut(None, "tp", None)


def lowered(
    platform: str, *shapes: tuple[int, ...], dtype: str = "bfloat16", **options: Any
) -> str:
    args = [jax.ShapeDtypeStruct(shape, dtype) for shape in shapes]
    call = jax.jit(partial(attention, platform=platform, **options))
    return export.export(call, platforms=[platform])(*args).mlir_module()


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float16"])
def test_flux_lowers_to_the_tpu_kernel_from_here(dtype: str) -> None:
    assert "tpu_custom_call" in lowered("tpu", FLUX, FLUX, FLUX, dtype=dtype)


def test_what_divides_nothing_lowers_to_the_tpu_kernel_from_here() -> None:
    odd = (2, 3, 4999, 72)
    assert "tpu_custom_call" in lowered("tpu", odd, odd, odd)
    assert "tpu_custom_call" in lowered("tpu", odd, odd, odd, is_causal=True)


def test_what_is_short_lowers_without_the_tpu_kernel() -> None:
    short = (2, 24, 77, 128)
    assert "tpu_custom_call" not in lowered("tpu", short, short, short)


def test_flux_over_eight_devices_lowers_to_the_tpu_kernel_from_here() -> None:
    mesh = mesh_of((8,), ("tp",))
    arg = jax.ShapeDtypeStruct(FLUX, "bfloat16", sharding=NamedSharding(mesh, P(None, "tp")))
    call = jax.jit(partial(attention, platform="tpu", mesh=mesh))
    made_for_eight = export.export(call, platforms=["tpu"])(arg, arg, arg)
    assert made_for_eight.nr_devices == 8
    assert "tpu_custom_call" in made_for_eight.mlir_module()

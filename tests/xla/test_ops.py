"""Operators by name: ours against torch's, inside inference mode and outside, and users' own."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import pytest
import torch
from torch.nn import functional
from torch.utils import _pytree as tree

from holdfast.base.errors import BadInput, NotFound
from holdfast.xla import ops
from holdfast.xla.arrays import to_jax, to_torch
from holdfast.xla.compat import torchax
from holdfast.xla.env import SharedEnvironment
from holdfast.xla.module.calls import ModuleCall
from tests.tolerance import bound, rounded

pytestmark = pytest.mark.xla


def random(*shape: int, shift: float = 0.0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape))) + shift


ROWS, WEIGHT = random(4, 7, 64, shift=3), random(64, 1).flatten()
PICTURE, CHANNELS = random(2, 16, 5, 6, shift=3), random(16, 1).flatten()
aten: Any = torch.ops.aten

# What the specification lists, and what came up beside it: a call and its tensors.
CASES: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "unflatten": (lambda x: x.unflatten(1, (2, -1)), (random(3, 8, 5),)),
    "chunk": (lambda x: x.chunk(3, dim=-1), (random(3, 10),)),
    "chunk with fewer parts": (lambda x: x.chunk(4, dim=-1), (random(3, 6),)),
    "cartesian_prod": (torch.cartesian_prod, (random(3), random(4))),
    "cartesian_prod of one": (torch.cartesian_prod, (random(3),)),
    "dropout": (lambda x: functional.dropout(x, 0.5, training=False), (random(3, 4),)),
    "native_dropout": (lambda x: torch.native_dropout(x, 0.5, False), (random(3, 4),)),
    "rms_norm": (lambda x, w: functional.rms_norm(x, (64,), w, 1e-6), (ROWS, WEIGHT)),
    "rms_norm of all": (lambda x: functional.rms_norm(x, (7, 64)), (ROWS * 1e-3,)),
    "layer_norm": (lambda x, w: functional.layer_norm(x, (64,), w, w, 1e-6), (ROWS, WEIGHT)),
    "layer_norm of two axes": (lambda x: functional.layer_norm(x, (7, 64)), (ROWS,)),
    "native_layer_norm": (
        lambda x, w: aten.native_layer_norm(x, (64,), w, None, 1e-6),
        (ROWS, WEIGHT),
    ),
    "group_norm": (lambda x, w: functional.group_norm(x, 4, w, w, 1e-6), (PICTURE, CHANNELS)),
    "group_norm of nothing": (lambda x: functional.group_norm(x, 4), (random(0, 16, 3),)),
    "native_group_norm": (
        lambda x, w: aten.native_group_norm(x, w, w, 2, 16, 30, 4, 1e-6),
        (PICTURE, CHANNELS),
    ),
    "conv2d": (lambda x, w: functional.conv2d(x, w), (random(2, 3, 8, 8), random(4, 3, 3, 3))),
    "conv2d same": (
        lambda x, w: functional.conv2d(x, w, padding="same"),
        (random(2, 3, 8, 8), random(4, 3, 5, 3)),
    ),
    "conv3d": (
        lambda x, w: functional.conv3d(x, w, padding=1),
        (random(1, 3, 4, 4, 4), random(4, 3, 3, 3, 3)),
    ),
    "attention": (
        functional.scaled_dot_product_attention,
        (random(2, 4, 9, 16), random(2, 4, 11, 16), random(2, 4, 11, 16)),
    ),
    "min of two": (torch.min, (random(3, 4), -random(3, 4))),
    "max of two": (torch.max, (random(3, 4), -random(3, 4))),
    "expand_as": (lambda x, y: x.expand_as(y), (random(1, 4), random(3, 4))),
    "concat": (lambda x, y: torch.concat([x, y]), (random(3, 4), random(3, 4))),
    "meshgrid": (lambda x, y: torch.meshgrid(x, y, indexing="ij"), (random(3), random(4))),
}
# Outside of inference mode torch itself puts these together from others.
MISSING_INSIDE = {
    *("unflatten", "chunk", "chunk with fewer parts", "cartesian_prod", "cartesian_prod of one"),
    *("dropout", "rms_norm", "rms_norm of all", "layer_norm", "layer_norm of two axes"),
    *("group_norm", "group_norm of nothing", "conv2d", "conv2d same", "conv3d", "min of two"),
    *("max of two", "expand_as", "concat", "meshgrid"),
}
DTYPES = [torch.float32, torch.bfloat16]
TERMS = 7 * 64  # of the longest sum
ROUNDINGS = {"attention": 2}  # to a narrow dtype: its weights too; of the others, the result alone


def given(name: str, dtype: torch.dtype) -> list[torch.Tensor]:
    return [one.to(dtype) for one in CASES[name][1]]


def on_torch(name: str, dtype: torch.dtype) -> list[torch.Tensor]:
    return tree.tree_leaves(CASES[name][0](*given(name, dtype)))


def on_xla(env: Any, name: str, dtype: torch.dtype, inside: bool) -> list[torch.Tensor]:
    with torch.inference_mode(inside), torch.no_grad():
        tensors = env.to_xla(given(name, dtype))
        with env:
            answer = CASES[name][0](*tensors)
        return [to_torch(one.jax()) for one in tree.tree_leaves(answer)]


def distance(found: torch.Tensor, right: torch.Tensor) -> float:
    if not right.numel():
        return 0.0
    scale = right.double().abs().max().item() or 1.0
    return (found.double() - right.double()).abs().max().item() / scale


@pytest.fixture(scope="module")
def env() -> SharedEnvironment:
    return SharedEnvironment()


@pytest.mark.parametrize("inside", [False, True], ids=["outside", "inside"])
@pytest.mark.parametrize("dtype", DTYPES, ids=["f32", "bf16"])
@pytest.mark.parametrize("name", CASES)
def test_operator_gives_what_torch_gives(
    env: SharedEnvironment, name: str, dtype: torch.dtype, inside: bool
) -> None:
    found, right = on_xla(env, name, dtype, inside), on_torch(name, dtype)
    assert [(one.shape, one.dtype) for one in found] == [(one.shape, one.dtype) for one in right]
    wide = tree.tree_leaves(CASES[name][0](*(one.float() for one in given(name, dtype))))
    most = bound(dtype, TERMS)
    if dtype == torch.bfloat16:
        most = rounded(dtype, ROUNDINGS.get(name, 1), TERMS)
    assert max(map(distance, found, wide)) <= most


@pytest.mark.parametrize("name", sorted(MISSING_INSIDE))
def test_torchax_still_lacks_it_inside_inference_mode(name: str) -> None:
    """If this fails, torchax has learnt it: take it out of the table in ops."""
    plain = torchax().tensor.Environment()
    with pytest.raises((torchax().tensor.OperatorNotFound, TypeError)):
        on_xla(plain, name, torch.float32, inside=True)


@pytest.mark.parametrize("name", ["native_layer_norm", "native_group_norm"])
def test_torchax_still_rounds_norms_in_bfloat16(name: str) -> None:
    """If this fails, torchax computes them in float32: take ours out."""
    plain = torchax().tensor.Environment()
    found, right = (
        on_xla(plain, name, torch.bfloat16, inside=False),
        on_torch(name, torch.bfloat16),
    )
    assert max(map(distance, found, right)) > 4e-3


def test_norm_of_bfloat16_with_a_float32_weight_keeps_both_formats(env: SharedEnvironment) -> None:
    x = ROWS.bfloat16()
    right = aten.native_layer_norm(x, (64,), WEIGHT, WEIGHT, 1e-6)
    found = ops.native_layer_norm(to_jax(x), (64,), to_jax(WEIGHT), to_jax(WEIGHT), 1e-6)
    assert [to_torch(one).dtype for one in found] == [one.dtype for one in right]
    for one, other in zip(found, right, strict=True):
        assert distance(to_torch(one), other) <= 4e-3  # torch's CPU rounds its float32 statistics


def test_view_of_a_tensor_from_outside_can_be_made_inside(env: SharedEnvironment) -> None:
    whole = env.to_xla(torch.arange(4.0))
    with torch.inference_mode(), env:
        parts = [*whole.chunk(2), *whole.unbind(), whole.unflatten(0, (2, 2))]
    assert [to_torch(one.jax()).sum().item() for one in parts] == [1, 5, 0, 1, 2, 3, 6]


def test_operator_that_is_no_composite_is_not_decomposed() -> None:
    assert ops.decompose(aten.lgamma_.default) is None
    assert ops.decompose(functional.gelu) is None
    assert ops.decompose(aten.chunk.default) is ops.decompose(aten.chunk.default)


class Doubling(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.gelu(x) + torch.cumsum(x, 0)


def test_overrides_apply_to_one_call_alone() -> None:
    x = jnp.arange(3.0)
    mine = ops.overrides(
        {"torch.nn.functional.gelu": lambda x: x * 2, "aten.cumsum": lambda x, d: x}
    )
    assert ModuleCall(Doubling(), overrides=mine)({}, {"x": x}).tolist() == [0, 3, 6]
    right = Doubling()(torch.arange(3.0))
    assert distance(to_torch(ModuleCall(Doubling())({}, {"x": x})), right) < 1e-6


def test_override_may_work_on_tensors() -> None:
    twice = ops.Override(lambda x: x + x, in_jax=False)
    call = ModuleCall(Doubling(), overrides=ops.overrides({"torch.nn.functional.gelu": twice}))
    assert call({}, {"x": jnp.arange(3.0)}).tolist() == [0, 3, 7]


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("aten.rms_norm", aten.rms_norm),
        ("aten.rms_norm.default", aten.rms_norm.default),
        ("aten::unflatten.int", aten.unflatten.int),
        ("torch.nn.functional.gelu", functional.gelu),
        ("torch.Tensor.chunk", torch.Tensor.chunk),
    ],
)
def test_operator_is_found_by_its_name(name: str, found: Any) -> None:
    assert ops.operator(name) is found


@pytest.mark.parametrize(
    "name", ["aten.no_such_thing", "gelu", "aten", "torch.nn.no.such", "torch.pi"]
)
def test_unknown_operator_is_named(name: str) -> None:
    with pytest.raises(NotFound) as caught:
        ops.overrides({name: abs})
    assert str(caught.value) == (
        f"torch has no operator {name!r}\n"
        '  expected: a name such as "aten.rms_norm", "aten.unflatten.int", '
        '"torch.nn.functional.gelu"'
    )


def test_override_that_is_no_function_is_refused() -> None:
    with pytest.raises(BadInput) as caught:
        ops.overrides({"aten.unflatten.int": 3})  # pyright: ignore[reportArgumentType]
    assert str(caught.value) == (
        "cannot override aten.unflatten.int: 3 is no function\n"
        '  expected: a function, as in Port(..., ops={"aten.unflatten.int": '
        "lambda self, dim, sizes: ...})"
    )


def test_line_to_write_has_the_arguments_of_the_operator() -> None:
    assert ops.line_for("aten::unflatten.int") == (
        'Port(..., ops={"aten.unflatten.int": lambda self, dim, sizes: ...})'
    )
    assert ops.line_for("aten::add.Tensor") == (
        'Port(..., ops={"aten.add.Tensor": lambda self, other, *, alpha=1: ...})'
    )
    assert ops.line_for("aten::rms_norm") == (
        'Port(..., ops={"aten.rms_norm": '
        "lambda input, normalized_shape, weight=None, eps=None: ...})"
    )
    assert ops.line_for("mine::thing") == (
        'Port(..., ops={"mine.thing": lambda *args, **kwargs: ...})'
    )


def test_another_function_is_another_description() -> None:
    functions = (lambda x: x), (lambda x: -x)
    first, second = (
        ops.describe_overrides(ops.overrides({"aten.cumsum": one})) for one in functions
    )
    assert first != second
    assert first == ops.describe_overrides(ops.overrides({"aten.cumsum": functions[0]}))


def test_what_a_function_is_made_with_belongs_to_its_description() -> None:
    def scaled(by: float) -> Any:
        return lambda x: x * by

    def plain(x: Any, by: float = 1.0, *, more: float = 0.0) -> Any:
        return x * by + more

    given = [scaled(2.0), scaled(3.0), plain, functools.partial(plain, by=2.0)]
    given += [functools.partial(plain, by=3.0), functools.partial(plain, more=3.0)]
    texts = [ops.code_of(one) for one in given]
    assert len(set(texts)) == len(texts)
    assert ops.code_of(scaled(2.0)) == texts[0]
    before = ops.code_of(plain)
    plain.__defaults__ = (2.0,)
    assert ops.code_of(plain) != before

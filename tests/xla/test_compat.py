"""Each mend of torchax: the fault is there without it, and gone with it.

A test named "... still ..." fails once torchax no longer needs the mend: then both can go.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
jax = pytest.importorskip("jax")

from torch.nn import functional  # noqa: E402

from holdfast.xla.arrays import to_jax  # noqa: E402
from holdfast.xla.compat import device_name  # noqa: E402
from holdfast.xla.compat.environment import Environment, Tensor  # noqa: E402
from holdfast.xla.compat.inplace import missing  # noqa: E402
from holdfast.xla.compat.tensors import ORIGINALS, is_ours  # noqa: E402
from tests.xla.compat_cases import X, fails, jitted, plain, right, run  # noqa: E402

# torchax makes whole numbers 64 bits wide in some places, and JAX warns that it has none.
pytestmark = pytest.mark.filterwarnings("ignore:Explicitly requested dtype int64:UserWarning")


# ---- tensors and views


def test_type_as_still_changes_the_tensor_it_is_asked_of() -> None:
    env = plain()
    one, other = Tensor(to_jax(X), env), Tensor(to_jax(X.to(torch.bfloat16)), env)
    assert ORIGINALS["Tensor.type_as"](one, other) is one
    assert one.dtype == torch.bfloat16
    assert ORIGINALS["View.type_as"] is None


def test_type_as_gives_another_tensor_of_views_too() -> None:
    def check(x: Any) -> Any:
        x[0].type_as(x.to(torch.bfloat16))
        return x.type_as(x) + x[1].type_as(x)

    right(check, X)


def test_views_still_have_no_elements() -> None:
    assert ORIGINALS["View._elem"] is None
    assert ORIGINALS["View.tolist"] is None


def test_views_have_elements_and_lists() -> None:
    env = Environment()
    with env:
        view = Tensor(to_jax(X), env)[1]
        assert hasattr(view, "view_info")
        assert view.tolist() == [4.0, 5.0, 6.0, 7.0]
        assert view._elem.tolist() == [4.0, 5.0, 6.0, 7.0]


def test_assignment_still_minds_leading_axes_of_length_one() -> None:
    env = plain()
    target = Tensor(to_jax(X), env)
    with env, pytest.raises(ValueError, match="shape"):
        ORIGINALS["Tensor.__setitem__"](target, 0, Tensor(jax.numpy.ones((1, 4)), env))


def write_row(x: Any, rows: Any) -> Any:
    x = x.clone()
    x[0] = rows[None, None, 0]
    x[1:][0] = rows[None, 1]
    return x


def test_leading_axes_of_length_one_are_dropped_in_assignments() -> None:
    right(write_row, X, X * 2 + 1)


def write_by_mask(x: Any) -> Any:
    x = x.clone()
    part = x[1:]
    part[part > 6] = -1.0
    x[x < 2] = 50.0
    return x


def test_a_view_still_takes_a_mask_for_a_position() -> None:
    env = plain()
    with env:
        view = Tensor(to_jax(X), env)[1:]
        with pytest.raises(Exception):  # noqa: B017, PT011  of JAX or torchax
            ORIGINALS["View.__setitem__"](view, view > 6, -1.0)


def test_masks_write_through_views() -> None:
    right(write_by_mask, X)


def test_64_bit_formats_still_make_jax_warn() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        jax.numpy.arange(3, dtype=ORIGINALS["mappings.t2j_dtype"](torch.float64))
    assert ["Explicitly requested dtype float64" in str(one.message) for one in caught] == [True]


def test_64_bit_formats_become_32_bits_in_silence() -> None:
    env = Environment()
    with env:
        table = torch.arange(3, dtype=torch.float64, device=device_name())
        assert table.dtype == torch.float32
        assert table.long().dtype == torch.int32


# ---- the environment


def place(x: Any) -> Any:
    """Where x is, by a name that plain torchax knows as well; "holdfast" is a device of its own."""
    return "privateuseone" if hasattr(x, "_env") else x.device


def needs_a_number(x: Any) -> Any:
    count = int(torch.ones(2, device=place(x)).sum()) + len(torch.arange(3).tolist())
    return x.reshape(-1)[:count]


def needs_a_flattened_number(x: Any) -> Any:
    kept = torch.tensor([[1, 0], [1, 1]], device=place(x)).flatten().bool()
    return x[:, kept]


CONSTANTS = [needs_a_number, needs_a_flattened_number]


@pytest.mark.parametrize("function", CONSTANTS)
def test_values_that_are_known_are_still_traced(function: Callable[..., Any]) -> None:
    assert fails(plain(), function, X)


@pytest.mark.parametrize("function", CONSTANTS)
def test_values_that_are_known_are_computed_at_once(function: Callable[..., Any]) -> None:
    right(function, X)


def test_what_is_drawn_is_not_computed_at_once() -> None:
    def draw(x: Any) -> Any:
        return torch.randn(4, device=place(x)) + x

    program = jax.make_jaxpr(lambda a: jitted_draw(draw, a))(to_jax(X))
    assert "random_bits" in str(program)


def jitted_draw(function: Callable[..., Any], array: jax.Array) -> jax.Array:
    env = Environment()
    with torch.no_grad(), env:
        return function(Tensor(array, env)).jax()


TABLE = torch.linspace(0, 1, 4)


def meets_a_cpu_tensor(x: Any) -> Any:
    return x * TABLE + torch.cat([x, x])[:3]


def moves_to_the_cpu(x: Any) -> Any:
    return x.cpu() + x.to("cpu") + x


def slices_by_tensors(x: Any) -> Any:
    sizes = torch.tensor([2, 3], device=place(x))
    return x[: sizes[0], 1 : sizes[1]]


def view_by_tensors(x: Any) -> Any:
    return x[1:][torch.tensor([1, 0], device=place(x))]


ENVIRONMENT = [meets_a_cpu_tensor, moves_to_the_cpu, slices_by_tensors]


@pytest.mark.parametrize("function", ENVIRONMENT)
def test_environment_still_cannot(function: Callable[..., Any]) -> None:
    assert fails(plain(), function, X)


@pytest.mark.parametrize("function", [*ENVIRONMENT, view_by_tensors])
def test_environment_can(function: Callable[..., Any]) -> None:
    right(function, X)


MASK = torch.tensor([[True, True, False], [False] * 3, [True, False, True]])


def attend(x: Any, mask: Any) -> Any:
    heads = x[None, None]
    return functional.scaled_dot_product_attention(heads, heads, heads, attn_mask=mask)


def test_queries_without_keys_still_get_no_numbers() -> None:
    assert not run(plain(), attend, X, MASK).isfinite().all()


def test_queries_without_keys_get_zeros() -> None:
    right(attend, X, MASK)


# ---- formats

STEP = torch.tensor(0.3)
HALF = X.to(torch.bfloat16)


def by_a_step(x: Any, step: Any) -> Any:
    return (x * step + step) / torch.where(x > step, x, step)


def test_a_number_without_axes_still_decides_the_format() -> None:
    assert by_a_step(HALF, STEP).dtype == torch.bfloat16
    assert jitted(plain(), by_a_step, HALF, STEP).dtype == torch.float32


def test_a_number_without_axes_does_not_decide_the_format() -> None:
    found = jitted(Environment(), by_a_step, HALF, STEP)
    torch.testing.assert_close(found, by_a_step(HALF, STEP), rtol=2e-2, atol=1e-2)
    found = jitted(Environment(), lambda x, step: x * step, X.int(), STEP)
    torch.testing.assert_close(found, X.int() * STEP)


# ---- in place


def in_place(name: str) -> Callable[..., Any]:
    others = {"addcmul_": 2, "addcdiv_": 2, "lerp_": 1, "mul_": 1}

    def function(x: Any) -> Any:
        x = x.clone() + 1.3
        given = [x[1] + 1] * others.get(name, 0)
        more = {"cumsum_": (0,), "lerp_": (0.3,)}.get(name, ())
        getattr(x[0], name)(*given, *more)
        return x

    function.__name__ = name
    return function


LOST = ["addcmul_", "addcdiv_", "cumsum_", "round_"]


@pytest.mark.parametrize("name", LOST)
def test_what_is_done_to_a_view_is_still_lost(name: str) -> None:
    assert fails(plain(), in_place(name), X)


@pytest.mark.parametrize("name", [*LOST, "lerp_", "mul_", "erf_", "square_", "zero_"])
def test_what_is_done_to_a_view_is_done(name: str) -> None:
    right(in_place(name), X)


def test_operators_in_place_are_found_by_their_schemas() -> None:
    known = {str(key) for key in missing()}
    assert {"aten.addcmul_", "aten.cumsum_", "aten.round_"} <= known
    assert not {"aten.resize_", "aten.t_", "aten.squeeze_"} & known  # they change shapes


# ---- nothing else changes


def test_torch_does_what_it_did() -> None:
    Environment()
    assert type(X + 1) is torch.Tensor
    assert not is_ours(X + 1)
    assert X.type_as(torch.ones(1, dtype=torch.int32)).dtype == torch.int32


def test_environments_have_tables_of_their_own() -> None:
    first, second = Environment({torch.ops.aten.relu: None}), Environment()
    assert first._ops[torch.ops.aten.relu] is None
    assert second._ops[torch.ops.aten.relu] is not None
    assert plain()._ops[torch.ops.aten.silu].func is not second._ops[torch.ops.aten.silu].func

"""Every pointwise op that has an expression, held against the NumPy engine."""

from __future__ import annotations

from typing import Any

import numpy
import pytest

from holdfast.base.errors import BadInput
from holdfast.compute.engine import ENGINES, run
from holdfast.compute.engines.opencl.elementwise.expressions import EXPRESSIONS
from holdfast.compute.ops import OPS
from tests.compute.opencl.checks import close, on, same

ODD = numpy.array(
    [
        *(0.0, -0.0, numpy.nan, numpy.inf, -numpy.inf, 1, -1, 2, 0.5, -0.5, 3, 100, -100, 1e-20),
        *(20.5, -20.5, 6, -3, 2.5, 1.5),
    ],
    numpy.float32,
)
NUMBERS: dict[str, Any] = {
    "alpha": 2,
    "value": 2,
    "threshold": 0.5,
    "negative_slope": 0.1,
    "min_val": -1,
    "max_val": 1,
    "lambd": 0.5,
    "scale": 1.5,
    "input_scale": 0.7,
    "beta": 1.3,
    "weight": 0.3,
    "other": 3,
    "exponent": 3,
    "min": -1,
    "max": 2,
    "decimals": 1,
    "eps": 0.001,
    "self": 2,
    "self_is_result": False,
    "is_result": False,
    "approximate": "none",
}
FLOATS = sorted(n for n, t in EXPRESSIONS.items() if not isinstance(t, dict) or "f" in t)
# Ops that take integers and booleans in torch too.
WHOLE = [
    *("add.Tensor", "add.Scalar", "sub.Tensor", "rsub.Scalar", "mul.Tensor", "mul.Scalar"),
    *("floor_divide", "floor_divide.Scalar", "remainder.Tensor", "remainder.Scalar"),
    *("fmod.Tensor", "addcmul", "neg", "abs", "sign", "square", "pow.Tensor_Scalar"),
    *("pow.Tensor_Tensor", "gcd", "lcm", "floor", "round", "maximum", "minimum", "clamp"),
    *("clamp_min", "relu", "threshold", "hardtanh", "heaviside", "eq.Tensor", "lt.Scalar"),
    *("logical_and", "logical_xor", "isnan", "isinf", "isfinite", "signbit", "bitwise_not"),
    *("bitwise_and.Tensor", "bitwise_xor.Scalar", "bitwise_left_shift.Tensor"),
    *("bitwise_right_shift.Tensor_Scalar", "where.self", "exp", "div.Tensor"),
    *("copysign.Tensor",),
]
TRUTHS = [
    *("add.Tensor", "mul.Tensor", "maximum", "fmin", "pow.Tensor_Tensor", "eq.Tensor"),
    *("logical_or", "logical_not", "bitwise_not", "bitwise_or.Tensor", "isfinite", "abs"),
    *("sign", "where.self", "sigmoid"),
]


def call(name: str, make: Any) -> tuple[list[Any], dict[str, Any]]:
    """Arguments for an op: arrays by `make(place)`, numbers as they are above."""
    args: list[Any] = []
    named: dict[str, Any] = {}
    for place, parameter in enumerate(OPS[name].schema.parameters):
        value = make(place) if parameter.type == "Tensor" else NUMBERS[parameter.name]
        if parameter.name == "condition":
            value = value > 0
        if parameter.keyword:
            named[parameter.name] = value
        else:
            args.append(value)
    return args, named


def floats(count: int) -> Any:
    """Numbers among which are odd ones, at other places in each array."""

    def make(place: int) -> Any:
        made = numpy.random.default_rng(place).standard_normal(count).astype(numpy.float32) * 3
        made[: min(count, 20)] = numpy.roll(ODD, 3 * place)[:count]
        return made

    return make


@pytest.mark.parametrize("name", FLOATS)
def test_floats_come_out_as_the_host_computes_them_several_at_once(name: str) -> None:
    args, named = call(name, floats(95))
    same(name, *args, **named, rtol=2e-5, atol=2e-6, mappings=("cpu",))


@pytest.mark.parametrize("name", FLOATS)
def test_floats_come_out_as_the_host_computes_them_one_by_one(name: str) -> None:
    args, named = call(name, floats(20))
    same(name, *args, **named, rtol=2e-5, atol=2e-6, mappings=("gpu",))


@pytest.mark.parametrize("kind", ["int64", "int8", "uint8"])
@pytest.mark.parametrize("name", WHOLE)
def test_integers_come_out_as_the_host_computes_them(name: str, kind: str) -> None:
    def make(place: int) -> Any:
        rng = numpy.random.default_rng(place)
        made = rng.integers(0 if kind == "uint8" else -20, 20, 40)
        if place and "clamp" not in name:  # divisors, shifts and exponents
            made = abs(made) % 6 + 1
        return made.astype(kind)

    args, named = call(name, make)
    if kind == "uint8":
        args = [a if hasattr(a, "ndim") or a != -1 else 1 for a in args]
    if name == "threshold":
        args[1] = 1
    same(name, *args, **named, mappings=("cpu",))


@pytest.mark.parametrize("name", TRUTHS)
def test_booleans_come_out_as_the_host_computes_them(name: str) -> None:
    def make(place: int) -> Any:
        return numpy.random.default_rng(place).random(40) < 0.5

    args, named = call(name, make)
    if "alpha" in named:
        named["alpha"] = 1
    same(name, *args, **named, mappings=("cpu",))


@pytest.mark.parametrize(
    "name", ["gelu", "erf", "sin", "remainder.Tensor", "lt.Tensor", "where.self"]
)
def test_float64_is_computed_in_float64(name: str) -> None:
    args, named = call(name, lambda place: floats(40)(place).astype(numpy.float64))
    same(name, *args, **named, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("kind", ["float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize("name", ["add.Tensor", "gelu", "lt.Tensor"])
def test_narrow_floats_are_rounded_once(name: str, kind: str) -> None:
    import ml_dtypes

    narrow = getattr(ml_dtypes, kind, kind)
    args, named = call(
        name, lambda n: numpy.random.default_rng(n).standard_normal(50).astype(narrow)
    )
    same(name, *args, **named)


@pytest.mark.parametrize("exponent", [1, 2, 3, 0.5, -0.5, -1, -2, 2.5, 7])
def test_powers_that_are_written_out_are_powers(exponent: float) -> None:
    base = numpy.linspace(0.1, 4, 40, dtype=numpy.float32)
    expected = run(OPS["pow.Tensor_Scalar"], ENGINES["numpy"], [base, exponent], {})
    found = on("cpu", "pow.Tensor_Scalar", base, exponent)
    close(found, expected, f"to the power of {exponent}", 1e-5)


@pytest.mark.parametrize("name", ["sin", "cos", "tan"])
def test_small_angles_beside_huge_ones_come_out_right(name: str) -> None:
    x = numpy.geomspace(1e-6, 10, 1024, dtype=numpy.float32)
    x[::8] = 1e20
    close(on("cpu", name, x), getattr(numpy, name)(x.astype(float)).astype(x.dtype), name, 1e-5)


def test_powers_of_float64_beside_odd_ones_come_out_right() -> None:
    base = numpy.tile(ODD.astype(float), 20)
    exponent = numpy.repeat(ODD.astype(float), 20)
    same("pow.Tensor_Tensor", base, exponent, rtol=1e-12, mappings=("cpu",))
    same("pow.Tensor_Scalar", base, 7.0, rtol=1e-12, mappings=("cpu",))


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu_has_two_forms_and_their_slopes(approximate: str) -> None:
    x = numpy.linspace(-6, 6, 97, dtype=numpy.float32)
    same("gelu", x, approximate=approximate)
    # Far out the host's slope is made of digits that a difference has left over.
    same("gelu_backward", x[::-1].copy(), x, approximate=approximate, atol=1e-5)


def test_elu_is_followed_back_from_its_result() -> None:
    x = numpy.linspace(-3, 3, 50, dtype=numpy.float32)
    same("elu_backward", x, 1.2, 1.0, 0.9, True, x)


@pytest.mark.parametrize("eps", [None, 0.1])
def test_logit_is_cut_where_eps_says(eps: float | None) -> None:
    x = numpy.linspace(-0.2, 1.2, 50, dtype=numpy.float32)
    same("logit", x, eps)
    same("logit_backward", x, x, eps)


@pytest.mark.parametrize("limits", [(None, 1), (-1, None), (1, -1), (-1.0, 1.0)])
def test_clamp_goes_by_the_limits_that_are_given(limits: Any) -> None:
    same("clamp", numpy.array([-2.0, 0.5, numpy.nan, 3.0], numpy.float32), *limits)


def test_a_division_of_integers_by_zero_is_refused_where_the_number_is_known() -> None:
    with pytest.raises(BadInput) as caught:
        on("cpu", "floor_divide.Scalar", numpy.arange(4), 0)
    assert str(caught.value) == (
        "cannot compute floor_divide.Scalar(int64[4], 0): integer division by zero\n"
        "  expected: shapes that broadcast: from the right, sizes are equal or one of them is 1"
    )


def test_no_integers_may_be_divided_by_zero() -> None:
    assert on("cpu", "floor_divide.Scalar", numpy.arange(0), 0).tolist() == []


def test_a_division_of_integers_by_zeros_of_a_tensor_gives_zero() -> None:
    found = on(
        "cpu",
        "floor_divide",
        numpy.array([3, -7, -128], numpy.int8),
        numpy.array([0, 0, -1], numpy.int8),
    )
    assert found.tolist() == [0, 0, -128]


def test_integers_are_not_scaled_by_fractions() -> None:
    with pytest.raises(BadInput) as caught:
        on("cpu", "add.Tensor", numpy.arange(4), numpy.arange(4), alpha=0.5)
    assert str(caught.value) == (
        "cannot compute add.Tensor(int64[4], int64[4], alpha=0.5): "
        "integers cannot be scaled by 0.5\n"
        "  expected: shapes that broadcast: from the right, sizes are equal or one of them is 1"
    )


def test_a_negative_slope_in_place_is_refused_each_time() -> None:
    x = numpy.ones(4, numpy.float32)
    assert on("cpu", "leaky_relu_backward", x, x, 0.1, True).tolist() == [1, 1, 1, 1]
    for _ in range(2):
        with pytest.raises(BadInput, match="hides which elements were negative"):
            on("cpu", "leaky_relu_backward", x, x, -0.1, True)


def test_complex_numbers_go_to_the_host() -> None:
    x = numpy.array([1 + 2j, 3 - 1j], numpy.complex64)
    same("mul.Tensor", x, x, native=False)

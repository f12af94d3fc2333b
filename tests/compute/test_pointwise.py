"""Ops that go element by element: what torch's operator database does not show."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy
import pytest

from holdfast.base.errors import BadInput
from holdfast.compute import functional as F
from holdfast.compute.autograd import tape
from holdfast.compute.engines.numpy.elementwise import blocked
from holdfast.compute.tensors.custom_tensor import CustomTensor
from tests.tolerance import bound


def tensor(data: Any, dtype: str = "float32", **options: Any) -> CustomTensor:
    return CustomTensor(data, dtype=dtype, **options)


def listed(value: CustomTensor) -> list[Any]:
    return value.data.astype(value.data.dtype).tolist()


# ---- accuracy


def test_erf_in_float32_is_right_on_a_dense_grid() -> None:
    grid = numpy.linspace(-5, 5, 40_001, dtype=numpy.float32)
    truth = numpy.array([math.erf(x) for x in grid.tolist()])
    found = F.erf(tensor(grid)).data
    assert found.dtype == numpy.float32
    assert numpy.abs(found - truth).max() < bound("float32")
    small = numpy.abs(grid) > 0
    assert numpy.abs(found[small] / truth[small] - 1).max() < bound("float32", 4)


def test_erf_keeps_what_has_no_neighbours() -> None:
    found = F.erf(tensor([math.nan, math.inf, -math.inf, -0.0, 1e-30])).data
    assert math.isnan(found[0])
    assert found[1:3].tolist() == [1.0, -1.0]
    assert math.copysign(1, found[3]) == -1
    assert found[4] == pytest.approx(2e-30 / math.sqrt(math.pi), rel=1e-6)


def test_erf_in_float64_has_all_its_digits() -> None:
    found = F.erf(tensor([0.3, 1.7], "float64")).data
    assert found.tolist() == pytest.approx([math.erf(0.3), math.erf(1.7)], rel=bound("float64", 4))


@pytest.mark.parametrize("name", ["gelu", "silu", "mish", "softplus", "sigmoid", "log_sigmoid"])
def test_activations_in_float32_are_near_those_in_float64(name: str) -> None:
    grid = numpy.concatenate([numpy.linspace(-30, 30, 20_001), [-100, -90, 90, 100]])
    found = getattr(F, name)(tensor(grid)).data
    truth = getattr(F, name)(tensor(grid.astype(numpy.float32), "float64")).data
    assert numpy.abs(found - truth).max() <= bound("float32", 16) * max(1, numpy.abs(truth).max())


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", ["gelu", "tanh", "exp", "sigmoid", "erf", "relu", "sqrt"])
def test_narrow_dtypes_round_once(name: str, kind: str) -> None:
    grid = numpy.linspace(0.01, 3, 500)
    narrow = tensor(grid, kind)
    wide = tensor(narrow.data.astype(numpy.float32))
    found = getattr(F, name)(narrow)
    assert found.dtype == narrow.dtype
    assert (found.data == getattr(F, name)(wide).data.astype(narrow.dtype)).all()


def test_log_sigmoid_answers_in_the_narrow_dtype_it_was_given() -> None:
    assert F.log_sigmoid(tensor([1.0, -2.0], "bfloat16")).dtype.name == "bfloat16"
    assert F.glu(tensor([1.0, -2.0], "float16")).dtype.name == "float16"
    assert F.frexp(tensor([6.0], "bfloat16"))[0].dtype.name == "bfloat16"


def test_neighbours_are_those_of_the_narrow_dtype() -> None:
    found = F.nextafter(tensor([1.0], "bfloat16"), tensor([2.0], "bfloat16"))
    assert found.data.astype(float).tolist() == [1.0078125]


def test_nan_to_num_answers_with_the_largest_number_of_the_dtype() -> None:
    found = F.nan_to_num(tensor([math.inf, -math.inf, math.nan], "bfloat16"))
    assert found.data.astype(float).tolist() == [3.3895313892515355e38, -3.3895313892515355e38, 0]


# ---- NaN, zero and signs


def test_nan_goes_through_what_lets_it_through_in_torch() -> None:
    nan, one = tensor([math.nan]), tensor([1.0])
    for through in (
        *(F.relu(nan), F.maximum(nan, one), F.clamp(nan, 0, 1), F.hardtanh(nan), F.gelu(nan)),
        *(F.softshrink(nan), F.leaky_relu(nan), F.elu(nan), F.silu(nan), F.mish(nan)),
    ):
        assert math.isnan(through.item())
    assert F.fmax(nan, one).item() == 1
    assert F.sign(nan).item() == 0
    assert F.heaviside(nan, one).item() == 0


def test_a_gradient_that_is_stopped_is_zero_even_where_it_was_infinite() -> None:
    grad, at = tensor([math.inf, math.nan, 2.0]), tensor([-1.0, -1.0, 1.0])
    assert listed(F.threshold_backward(grad, at, 0)) == [0, 0, 2]
    assert listed(F.hardtanh_backward(grad, at, -0.5, 5)) == [0, 0, 2]


def test_remainders_and_divisions_have_the_signs_torch_gives_them() -> None:
    self, other = tensor([7, -7, 7, -7], "int64"), tensor([3, 3, -3, -3], "int64")
    assert listed(F.remainder(self, other)) == [1, 2, -2, -1]
    assert listed(F.fmod(self, other)) == [1, -1, 1, -1]
    assert listed(F.floor_divide(self, other)) == [2, -3, -3, 2]
    assert listed(F.div(self, other, rounding_mode="trunc")) == [2, -2, -2, 2]
    assert listed(F.div(self, other, rounding_mode="floor")) == [2, -3, -3, 2]
    assert F.div(self, other, rounding_mode=None).dtype.name == "float32"


def test_a_float_divided_by_zero_is_infinite() -> None:
    found = F.floor_divide(tensor([2.0, -3.0, 0.0]), 0).data
    assert found[:2].tolist() == [math.inf, -math.inf]
    assert math.isnan(found[2])


def test_rounding_goes_to_the_even_neighbour() -> None:
    assert listed(F.round(tensor([0.5, 1.5, 2.5, -0.5]))) == [0, 2, 2, 0]
    assert listed(F.round(tensor([0.125, 0.375]), decimals=2)) == [
        0.11999999731779099,
        0.3799999952316284,
    ]


# ---- integers


def test_integers_wrap() -> None:
    small = tensor([1, 100], "int8")
    assert listed(small + 300) == [45, -112]
    assert listed(small * 2) == [2, -56]
    assert listed(F.sub(tensor([1], "uint8"), tensor([2], "uint8"))) == [255]
    assert listed(F.add(tensor([9], "uint8"), tensor([2], "uint8"), alpha=-3)) == [3]


def test_powers_of_integers_are_integers() -> None:
    base, exponent = tensor([2, 1, -1, 0, -1], "int64"), tensor([-1, -2, -3, -1, -2], "int64")
    assert listed(F.pow(base, exponent)) == [0, 1, -1, 0, 1]
    assert F.pow(tensor([3], "int32"), 2).dtype.name == "int32"
    assert F.pow(tensor([4], "int64"), 0.5).dtype.name == "float32"


def test_shifts_past_the_last_bit() -> None:
    self, by = tensor([1, -8, -1], "int64"), tensor([70, -1, 3], "int64")
    assert listed(F.bitwise_left_shift(self, by)) == [0, 0, -8]
    assert listed(F.bitwise_right_shift(self, by)) == [0, -1, -1]


def test_integers_become_floats_where_they_must() -> None:
    whole = tensor([1, 4], "int64")
    for found in (F.sqrt(whole), F.sigmoid(whole), F.true_divide(whole, 2), F.erf(whole)):
        assert found.dtype.name == "float32"
    for found in (F.floor(whole), F.abs(whole), F.relu(whole), F.clamp(whole, 0, 2)):
        assert found.dtype.name == "int64"
    assert F.clamp(whole, 0.5, 1.5).dtype.name == "float32"


# ---- errors


def test_dividing_integers_by_zero_is_refused() -> None:
    with pytest.raises(BadInput) as caught:
        F.floor_divide(tensor([1, 2], "int64"), tensor([1, 0], "int64"))
    assert str(caught.value) == (
        "cannot compute floor_divide(int64[2], int64[2]): integer division by zero\n"
        "  expected: shapes that broadcast: from the right, sizes are equal or one of them is 1"
    )


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (lambda: F.remainder(tensor([1], "int64"), 0), "integer division by zero"),
        (lambda: F.fmod(tensor([1], "int64"), 0), "integer division by zero"),
        (lambda: F.pow(tensor([2], "int64"), -1), "integers have no negative powers"),
        (lambda: F.div(tensor([1.0]), 2, rounding_mode="up"), "rounding_mode 'up' is none of"),
        (lambda: F.gelu(tensor([1.0]), approximate="erf"), "neither 'none' nor 'tanh'"),
        (lambda: F.glu(tensor([1.0, 2.0, 3.0])), "which is not even"),
        (lambda: F.clamp(tensor([1.0])), "neither min nor max is given"),
        (lambda: F.softshrink(tensor([1.0]), -1), "lambd cannot be below 0"),
        (lambda: F.polygamma(-1, tensor([1.0])), "must be 0 or more"),
        (lambda: F.imag(tensor([1.0])), "real numbers have no imaginary part"),
        (lambda: F.add(tensor([1], "int64"), tensor([1], "int64"), alpha=0.5), "cannot be scaled"),
        (lambda: F.add(tensor([1.0, 2.0]), tensor([1.0, 2.0, 3.0])), "shapes (2,) (3,)"),
        (lambda: F.complex(tensor([1.0]), tensor([1.0], "float64")), "are different dtypes"),
    ],
)
def test_a_call_that_makes_no_sense_says_why(call: Any, reason: str) -> None:
    with pytest.raises(BadInput) as caught:
        call()
    assert reason in str(caught.value)


def test_infinities_are_no_reason_to_warn() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        F.log(tensor([0.0, -1.0]))
        F.exp(tensor([1000.0]))
        F.div(tensor([1.0]), tensor([0.0]))
        F.sigmoid(tensor([-1000.0]))
        F.lgamma(tensor([0.0]))


# ---- choosing by bits


@pytest.mark.parametrize("kind", ["bool", "int16", "bfloat16", "float32", "float64", "complex128"])
def test_choosing_is_what_numpy_chooses(kind: str) -> None:
    random = numpy.random.default_rng(0)
    one, other = (tensor(random.normal(size=(3, 7001)), kind).data for _ in range(2))
    condition = random.random((3, 7001)) < 0.5
    assert (blocked.select(condition, one, other) == numpy.where(condition, one, other)).all()
    row, column = condition[:, :1], other[:1]
    assert (blocked.select(row, one, column) == numpy.where(row, one, column)).all()
    single = other[0, 0].reshape(())
    assert (blocked.select(condition, one, single) == numpy.where(condition, one, single)).all()


def test_blocks_cover_arrays_that_are_no_multiple_of_them() -> None:
    values = numpy.linspace(-3, 3, blocked.BLOCK * 2 + 5, dtype=numpy.float32)
    found = F.gelu(tensor(values)).data
    again = numpy.concatenate([F.gelu(tensor(part)).data for part in numpy.array_split(values, 7)])
    assert (found == again).all()
    turned = F.gelu(CustomTensor(values[: 2 * 9000].reshape(2, 9000)).transpose(0, 1)).data
    assert (turned == found[: 2 * 9000].reshape(2, 9000).T).all()


def test_nothing_is_computed_of_nothing() -> None:
    empty = tensor(numpy.empty((0, 3)))
    for name in ("gelu", "erf", "relu", "sigmoid", "exp", "lgamma"):
        assert getattr(F, name)(empty).shape == (0, 3)
        assert getattr(F, name)(tensor(0.5)).shape == ()


# ---- gradients


@pytest.mark.parametrize(
    "name",
    [
        *("relu", "leaky_relu", "gelu", "silu", "mish", "elu", "softplus", "hardswish", "tanh"),
        *("sigmoid", "log_sigmoid", "hardtanh", "softshrink", "erf", "logit", "lgamma", "sinc"),
    ],
)
def test_second_gradients_are_differences_of_first_ones(name: str) -> None:
    def slope(at: Any, create: bool) -> tuple[Any, Any]:
        x = tensor(at, "float64", requires_grad=True)
        (found,) = tape.grad([F.sum(getattr(F, name)(x))], [x], create_graph=create)
        return x, found

    at = numpy.array([0.13, 0.42, 0.77])
    x, first = slope(at, True)
    if first.requires_grad:
        (second,) = tape.grad([F.sum(first)], [x], allow_unused=True)
    found = numpy.zeros(3) if not first.requires_grad or second is None else second.data
    step = 1e-6
    expected = (slope(at + step, False)[1].data - slope(at - step, False)[1].data) / (2 * step)
    assert found == pytest.approx(expected, rel=1e-6, abs=1e-7)


def test_parts_of_complex_numbers_are_views_with_gradients() -> None:
    z = tensor([1 + 2j, 3 - 4j], "complex64", requires_grad=True)
    assert numpy.shares_memory(F.imag(z).data, z.data)
    F.sum(F.real(z) * 2 + F.imag(z) * 3).backward()
    assert z.grad is not None
    assert listed(z.grad) == [2 + 3j, 2 + 3j]


def test_an_alias_is_its_op() -> None:
    x = tensor([0.5, -1.0], requires_grad=True)
    assert listed(F.absolute(x)) == [0.5, 1]
    assert listed(F.clip(x, min=0)) == [0.5, 0]
    assert listed(F.true_divide(x, 2)) == [0.25, -0.5]
    F.sum(F.negative(x)).backward()
    assert x.grad is not None
    assert listed(x.grad) == [-1, -1]


def test_complex_numbers_have_no_order() -> None:
    from holdfast.compute import tensor

    for other in (tensor([2j]), 2j):
        with pytest.raises(ValueError, match="complex numbers have no order"):
            _ = tensor([1j]) < other

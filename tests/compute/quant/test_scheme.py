"""Rounding to levels, products of levels, observers."""

from __future__ import annotations

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from holdfast.base.errors import BadInput, Misuse
from holdfast.compute import functional, quant
from holdfast.compute.engines.numpy import c_kernels
from holdfast.compute.engines.numpy.elementwise import quantize as kernels
from holdfast.compute.quant.scheme import pack, parameters, unpack
from holdfast.compute.tensors.creation import from_numpy, tensor
from tests.examples import examples

FLOATS = st.floats(-1e4, 1e4, width=32)


@given(arrays.arrays("float32", arrays.array_shapes(max_dims=3, max_side=6), elements=FLOATS))
def test_a_number_is_at_most_half_a_step_from_its_level(array):
    for scheme in (quant.INT8, quant.INT8_ACTIVATIONS, quant.INT8_CHANNELS):
        made = quant.quantize(from_numpy(array), scheme)
        steps = made.scale.data.reshape((-1,) + (1,) * (array.ndim - 1))
        error = numpy.abs(made.dequantize().data - array)
        assert (error <= steps * 0.5 + 1e-6 * numpy.abs(array) + 1e-30).all()


@given(st.lists(st.integers(-8, 7), max_size=9))
def test_four_bits_go_into_half_a_byte_and_back(levels):
    array = numpy.array(levels, numpy.int8)
    packed = pack(array)
    assert packed.nbytes == (array.size + 1) // 2
    assert unpack(packed, array.shape).tolist() == levels


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")  # gone some day, right today
@pytest.mark.parametrize("symmetric", [True, False])
def test_levels_are_those_of_torch(symmetric):
    x = torch.randn(40, 30, generator=torch.Generator().manual_seed(0))
    made = quant.quantize(x.numpy(), quant.Scheme(symmetric=symmetric))
    scale, zero = float(made.scale.item()), int(made.zero_point.item())
    theirs = torch.quantize_per_tensor(x, scale, zero, torch.qint8)
    low = -127 if symmetric else -128
    # torch multiplies by the inverse of the scale: a number in the middle may go the other way.
    off = numpy.abs(made.values.data.astype(int) - theirs.int_repr().numpy().clip(low))
    assert off.max() <= 1
    assert (off > 0).mean() < 0.001


@pytest.mark.parametrize("levels", [(0.1, 3, -128, 127), (0.037, 128, 0, 255), (0.5, 0, -8, 7)])
def test_fake_quantization_equals_torch_forward_and_backward(levels):
    x = torch.randn(50, 7, requires_grad=True)
    ours = tensor(x.detach().numpy(), requires_grad=True)
    theirs = torch.fake_quantize_per_tensor_affine(x, *levels)
    found = functional.fake_quantize_per_tensor_affine(ours, *levels)
    grad = torch.randn(50, 7)
    theirs.backward(grad)
    found.backward(tensor(grad.numpy()))
    assert numpy.array_equal(found.data, theirs.detach().numpy())
    assert numpy.array_equal(ours.grad.data, x.grad.numpy())


def test_fake_quantization_by_channels_equals_torch():
    x, scale = torch.randn(6, 5, 4) * 2, torch.rand(5) * 0.1 + 0.01
    zero = torch.randint(-5, 5, (5,), dtype=torch.int32)
    theirs = torch.fake_quantize_per_channel_affine(x, scale, zero, 1, -128, 127)
    found = functional.fake_quantize_per_channel_affine(
        tensor(x.numpy()), tensor(scale.numpy()), tensor(zero.numpy()), 1, -128, 127
    )
    assert numpy.array_equal(found.data, theirs.numpy())


@settings(max_examples=examples(30))
@given(st.integers(0, 20), st.integers(0, 60), st.integers(0, 40), st.integers(0, 9))
def test_products_of_int8_are_exact_with_and_without_c(rows, columns, depth, seed):
    draw = numpy.random.default_rng(seed)
    a = draw.integers(-128, 128, (rows, depth)).astype("int8")
    b = draw.integers(-128, 128, (columns, depth)).astype("int8")
    expected = a.astype(numpy.int64) @ b.astype(numpy.int64).T
    assert numpy.array_equal(kernels._multiply_blocks(a, b), expected)
    found = functional._int_mm(from_numpy(a), from_numpy(b).T)
    assert found.dtype == numpy.int32
    assert numpy.array_equal(found.data, expected)


@pytest.mark.parametrize("depth", [1024, 1025, 5000])
def test_the_largest_products_are_exact(depth):
    a = numpy.full((9, depth), -128, numpy.int8)
    assert (kernels._multiply_blocks(a, a) == 128 * 128 * depth).all()
    assert (kernels.int8_product(a, a) == 128 * 128 * depth).all()
    theirs = torch._int_mm(
        torch.from_numpy(a[:, :1024]).repeat(4, 1), torch.from_numpy(a[:8, :1024]).T
    )
    assert (kernels.int8_product(a[:, :1024], a[:, :1024]) == theirs[0, 0].item()).all()


def test_without_a_compiler_blocks_of_floats_do_it(monkeypatch):
    monkeypatch.setattr(kernels, "_library", lambda: None)
    a = numpy.arange(-60, 60, dtype=numpy.int8).reshape(10, 12)
    assert numpy.array_equal(kernels.int8_product(a, a), a.astype(int) @ a.astype(int).T)


def test_the_c_loops_are_there_where_the_core_is_compiled():
    assert (kernels._library() is None) == (c_kernels.kernels() is None)


def test_a_convolution_of_int8_equals_one_of_floats():
    draw = numpy.random.default_rng(0)
    x = draw.integers(-128, 128, (2, 6, 9, 8)).astype("int8")
    w = draw.integers(-127, 128, (4, 3, 3, 2)).astype("int8")
    found = functional.holdfast_int_conv2d(
        from_numpy(x), from_numpy(w), [2, 1], [1, 2], [1, 2], 2, 5
    )
    shifted = torch.from_numpy(x).double() - 5
    theirs = torch.conv2d(shifted, torch.from_numpy(w).double(), None, (2, 1), (1, 2), (1, 2), 2)
    assert numpy.array_equal(found.data, theirs.numpy())


# ---- observers


def test_observers_follow_what_they_see():
    batches = [numpy.array([0.0, 1.0], "float32"), numpy.array([-3.0, 0.5], "float32")]
    seen = quant.MinMax(), quant.MovingAverage(momentum=0.1), quant.MinMax(axis=0)
    for observer in seen:
        for batch in batches:
            observer(from_numpy(batch))
    assert seen[0].range() == (-3.0, 1.0)
    assert seen[1].range() == pytest.approx((-0.3, 0.95))
    assert [end.tolist() for end in seen[2].range()] == [[-3.0, 0.5], [0.0, 1.0]]


def test_a_histogram_leaves_an_outlier_out():
    numbers = numpy.random.default_rng(0).normal(size=1_000_000).astype("float32")
    numbers[0] = 50
    observer = quant.Histogram()
    for part in numpy.split(numbers, 10):
        observer(from_numpy(part))
    low, high = observer.range()
    assert high < 25
    assert low < 0
    assert numpy.histogram(numbers, 10)[0].sum() == pytest.approx(observer.counts.sum())


# ---- bad input


def test_ranges_that_are_not_numbers_are_refused():
    with pytest.raises(BadInput) as caught:
        parameters(quant.INT8, [0.0, numpy.nan], [1.0, 1.0], "layer 'head'")
    assert str(caught.value) == (
        "cannot quantize layer 'head': 1 of 2 ranges hold NaN or infinity\n"
        "  expected: finite numbers\n"
        "  try: look for the layer whose output overflows before quantizing"
    )


def test_numbers_that_are_not_finite_are_refused():
    with pytest.raises(BadInput) as caught:
        quant.quantize([[1.0, numpy.nan], [numpy.inf, 2.0]])
    assert str(caught.value) == (
        "cannot quantize float32[2, 2]: 2 of 4 elements are NaN or infinite\n"
        "  expected: finite numbers\n"
        "  try: look for the layer whose output overflows before quantizing"
    )


def test_an_observer_names_its_layer():
    observer = quant.MinMax("encoder.0")
    with pytest.raises(BadInput) as caught:
        observer(from_numpy(numpy.array([1, numpy.nan, numpy.inf], "float32")))
    assert str(caught.value) == (
        "layer 'encoder.0' received 2 NaN or infinite elements of 3 (float32[3])\n"
        "  expected: finite numbers\n"
        "  try: a smaller learning rate, or look for the layer before it that overflows"
    )
    with pytest.raises(Misuse) as misused:
        observer.range()
    assert str(misused.value) == (
        "layer 'encoder.0' has seen no data\n"
        "  expected: a few batches of typical data through the prepared model\n"
        "  try: for batch in data: prepared(batch)"
    )


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: quant.Scheme(bits=9), "9 bits are not supported\n  expected: 2 to 8 bits"),
        (
            lambda: quant.Scheme(group=0),
            "groups of 0 elements along axis None are not supported\n"
            "  expected: a group of at least 1, and no axis beside it",
        ),
        (
            lambda: quant.quantize([[1.0]], quant.Scheme(axis=2)),
            "cannot quantize [1, 1] along axis 2\n  expected: an axis from -2 to 1",
        ),
        (
            lambda: quant.quantize([[1.0] * 33], quant.INT4),
            "cannot quantize [1, 33] in groups of 32\n"
            "  expected: a last size that the group divides",
        ),
        (
            lambda: quant.quantize(tensor([1, 2])),
            "cannot quantize int64[2]\n  expected: floating-point numbers",
        ),
        (
            lambda: functional._int_mm(tensor([[1]], "int8"), tensor([[1], [2]], "int8")),
            "cannot compute _int_mm(int8[1, 1], int8[2, 1]): 1 columns do not match 2 rows\n"
            "  expected: int8[m, k] and int8[k, n]: the columns of the first are the rows of the "
            "second",
        ),
        (
            lambda: functional.fake_quantize_per_tensor_affine(tensor([1.0]), numpy.nan, 0, 0, 1),
            "cannot compute fake_quantize_per_tensor_affine_cachemask(float32[1], nan, 0, 0, 1): "
            "a scale is not above 0, or not finite\n"
            "  expected: floats, a scale above 0, levels with quant_min < quant_max",
        ),
    ],
)
def test_what_cannot_be_is_said(make, message):
    with pytest.raises(BadInput) as caught:
        make()
    assert str(caught.value) == message

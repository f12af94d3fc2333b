"""Random numbers, factories and dropout on the OpenCL engine."""

from __future__ import annotations

from typing import Any

import numpy
import pytest

from holdfast.base.errors import BadInput
from holdfast.compute import random
from holdfast.compute.engine import run, strict
from holdfast.compute.engines.opencl import random as drawing
from holdfast.compute.engines.opencl.engine import MAPPINGS
from holdfast.compute.ops import OPS
from tests.compute.opencl.checks import engine, on, same

X = numpy.random.default_rng(0).standard_normal((5, 8)).astype(numpy.float32)
CHANCES = abs(X) % 1
COUNT = 1 << 17


@pytest.fixture
def own_numbers(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The device draws large arrays itself."""
    monkeypatch.setenv("HOLDFAST_OPENCL_RANDOM", "device")
    drawing._by_device.cache_clear()
    yield
    drawing._by_device.cache_clear()


# ---- the host's numbers


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("rand", ([3, 40],)),
        ("randn", ([3, 40],)),
        ("randn", ([3],)),
        ("rand_like", (X.T,)),
        ("randn_like", (X.T,)),
        ("uniform", (X, -1.0, 3.0)),
        ("normal_functional", (X, 1.0, 2.0)),
        ("normal.float_float", (0.0, 1.0, [30])),
        ("normal.Tensor_Tensor", (X, CHANCES)),
        ("randint", (10, [20])),
        ("randint.low", (-3, 10, [20])),
        ("randint_like.Tensor", (X, numpy.array(9))),
        ("randperm", (20,)),
        ("random", (X.astype(numpy.int64),)),
        ("random.from", (X, 1, 5)),
        ("bernoulli", (CHANCES,)),
        ("bernoulli.p", (X.T, 0.3)),
        ("bernoulli.Tensor", (X, CHANCES)),
        ("exponential", (X,)),
        ("cauchy", (X,)),
        ("geometric", (X, 0.3)),
        ("log_normal", (X,)),
        ("multinomial", (CHANCES, 3)),
        ("native_dropout", (X, 0.3, True)),
        ("native_dropout", (X.T, 0.3, True)),
        ("native_dropout", (X, 0.3, False)),
        ("native_dropout", (X, 1.0, True)),
    ],
)
def test_a_seed_gives_the_numbers_of_the_host_and_counts_as_native(name: str, args: Any) -> None:
    same(name, *args, mappings=("cpu",))


def test_numbers_that_were_drawn_are_drawn_from_the_same_generator() -> None:
    random.manual_seed(7)
    expected = random.default_generator.uniform32(8)
    random.manual_seed(7)
    there = engine("cpu")
    first = there.download(run(OPS["rand"], there, ([4],), {}))
    second = there.download(run(OPS["rand"], there, ([4],), {}))
    assert numpy.array_equal(numpy.concatenate([first, second]), expected)


def test_a_negative_deviation_is_refused_as_on_the_host() -> None:
    with pytest.raises(BadInput) as caught:
        on("cpu", "normal_functional", X, 0.0, -1.0)
    assert str(caught.value) == (
        "cannot compute normal_functional(float32[5, 8], 0.0, -1.0): a standard deviation is 0 or "
        "more, not -1.0\n"
        "  expected: normal_functional(Tensor self, float mean=0., float std=1.) -> Tensor"
    )


# ---- the device's numbers


@pytest.mark.parametrize("mapping", MAPPINGS)
def test_uniform_numbers_of_the_device_fill_their_range_evenly(
    own_numbers: None, mapping: str
) -> None:
    found = on(mapping, "rand", [COUNT])
    assert found.min() >= 0
    assert found.max() < 1
    counts = numpy.histogram(found, 16, (0, 1))[0]
    expected = COUNT / 16
    assert ((counts - expected) ** 2 / expected).sum() < 40  # chi-squared: 15 degrees, 0.05 %
    assert abs(numpy.corrcoef(found[:-1], found[1:])[0, 1]) < 0.02


@pytest.mark.parametrize("mapping", MAPPINGS)
def test_normal_numbers_of_the_device_have_their_moments(own_numbers: None, mapping: str) -> None:
    found = on(mapping, "normal_functional", numpy.empty(COUNT, numpy.float32), 1.0, 2.0)
    scaled = (found.astype(numpy.float64) - 1) / 2
    assert numpy.isfinite(found).all()
    assert abs(scaled.mean()) < 0.015
    assert abs(scaled.var() - 1) < 0.02
    assert abs((scaled**4).mean() - 3) < 0.15
    assert abs((abs(scaled) < 1).mean() - 0.6827) < 0.006


def test_both_mappings_draw_the_same_numbers_for_a_seed(own_numbers: None) -> None:
    assert numpy.array_equal(on("cpu", "rand", [COUNT]), on("gpu", "rand", [COUNT]))


def test_another_draw_gives_other_numbers(own_numbers: None) -> None:
    there = engine("cpu")
    one, other = (there.download(run(OPS["rand"], there, ([COUNT],), {})) for _ in range(2))
    assert (one == other).mean() < 0.001


def test_dropout_of_the_device_drops_its_share_and_scales_the_rest(own_numbers: None) -> None:
    made, kept = on("cpu", "native_dropout", numpy.ones(COUNT, numpy.float32), 0.25, True)
    assert abs(kept.mean() - 0.75) < 0.006
    assert numpy.array_equal(made, numpy.where(kept, numpy.float32(1 / 0.75), 0))
    hits = on("gpu", "bernoulli.p", numpy.empty(COUNT, numpy.float32), 0.25)
    assert abs(hits.mean() - 0.25) < 0.006


def test_few_numbers_are_the_hosts_even_then(own_numbers: None) -> None:
    same("rand", [100])


def test_another_word_for_who_draws_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_OPENCL_RANDOM", "both")
    drawing._by_device.cache_clear()
    with pytest.raises(BadInput) as caught:
        on("cpu", "rand", [COUNT])
    drawing._by_device.cache_clear()
    assert str(caught.value) == ("HOLDFAST_OPENCL_RANDOM is 'both'\n  expected: host or device")


# ---- factories


@pytest.mark.parametrize(
    "kind", ["float32", "int64", "bool", "complex64", "complex128", "bfloat16", "float64", "int8"]
)
def test_factories_make_every_dtype(kind: str) -> None:
    for name, args in {"zeros": ([3, 4],), "full": ([2, 3], 1), "eye.m": (3, 5)}.items():
        same(name, *args, dtype=kind, mappings=("cpu",))


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("ones", ([0, 3],)),
        ("full", ([2], 2.5)),
        ("full_like", (X, 3)),
        ("zeros_like", (X.T,)),
        ("new_full", (X, [2, 2], 3.5)),
        ("scalar_tensor", (2.5,)),
        ("fill.Tensor", (X, numpy.array(3))),
        ("arange", (10,)),
        ("arange.start", (2, 7.5)),
        ("arange.start_step", (10, -3, -2)),
        ("linspace", (0, 1, 7)),
        ("logspace", (0, 2, 5)),
        ("eye", (4,)),
        ("tril", (X, 1)),
        ("triu", (X.T, -1)),
        ("tril", (X.astype(numpy.complex128),)),
        ("copy", (X, X[0].astype(numpy.float64))),
        ("clone", (X.T,)),
        ("masked_fill.Scalar", (X, X > 0, 2)),
        ("masked_fill.Tensor", (X.astype(numpy.int32), X[0] > 0, numpy.array(7))),
        ("masked_fill.Scalar", (X > 0, X > 1, True)),
        ("nan_to_num", (numpy.array([numpy.nan, numpy.inf, -numpy.inf, 1], numpy.float32),)),
        ("log_sigmoid_forward", (X,)),
        ("_prelu_kernel_backward", (X, X[::-1], abs(X))),
        ("native_dropout_backward", (X, X > 0, 1.5)),
        ("positive", (X,)),
        ("real", (X * numpy.complex64(1 + 2j),)),
        ("imag", (X.T * numpy.complex128(1 + 2j),)),
        ("complex", (X, X[0])),
        ("polar", (X, X[:, ::-1])),
    ],
)
def test_arrays_are_made_filled_and_copied_as_on_the_host(name: str, args: Any) -> None:
    same(name, *args)


@pytest.mark.parametrize("kind", ["float32", "int32", "float16"])
@pytest.mark.parametrize("mode", [None, "floor", "trunc"])
def test_division_rounds_by_its_mode(kind: str, mode: str | None) -> None:
    one, other = (X * 9).astype(kind), (abs(X) * 5 + 1).astype(kind)
    same("div.Tensor_mode", one, other, rounding_mode=mode)
    same("div.Scalar_mode", one, 3, rounding_mode=mode)


def test_a_number_that_does_not_fit_is_refused_as_on_the_host() -> None:
    with pytest.raises(BadInput) as caught:
        on("cpu", "full", [2], 300, dtype="uint8")
    assert str(caught.value) == (
        "cannot compute full([2], 300, dtype='uint8'): 300 does not fit into uint8\n"
        "  expected: full(int[] size, Scalar fill_value, *, ScalarType? dtype=None) -> Tensor"
    )


def test_memory_in_another_order_is_made_without_numbers() -> None:
    there = engine("cpu")
    with strict():
        strided = run(OPS["empty_strided"], there, ([2, 3], [1, 2]), {})
        permuted = run(OPS["empty_permuted"], there, ([2, 3, 4], [2, 0, 1]), {})
    assert (strided.shape, strided.strides) == ((2, 3), (4, 8))
    assert (permuted.shape, permuted.strides) == ((2, 3, 4), (12, 4, 24))

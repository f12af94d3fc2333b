"""Activations, softmax and normalization: the C loops, NumPy alone, and float64 to compare."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.base.errors import Unsupported
from holdfast.compute.engines.numpy import c_kernels, threads
from holdfast.compute.engines.numpy.elementwise import activation, special
from holdfast.compute.engines.numpy.layers import normalize
from holdfast.compute.engines.numpy.reduce import c_rows, softmax
from tests.examples import examples
from tests.tolerance import assert_near, bound

FORMS = {"native": ("-march=native",), "256 bits": ("-mavx2", "-mfma"), "128 bits": ()}
ODD = [numpy.nan, numpy.inf, -numpy.inf, 0.0, -0.0, 1e-40, 3e4, -3e4, 1e30, -1e30, 88.6, -88.6]
ONE: dict[str, Callable[..., Any]] = {
    "sigmoid": activation.sigmoid,
    "silu": activation.silu,
    "gelu": activation.gelu,
    "gelu_tanh": lambda x: activation.gelu(x, "tanh"),
    "erf": special.erf,
}
TWO: dict[str, Callable[..., Any]] = {
    "sigmoid_backward": activation.sigmoid_backward,
    "silu_backward": activation.silu_backward,
    "gelu_backward": activation.gelu_backward,
    "gelu_tanh_backward": lambda g, x: activation.gelu_backward(g, x, "tanh"),
}
quietly = settings(
    max_examples=examples(40),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def _library(form: str) -> Any:
    try:
        return c_kernels.load_for("rows.c", c_rows.SIGNATURES, FORMS[form])
    except (Unsupported, OSError) as exc:
        pytest.skip(f"cannot be compiled: {exc}")


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The loops, in each width of vectors, for arrays of every size."""
    if request.param == "256 bits" and not _has_avx2():
        pytest.skip("this processor has no AVX2")
    library = _library(request.param)
    monkeypatch.setattr(c_rows, "loops", lambda: library)
    monkeypatch.setattr(c_rows, "LEAST", 1)
    monkeypatch.setattr(c_rows, "_NARROWEST", 1)
    monkeypatch.setattr(c_rows, "_WORTH", 256)
    return request.param


def _has_avx2() -> bool:
    try:
        with open("/proc/cpuinfo") as file:  # noqa: PTH123
            return "avx2" in file.read()
    except OSError:
        return False


def by_numpy(function: Callable[..., Any], *arguments: Any) -> Any:
    """What the kernel gives without the loops."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(c_rows, "loops", lambda: None)
        with numpy.errstate(all="ignore"):
            return function(*arguments)


def numbers(*shape: int, seed: int = 0) -> Any:
    return numpy.random.default_rng(seed).standard_normal(shape).astype("float32")


def wide(*arguments: Any) -> list[Any]:
    return [
        a.astype("float64") if isinstance(a, numpy.ndarray) and a.dtype == "float32" else a
        for a in arguments
    ]


@st.composite
def arrays(draw: st.DrawFn, least: int = 1) -> Any:
    """Matrices of ordinary numbers, with a few that are not, in order or not."""
    count, width = draw(st.integers(0, 9)), draw(st.integers(least, 70))
    made = numbers(count, width, seed=draw(st.integers(0, 99))) * draw(st.sampled_from([1, 9]))
    if made.size:
        for value in draw(st.lists(st.sampled_from(ODD), max_size=3)):
            made[draw(st.integers(0, count - 1)), draw(st.integers(0, width - 1))] = value
    layout = draw(st.sampled_from(["in order", "by columns", "every second"]))
    if layout == "by columns":
        return numpy.asfortranarray(made)
    if layout == "every second":
        spread = numpy.zeros((count, 2 * width), "float32")
        spread[:, ::2] = made
        return spread[:, ::2]
    return made


def alike(got: Any, wanted: Any, rough: float = 2e-6) -> None:
    """Near to each other, and not a number or infinite in the same places."""
    assert got.shape == wanted.shape
    assert got.dtype == wanted.dtype
    numpy.testing.assert_allclose(got, wanted, rtol=rough, atol=rough)


# ---- single numbers


@pytest.mark.parametrize("name", ONE)
@quietly
@given(x=arrays())
def test_functions_are_those_of_numpy(name: str, form: str, x: Any) -> None:
    with numpy.errstate(all="ignore"):
        alike(ONE[name](x), by_numpy(ONE[name], x))


@pytest.mark.parametrize("name", TWO)
@quietly
@given(x=arrays())
def test_slopes_are_those_of_numpy(name: str, form: str, x: Any) -> None:
    grad = numbers(*x.shape, seed=7)
    with numpy.errstate(all="ignore"):
        if name == "sigmoid_backward":
            x = numpy.clip(x, -4, 4)
        got, wanted = TWO[name](grad, x), by_numpy(TWO[name], grad, x)
    usual = ~(numpy.abs(x) >= 1e15)  # above, NumPy's form overflows inside
    alike(got[usual], wanted[usual], 1e-5)  # 1 + tanh loses digits below 0


@pytest.mark.parametrize("name", ONE)
def test_functions_are_exact(name: str, form: str) -> None:
    x = numpy.linspace(-12, 12, 200_001).astype("float32")
    got, exact = ONE[name](x).astype("float64"), ONE[name](*wide(x))
    assert numpy.abs(got - exact).max() <= bound("float32", 4, max(1, numpy.abs(exact).max()))
    # The exponent of the cubic is rounded: its error grows with it.
    counted = numpy.abs(exact) > (1e-3 if name == "gelu_tanh" else 1e-30)
    error = numpy.abs(got[counted] - exact[counted]) / numpy.abs(exact[counted])
    assert error.max() <= bound("float32", {"gelu_tanh": 256, "gelu": 64}.get(name, 16))


def test_what_is_not_a_number_stays(form: str) -> None:
    for function in ONE.values():
        x = numbers(50)
        x[7] = numpy.nan
        assert numpy.flatnonzero(numpy.isnan(function(x))).tolist() == [7]


def test_the_ends_of_each_function(form: str) -> None:
    ends = numpy.array([-numpy.inf, numpy.inf, -200, 200], "float32")
    assert activation.sigmoid(ends).tolist() == [0, 1, 0, 1]
    assert special.erf(ends).tolist() == [-1, 1, -1, 1]
    assert activation.gelu(ends[1:]).tolist() == [numpy.inf, 0, 200]
    assert activation.silu(ends[1:]).tolist() == [numpy.inf, 0, 200]


# ---- softmax

SOFT = {"softmax": softmax.softmax, "log_softmax": softmax.log_softmax}
SOFT_BACK = {
    "softmax": softmax.softmax_backward,
    "log_softmax": softmax.log_softmax_backward,
}


@pytest.mark.parametrize("name", SOFT)
@quietly
@given(x=arrays())
def test_softmax_is_that_of_numpy(name: str, form: str, x: Any) -> None:
    with numpy.errstate(all="ignore"):
        got = SOFT[name](x, -1)
        alike(got, by_numpy(SOFT[name], x, 1), 1e-5)
        grad = numbers(*x.shape, seed=3)
        back = SOFT_BACK[name](grad, got, -1, "float32")
        alike(back, by_numpy(SOFT_BACK[name], grad, got, -1, "float32"), 2e-5)


@pytest.mark.parametrize("name", SOFT)
@pytest.mark.parametrize("shape", [(3, 1), (4, 5000), (2, 3, 33), (40,)])
def test_softmax_is_exact(name: str, shape: tuple[int, ...], form: str) -> None:
    x, grad = numbers(*shape) * 5, numbers(*shape, seed=1)
    got, exact = SOFT[name](x, -1), SOFT[name](*wide(x), -1)
    numpy.testing.assert_allclose(got, exact, rtol=bound("float32", max(64, shape[-1])), atol=1e-7)
    back = SOFT_BACK[name](grad, got, -1, "float32")
    wanted = SOFT_BACK[name](*wide(grad), exact, -1, "float64")
    numpy.testing.assert_allclose(back, wanted, rtol=1e-5, atol=1e-5)


# ---- normalization


@pytest.mark.parametrize("mask", [(True, True, True), (False, True, False), (True, False, False)])
@pytest.mark.parametrize("parameters", ["both", "weight", "bias", "none"])
@pytest.mark.parametrize("shape", [(7, 1), (5, 3), (70, 33), (3, 5000), (2, 3, 64)])
def test_layer_norm_is_exact(shape: Any, parameters: str, mask: Any, form: str) -> None:
    width = shape[-1]
    x, grad = numbers(*shape) * 3 + 2, numbers(*shape, seed=1)
    weight = numbers(width, seed=2) if parameters in ("both", "weight") else None
    bias = numbers(width, seed=3) if parameters in ("both", "bias") else None
    got = normalize.layer_norm(x, [width], weight, bias, 1e-5)
    exact = normalize.layer_norm(*wide(x, [width], weight, bias), 1e-5)
    for one, other in zip(got, exact, strict=True):
        assert one.dtype == "float32"
        numpy.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)
    back = normalize.layer_norm_backward(grad, x, [width], *got[1:], weight, bias, mask)
    kept = by_numpy(
        normalize.layer_norm_backward,
        *wide(grad, x, [width], *exact[1:], weight, bias), mask,
    )  # fmt: skip
    for one, other in zip(back, kept, strict=True):
        assert (one is None) == (other is None)
        if other is not None and width > 1:
            numpy.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)


@quietly
@given(x=arrays(least=2))
def test_layer_norm_has_no_numbers_where_numpy_has_none(form: str, x: Any) -> None:
    with numpy.errstate(all="ignore"):
        got = normalize.layer_norm(x, [x.shape[1]], None, None, 1e-5)
        wanted = by_numpy(normalize.layer_norm, x, [x.shape[1]], None, None, 1e-5)
    for one, other in zip(got, wanted, strict=True):
        assert one.shape == other.shape
        numpy.testing.assert_array_equal(numpy.isnan(one), numpy.isnan(other))
        usual = (numpy.abs(x) < 100).all(axis=1)  # others may cancel out, differently
        numpy.testing.assert_allclose(one[usual], other[usual], rtol=1e-4, atol=1e-4)


def test_a_row_far_from_zero_keeps_its_digits(form: str) -> None:
    x = numbers(20, 300) + 1000
    got = normalize.layer_norm(x, [300], None, None, 1e-5)[0]
    exact = normalize.layer_norm(*wide(x), [300], None, None, 1e-5)[0]
    numpy.testing.assert_allclose(got, exact, atol=bound("float32", magnitude=1000))


@pytest.mark.parametrize("with_weight", [True, False])
@pytest.mark.parametrize(("N", "C", "HxW", "group"), [(2, 6, 35, 3), (1, 4, 5000, 1), (5, 8, 9, 8)])
def test_group_norm_is_exact(
    N: int, C: int, HxW: int, group: int, with_weight: bool, form: str
) -> None:
    x, grad = numbers(N, C, HxW) + 2, numbers(N, C, HxW, seed=1)
    weight, bias = (numbers(C, seed=s) if with_weight else None for s in (2, 3))
    sizes = (N, C, HxW, group)
    got = normalize.group_norm(x, weight, bias, *sizes, 1e-5)
    exact = normalize.group_norm(*wide(x, weight, bias), *sizes, 1e-5)
    for one, other in zip(got, exact, strict=True):
        assert one.dtype == "float32"
        numpy.testing.assert_allclose(one, other, rtol=2e-5, atol=2e-5)
    mask = (True, with_weight, with_weight)
    back = normalize.group_norm_backward(grad, x, *got[1:], weight, *sizes, mask)
    wanted = normalize.group_norm_backward(*wide(grad, x, *exact[1:], weight), *sizes, mask)
    for one, other in zip(back, wanted, strict=True):
        assert (one is None) == (other is None)
        if other is not None:
            assert one.dtype == "float32"
            numpy.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("shape", [(4, 3, 35), (2, 5, 4, 60), (1, 2, 5000), (70, 9)])
def test_batch_norm_is_exact(shape: Any, training: bool, form: str) -> None:
    x, grad, channels = numbers(*shape) + 2, numbers(*shape, seed=1), shape[1]
    weight, bias, mean = (numbers(channels, seed=s) for s in (2, 3, 4))
    variance = numpy.abs(numbers(channels, seed=5)) + 0.5

    def both(kind: str) -> Any:
        cast = [a.astype(kind) for a in (x, weight, bias, mean, variance)]
        out = normalize.batch_norm(*cast, training, 0.1, 1e-5)
        x_, weight_, _, mean_, variance_ = cast
        back = normalize.batch_norm_backward(
            grad.astype(kind), x_, weight_, mean_, variance_, *out[1:], training, 1e-5, (True,) * 3
        )
        return [*out, *back, mean_, variance_]

    for one, other in zip(both("float32"), both("float64"), strict=True):
        assert one.shape == other.shape
        assert one.dtype == "float32"
        numpy.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)


# ---- which way is taken


def test_threads_change_the_last_bits_at_most(form: str) -> None:
    x, grad = numbers(300, 40), numbers(300, 40, seed=1)
    before = threads.get_num_threads()
    found = []
    try:
        for count in (1, 3):
            threads.set_num_threads(count)
            out, mean, rstd = normalize.layer_norm(x, [40], None, None, 1e-5)
            back = normalize.layer_norm_backward(
                grad, x, [40], mean, rstd, numpy.ones(40, "float32"), None, (True, True, False)
            )
            found.append([out, *back[:2], softmax.softmax(x, -1), activation.gelu(x)])
    finally:
        threads.set_num_threads(before)
    for one, other in zip(*found, strict=True):
        assert_near(one, other, "float32", len(x))


def test_other_dtypes_and_small_arrays_are_left_to_numpy() -> None:
    assert c_rows.map_elements("gelu", numbers(2000).astype("float64")) is None
    assert c_rows.map_elements("gelu", numbers(10)) is None
    assert c_rows.map_elements("gelu_backward", numbers(2000), numbers(1)) is None
    assert c_rows.softmax(numbers(50, 50), 0) is None
    assert c_rows.layer_norm(numbers(50, 50), numbers(50).astype("float64"), None, 1e-5) is None


def test_python_alone_is_a_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_CORE", "python")
    assert c_rows.loops.__wrapped__() is None

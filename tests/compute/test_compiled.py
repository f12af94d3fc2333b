"""The C loops of the NumPy engine: where they come from, and every form a processor may get."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from typing import Any

import numpy
import pytest

from holdfast.base.errors import Unsupported
from holdfast.compute import CustomTensor, functional, fuse
from holdfast.compute.engines.numpy import c_kernels
from holdfast.compute.engines.numpy.elementwise import c_chains
from holdfast.compute.engines.numpy.layers import attention, conv_direct, convolution
from tests.tolerance import bound

FORMS = {"512 bits": ("-march=native",), "256 bits": ("-mavx2", "-mfma"), "128 bits": ()}


def test_python_alone_is_a_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_CORE", "python")
    assert c_kernels.kernels.__wrapped__() is None


def test_no_compiler_is_no_failure_unless_it_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    assert c_kernels.kernels.__wrapped__() is None
    monkeypatch.setenv("HOLDFAST_CORE", "compiled")
    with pytest.raises(Unsupported, match="there is no C compiler on this machine"):
        c_kernels.kernels.__wrapped__()


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    if request.param == "256 bits" and "avx2" not in _features():
        pytest.skip("this processor has no AVX2")
    try:
        library = c_kernels.load_for("kernels.c", c_kernels.SIGNATURES, FORMS[request.param])
    except (Unsupported, OSError) as exc:
        pytest.skip(f"cannot be compiled: {exc}")
    for module in (attention, c_chains, convolution, conv_direct):
        monkeypatch.setattr(module, "kernels", lambda: library)
    conv_direct.plan.cache_clear()  # a plan holds what the library said of itself
    yield request.param
    conv_direct.plan.cache_clear()


def _features() -> str:
    if platform.machine() not in ("x86_64", "AMD64"):
        return ""
    try:
        with open("/proc/cpuinfo") as file:  # noqa: PTH123
            return file.read()
    except OSError:
        return ""


def numbers(*shape: int, seed: int = 0) -> Any:
    return numpy.random.default_rng(seed).standard_normal(shape).astype("float32")


@pytest.mark.parametrize(
    ("x", "w", "stride", "groups"),
    [
        ((2, 19, 23, 31), (13, 19, 3, 3), 1, 1),
        ((3, 6, 20, 17), (6, 1, 5, 3), 2, 6),
        ((5, 40, 5, 6), (30, 20, 2, 3), 1, 2),
        ((1, 3, 7, 30, 29), (9, 3, 2, 3, 3), 2, 1),
    ],
)
def test_a_convolution_in_every_form(x: Any, w: Any, stride: int, groups: int, form: str) -> None:
    a, b, bias = numbers(*x), numbers(*w, seed=1), numbers(w[0], seed=2)
    settings = ([stride], [1], [1], False, [0], groups)
    ours = convolution.convolution(a, b, bias, *settings)
    exact = [array.astype("float64") for array in (a, b, bias)]
    wanted = convolution.convolution(*exact, *settings)
    numpy.testing.assert_allclose(ours, wanted, rtol=1e-4, atol=1e-4)
    mask = [True, False, False]
    g = numbers(*ours.shape, seed=3)
    back = convolution.convolution_backward(g, a, b, None, *settings, mask)[0]
    known = convolution.convolution_backward(g.astype("float64"), *exact[:2], None, *settings, mask)
    numpy.testing.assert_allclose(back, known[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("causal", [False, True])
def test_attention_in_every_form(causal: bool, form: str) -> None:
    arrays = [numbers(2, 2, 101, 13), *(numbers(2, 1, 77, 13, seed=s) for s in (1, 2))]
    mask = numbers(101, 77, seed=3)
    mask[mask > 1] = -numpy.inf
    out, sums = attention.attention(*arrays, 0.0, causal, attn_mask=mask)
    exact = [array.astype("float64") for array in arrays]
    wanted, known = attention.attention(*exact, 0.0, causal, attn_mask=mask)
    numpy.testing.assert_allclose(out, wanted, rtol=1e-4, atol=1e-5)
    numpy.testing.assert_allclose(sums, known, rtol=1e-4, atol=1e-5)


def test_a_chain_in_every_form(form: str) -> None:
    def function(x: Any, y: Any) -> Any:
        z = functional.maximum(x * 2 - y, functional.minimum(-x, y.abs()))
        return functional.sqrt(z.square() / (y.abs() + 1) + 3)

    x, y = CustomTensor(numbers(3001)), CustomTensor(numbers(3001, seed=1))
    x.data[5] = numpy.nan
    numpy.testing.assert_array_equal(fuse(function)(x, y).data, function(x, y).data)


def test_exponentials_are_right_to_the_last_bits(form: str) -> None:
    scores = numpy.linspace(-120, 0, 5000).astype("float32")
    one = numpy.ones((1, 1, 5000, 1), "float32")
    keys = numpy.array([[[[0.0], [1.0]]]], "float32")
    values = numpy.array([[[[0.0], [1.0]]]], "float32")
    got, _ = attention.attention(scores.reshape(one.shape), keys, values, scale=1.0)
    exact = numpy.exp(scores.astype("float64"))
    wanted = (exact / (1 + exact)).astype("float32")
    numpy.testing.assert_allclose(got.ravel(), wanted, rtol=bound("float32", 16), atol=4e-38)

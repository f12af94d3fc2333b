"""Convolutions: the C loop and NumPy alone against torch, gradients, errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from holdfast.base.errors import BadInput
from holdfast.compute import CustomTensor, functional
from holdfast.compute.autograd import tape
from holdfast.compute.engines.numpy.c_kernels import kernels
from holdfast.compute.engines.numpy.layers import convolution as kernel
from holdfast.compute.ops.layers.convolution import output_sizes


@pytest.fixture(params=["compiled", "numpy"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "numpy":
        monkeypatch.setattr(kernel, "kernels", lambda: None)
    elif kernels() is None:
        pytest.skip("there is no C compiler")
    return request.param


def numbers(*shape: int, seed: int = 0, kind: str = "float32") -> Any:
    return numpy.random.default_rng(seed).standard_normal(shape).astype(kind)


def both_ways(function: Callable[[], Any]) -> list[Any]:
    """What a function gives by the C loop, where there is one, and with NumPy alone."""
    found = [function()]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernel, "kernels", lambda: None)
        return [*found, function()]


@st.composite
def cases(draw: Callable[[Any], Any]) -> dict[str, Any]:
    count = draw(st.integers(1, 3))
    small = lambda low, high: tuple(draw(st.integers(low, high)) for _ in range(count))  # noqa: E731
    case = {
        "window": small(1, 4),
        "stride": small(1, 3),
        "padding": small(0, 3),
        "dilation": small(1, 3),
        "groups": draw(st.integers(1, 3)),
        "inside": draw(st.sampled_from([1, 2, 3])),
        "outside": draw(st.sampled_from([1, 2, 9])),
        "batch": draw(st.integers(0, 3)),
        "transposed": draw(st.booleans()),
        "sizes": small(1, 9),
        "bias": draw(st.booleans()),
    }
    most = [max(s, d) for s, d in zip(case["stride"], case["dilation"], strict=True)]
    extra = tuple(draw(st.integers(0, m - 1)) for m in most)
    case["extra"] = extra if case["transposed"] else (0,) * count
    return case


@given(cases())
def test_every_shape_gives_what_torch_gives(case: dict[str, Any]) -> None:
    groups, transposed = case["groups"], case["transposed"]
    settings = (case["stride"], case["padding"], case["dilation"], transposed, case["extra"])
    sizes = output_sizes(case["sizes"], case["window"], *settings[:3], transposed, case["extra"])
    channels = case["inside"] * groups
    first, second = (
        (channels, case["outside"]) if transposed else (case["outside"] * groups, case["inside"])
    )
    x = numbers(case["batch"], channels, *case["sizes"])
    w = numbers(first, second, *case["window"], seed=1)
    b = numbers(case["outside"] * groups, seed=2) if case["bias"] else None
    arguments = (x, w, b, *map(list, settings[:3]), transposed, list(case["extra"]), groups)
    if min(sizes) < 1:
        if not transposed:
            with pytest.raises(ValueError, match="larger than the padded input"):
                kernel.convolution(*arguments)
        return
    theirs = torch.ops.aten.convolution(
        *(torch.from_numpy(a) if hasattr(a, "ndim") else a for a in arguments)
    )
    for ours in both_ways(lambda: kernel.convolution(*arguments)):
        numpy.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-4, atol=1e-4)
    if not case["batch"]:
        return
    g = numbers(*theirs.shape, seed=3)
    back = (g, x, w, [first], *arguments[3:], [True, True, True])
    expected = torch.ops.aten.convolution_backward(
        *(torch.from_numpy(a) if hasattr(a, "ndim") else a for a in back)
    )
    for ours in both_ways(lambda: kernel.convolution_backward(*back)):
        for one, other in zip(ours, expected, strict=True):
            numpy.testing.assert_allclose(one, other.numpy(), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(
    ("x", "w", "settings"),
    [
        ((2, 64, 20, 20), (48, 64, 3, 3), {"padding": 1}),
        ((2, 3, 65, 65), (20, 3, 7, 7), {"stride": 2, "padding": 3}),
        ((3, 32, 30, 30), (32, 1, 3, 3), {"padding": 1, "groups": 32}),
        ((1, 300, 9, 9), (17, 300, 3, 3), {"padding": 2, "dilation": 2}),
        ((4, 40, 14, 14), (30, 40, 1, 1), {}),
    ],
)
def test_common_shapes_are_right_in_all_their_blocks(
    x: Any, w: Any, settings: dict[str, Any], way: str
) -> None:
    a, b, bias = numbers(*x), numbers(*w, seed=1), numbers(w[0], seed=2)
    theirs = torch.conv2d(*(torch.from_numpy(t) for t in (a, b, bias)), **settings)
    ours = functional.conv2d(CustomTensor(a), CustomTensor(b), CustomTensor(bias), **settings)
    numpy.testing.assert_allclose(ours.data, theirs.numpy(), rtol=1e-4, atol=2e-4)


@pytest.mark.parametrize("kind", ["float64", "float16", "int64", "complex64", "bfloat16"])
def test_other_dtypes(kind: str, way: str) -> None:
    x, w = (numbers(*s, seed=i) * 3 for i, s in enumerate([(2, 4, 6, 6), (6, 2, 3, 3)]))
    pair = [torch.from_numpy(a).to(getattr(torch, kind)) for a in (x, w)]
    theirs = torch.conv2d(*pair, padding=1, groups=2)
    ours = functional.conv2d(
        *(CustomTensor(a.astype(kind) if kind != "bfloat16" else a, dtype=kind) for a in (x, w)),
        padding=1,
        groups=2,
    )
    assert str(ours.dtype) == kind
    loose = {"float16": 2e-2, "bfloat16": 1e-1}.get(kind, 1e-4)
    got = ours.data.astype("complex64" if kind == "complex64" else "float32")
    wanted = theirs.to(torch.complex64 if kind == "complex64" else torch.float32).numpy()
    numpy.testing.assert_allclose(got, wanted, rtol=loose, atol=loose)


def test_an_input_whose_channels_come_last_is_read_as_it_lies(way: str) -> None:
    x = numpy.ascontiguousarray(numbers(2, 9, 9, 16)).transpose(0, 3, 1, 2)
    w = numbers(8, 16, 3, 3, seed=1)
    ours = kernel.convolution(x, w, None, [2], [1], [1], False, [0], 1)
    theirs = torch.conv2d(torch.from_numpy(x.copy()), torch.from_numpy(w), stride=2, padding=1)
    numpy.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-4, atol=1e-4)


def test_one_image_without_a_batch(way: str) -> None:
    x, w = numbers(3, 8, 8), numbers(4, 3, 3, 3, seed=1)
    assert functional.conv2d(CustomTensor(x), CustomTensor(w)).shape == (4, 6, 6)
    turned = CustomTensor(w.swapaxes(0, 1))
    assert functional.conv_transpose2d(CustomTensor(x), turned).shape == (4, 10, 10)


@pytest.mark.parametrize("window", [3, 4])
def test_same_keeps_the_size(window: int) -> None:
    x, w = numbers(2, 3, 9, 8), numbers(4, 3, window, window, seed=1)
    ours = functional.conv2d(CustomTensor(x), CustomTensor(w), padding="same", dilation=2)
    theirs = torch.conv2d(torch.from_numpy(x), torch.from_numpy(w), padding="same", dilation=2)
    numpy.testing.assert_allclose(ours.data, theirs.numpy(), rtol=1e-4, atol=1e-4)


def test_gradients_of_gradients_are_torch_s() -> None:
    x, w, b = numbers(2, 4, 7, 7), numbers(6, 2, 3, 3, seed=1), numbers(6, seed=2)

    def penalty(conv: Any, grad: Any, *leaves: Any) -> Any:
        out = conv(*leaves, stride=2, padding=1, groups=2)
        found = grad((out * out * out).sum(), leaves, create_graph=True)
        return sum((f * f).sum() for f in found)

    ours = [CustomTensor(a, requires_grad=True) for a in (x, w, b)]
    theirs = [torch.from_numpy(a).requires_grad_() for a in (x, w, b)]
    penalty(functional.conv2d, tape.grad, *ours).backward()
    penalty(torch.conv2d, torch.autograd.grad, *theirs).backward()
    for one, other in zip(ours, theirs, strict=True):
        assert one.grad is not None
        assert other.grad is not None
        numpy.testing.assert_allclose(one.grad.data, other.grad.numpy(), rtol=2e-3, atol=1e-1)


def test_channels_that_do_not_fit_are_named() -> None:
    with pytest.raises(BadInput) as caught:
        functional.conv2d(CustomTensor(numbers(1, 3, 8, 8)), CustomTensor(numbers(4, 2, 3, 3)))
    assert str(caught.value) == (
        "cannot compute convolution(float32[1, 3, 8, 8], float32[4, 2, 3, 3], None, [1, 1], "
        "[0, 0], [1, 1], False, [0, 0], 1): 3 channels do not fit a weight for 2 in 1 groups\n"
        "  expected: an input [N, C, ...] and a weight [O, C / groups, ...], or "
        "[C, O / groups, ...] transposed"
    )

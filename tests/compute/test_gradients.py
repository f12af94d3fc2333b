"""Gradients against central finite differences in float64, and gradients of gradients."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Callable
from typing import Any

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, mutually_broadcastable_shapes

from holdfast.compute import CustomTensor, enable_grad, no_grad
from holdfast.compute import functional as f
from holdfast.compute.autograd import gradient_lines, tape
from holdfast.compute.ops import OPS
from tests.examples import examples

STEP = 1e-5
SLACK = {"rtol": 2e-5, "atol": 2e-7}
SEEDS = st.integers(0, 2**20)
Function = Callable[..., Any]


# ---- comparing


def spaced(shape: tuple[int, ...], seed: int, low: float = -1.9, high: float = 2.1) -> Any:
    """Numbers that are all different, and none is 0: away from the kinks of relu, max, sort."""
    rng = numpy.random.default_rng(seed)
    count = int(numpy.prod(shape))
    grid = numpy.linspace(low, high, count + 2)[1:-1]
    if count == 1:
        grid = numpy.array([low + (high - low) * 0.7])
    grid = numpy.where(numpy.abs(grid) < 1e-3, 0.0123, grid)
    return rng.permutation(grid).reshape(shape)


def positive(shape: tuple[int, ...], seed: int) -> Any:
    return spaced(shape, seed, 0.4, 2.3)


def inside(shape: tuple[int, ...], seed: int) -> Any:
    return spaced(shape, seed, -0.8, 0.85)


def _flat(out: Any) -> list[Any]:
    """The results that have gradients."""
    parts = out if isinstance(out, list | tuple) else [out]
    return [part for part in parts if part.dtype == numpy.float64]


def _weights(parts: list[Any]) -> list[Any]:
    rng = numpy.random.default_rng(7)
    return [rng.uniform(0.5, 1.5, part.shape) for part in parts]


def check(function: Function, *arrays: Any, slack: float = 1.0) -> None:
    """The gradients of a weighted sum of all results, for every input, number by number."""
    inputs = [CustomTensor(a, dtype="float64", requires_grad=True) for a in arrays]
    parts = _flat(function(*inputs))
    weights = _weights(parts)
    wanted = [part.requires_grad for part in parts]
    assert any(wanted)
    used = [(p, w) for p, w, asked in zip(parts, weights, wanted, strict=True) if asked]
    found = tape.grad(
        [p for p, _ in used],
        inputs,
        [CustomTensor(w, dtype="float64") for _, w in used],
        allow_unused=True,
    )

    def total(changed: list[Any]) -> float:
        with no_grad():
            out = _flat(function(*(CustomTensor(a, dtype="float64") for a in changed)))
        both = zip(out, weights, wanted, strict=True)
        return sum(float((part.data * w).sum()) for part, w, asked in both if asked)

    for place, (array, gradient) in enumerate(zip(arrays, found, strict=True)):
        slopes = numpy.zeros(array.shape)
        for index in numpy.ndindex(array.shape):
            ends = []
            for step in (STEP, -STEP):
                moved = array.copy()
                moved[index] += step
                ends.append(total([*arrays[:place], moved, *arrays[place + 1 :]]))
            slopes[index] = (ends[0] - ends[1]) / (2 * STEP)
        if gradient is None:
            numpy.testing.assert_array_equal(slopes, 0)
            continue
        assert gradient.shape == array.shape
        assert gradient.dtype == numpy.float64
        scale = {name: value * slack for name, value in SLACK.items()}
        numpy.testing.assert_allclose(gradient.data, slopes, **scale, err_msg=f"input {place}")


def gradient_of(function: Function) -> Function:
    """The gradients of `function`, as a function that can be differentiated itself."""

    def first(*tensors: Any) -> Any:
        with enable_grad():
            inputs = [t if t.requires_grad else t.detach().requires_grad_() for t in tensors]
            out = [part for part in _flat(function(*inputs)) if part.requires_grad]
            seeds = [CustomTensor(w, dtype="float64") for w in _weights(out)]
            found = tape.grad(out, inputs, seeds, create_graph=True, allow_unused=True)
            return [part for part in found if part is not None and part.requires_grad]

    return first


# ---- one by one

UNARY: dict[str, tuple[Function, Callable[..., Any]]] = {
    **{
        name: (getattr(f, name), spaced)
        for name in (
            *("neg", "exp", "sin", "cos", "tanh", "sigmoid", "relu", "gelu", "silu", "softplus"),
            *("erf", "abs", "square", "expm1", "atan", "asinh", "leaky_relu", "elu", "selu"),
            *("hardtanh", "hardswish", "log_sigmoid", "mish", "sinc", "exp2"),
        )
    },
    **{
        name: (getattr(f, name), positive)
        for name in (
            *("log", "log2", "log10", "log1p", "sqrt", "rsqrt", "reciprocal", "lgamma", "digamma"),
            *("acosh", "i0", "erfc"),
        )
    },
    **{name: (getattr(f, name), inside) for name in ("asin", "acos", "atanh", "erfinv")},
    "cube": (lambda x: x**3, spaced),
    "pow of a number": (lambda x: 2.5**x, spaced),
    "logit": (lambda x: f.logit(x * 0.4 + 0.5), inside),
    "clamp": (lambda x: x.clamp(-1.0, 1.03), spaced),
    "acosh of more than one": (lambda x: f.acosh(x + 1), positive),
}
del UNARY["acosh"]

BINARY: dict[str, tuple[Function, Callable[..., Any]]] = {
    "add": (lambda x, y: f.add(x, y, alpha=3), spaced),
    "sub": (lambda x, y: x - y * 2, spaced),
    "mul": (lambda x, y: x * y, spaced),
    "div": (lambda x, y: x / y, positive),
    "pow": (lambda x, y: x**y, positive),
    "atan2": (f.atan2, positive),
    "hypot": (f.hypot, positive),
    "logaddexp": (f.logaddexp, spaced),
    "fmod": (lambda x, y: f.fmod(x + 0.01, y * 40), positive),
    "lerp": (lambda x, y: f.lerp(x, y, 0.3), spaced),
    "addcmul": (lambda x, y: f.addcmul(x, x, y, value=0.5), spaced),
    "where": (lambda x, y: f.where(x.detach() > 0, x * y, y), spaced),
    "maximum": (lambda x, y: f.maximum(x, y + 7.77) + f.minimum(x, y * 5.01), spaced),
}
SHAPES = array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=3)
FULL = array_shapes(min_dims=0, max_dims=4, min_side=1, max_side=3)


@pytest.mark.parametrize("name", UNARY)
@settings(max_examples=examples(8))
@given(shape=SHAPES, seed=SEEDS)
def test_ops_of_one_tensor(name: str, shape: tuple[int, ...], seed: int) -> None:
    function, values = UNARY[name]
    check(function, values(shape, seed))


@pytest.mark.parametrize("name", BINARY)
@settings(max_examples=examples(10))
@given(
    shapes=mutually_broadcastable_shapes(
        num_shapes=2, min_dims=0, max_dims=4, min_side=0, max_side=3
    ),
    seed=SEEDS,
)
def test_ops_of_two_tensors_that_broadcast(name: str, shapes: Any, seed: int) -> None:
    function, values = BINARY[name]
    one, other = shapes.input_shapes
    check(function, values(one, seed), values(other, seed + 1))


# ---- over dimensions

REDUCTIONS: dict[str, tuple[Function, bool]] = {  # and whether they take empty tensors
    "sum": (lambda x, d, k: x.sum(d, keepdim=k), True),
    "mean": (lambda x, d, k: x.mean(d, keepdim=k), False),
    "logsumexp": (lambda x, d, k: f.logsumexp(x, d, keepdim=k), False),
    "amax": (lambda x, d, k: f.amax(x, d, keepdim=k), False),
    "amin": (lambda x, d, k: f.amin(x, d, keepdim=k), False),
    "var": (lambda x, d, k: f.var(x, d, correction=0, keepdim=k), False),
    "norm": (lambda x, d, k: f.linalg_vector_norm(x, 3, d, k), False),
}


@pytest.mark.parametrize("name", REDUCTIONS)
@settings(max_examples=examples(12))
@given(data=st.data(), keep=st.booleans(), seed=SEEDS)
def test_reductions(name: str, data: st.DataObject, keep: bool, seed: int) -> None:
    function, empty = REDUCTIONS[name]
    shape = data.draw(SHAPES if empty else FULL)
    span = max(len(shape), 1)
    dims = data.draw(st.lists(st.integers(-span, span - 1), max_size=4))
    chosen = {d % span: d for d in dims}
    check(lambda x: function(x, list(chosen.values()), keep), spaced(shape, seed), slack=3)


ALONG: dict[str, Function] = {
    "softmax": lambda x, d: f.softmax(x, d),
    "log_softmax": lambda x, d: f.log_softmax(x, d),
    "cumsum": lambda x, d: x.cumsum(d),
    "cumprod": lambda x, d: x.cumprod(d),
    "cummax": lambda x, d: f.cummax(x, d)[0],
    "logcumsumexp": lambda x, d: f.logcumsumexp(x, d),
    "prod": lambda x, d: f.prod(x, d),
    "sort": lambda x, d: f.sort(x, d, True)[0],
    "max": lambda x, d: f.max(x, d)[0],
    "median": lambda x, d: f.median(x, d)[0],
    "topk": lambda x, d: f.topk(x, 1, d)[0],
    "flip": lambda x, d: x.flip(d),
    "roll": lambda x, d: f.roll(x, [1], [d]),
    "unbind": lambda x, d: f.unbind(x, d),
    "cat": lambda x, d: f.cat([x, x * 2, x], d),
    "stack": lambda x, d: f.stack([x, x * 2], d),
    "narrow": lambda x, d: f.narrow(x, d, 0, 1),
    "split": lambda x, d: f.split(x, 2, d),
    "squeeze": lambda x, d: x.squeeze(d),
    "unsqueeze": lambda x, d: x.unsqueeze(d),
    "renorm": lambda x, d: f.renorm(x, 2, d, 0.5),
    "index_select": lambda x, d: f.index_select(x, d, CustomTensor([0, 0], dtype="int64")),
}


@pytest.mark.parametrize("name", ALONG)
@settings(max_examples=examples(8))
@given(data=st.data(), seed=SEEDS)
def test_ops_along_a_dimension(name: str, data: st.DataObject, seed: int) -> None:
    shape = data.draw(array_shapes(min_dims=1, max_dims=4, min_side=1, max_side=3))
    if name == "renorm" and len(shape) < 2:
        shape = (2, *shape)
    dim = data.draw(st.integers(-len(shape), len(shape) - 1))
    check(lambda x: ALONG[name](x, dim), spaced(shape, seed))


# ---- matrices


@pytest.mark.parametrize(
    ("one", "other"),
    [
        *[((3,), (3,)), ((2, 3), (3,)), ((3,), (3, 2)), ((2, 3), (3, 4))],
        *[((2, 2, 3), (3, 4)), ((2, 3), (4, 3, 2)), ((2, 2, 3), (2, 3, 2))],
        *[((2, 1, 2, 3), (3, 3, 2)), ((3,), (2, 3, 2)), ((2, 2, 3), (3,))],
        *[((0, 3), (3, 2)), ((2, 0), (0, 3)), ((0, 2, 3), (0, 3, 1))],
    ],
    ids=str,
)
def test_matrix_products_of_every_rank(one: tuple[int, ...], other: tuple[int, ...]) -> None:
    check(lambda x, y: x @ y, spaced(one, 1), spaced(other, 2))


def _well(shape: tuple[int, ...], seed: int) -> Any:
    """Matrices that are far from singular."""
    return inside(shape, seed) * 0.3 + numpy.eye(shape[-1]) * numpy.arange(2, 2 + shape[-1])


def _symmetric(x: Any) -> Any:
    return x @ x.mT + CustomTensor(numpy.eye(x.shape[-1]), dtype="float64")


MATRICES: dict[str, Function] = {
    "inverse": lambda a: f.linalg_inv(a),
    "det": lambda a: f.linalg_det(a),
    "logdet": lambda a: f.slogdet(a)[1],
    "cholesky": lambda a: f.linalg_cholesky(_symmetric(a)),
    "eigenvalues": lambda a: f.linalg_eigvalsh(_symmetric(a)),
    "singular values": lambda a: f.linalg_svdvals(a),
    "qr": lambda a: f.linalg_qr(a)[1],
    "exp": lambda a: f.linalg_matrix_exp(a * 0.3),
    "power": lambda a: f.linalg_matrix_power(a, 3),
    "trace": lambda a: f.diagonal(a, 0, -2, -1).sum(-1),
    "tril": lambda a: f.tril(a, -1) + f.triu(a, 1),
}


@pytest.mark.parametrize("name", MATRICES)
@pytest.mark.parametrize("shape", [(3, 3), (2, 2, 2), (1, 1)], ids=str)
def test_linear_algebra(name: str, shape: tuple[int, ...]) -> None:
    check(MATRICES[name], _well(shape, 3), slack=10)


def test_solving() -> None:
    check(f.linalg_solve, _well((2, 3, 3), 1), spaced((2, 3, 2), 2), slack=10)
    check(lambda a, b: f.linalg_solve_triangular(a.triu(), b, upper=True), _well((3, 3), 1),
          spaced((3, 2), 2), slack=10)  # fmt: skip
    check(lambda *x: f.einsum("bij,bjk,k->bi", list(x)), spaced((2, 3, 2), 1),
          spaced((2, 2, 4), 2), spaced((4,), 3))  # fmt: skip


# ---- places and views

_PLACES = CustomTensor([[0, 1], [1, 0]], dtype="int64")
_MASK = CustomTensor([[True, False, True], [False, True, True]], dtype="bool")
SHAPED: dict[str, Function] = {  # all take [2, 3, 4]
    "item": lambda x: x[1, 2, 3],
    "slices": lambda x: x[..., 1::2],
    "new dimension": lambda x: x[:, None, -1],
    "tensor index": lambda x: x[_PLACES, :, [0, 3]],
    "mask": lambda x: x[_MASK],
    "repeated index": lambda x: x[[0, 0, 1, 0]],
    "gather": lambda x: f.gather(x, 2, f.expand(_PLACES.unsqueeze(1), [2, 3, 2])),
    "take_along_dim": lambda x: f.take(x, _PLACES),
    "masked_fill": lambda x: x.masked_fill(_MASK.unsqueeze(-1), 3.0),
    "masked_select": lambda x: f.masked_select(x, _MASK.unsqueeze(-1)),
    "scatter": lambda x: f.scatter(x, 0, f.expand(_PLACES.unsqueeze(-1), [2, 2, 2]), x[:, :2, :2]),
    "scatter_add": lambda x: f.scatter_add(x, 0, f.expand(_PLACES.unsqueeze(-1), [2, 2, 2]), x * x),
    "index_add": lambda x: f.index_add(x, 0, CustomTensor([0, 0], dtype="int64"), x * x),
    "view": lambda x: x.view(6, 4).view(-1),
    "reshape": lambda x: x.permute(2, 0, 1).reshape(4, 6),
    "permute": lambda x: x.permute(2, 0, 1),
    "expand": lambda x: x.unsqueeze(0).expand(2, 2, 3, 4),
    "repeat": lambda x: x.repeat(2, 1, 2, 1),
    "flatten": lambda x: x.flatten(1),
    "as_strided": lambda x: f.as_strided(x, [3, 3], [2, 1], 1),
    "unfold": lambda x: f.unfold(x, 2, 2, 1),
    "pad": lambda x: f.constant_pad_nd(x, [1, -1, 0, 2], 0.5),
    "tensor_split": lambda x: f.split(x, [1, 3], 2),
    "movedim": lambda x: f.movedim(x, [0, 1], [2, 0]),
    "diagonal": lambda x: f.diagonal(x, 1, 1, 2),
    "interpolate": lambda x: f.upsample_linear1d(x, [7], False, None),
    "assign": lambda x: _assigned(x),
    "in place": lambda x: (x * 2).mul_(x).add_(1).exp_(),
}


def _assigned(x: Any) -> Any:
    made = x * 2
    made[0] = x[1] * x[0]
    made[:, 1:, [0, 2]] += x[:, :2, 1:3]
    return made


@pytest.mark.parametrize("name", SHAPED)
def test_places_and_views(name: str) -> None:
    check(SHAPED[name], spaced((2, 3, 4), 5))


# ---- layers and losses

NETWORK: dict[str, tuple[Function, list[tuple[int, ...]]]] = {
    "linear": (f.linear, [(2, 3), (4, 3), (4,)]),
    "conv1d": (lambda x, w: f.conv1d(x, w, None, [2], [1]), [(2, 2, 5), (3, 2, 2)]),
    "conv2d": (f.conv2d, [(2, 2, 4, 4), (3, 2, 2, 3), (3,)]),
    "conv2d with steps": (
        lambda x, w: f.conv2d(x, w, None, [2, 1], [1, 2], [1, 2]),
        [(1, 2, 5, 5), (2, 2, 3, 2)],
    ),
    "conv2d in groups": (
        lambda x, w, b: f.conv2d(x, w, b, [1, 1], [1, 1], [1, 1], 2),
        [(1, 4, 3, 3), (4, 2, 2, 2), (4,)],
    ),
    "transposed conv2d": (
        lambda x, w: f.conv_transpose2d(x, w, None, [2, 2], [1, 1], [1, 1]),
        [(1, 2, 3, 3), (2, 2, 3, 3)],
    ),
    "conv3d": (f.conv3d, [(1, 1, 3, 3, 3), (2, 1, 2, 2, 2), (2,)]),
    "max_pool2d": (lambda x: f.max_pool2d(x, [2, 2], [1, 2], [1, 0]), [(1, 2, 4, 5)]),
    "avg_pool2d": (lambda x: f.avg_pool2d(x, [2, 3], [2, 1], [1, 1]), [(1, 2, 4, 5)]),
    "adaptive": (lambda x: f.adaptive_avg_pool2d(x, [2, 3]), [(1, 2, 5, 4)]),
    "layer_norm": (
        lambda x, w, b: f.layer_norm(x, [3, 2], w, b),
        [(2, 2, 3, 2), (3, 2), (3, 2)],
    ),
    "rms_norm": (lambda x, w: f.rms_norm(x, [4], w, 1e-6), [(2, 3, 4), (4,)]),
    "group_norm": (lambda x, w, b: f.group_norm(x, 2, w, b), [(2, 4, 3), (4,), (4,)]),
    "batch_norm": (
        lambda x, w, b: f.batch_norm(x, w, b, None, None, True, 0.1, 1e-5, False),
        [(4, 2, 3), (2,), (2,)],
    ),
    "attention": (
        f.scaled_dot_product_attention,
        [(1, 2, 3, 4), (1, 2, 5, 4), (1, 2, 5, 2)],
    ),
    "mse": (f.mse_loss, [(2, 3), (2, 3)]),
    "l1": (f.l1_loss, [(2, 3), (2, 3)]),
    "huber": (f.huber_loss, [(2, 3), (2, 3)]),
    "smooth l1": (f.smooth_l1_loss, [(2, 3), (2, 3)]),
    "cross entropy": (
        lambda x: f.cross_entropy_loss(x, CustomTensor([2, 0], dtype="int64")),
        [(2, 3)],
    ),
    "smoothed": (
        lambda x: f.cross_entropy_loss(
            x,
            CustomTensor([[2, 0], [1, -100]], dtype="int64"),
            CustomTensor([1, 2, 3], dtype="float64"),
            label_smoothing=0.1,
        ),
        [(2, 3, 2)],
    ),
    "binary": (
        lambda x, y: f.binary_cross_entropy_with_logits(x, f.sigmoid(y)),
        [(2, 3), (2, 3)],
    ),
    "divergence": (lambda x, y: f.kl_div(f.log_softmax(x, 1), f.softmax(y, 1)), [(2, 3), (2, 3)]),
    "embedding": (lambda w: f.embedding(w, _PLACES), [(3, 4)]),
    "cosine": (lambda x, y: f.cosine_similarity(x, y), [(2, 3), (2, 3)]),
    "distance": (lambda x, y: f.cdist(x, y + 5), [(2, 3), (4, 3)]),
}


@pytest.mark.parametrize("name", NETWORK)
def test_layers_and_losses(name: str) -> None:
    function, shapes = NETWORK[name]
    if name in ("l1", "huber", "smooth l1"):  # away from equal numbers
        check(lambda x, y: function(x, y * 0.5 + 0.611), *map(spaced, shapes, (1, 2)))
        return
    check(function, *(spaced(shape, seed) for seed, shape in enumerate(shapes)), slack=3)


# ---- gradients of gradients

TWICE: dict[str, tuple[Function, list[tuple[int, ...]]]] = {
    "mul": (lambda x, y: x * y * y, [(2, 3), (3,)]),
    "div": (lambda x, y: x / (y + 4), [(2, 1), (3,)]),
    "pow": (lambda x: x**3, [(2, 3)]),
    "exp": (lambda x: x.exp(), [(4,)]),
    "tanh": (lambda x: x.tanh(), [(2, 2)]),
    "sigmoid": (lambda x: x.sigmoid(), [(2, 2)]),
    "gelu": (lambda x: f.gelu(x), [(5,)]),
    "silu": (lambda x: f.silu(x), [(5,)]),
    "softplus": (lambda x: f.softplus(x), [(5,)]),
    "log": (lambda x: (x * x + 1).log(), [(4,)]),
    "sqrt": (lambda x: (x * x + 1).sqrt(), [(4,)]),
    "matmul": (lambda x, y: x @ y, [(2, 3), (3, 2)]),
    "batched matmul": (lambda x, y: (x @ y) ** 2, [(2, 2, 3), (3, 2)]),
    "sum of squares": (lambda x: (x * x).sum(1).exp(), [(2, 2)]),
    "mean": (lambda x: (x * x).mean() ** 2, [(3,)]),
    "var": (lambda x: f.var(x, [1], correction=1) ** 2, [(2, 3)]),
    "softmax": (lambda x: f.softmax(x, 1), [(2, 3)]),
    "log_softmax": (lambda x: f.log_softmax(x, 1), [(2, 3)]),
    "logsumexp": (lambda x: f.logsumexp(x, [1]), [(2, 3)]),
    "layer_norm": (lambda x, w, b: f.layer_norm(x, [3], w, b), [(2, 3), (3,), (3,)]),
    "conv2d": (lambda x, w, b: f.conv2d(x, w, b) ** 2, [(1, 2, 3, 3), (2, 2, 2, 2), (2,)]),
    "avg_pool2d": (lambda x: f.avg_pool2d(x * x, [2, 2]), [(1, 1, 4, 4)]),
    "max_pool2d": (lambda x: f.max_pool2d(x**3, [2, 2]), [(1, 1, 4, 4)]),
    "mse": (f.mse_loss, [(2, 3), (2, 3)]),
    "cross entropy": (
        lambda x: f.cross_entropy_loss(x, CustomTensor([2, 0], dtype="int64")),
        [(2, 3)],
    ),
    "prod": (lambda x: f.prod(x, 1), [(2, 3)]),
    "cumprod": (lambda x: x.cumprod(0), [(3, 2)]),
    "norm": (lambda x: f.linalg_vector_norm(x, 2, [1]), [(2, 3)]),
    "index": (lambda x: x[[0, 0, 1]] ** 3, [(2, 2)]),
    "sort": (lambda x: f.sort(x, 0)[0] ** 3, [(4,)]),
    "cat": (lambda x, y: f.cat([x, y]) ** 3, [(2,), (3,)]),
    "where": (lambda x, y: f.where(x.detach() > 0, x * y, y**3), [(2, 2), (2,)]),
    "inverse": (lambda x: f.linalg_inv(x * 0.2 + 2 * f.eye(2, dtype=numpy.dtype("f8"))), [(2, 2)]),
    "attention": (f.scaled_dot_product_attention, [(1, 1, 2, 2), (1, 1, 3, 2), (1, 1, 3, 2)]),
}


@pytest.mark.parametrize("name", TWICE)
def test_gradients_of_gradients(name: str) -> None:
    function, shapes = TWICE[name]
    arrays = [spaced(shape, seed) for seed, shape in enumerate(shapes)]
    check(gradient_of(function), *arrays, slack=20)


def test_a_gradient_penalty_learns_what_finite_differences_say() -> None:
    def penalty(x: Any, w: Any, v: Any) -> Any:
        with enable_grad():
            point = x if x.requires_grad else x.detach().requires_grad_()
            score = (f.tanh(point @ w) @ v).sum()
            (slope,) = tape.grad(score, point, create_graph=True)
        return ((slope * slope).sum(1).sqrt() - 1) ** 2

    check(penalty, spaced((2, 3), 1), spaced((3, 4), 2), spaced((4,), 3), slack=20)


# ---- every line of the table


def _names_of(text: str) -> tuple[set[str], set[str]]:
    """Names that a line reads, and those it makes itself (`for x in`, `lambda x`)."""
    tree = ast.parse(text, mode="eval")
    names = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
    made = {node.id for node in names if isinstance(node.ctx, ast.Store)}
    made |= {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    return {node.id for node in names if isinstance(node.ctx, ast.Load)}, made


@pytest.mark.parametrize("name", sorted(name for name, op in OPS.items() if op.gradient))
def test_a_gradient_line_can_be_read_and_uses_only_names_there_are(name: str) -> None:
    op = OPS[name]
    arguments = {p.name for p in op.schema.parameters}
    results = {f"result{place}" for place in range(op.schema.returns)}
    given_names = {"grad", "grads", "given", "result", *results, *arguments}
    known = given_names | set(gradient_lines.formula_names()) | set(dir(builtins))
    covered: list[str] = []
    for names, text in op.gradient.items():
        read, made = _names_of(text)
        line = gradient_lines.read(op, names, text)
        allowed = known | made | ({"mask"} if len(line.inputs) > 1 else set())
        assert read <= allowed, f"{text!r} uses {sorted(read - allowed)}"
        covered += line.inputs
    assert set(covered) <= arguments
    assert len(covered) == len(set(covered))
    assert all(p.tensor for p in op.schema.parameters if p.name in covered)


# ---- the long sweep


@pytest.mark.slow
@pytest.mark.parametrize("name", UNARY)
@settings(max_examples=examples(60))
@given(shape=SHAPES, seed=SEEDS)
def test_ops_of_one_tensor_in_many_shapes(name: str, shape: tuple[int, ...], seed: int) -> None:
    function, values = UNARY[name]
    check(function, values(shape, seed))
    if shape and 0 not in shape and numpy.prod(shape) < 10:
        check(lambda x: gradient_of(function)(x) or [x * 0], values(shape, seed), slack=50)


@pytest.mark.slow
@pytest.mark.parametrize("name", BINARY)
@settings(max_examples=examples(80))
@given(
    shapes=mutually_broadcastable_shapes(
        num_shapes=2, min_dims=0, max_dims=4, min_side=0, max_side=3
    ),
    seed=SEEDS,
)
def test_ops_of_two_tensors_in_many_shapes(name: str, shapes: Any, seed: int) -> None:
    function, values = BINARY[name]
    one, other = shapes.input_shapes
    check(function, values(one, seed), values(other, seed + 1))

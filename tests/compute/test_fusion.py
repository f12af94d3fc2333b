"""`fuse`: one pass over blocks gives what the plain function gives."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.base.errors import BadInput
from holdfast.compute import CustomTensor, functional, fuse
from holdfast.compute.engines.numpy import threads
from holdfast.compute.engines.numpy.elementwise import c_chains
from holdfast.compute.fusion import chain as fused
from tests.tolerance import bound

NEAR = bound("float32", 16)  # both ways do the same, but for exponentials and the like


@pytest.fixture(
    params=[(1, True), (3, True), (1, False), (3, False)],
    ids=["1 thread, C", "3 threads, C", "1 thread, NumPy", "3 threads, NumPy"],
    autouse=True,
)
def small_blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    team, compiled = request.param
    monkeypatch.setattr(fused, "_BLOCK", 100)
    monkeypatch.setattr(fused, "_SHARED", 100)
    monkeypatch.setattr(c_chains, "_WORTH", 50)
    if not compiled:
        monkeypatch.setattr(c_chains, "kernels", lambda: None)
    elif c_chains.kernels() is None:
        pytest.skip("there is no C compiler")
    before = threads.get_num_threads()
    threads.set_num_threads(team)
    yield
    threads.set_num_threads(before)


def tensor(*shape: int, seed: int = 0, dtype: Any = None) -> CustomTensor:
    return CustomTensor(numpy.random.default_rng(seed).standard_normal(shape), dtype=dtype)


class Counted:
    """A function that knows how often it was called."""

    def __init__(self, function: Any) -> None:
        self.function, self.calls, self.__name__ = function, 0, "counted"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        return self.function(*args, **kwargs)


def check(function: Any, *args: Any, recorded: bool = True, **kwargs: Any) -> Any:
    """Equal to the plain function twice; called once where it was recorded, else each time."""
    counted = Counted(function)
    quick = fuse(counted)
    expected = function(*args, **kwargs)
    for _ in range(2):
        got = quick(*args, **kwargs)
        pairs = (
            zip(got, expected, strict=True)
            if isinstance(expected, tuple | list)
            else [(got, expected)]
        )
        assert type(got) is type(expected)
        for one, other in pairs:
            assert (one.shape, one.dtype) == (other.shape, other.dtype)
            numpy.testing.assert_allclose(
                one.data.astype("float64"), other.data.astype("float64"), rtol=NEAR
            )
    assert counted.calls == (1 if recorded else 3), "recorded, or not"
    return quick


def chain(x: Any, y: Any) -> Any:
    z = x * y + 0.5
    for _ in range(4):
        z = (z - y).abs() * 0.7 + x
    return functional.sigmoid(z) / 2


@pytest.mark.parametrize("shape", [(1000,), (7, 333), (3,), (2, 3, 50, 5), ()])
def test_a_chain_is_recorded_once_and_equal(shape: tuple[int, ...]) -> None:
    check(chain, tensor(*shape), tensor(*shape, seed=1))


@pytest.mark.parametrize(
    ("one", "other"),
    [((40, 30), (30,)), ((40, 30), (40, 1)), ((5, 1, 30), (7, 1)), ((300,), (1,)), ((40, 30), ())],
)
def test_shapes_broadcast(one: tuple[int, ...], other: tuple[int, ...]) -> None:
    check(lambda x, y: (x + 1) * (y * 2 + x).exp(), tensor(*one), tensor(*other, seed=1))


def test_arrays_that_do_not_lie_in_order() -> None:
    x = functional.transpose(tensor(20, 30), 0, 1)
    check(lambda a, b: a * 2 + b, x, tensor(30, 20, seed=1))


@pytest.mark.parametrize("size", [1, 15, 16, 17, 2047, 2048, 2049, 10000])
def test_what_the_c_loop_knows_is_equal_bit_for_bit(size: int) -> None:
    def function(x: Any, y: Any) -> Any:
        z = functional.relu(x * 2 - y) / (y.abs() + 1)
        z = functional.maximum(z, functional.minimum(-x, y)).square()
        return 3 - functional.sqrt(z + 0.1)

    x, y = tensor(size), tensor(size, seed=1)
    x.data[: size // 3 : 7] = numpy.nan
    x.data[size // 2 :: 11] = numpy.inf
    got, wanted = fuse(function)(x, y).data, function(x, y).data
    numpy.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("size", [5000, 40000])
def test_functions_within_a_chain_are_those_of_single_ops(size: int) -> None:
    def function(x: Any, y: Any) -> Any:
        z = functional.silu(x * 2 - y) + functional.gelu(y)
        return functional.sigmoid(z) * functional.gelu(z - 1)

    x, y = tensor(size), tensor(size, seed=1)
    x.data[: size // 3 : 7] = numpy.nan
    x.data[size // 2 :: 11] = -numpy.inf
    got, wanted = fuse(function)(x, y).data, function(x, y).data
    if c_chains.kernels() is not None:  # blocks of NumPy's are too small here for the same loop
        numpy.testing.assert_array_equal(got, wanted)
    numpy.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)


def test_several_results() -> None:
    check(lambda x, y: (x + y, (x * y).exp()), tensor(50, 9), tensor(50, 9, seed=1))
    check(lambda x: [x + 1, (x + 1) * 2], tensor(500))


def test_an_input_that_is_read_to_the_end_is_not_written_to() -> None:
    x = tensor(400)
    before = x.data.copy()
    quick = fuse(lambda a: (a + 1) * a + a)
    first = quick(x).data.copy()
    assert (quick(x).data == first).all()
    assert (x.data == before).all()


@pytest.mark.parametrize("kind", ["float64", "int64", "float16", "bfloat16", "complex64", "bool"])
def test_other_formats(kind: str) -> None:
    x = CustomTensor(numpy.arange(300) % 7, dtype=kind)
    if kind == "complex64":
        quick, plain = fuse(lambda a: a * 2 + 1)(x), x * 2 + 1
        numpy.testing.assert_allclose(quick.data, plain.data, rtol=NEAR)
        return
    check(lambda a: (a + a) * 3, x)
    check(lambda a: a.eq(1), x)


def test_formats_meet_as_they_do_unfused() -> None:
    whole = CustomTensor(numpy.arange(300), dtype="int32")
    check(lambda a, b: a * 0.5 + b, whole, tensor(300))
    check(lambda a, b: functional.where(a.gt(3), b, -b), whole, tensor(300))


def test_other_arguments_have_a_recording_of_their_own() -> None:
    counted = Counted(lambda x, factor, shift=0.0: x * factor + shift)
    quick, x = fuse(counted), tensor(300)
    for factor, shift in ((2.0, 0.0), (3.0, 1.0), (2.0, 0.0), (2, 0.0)):
        expected = x.data * numpy.float32(factor) + numpy.float32(shift)
        numpy.testing.assert_allclose(quick(x, factor, shift=shift).data, expected, rtol=NEAR)
    assert counted.calls == 3


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.sum() + x,
        lambda x: functional.matmul(x, x) * 2,
        lambda x: functional.transpose(x, 0, 1) + 1,
        lambda x: x + CustomTensor(numpy.ones((20, 20))),
        lambda x: x + 1 if x.data[0, 0] > 0 else x - 1,
    ],
)
def test_what_is_not_pointwise_is_called_as_it_is(function: Any) -> None:
    check(function, tensor(20, 20), recorded=False)


def test_random_numbers_are_drawn_anew() -> None:
    quick, x = fuse(lambda a: functional.bernoulli(a * 0 + 0.5) + a), tensor(300)
    assert (quick(x).data != quick(x).data).any()


def test_an_argument_handed_back_is_itself() -> None:
    x = tensor(300)
    assert fuse(lambda a: a)(x) is x


def test_gradients_go_through_the_plain_function() -> None:
    x = CustomTensor(numpy.arange(300), requires_grad=True)
    fuse(lambda a: (a * 2 + 1) * a)(x).sum().backward()
    assert x.grad is not None
    numpy.testing.assert_allclose(x.grad.data, 4 * x.data + 1)


def test_an_error_is_the_plain_function_s() -> None:
    x, y = tensor(300), tensor(301)
    with pytest.raises(BadInput) as plain:
        x + y
    with pytest.raises(BadInput) as quick:
        fuse(lambda a, b: a + b)(x, y)
    assert str(quick.value) == str(plain.value)


def test_nothing_stays_nothing() -> None:
    assert fuse(lambda x: x * 2 + 1)(tensor(0, 5)).shape == (0, 5)


_OPS = {
    "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b * 0.1,
    "max": functional.maximum, "neg": lambda a, b: -a, "tanh": lambda a, b: functional.tanh(b),
    "relu": lambda a, b: functional.relu(a), "where": lambda a, b: functional.where(a > b, a, b),
    "clamp": lambda a, b: functional.clamp(a, -1, 1), "scale": lambda a, b: 2 - a * 0.5,
}  # fmt: skip


@given(
    st.lists(
        st.tuples(st.sampled_from(sorted(_OPS)), st.integers(0, 9), st.integers(0, 9)),
        min_size=1,
        max_size=15,
    )
)
def test_any_chain_is_equal(program: list[tuple[str, int, int]]) -> None:
    def function(x: Any, y: Any) -> Any:
        values = [x, y]
        for name, one, other in program:
            values.append(_OPS[name](values[one % len(values)], values[other % len(values)]))
        return values[-1]

    x, y = tensor(250), tensor(250, seed=1)
    numpy.testing.assert_allclose(fuse(function)(x, y).data, function(x, y).data, rtol=NEAR)


def test_numbers_that_are_equal_and_yet_differ_are_told_apart() -> None:
    divided = fuse(lambda x, by: x / by)
    assert divided(tensor(250).abs() + 1, 0.0).tolist() == [float("inf")] * 250
    assert divided(tensor(250).abs() + 1, -0.0).tolist() == [-float("inf")] * 250

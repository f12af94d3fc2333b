"""Tensors as Python and NumPy see them: operators, formats, memory, the notes for gradients."""

from __future__ import annotations

import copy
import gc
import operator
import pickle
import sys
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.base.errors import BadInput, Misuse
from holdfast.compute import (
    AutogradTensor,
    CustomDevice,
    CustomTensor,
    enable_grad,
    from_dlpack,
    from_numpy,
    functional,
    is_grad_enabled,
    no_grad,
    ones,
    tensor,
    zeros,
)
from holdfast.compute.autograd import tape
from holdfast.memory.pools.manager import memory_manager
from tests.contract.torch_bridge import to_torch
from tests.examples import examples

FORMATS = [
    *("bool", "uint8", "int8", "int16", "int32", "int64"),
    *("float16", "bfloat16", "float32", "float64", "complex64", "complex128"),
]
ARITHMETIC = ["add", "sub", "mul", "truediv", "floordiv", "mod", "pow"]
BITS = ["and_", "or_", "xor", "lshift", "rshift"]
COMPARISONS = ["eq", "ne", "lt", "le", "gt", "ge"]


def theirs(kind: str) -> torch.dtype:
    return getattr(torch, kind)


def pair(kind: str, values: Any) -> tuple[CustomTensor, torch.Tensor]:
    made = torch.tensor(values).to(theirs(kind))
    return tensor(made), made


def agree(found: Any, expected: Any) -> None:
    assert isinstance(found, CustomTensor)
    torch.testing.assert_close(
        to_torch(found.data), expected, equal_nan=True, check_stride=False, check_device=False
    )


def attempt(function: Any, *args: Any) -> Any:
    """What torch answers, or None where it refuses."""
    try:
        return function(*args)
    except (RuntimeError, TypeError):
        return None


@pytest.fixture
def without_collector() -> Iterator[None]:
    """What is freed in the test is freed because nothing refers to it, not by the collector."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


# ---- operators


@pytest.mark.parametrize("name", [*ARITHMETIC, *BITS, *COMPARISONS])
@pytest.mark.parametrize("left", FORMATS)
def test_an_operator_answers_as_torch_does_in_every_pair_of_formats(name: str, left: str) -> None:
    function = getattr(operator, name)
    for right in FORMATS:
        a, b = pair(left, [[1, 2, 3], [1, 2, 0]]), pair(right, [1, 2, 3])
        expected = attempt(function, a[1], b[1])
        if expected is None:  # bits of floats, comparing complex numbers …
            continue
        agree(function(a[0], b[0]), expected)


@pytest.mark.parametrize("name", [*ARITHMETIC, *BITS, *COMPARISONS])
@pytest.mark.parametrize("number", [2, 2.5, True, 1 + 2j], ids=repr)
def test_an_operator_with_a_number_answers_as_torch_does_from_both_sides(
    name: str, number: Any
) -> None:
    function = getattr(operator, name)
    for kind in FORMATS:
        if isinstance(number, complex) and kind in ("float16", "bfloat16"):
            continue  # torch has complex numbers of two halves, and computes in them
        ours, other = pair(kind, [1, 2, 3])
        for args, against in (
            ((ours, number), (other, number)),
            ((number, ours), (number, other)),
        ):
            expected = attempt(function, *against)
            if expected is not None:
                agree(function(*args), expected)


@pytest.mark.parametrize("name", [*ARITHMETIC, *BITS])
@pytest.mark.parametrize("kind", ["int64", "float32"])
def test_an_operator_in_place_changes_the_tensor_itself(name: str, kind: str) -> None:
    ours, other = pair(kind, [4, 5, 6])
    function = getattr(operator, f"i{name.rstrip('_')}")
    expected = attempt(function, other, torch.tensor([1, 2, 1]).to(theirs(kind)))
    if expected is None:
        with pytest.raises(BadInput):
            function(ours, pair(kind, [1, 2, 1])[0])
        return
    memory = ours.data
    changed = function(ours, pair(kind, [1, 2, 1])[0])
    assert changed is ours
    assert ours.data is memory
    agree(ours, expected)


@pytest.mark.parametrize("name", ["add", "sub", "mul", "truediv", "pow", "matmul", "mod", "lt"])
def test_arrays_and_lists_join_in_from_both_sides(name: str) -> None:
    function = getattr(operator, name)
    array = numpy.array([[1.0, 2.0], [3.0, 4.0]], numpy.float32)
    x = tensor(array * 2)
    for other in (array, array.tolist()):
        for found, expected in (
            (function(x, other), function(array * 2, array)),
            (function(other, x), function(array, array * 2)),
        ):
            assert isinstance(found, CustomTensor)
            numpy.testing.assert_array_equal(found.data, expected)


@pytest.mark.parametrize("number", [numpy.float64(2), numpy.float32(2), numpy.int64(2)])
def test_a_number_of_numpy_counts_as_a_number(number: Any) -> None:
    for x in (tensor([1.0, 2.0]), tensor(3.0)):
        for found in (x * number, number * x, x - number, number - x, number / x, x**number):
            assert found.dtype == numpy.float32
    assert (number - tensor([1.0, 5.0])).tolist() == [1, -3]


def test_unary_operators_and_divmod() -> None:
    x = tensor([-7, 3, 4])
    assert (-x).tolist() == [7, -3, -4]
    assert (+x) is x
    assert abs(x).tolist() == [7, 3, 4]
    assert (~x).tolist() == [6, -4, -5]
    assert [part.tolist() for part in divmod(x, 4)] == [[-2, 0, 1], [1, 3, 0]]
    assert [part.tolist() for part in divmod(9, x)] == [[-2, 3, 2], [-5, 0, 1]]
    y = tensor([[1.0, 2.0], [3.0, 4.0]])
    same = y
    y @= y  # as in torch, there is no matrix product in place
    assert y is not same
    assert y.tolist() == [[7, 10], [15, 22]]


@pytest.mark.parametrize(
    "other", ["text", None, object(), {}, (1, 2)], ids=lambda o: type(o).__name__
)
def test_what_is_no_number_is_left_to_python(other: Any) -> None:
    x = tensor([1.0, 2.0])
    for name in ("add", "sub", "mul", "truediv", "matmul", "lt"):
        with pytest.raises(TypeError):
            getattr(operator, name)(x, other)
        with pytest.raises(TypeError):
            getattr(operator, name)(other, x)
    assert (x == other) is False
    assert (x != other) is True


def test_a_matrix_product_with_a_number_is_a_type_error() -> None:
    for args in ((ones(2, 2), 2), (2.0, ones(2, 2)), (ones(2, 2), numpy.float32(2))):
        with pytest.raises(TypeError):
            operator.matmul(*args)


SIZES = st.lists(st.integers(0, 3), max_size=3).map(tuple)


@settings(max_examples=examples(60))
@given(st.data())
def test_shapes_broadcast_as_numpy_has_it(data: st.DataObject) -> None:
    one, other = data.draw(SIZES), data.draw(SIZES)
    a, b = numpy.ones(one, numpy.float32), numpy.full(other, 2, numpy.float32)
    try:
        expected = a + b
    except ValueError:
        with pytest.raises(BadInput):
            tensor(a) + tensor(b)
        return
    found = tensor(a) + tensor(b)
    assert found.shape == expected.shape
    numpy.testing.assert_array_equal(found.data, expected)


@pytest.mark.parametrize("size", [1, 4095, 4096, 5000])
def test_the_short_way_for_small_sums_answers_like_the_long_one(size: int) -> None:
    a, b = numpy.linspace(-1, 1, size, dtype=numpy.float32), numpy.ones(size, numpy.float32)
    for name in ("add", "sub", "mul"):
        function = getattr(operator, name)
        quick = function(tensor(a), tensor(b))
        numpy.testing.assert_array_equal(quick.data, function(a, b))
        noted = function(CustomTensor(a, requires_grad=True), tensor(b))
        assert noted.grad_fn is not None
        numpy.testing.assert_array_equal(noted.data, quick.data)


# ---- out=


def test_out_takes_the_result_and_is_returned() -> None:
    x, out = tensor([[1.0, 2.0], [3.0, 4.0]]), zeros(2, 2)
    memory = out.data
    assert functional.matmul(x, x, out=out) is out
    assert out.data is memory
    assert out.tolist() == [[7, 10], [15, 22]]
    assert functional.matmul(x, x, out=x).tolist() == [[7, 10], [15, 22]]
    wider = zeros(2, 2, dtype="float64")
    assert functional.add(out, 1, out=wider).dtype == numpy.float64


def test_out_for_two_results_takes_two() -> None:
    x = tensor([[1.0, 9.0], [5.0, 4.0]])
    values, places = zeros(2), zeros(2, dtype="int64")
    functional.max(x, 1, out=(values, places))
    assert (values.tolist(), places.tolist()) == ([9, 5], [1, 0])


def test_nothing_is_written_where_one_of_two_results_does_not_fit() -> None:
    x = tensor([[1.0, 9.0], [5.0, 4.0]])
    values, places = zeros(2), zeros(3, dtype="int64")
    with pytest.raises(BadInput):
        functional.max(x, 1, out=(values, places))
    assert values.tolist() == [0, 0]


def test_the_gradient_goes_through_out() -> None:
    x, out = AutogradTensor([1, 2], requires_grad=True), zeros(2)
    functional.mul(x, 3, out=out)
    out.sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [3, 3]


# ---- in place, with gradients


def test_a_result_changed_in_place_has_the_right_gradient() -> None:
    x = AutogradTensor([1, 2, 3], requires_grad=True)
    y = x * 2
    y.mul_(y)  # (2x)²
    y.add_(1).sqrt_()
    y.sum().backward()
    values = numpy.array([1, 2, 3.0])
    assert x.grad is not None
    numpy.testing.assert_allclose(x.grad.data, 4 * values / numpy.sqrt(4 * values**2 + 1), 1e-6)


def test_a_plain_tensor_takes_over_a_gradient_in_place() -> None:
    x, total = AutogradTensor([1, 2], requires_grad=True), zeros(2)
    for factor in (1, 2, 3):
        total += x * factor
    total.sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [6, 6]


def test_a_leaf_may_be_changed_where_gradients_are_off() -> None:
    x = AutogradTensor([1, 2], requires_grad=True)
    with no_grad():
        x -= 1
    assert x.tolist() == [0, 1]
    assert x.is_leaf
    assert x.requires_grad


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x.add_(1),
        lambda x: x.detach().mul_(2),
        lambda x: x.view(2).zero_(),
        lambda x: operator.setitem(x, 0, 5),
        lambda x: functional.add(ones(2), 1, out=x),
        lambda x: setattr(x, "data", [1, 2]),
    ],
    ids=["method", "detached", "view", "item", "out", "data"],
)
def test_a_change_of_what_a_gradient_needs_is_noticed_however_it_is_made(change: Any) -> None:
    x = AutogradTensor([1, 2], requires_grad=True)
    y = (x * x).sum()
    with no_grad():
        change(x)
    with pytest.raises(Misuse, match=r"argument 'self'.*changed in place after it was used"):
        y.backward()


@pytest.mark.parametrize("name", ["exp", "sigmoid", "tanh", "sqrt"])
def test_a_change_of_a_result_that_a_gradient_needs_is_noticed(name: str) -> None:
    x = AutogradTensor([1, 2], requires_grad=True)
    y = getattr(x, name)()
    y.mul_(2)
    with pytest.raises(Misuse, match=f"backward through {name}: its result .* changed in place"):
        y.sum().backward()


def test_a_view_of_what_was_changed_in_place_since_is_not_used() -> None:
    x = AutogradTensor([1, 2], requires_grad=True)
    y = x * 2
    part = y[0]
    y.mul_(3)
    with pytest.raises(Misuse, match="make the view again"):
        part.backward()
    y[0].backward()
    assert x.grad is not None
    assert x.grad.tolist() == [6, 0]


def test_a_view_of_a_parameter_outlives_its_training_step() -> None:
    x = AutogradTensor([1, 2], requires_grad=True)
    turned = x.view(2, 1)
    with no_grad():
        x.sub_(0.5)
    turned.sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [1, 1]


def _first_row(y, w):
    row = y[0]
    row *= w
    return y


def _columns_twice(y, w):
    part = y[:, 1:]
    part.mul_(3)
    part.add_(w[:2])
    return y * y


def _row_by_index(y, w):
    y[0] += w
    return y * 2


def _turned(y, w):
    turned = y.T
    turned[0].mul_(w[:2])
    return y


def _view_of_a_view(y, w):
    rest = y[0][1:]
    rest *= w[1:]
    return y + rest.sum()


def _into_zeros(y, w):
    total = (y * 0).detach().clone()
    row = total[1]
    row += w
    return total * y + row


@pytest.mark.parametrize(
    "change",
    [_first_row, _columns_twice, _row_by_index, _turned, _view_of_a_view, _into_zeros],
    ids=lambda change: change.__name__.strip("_"),
)
def test_a_view_changed_in_place_changes_its_tensor_and_the_gradients(change) -> None:
    arrays = numpy.arange(1, 7, dtype="float32").reshape(2, 3), numpy.array([2, 3, 4], "float32")
    ours = [tensor(a, requires_grad=True) for a in arrays]
    theirs = [torch.tensor(a, requires_grad=True) for a in arrays]
    found, expected = (change(x * 1, w) for x, w in (ours, theirs))
    slopes = numpy.arange(6, dtype="float32").reshape(2, 3) + 1
    found.backward(tensor(slopes))
    expected.backward(torch.from_numpy(slopes))
    assert numpy.allclose(found.data, expected.detach().numpy())
    for one, other in zip(ours, theirs, strict=True):
        assert one.grad is not None
        assert numpy.allclose(one.grad.data, other.grad.numpy())


# ---- switching gradients off and on


def test_no_grad_and_enable_grad_nest_and_come_back_after_an_error() -> None:
    x = AutogradTensor([1], requires_grad=True)
    assert is_grad_enabled()
    with no_grad():
        assert not (x * 2).requires_grad
        with enable_grad():
            assert (x * 2).requires_grad
        assert not is_grad_enabled()
        with pytest.raises(ZeroDivisionError), enable_grad():
            _ = 1 / 0
        assert not is_grad_enabled()
    assert is_grad_enabled()


def test_no_grad_is_a_decorator_also_of_a_function_that_calls_itself() -> None:
    seen = []

    @no_grad()
    def count(times: int) -> None:
        seen.append(is_grad_enabled())
        if times:
            count(times - 1)

    count(2)
    assert seen == [False] * 3
    assert is_grad_enabled()


def test_each_thread_has_its_own_switch() -> None:
    seen = []
    with no_grad():
        thread = threading.Thread(target=lambda: seen.append(is_grad_enabled()))
        thread.start()
        thread.join()
    assert seen == [True]


def test_threads_compute_gradients_beside_each_other() -> None:
    found: dict[int, list[float]] = {}

    def work(number: int) -> None:
        for _ in range(20):
            x = AutogradTensor([number, 2], requires_grad=True)
            (x * x).exp().log().sum().backward()
            assert x.grad is not None
            found[number] = x.grad.tolist()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number in range(1, 5):
        assert found[number] == pytest.approx([2 * number, 4], rel=1e-5)


# ---- NumPy, torch, DLPack


SHARED = ["uint8", "int8", "int32", "int64", "float16", "float32", "float64", "complex64"]


@pytest.mark.parametrize("kind", [*SHARED, "bool"])
def test_dlpack_shares_memory_with_numpy_and_torch_both_ways(kind: str) -> None:
    x = tensor(numpy.array([0, 1, 0], kind))
    array, other = numpy.from_dlpack(x), torch.from_dlpack(x)
    x[0] = 1
    assert array[0] == 1
    assert other[0] == 1
    for source in (numpy.array([0, 1], kind), torch.tensor([0, 1]).to(theirs(kind))):
        made = from_dlpack(source)
        assert made.dtype == kind
        source[0] = 1
        assert made[0].item() == 1


def test_dlpack_keeps_strides_and_lifetime() -> None:
    x = tensor(numpy.arange(12.0).reshape(3, 4)).T
    other = torch.from_dlpack(x)
    assert other.stride() == x.stride() == (1, 4)
    del x
    assert other.sum().item() == 66


def test_numpy_shares_memory_and_so_does_from_numpy() -> None:
    x = tensor([1.0, 2.0])
    x.numpy()[0] = 7
    assert x.tolist() == [7, 2]
    assert x.numpy() is x.data
    assert numpy.shares_memory(numpy.asarray(x), x.data)
    assert not numpy.shares_memory(numpy.array(x), x.data)
    array = numpy.zeros(2)
    from_numpy(array).add_(1)
    assert array.tolist() == [1, 1]


def test_making_a_tensor_copies() -> None:
    array = numpy.zeros(2, numpy.float32)
    for made in (CustomTensor(array), tensor(array), CustomTensor(CustomTensor(array))):
        made.add_(1)
        assert array.tolist() == [0, 0]


@pytest.mark.parametrize("kind", FORMATS)
def test_a_torch_tensor_keeps_its_format(kind: str) -> None:
    source = torch.tensor([0, 1]).to(theirs(kind))
    assert tensor(source).dtype.name == kind
    assert tensor(source).tolist() == [0, 1]
    if not source.is_complex():
        assert CustomTensor(source).dtype == numpy.float32


def test_torchs_lazy_conjugate_is_read_as_the_numbers_it_stands_for() -> None:
    assert tensor(torch.tensor([1 + 2j]).conj()).tolist() == [1 - 2j]
    assert tensor(torch.tensor([1 + 2j]).conj().imag).tolist() == [-2]
    assert tensor(torch.ones(2, requires_grad=True)).tolist() == [1, 1]


def test_the_format_of_plain_numbers_is_torchs() -> None:
    for values in ([1.5], [1], [True], [1 + 2j], [1, 2.5], 3, []):
        assert tensor(values).dtype.name == str(torch.tensor(values).dtype).removeprefix("torch.")
    assert CustomTensor([1]).dtype == numpy.float32


# ---- copies and texts


@pytest.mark.parametrize("kind", FORMATS)
def test_pickle_brings_everything_back(kind: str) -> None:
    x = tensor([0, 1, 1], dtype=kind)
    found = pickle.loads(pickle.dumps(x))
    assert (type(found), found.dtype, found.device) == (CustomTensor, x.dtype, x.device)
    assert found.tolist() == x.tolist()


def test_pickle_keeps_the_class_and_what_a_leaf_asks_for() -> None:
    leaf = pickle.loads(pickle.dumps(AutogradTensor([1], requires_grad=True, device="custom_gpu")))
    assert isinstance(leaf, AutogradTensor)
    assert leaf.requires_grad
    assert str(leaf.device) == "custom_gpu:0"
    assert not pickle.loads(pickle.dumps(leaf * 2)).requires_grad
    part = ones(1000, 1000)[0, :2]
    assert len(pickle.dumps(part)) < 1000


def test_a_deep_copy_is_apart_and_has_its_own_gradient() -> None:
    x = AutogradTensor([1, 2], requires_grad=True)
    x.sum().backward()
    found = copy.deepcopy([x, x])
    assert found[0] is found[1]
    assert isinstance(found[0], AutogradTensor)
    assert found[0].requires_grad
    assert found[0].grad is not None
    found[0].grad.zero_()
    assert x.grad is not None
    assert x.grad.tolist() == [1, 1]
    assert not numpy.shares_memory(found[0].data, x.data)


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (lambda: CustomTensor([1, 2]), "tensor([1., 2.])"),
        (lambda: CustomTensor(1.5), "tensor(1.5)"),
        (lambda: CustomTensor([]), "tensor([])"),
        (lambda: CustomTensor([[1, 2], [3, 4]]), "tensor([[1., 2.],\n        [3., 4.]])"),
        (lambda: CustomTensor([1], dtype="int64"), "tensor([1])"),
        (lambda: CustomTensor([1.5], dtype="bfloat16"), "tensor([1.5], dtype=bfloat16)"),
        (lambda: CustomTensor([1], "custom_gpu"), "tensor([1.], device='custom_gpu:0')"),
        (lambda: AutogradTensor([1], True), "tensor([1.], requires_grad=True)"),
        (lambda: AutogradTensor([1], True) * 2, "tensor([2.], grad_fn=<backward of mul.Scalar>)"),
        (lambda: CustomTensor([1j], dtype="complex64"), "tensor([0.+1.j], dtype=complex64)"),
        (
            lambda: CustomTensor(range(2000), dtype="int64"),
            "tensor([   0,    1,    2, ..., 1997, 1998, 1999])",
        ),
    ],
)
def test_a_tensor_shows_its_numbers_and_what_is_special_about_it(made: Any, text: str) -> None:
    assert repr(made()) == str(made()) == f"{made()}" == text


def test_single_numbers_come_out_as_pythons() -> None:
    assert tensor([[2.5]]).item() == 2.5
    assert isinstance(tensor(2, dtype="bfloat16").item(), float)
    assert isinstance(tensor(2).item(), int)
    assert isinstance(tensor(True).item(), bool)
    assert (float(tensor(2)), int(tensor(2.9)), complex(tensor(1j))) == (2.0, 2, 1j)
    assert [10, 20][tensor(1)] == 20
    assert f"{tensor(2.345):.2f}" == "2.35"
    assert bool(tensor([1])) is True
    assert bool(tensor(0.0)) is False
    assert list(range(tensor(3))) == [0, 1, 2]


def test_a_tensor_is_a_sequence_of_its_parts() -> None:
    x = tensor([[1, 2], [3, 4], [5, 6]])
    assert len(x) == 3
    assert [part.tolist() for part in x] == [[1, 2], [3, 4], [5, 6]]
    assert 4 in x
    assert 7 not in x
    first, *rest = x
    first.zero_()
    assert x[0].tolist() == [0, 0]
    assert len(rest) == 2


@pytest.mark.parametrize("function", [len, iter])
def test_a_tensor_without_dimensions_has_no_parts(function: Any) -> None:
    with pytest.raises(TypeError, match="len\\(\\) of a tensor without dimensions"):
        function(tensor(1.0))


def test_a_tensor_is_its_own_key() -> None:
    x, y = tensor([1]), tensor([1])
    assert {x: 1, y: 2}[x] == 1


# ---- to


def test_to_returns_itself_where_nothing_changes() -> None:
    x = tensor([1.0])
    assert x.to("float32") is x
    assert x.to(x.device) is x
    assert x.to(numpy.float32, device="cpu") is x
    assert x.float() is x
    assert x.to("float32", copy=True) is not x


@pytest.mark.filterwarnings("ignore:Casting complex values to real:UserWarning")
@pytest.mark.parametrize("kind", FORMATS)
def test_to_casts_as_torch_does(kind: str) -> None:
    for source in FORMATS:
        ours, other = pair(source, [0, 1, 3])
        agree(ours.to(kind), other.to(theirs(kind)))
        assert ours.to(theirs(kind)).dtype.name == kind


def test_to_takes_what_torch_takes() -> None:
    x = tensor([1.5])
    assert x.to(torch.float64).dtype == numpy.float64
    assert x.to(int).dtype == numpy.int64
    assert x.to(tensor([1])).dtype == numpy.int64
    assert x.to("custom_gpu", "float16").device == CustomDevice("custom_gpu")
    assert x.to("cpu", dtype="int32").dtype == numpy.int32
    names = ("float", "double", "half", "bfloat16", "long", "int", "bool")
    kinds = [str(getattr(x, name)().dtype) for name in names]
    assert kinds == ["float32", "float64", "float16", "bfloat16", "int64", "int32", "bool"]


def test_the_gradient_follows_a_cast_back() -> None:
    x = AutogradTensor([1, 2], requires_grad=True)
    (x.to("float64") * 3).to("float16").sum().backward()
    assert x.grad is not None
    assert x.grad.dtype == numpy.float32
    assert x.grad.tolist() == [3, 3]


def test_a_device_of_the_same_engine_is_the_same_memory() -> None:
    x = AutogradTensor([1, 2], requires_grad=True)
    there = x.to("custom_gpu")
    assert str(there.device) == "custom_gpu:0"
    assert numpy.shares_memory(there.data, x.data)
    (there * x).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [2, 4]


# ---- memory


def _in_use() -> int:
    return memory_manager.pool("cpu").stats().allocated_bytes


@pytest.mark.parametrize(
    "make",
    [
        lambda: ones(64, 64),
        lambda: CustomTensor(numpy.ones((64, 64))),
        lambda: tensor(numpy.ones((64, 64), numpy.float32)),
        lambda: ones(64, 64) + 1,
        lambda: ones(64, 64) @ ones(64, 64),
        lambda: functional.softmax(ones(64, 64), 1),
        lambda: ones(64, 64).to("int32"),
        lambda: functional.conv2d(ones(1, 1, 66, 66), ones(1, 1, 3, 3)),
        lambda: functional.cat([ones(32, 64), ones(32, 64)]),
    ],
    ids=["ones", "Custom", "tensor", "sum", "product", "softmax", "cast", "conv2d", "cat"],
)
def test_a_result_of_16_kb_lies_in_the_pool_until_it_dies(
    make: Any, without_collector: None
) -> None:
    make()
    before = _in_use()
    made = make()
    assert _in_use() >= before + 16384
    part = made[0]
    del made
    assert _in_use() >= before + 16384  # a view keeps all of it
    del part
    assert _in_use() == before


def test_views_share_memory_and_their_version() -> None:
    x = tensor(numpy.arange(24.0).reshape(2, 3, 4))
    for view in (
        *(x[0], x[..., 1:3], x.T, x.mT, x.permute(2, 0, 1), x.view(6, 4), x.reshape(24)),
        *(x.expand(5, 2, 3, 4), x.unsqueeze(0), x.squeeze(), x.transpose(0, 1), x.detach()),
        *(x.narrow(2, 1, 2), x.diagonal(), x.flatten(), x.real, x.split(2, 2)[1], x.chunk(2)[0]),
    ):
        assert numpy.shares_memory(view.data, x.data)
        if view is not x:
            assert view._base is x
    version = x._current_version()
    x.view(24)[3:5].zero_()
    assert x._current_version() == version + 1
    assert x[0, 0].tolist() == [0, 1, 2, 0]


# ---- backward


def test_a_hook_sees_the_whole_gradient_once_and_may_change_it() -> None:
    x, seen = AutogradTensor([1, 2], requires_grad=True), []
    x.register_hook(lambda g: seen.append(g.tolist()))
    handle = x.register_hook(lambda g: g * 10)
    (x * 2 + x * 3).sum().backward()
    assert x.grad is not None
    assert (seen, x.grad.tolist()) == ([[5, 5]], [50, 50])
    handle.remove()
    handle.remove()
    x.grad = None
    x.sum().backward()
    assert x.grad is not None
    assert (seen[1:], x.grad.tolist()) == ([[1, 1]], [1, 1])


def test_a_hook_of_a_result_stays_with_it_also_when_it_is_gone() -> None:
    x, seen = AutogradTensor([1, 2], requires_grad=True), []
    y = x * 2
    y.register_hook(lambda g: seen.append(g.tolist()))
    y.register_hook(lambda g: -g)
    z = (y + y * 3).sum()
    assert y.grad is None
    del y
    z.backward()
    assert x.grad is not None
    assert (seen, x.grad.tolist()) == ([[4, 4]], [-8, -8])


def test_retain_grad_keeps_a_results_gradient_whenever_it_is_called() -> None:
    x = AutogradTensor([1, 2], requires_grad=True)
    y = x * 2
    z = (y * y).sum()
    y.retain_grad()
    y.retain_grad()
    z.retain_grad()
    z.backward()
    assert y.grad is not None
    assert z.grad is not None
    assert (y.grad.tolist(), z.grad.item()) == ([4, 8], 1)


def test_retain_grad_follows_a_result_that_is_changed_in_place() -> None:
    x = AutogradTensor([1, 2], requires_grad=True)
    y = x * 2
    y.retain_grad()
    y.mul_(5)
    (y * 3).sum().backward()
    assert y.grad is not None
    assert x.grad is not None
    assert (y.grad.tolist(), x.grad.tolist()) == ([3, 3], [30, 30])


def test_gradients_add_up_over_several_backwards() -> None:
    x = AutogradTensor([1, 2], requires_grad=True)
    y = (x * x).sum()
    y.backward(retain_graph=True)
    y.backward()
    assert x.grad is not None
    assert x.grad.tolist() == [4, 8]
    with pytest.raises(Misuse, match="a second time"):
        y.backward()


def test_two_leaves_do_not_share_a_gradient() -> None:
    x, y = AutogradTensor([1], True), AutogradTensor([1], True)
    (x + y).backward()
    assert x.grad is not None
    assert y.grad is not None
    x.grad.zero_()
    assert y.grad.tolist() == [1]


def test_grad_returns_gradients_and_touches_none() -> None:
    x, w = AutogradTensor([1, 2], True), AutogradTensor([3, 4], True)
    y = x * w
    z = (y * y).sum()
    for_y, for_x = tape.grad(z, [y, x], retain_graph=True)
    assert (for_y.tolist(), for_x.tolist()) == ([6, 16], [18, 64])
    (for_w,) = tape.grad(z, w)
    assert for_w.tolist() == [6, 32]
    assert (x.grad, w.grad, y.grad) == (None, None, None)
    (seeded,) = tape.grad([x * 2, x * 3], x, [tensor([1.0, 0.0]), tensor([0.0, 1.0])])
    assert seeded.tolist() == [2, 3]


def test_grad_answers_none_for_what_was_not_used_where_that_is_allowed() -> None:
    x, w = AutogradTensor([1], True), AutogradTensor([1], True)
    found = tape.grad(x * 2, [x, w], allow_unused=True)
    assert found[0].tolist() == [2]
    assert found[1] is None


def test_create_graph_makes_gradients_of_gradients() -> None:
    x = AutogradTensor([2], True)
    order = x**5
    for factor, power in ((5, 4), (20, 3), (60, 2), (120, 1)):
        (order,) = tape.grad(order, x, create_graph=True)
        assert order.tolist() == [factor * 2**power]
    x.grad = None
    (x**3).backward(create_graph=True)
    assert x.grad is not None
    assert x.grad.requires_grad


def test_a_graph_of_many_thousand_calls_is_no_problem() -> None:
    x = AutogradTensor([1], True)
    y = x
    for _ in range(20000):
        y = y + 1
    y.backward()
    assert x.grad is not None
    assert x.grad.tolist() == [1]


def test_what_a_gradient_needs_is_freed_by_backward(without_collector: None) -> None:
    x = AutogradTensor([1, 2], True)
    between = x * 2
    y = (between * between).exp().sum()
    known = weakref.ref(between)
    del between
    assert known() is not None
    y.backward()
    assert known() is None


@pytest.mark.parametrize("retain", [False, True])
def test_a_graph_has_no_cycles(retain: bool, without_collector: None) -> None:
    x, w = AutogradTensor(numpy.ones((4, 4)), True), AutogradTensor(numpy.ones((4, 4)), True)
    y = functional.softmax((x @ w).tanh().exp(), 1)
    y.register_hook(lambda g: None)
    y.retain_grad()
    z = y.max(1)[0].sum()
    dead = [weakref.ref(t) for t in (y, z)]
    if retain:
        z.backward(retain_graph=True)
    del y, z
    assert [ref() for ref in dead] == [None, None]


def test_only_what_a_gradient_line_mentions_is_kept(without_collector: None) -> None:
    x = AutogradTensor([1, 2], True)
    between = x * 2
    y = between + 1  # its gradient needs no numbers
    known = weakref.ref(between)
    del between
    assert known() is None
    y.sum().backward()


# ---- what goes in must not become something else


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: CustomTensor([1 + 2j]), "list: float32 cannot hold complex numbers"),
        (lambda: CustomTensor("12"), "str: rows of different lengths, or no numbers"),
        (lambda: CustomTensor(["1", "2"]), "list: rows of different lengths, or no numbers"),
        (lambda: tensor([300], dtype="uint8"), "list: uint8 ranges from 0 to 255"),
        (
            lambda: tensor([1.0, float("nan")], "int64"),
            "list: int64 cannot hold NaN or infinity",
        ),
    ],
    ids=["complex", "text", "texts", "too large", "NaN"],
)
def test_numbers_that_another_format_cannot_hold_are_refused(make, reason) -> None:
    with pytest.raises(BadInput) as caught:
        make()
    assert str(caught.value) == (
        f"cannot make a tensor of {reason}\n  expected: numbers, in rows of one length, or an array"
    )


def test_a_list_of_fractions_is_not_cut_to_whole_numbers() -> None:
    assert (tensor([1, 2]) - [1.5, 2.5]).tolist() == [-0.5, -0.5]
    assert ([1.5, 2.5] - tensor([1, 2])).tolist() == [0.5, 0.5]
    assert (tensor([1.0, 2.0], "float16") * [1, 2]).dtype == numpy.float16


def test_a_result_that_does_not_fit_into_memory_is_said() -> None:
    with pytest.raises(MemoryError) as caught:
        zeros(1 << 20, 1).expand(1 << 20, 1 << 30).clone()
    assert str(caught.value) == (
        "cannot compute clone(float32[1048576, 1073741824]): no memory for the result\n"
        "  expected: a result that fits into the memory of this machine\n"
        "  try: fewer rows at a time"
    )


def test_a_shallow_copy_is_another_tensor_over_the_same_memory() -> None:
    x = tensor([1.0, 2.0], requires_grad=True)
    other = copy.copy(x)
    assert other is not x
    assert other._array is x._array
    assert other.requires_grad


def test_no_grad_decorates_with_and_without_brackets() -> None:
    x = tensor([1.0], requires_grad=True)

    @no_grad
    def plain() -> Any:
        return x * 2

    @no_grad()
    def called() -> Any:
        return x * 2

    assert not plain().requires_grad
    assert not called().requires_grad


def test_threads_that_go_backward_to_one_leaf_lose_nothing() -> None:
    x = tensor(numpy.zeros(4, "float32"), requires_grad=True)

    def work() -> None:
        for _ in range(100):
            (x * 1.0).sum().backward()

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        team = [threading.Thread(target=work) for _ in range(4)]
        for thread in team:
            thread.start()
        for thread in team:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    assert x.grad is not None
    assert x.grad.tolist() == [400] * 4

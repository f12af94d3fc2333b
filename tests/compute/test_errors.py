"""What is refused, and in which words: the op, the shapes, what would work."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import pytest

from holdfast.base.errors import BadInput, HoldfastError, Misuse, NotFound
from holdfast.base.registry import Entry
from holdfast.compute import (
    ENGINES,
    AutogradTensor,
    CustomDevice,
    CustomTensor,
    empty,
    from_dlpack,
    from_numpy,
    full,
    matmul,
    nn,
    no_grad,
    ones,
    tensor,
)
from holdfast.compute import functional as f
from holdfast.compute.autograd import tape
from holdfast.compute.engines.numpy import NumpyEngine
from holdfast.compute.ops import table
from holdfast.compute.tensors import device

BROADCAST = "shapes that broadcast: from the right, sizes are equal or one of them is 1"
FORMATS = (
    "bool, uint8, int8, int16, uint16, int32, uint32, int64, uint64, float16, float32, float64, "
    "complex64, complex128, bfloat16, float8_e4m3fn, float8_e5m2"
)
PRODUCT = "the columns of the first to be the rows of the second, and one dtype"
INDICES = "integers, slices, None, ..., booleans, or tensors and lists of these"
NO_LEAF = "a result, or a tensor without requires_grad\n  try: with no_grad(): …, as optimizers do"


def leaf() -> CustomTensor:
    return AutogradTensor([1, 2], requires_grad=True)


def whole(bits: int = 64) -> CustomTensor:
    return ones(2, 3, dtype=f"int{bits}")


# ---- shapes, formats, arguments

REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "shapes that do not broadcast": (
        lambda: ones(2, 3) + ones(2),
        "cannot compute add.Tensor(float32[2, 3], float32[2]): operands could not be broadcast "
        f"together with shapes (2,3) (2,) \n  expected: {BROADCAST}",
    ),
    "bits of floats": (
        lambda: ones(2) & ones(2),
        "cannot compute bitwise_and.Tensor(float32[2], float32[2]): ufunc 'bitwise_and' not "
        "supported for the input types, and the inputs could not be safely coerced to any "
        "supported types according to the casting rule ''safe''\n"
        "  expected: integers or booleans, in shapes that broadcast with each other",
    ),
    "matrices that do not meet": (
        lambda: ones(2, 3) @ ones(2, 3),
        "cannot compute matmul(float32[2, 3], float32[2, 3]): 3 columns do not match 2 rows\n"
        f"  expected: {PRODUCT}",
    ),
    "matrices of two formats": (
        lambda: ones(2, 3) @ ones(3, 2, dtype="int64"),
        "cannot compute matmul(float32[2, 3], int64[3, 2]): float32 and int64 are not multiplied "
        f"with each other\n  expected: {PRODUCT}",
    ),
    "a weight that does not fit": (
        lambda: f.linear(ones(2, 3), ones(4, 5)),
        "cannot compute linear(float32[2, 3], float32[4, 5]): 3 columns do not match 5 rows\n"
        "  expected: input (…, features in), weight (features out, features in), bias "
        "(features out)",
    ),
    "a view that does not hold the numbers": (
        lambda: ones(2, 3).view(4, 2),
        "cannot compute view(float32[2, 3], [4, 2]): shape [4, 2] does not hold 6 elements\n"
        "  expected: view(Tensor(a) self, int[] size) -> Tensor(a)",
    ),
    "a view that needs a copy": (
        lambda: ones(2, 3).T.view(6),
        "cannot compute view(float32[3, 2], [6]): [3, 2] with strides [1, 3] cannot be viewed as "
        "[6] without a copy; use reshape\n"
        "  expected: view(Tensor(a) self, int[] size) -> Tensor(a)",
    ),
    "a shape with two unknowns": (
        lambda: ones(2, 3).reshape(-1, -1),
        "cannot compute reshape(float32[2, 3], [-1, -1]): [-1, -1] is no shape: sizes are 0 or "
        "more, and one of them may be -1\n"
        "  expected: reshape(Tensor(a) self, int[] shape) -> Tensor(a)",
    ),
    "parts that differ": (
        lambda: f.cat([ones(2, 3), ones(3, 2)]),
        "cannot compute cat([float32[2, 3], float32[3, 2]]): [2, 3] and [3, 2] differ beside "
        "dimension 0\n  expected: cat(Tensor[] tensors, int dim=0) -> Tensor",
    ),
    "no parts": (
        lambda: f.stack([]),
        "cannot compute stack([]): there is nothing to put together\n"
        "  expected: stack(Tensor[] tensors, int dim=0) -> Tensor",
    ),
    "channels that do not fit": (
        lambda: f.conv2d(ones(1, 3, 8, 8), ones(4, 2, 3, 3)),
        "cannot compute convolution(float32[1, 3, 8, 8], float32[4, 2, 3, 3], None, [1, 1], "
        "[0, 0], [1, 1], False, [0, 0], 1): 3 channels do not fit a weight for 2 in 1 groups\n"
        "  expected: an input [N, C, ...] and a weight [O, C / groups, ...], or "
        "[C, O / groups, ...] transposed",
    ),
    "a window larger than the picture": (
        lambda: f.conv2d(ones(1, 3, 2, 2), ones(4, 3, 3, 3)),
        "cannot compute convolution(float32[1, 3, 2, 2], float32[4, 3, 3, 3], None, [1, 1], "
        "[0, 0], [1, 1], False, [0, 0], 1): the window is larger than the padded input: the "
        "result would be (0, 0)\n  expected: an input [N, C, ...] and a weight "
        "[O, C / groups, ...], or [C, O / groups, ...] transposed",
    ),
    "an index that is too large": (
        lambda: ones(2, 3)[5],
        "cannot index float32[2, 3] with 5: 5 is out of range\n  expected: -2 to 1",
    ),
    "too many indices": (
        lambda: ones(2, 3)[0, 0, 0],
        "cannot index float32[2, 3] with (0, 0, 0): 3 indices are too many\n  expected: at most 2",
    ),
    "a mask that does not fit": (
        lambda: ones(2, 3)[tensor([True, False, True])],
        "cannot index float32[2, 3] with bool[3]: the mask bool[3] does not fit\n"
        "  expected: a mask of shape [2]",
    ),
    "a word as an index": (
        lambda: ones(2, 3)["a"],
        f"cannot index float32[2, 3] with 'a': it contains a str\n  expected: {INDICES}",
    ),
    "a value that does not fit its place": (
        lambda: operator.setitem(ones(2, 3), 0, ones(5)),
        "cannot assign float32[5] to float32[2, 3] at 0: the shapes do not fit\n"
        "  expected: a value that broadcasts to [3]",
    ),
    "a dimension that is not there": (
        lambda: ones(2, 3).sum(4),
        "cannot compute sum.dim_IntList(float32[2, 3], 4): dimension 4 is not there: 2 "
        "dimensions, -2 to 1\n  expected: sum.dim_IntList(Tensor self, int[1]? dim, bool "
        "keepdim=False, *, ScalarType? dtype=None) -> Tensor",
    ),
    "the size of a dimension that is not there": (
        lambda: ones(2, 3).size(2),
        "float32[2, 3] has no dimension 2\n  expected: -2 to 1",
    ),
    "a class that is not there": (
        lambda: f.cross_entropy_loss(ones(2, 3), tensor([1, 5])),
        "cannot compute nll_loss_forward(float32[2, 3], int64[2], None, 1, -100): the target "
        "names a class that is not among 3\n  expected: nll_loss_forward(Tensor self, Tensor "
        "target, Tensor? weight, int reduction, int ignore_index) -> (Tensor output, Tensor "
        "total_weight)",
    ),
    "an argument that is no tensor": (
        lambda: f.relu(None),
        "cannot call relu(None)\n  expected: relu(Tensor self) -> Tensor",
    ),
    "a word": (
        lambda: f.relu("a"),
        "cannot call relu('a')\n  expected: relu(Tensor self) -> Tensor",
    ),
    "an argument too many": (
        lambda: f.relu(ones(2), 3),
        "cannot call relu(float32[2], 3)\n  expected: relu(Tensor self) -> Tensor",
    ),
    "a number for a matrix": (
        lambda: f.matmul(ones(2, 2), 2),
        "cannot call matmul(float32[2, 2], 2)\n"
        "  expected: matmul(Tensor self, Tensor other) -> Tensor",
    ),
    "no arguments": (
        lambda: f.relu(),
        "cannot call relu: 'self' is missing\n  expected: relu(Tensor self) -> Tensor",
    ),
    "an argument of another name": (
        lambda: f.softmax(ones(2), 0, axis=1),
        "cannot call softmax.int(float32[2], 0, axis=1)\n"
        "  expected: softmax.int(Tensor self, int dim, ScalarType? dtype=None) -> Tensor",
    ),
    "no overload": (
        lambda: f.add(ones(2), "x"),
        "cannot call add(float32[2], 'x')\n  expected: add.Tensor(Tensor self, Tensor other, *, "
        "Scalar alpha=1) -> Tensor or add.Scalar(Tensor self, Scalar other, Scalar alpha=1) -> "
        "Tensor",
    ),
    "an unknown format": (
        lambda: CustomTensor([1], dtype="float99"),
        f"'float99' is no dtype\n  expected: one of {FORMATS}",
    ),
    "rows of several lengths": (
        lambda: CustomTensor([[1, 2], [3]]),
        "cannot make a tensor of list: setting an array element with a sequence. The requested "
        "array has an inhomogeneous shape after 1 dimensions. The detected shape was (2,) + "
        "inhomogeneous part.\n  expected: numbers, in rows of one length, or an array",
    ),
    "no numbers": (
        lambda: CustomTensor({"a": 1}),
        "cannot make a tensor of dict: rows of different lengths, or no numbers\n"
        "  expected: numbers, in rows of one length, or an array",
    ),
    "a size below 0": (
        lambda: empty((2, -1)),
        "cannot make a tensor of shape (2, -1)\n  expected: sizes from 0 up",
    ),
    "a shape that is none": (
        lambda: full("a", 0),
        "cannot make a tensor of shape 'a'\n  expected: sizes from 0 up",
    ),
    "a list for an array": (
        lambda: from_numpy([1, 2]),
        "from_numpy() of a list\n  expected: a NumPy array, whose memory the tensor will share\n"
        "  try: tensor(data), which copies",
    ),
    "a list for DLPack": (
        lambda: from_dlpack([1, 2]),
        "from_dlpack() of a list\n  expected: an array of NumPy, torch, JAX or another library "
        "that speaks DLPack\n  try: tensor(data), which copies",
    ),
    "a format that DLPack lacks": (
        lambda: numpy.from_dlpack(ones(2, dtype="bfloat16")),
        "NumPy has no DLPack for bfloat16[2]\n  expected: one of bool, uint8, int8, int16, "
        "uint16, int32, uint32, int64, uint64, float16, float32, float64, complex64, complex128\n"
        "  try: to('float32') first",
    ),
    "several numbers for one": (
        lambda: ones(2, 2).item(),
        "item() of float32[2, 2]: there are 4 elements\n  expected: one\n"
        "  try: tolist(), or a reduction such as sum() before it",
    ),
    "the truth of several numbers": (
        lambda: bool(ones(2)),
        "float32[2] is neither true nor false\n  expected: a single number\n"
        "  try: .any() or .all()",
    ),
    "the imaginary part of real numbers": (
        lambda: ones(2).imag,
        "float32[2] has no imaginary part\n  expected: complex numbers",
    ),
    "a device without a number": (
        lambda: ones(2, device="custom:one"),
        "'custom:one' is no device\n"
        '  expected: a name with a number behind the colon, such as "numpy:0"',
    ),
    "a device without a name": (
        lambda: CustomDevice(""),
        "'' is no device\n  expected: a name such as \"custom\" or \"numpy:0\"",
    ),
    "out of another shape": (
        lambda: f.add(ones(2), 1, out=ones(3, 2)),
        "cannot put the result of add.Scalar, float32[2], into float32[3, 2]\n"
        "  expected: a tensor of that shape whose dtype can hold it\n"
        "  try: the op without the underscore or out=, which makes a new tensor",
    ),
    "one out for two results": (
        lambda: f.max(ones(2, 2), 1, out=ones(2)),
        "cannot put the result of max.dim into out=float32[2]\n  expected: a tuple of 2 tensors",
    ),
    "an array for out": (
        lambda: f.add(ones(2), 1, out=numpy.ones(2)),
        "cannot put the result of add.Scalar into out=float64[2]\n  expected: a tensor",
    ),
    "whole numbers for a quotient": (
        lambda: operator.itruediv(whole(), 2),
        "cannot put the result of div.Scalar, float32[2, 3], into int64[2, 3]\n"
        "  expected: a tensor of that shape whose dtype can hold it\n"
        "  try: the op without the underscore or out=, which makes a new tensor",
    ),
    "a sum in place that grows": (
        lambda: ones(1, 3).add_(ones(2, 3)),
        "cannot put the result of add.Tensor, float32[2, 3], into float32[1, 3]\n"
        "  expected: a tensor of that shape whose dtype can hold it\n"
        "  try: the op without the underscore or out=, which makes a new tensor",
    ),
    "the matrix product of the package": (
        lambda: matmul([[1.0, 2.0]], [[1.0, 2.0]]),
        "cannot compute matmul(float32[1, 2], float32[1, 2]): 2 columns do not match 1 rows\n"
        f"  expected: {PRODUCT}",
    ),
    "a layer of another size": (
        lambda: nn.Linear(3, 4)(ones(2, 5)),
        "Linear(in_features=3, out_features=4, bias=True) cannot take float32[2, 5]: its last "
        "size is 5, not 3\n  expected: a tensor of [..., 3]\n  try: Linear(5, 4)",
    ),
    # ---- gradients
    "a gradient of whole numbers": (
        lambda: whole(32).requires_grad_(),
        "int32[2, 3] cannot have a gradient\n  expected: floating-point or complex numbers\n"
        "  try: tensor.to('float32')",
    ),
    "backward from a constant": (
        lambda: ones(2).sum().backward(),
        "cannot go backward from float32[]: it does not depend on any tensor that requires a "
        "gradient\n  expected: a result of tensors with requires_grad=True, computed outside of "
        "no_grad",
    ),
    "backward from several numbers": (
        lambda: (leaf() * 2).backward(),
        "cannot go backward from float32[2] without a gradient: it has more than one element\n"
        "  expected: a loss of one element\n"
        "  try: loss.sum().backward(), or backward(gradient) of the same shape",
    ),
    "a gradient of another shape": (
        lambda: (leaf() * 2).backward(ones(3)),
        "the gradient float32[3] does not fit the result float32[2]\n  expected: equal shapes",
    ),
    "an input that was not used": (
        lambda: tape.grad(leaf().sum(), [leaf()]),
        "the outputs do not depend on input 0\n"
        "  expected: inputs that require gradients and were used\n"
        "  try: allow_unused=True, which returns None for it",
    ),
    "too many beginnings": (
        lambda: tape.grad([leaf().sum()], [leaf()], [None, None]),
        "grad() was given 1 outputs and 2 grad_outputs\n"
        "  expected: one for each output, or none",
    ),
}  # fmt: skip


def refusal(call: Callable[[], Any]) -> HoldfastError:
    with pytest.raises(HoldfastError) as caught:
        call()
    return caught.value


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_computed_is_refused_in_these_words(name: str) -> None:
    call, text = REFUSED[name]
    error = refusal(call)
    assert isinstance(error, BadInput)
    assert str(error) == text


@pytest.mark.parametrize("index", [5, (0, 0, 0), "a", slice(None, None, 0), [7], [[True]]], ids=str)
def test_a_wrong_index_is_an_index_error_too(index: Any) -> None:
    with pytest.raises(IndexError):
        ones(2, 3)[index]


def test_an_op_that_is_not_there_is_no_attribute() -> None:
    with pytest.raises(AttributeError, match=r"^there is no op 'quux'$"):
        _ = f.quux
    with pytest.raises(AttributeError, match=r"^'CustomTensor' object has no attribute 'quux'$"):
        ones(2).quux()


@pytest.mark.parametrize(
    ("name", "expected"),
    [("add.Foo", "one of add.Tensor, add.Scalar"), ("quux", "the ATen name of an op")],
)
def test_an_op_that_is_not_in_the_table_is_named_with_those_that_are(
    name: str, expected: str
) -> None:
    error = refusal(lambda: table.find(name))
    assert isinstance(error, NotFound)
    assert str(error) == f"there is no op {name!r} in the table\n  expected: {expected}"


def test_an_unknown_engine_is_named_with_those_that_are_there() -> None:
    error = refusal(lambda: ENGINES["quux"])
    assert isinstance(error, NotFound)
    assert str(error) == f"unknown engine 'quux'\n  expected: one of {', '.join(ENGINES)}"


def test_a_fraction_is_no_index() -> None:
    with pytest.raises(TypeError, match=r"^only integers can be an index, this is float32\[\]$"):
        [1, 2][tensor(1.0)]


# ---- against the rules of gradients


def _changed_argument() -> Any:
    x = leaf()
    y = (x * x).sum()
    with no_grad():
        x.add_(1)
    y.backward()


def _changed_result() -> Any:
    y = leaf().exp()
    y.mul_(2)
    y.sum().backward()


def _twice() -> Any:
    y = (leaf() * 2).exp()
    y.backward(ones(2))
    y.backward(ones(2))


def _stale_view() -> Any:
    y = leaf() * 2
    part = y[0]
    y.mul_(3)
    part.backward()


MISUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "a leaf in place": (
        lambda: leaf().add_(1),
        "cannot compute add.Scalar in place: float32[2] is a leaf that requires a gradient\n"
        f"  expected: {NO_LEAF}",
    ),
    "a leaf as out": (
        lambda: f.add(ones(2), 1, out=leaf()),
        "cannot compute add.Scalar in place: float32[2] is a leaf that requires a gradient\n"
        f"  expected: {NO_LEAF}",
    ),
    "an item of a leaf": (
        lambda: operator.setitem(leaf(), 0, 1),
        "cannot compute index_put in place: float32[2] is a leaf that requires a gradient\n"
        f"  expected: {NO_LEAF}",
    ),
    "a view of a leaf in place": (
        lambda: leaf()[0].add_(1),
        "cannot compute add.Scalar in place: float32[] is a view of a leaf that requires a "
        "gradient\n"
        "  expected: a view of a result, or of a tensor without requires_grad\n"
        "  try: with no_grad(): …, as optimizers do",
    ),
    "a gradient into a view with gaps below": (
        lambda: from_numpy(numpy.ones((2, 4), "float32")[:, ::2])[0].copy_(leaf()),
        "cannot compute copy in place: float32[2] is a view that gradients go through\n"
        "  expected: a tensor with memory of its own\n"
        "  try: clone() first, the op without the underscore, or base[index] = value",
    ),
    "an expanded tensor in place": (
        lambda: ones(1, 2).expand(3, 2).add_(1),
        "cannot put the result of add.Scalar into float32[3, 2]: several of its elements share "
        "memory, or its memory is read-only\n"
        "  expected: a tensor with memory of its own\n  try: clone() first",
    ),
    "an argument changed": (
        _changed_argument,
        "cannot go backward through mul.Tensor: its argument 'self' (float32[2]) was changed in "
        "place after it was used\n"
        "  expected: tensors that a gradient needs to stay as they were\n"
        "  try: the op without the underscore, or clone() before the change",
    ),
    "a result changed": (
        _changed_result,
        "cannot go backward through exp: its result (float32[2]) was changed in place\n"
        "  expected: tensors that a gradient needs to stay as they were\n"
        "  try: the op without the underscore, or clone() before the change",
    ),
    "a view made before a change": (
        _stale_view,
        "cannot use float32[], a view made by select.int: the tensor it is a view of was changed "
        "in place since, by something that requires a gradient\n"
        "  expected: a view made after the change\n  try: make the view again",
    ),
    "backward twice": (
        _twice,
        "cannot go backward through exp a second time: what it kept for that was freed "
        "after the first\n  expected: one backward for each forward\n"
        "  try: backward(retain_graph=True) the first time, or compute the loss again",
    ),
    "a result that shall ask for nothing": (
        lambda: (leaf() * 2).requires_grad_(False),
        "only a leaf can stop requiring gradients; this is the result of mul.Scalar\n"
        "  try: detach()",
    ),
    "a hook without a gradient": (
        lambda: ones(2).register_hook(print),
        "cannot hook the gradient of float32[2]: it does not require one\n"
        "  expected: a tensor with requires_grad=True, or a result of one",
    ),
    "a copy of a result": (
        lambda: __import__("copy").deepcopy(leaf() * 2),
        "cannot copy float32[2]: it is the result of mul.Scalar, and its graph would be copied "
        "with it\n  expected: a leaf\n  try: detach() first",
    ),
}


@pytest.mark.parametrize("name", MISUSED)
def test_what_gradients_forbid_is_refused_in_these_words(name: str) -> None:
    call, text = MISUSED[name]
    error = refusal(call)
    assert isinstance(error, Misuse)
    assert str(error) == text


def test_a_refused_change_changes_nothing() -> None:
    x = ones(2)
    for change in (
        lambda: f.add(x, ones(3), out=x),
        lambda: f.add(ones(3), 1, out=x),
        lambda: x.add_(ones(3)),
        lambda: operator.setitem(x, 0, ones(5)),
    ):
        refusal(change)
    assert x.tolist() == [1, 1]
    assert x._current_version() == 0


# ---- devices


class SecondEngine(NumpyEngine):
    """NumPy again, under another name: tensors of the two do not meet."""

    name = "second"


second = SecondEngine()


@pytest.fixture(scope="module", autouse=True)
def second_engine() -> Iterator[None]:
    ENGINES.register("second", Entry(f"{__name__}:second", "NumPy again"))
    device._engine.cache_clear()
    yield
    del ENGINES._entries["second"]
    device._engine.cache_clear()


def there(*shape: int) -> CustomTensor:
    return ones(*shape, device="second")


SEVERAL: dict[str, tuple[Callable[[], Any], str]] = {
    "a small sum": (
        lambda: ones(2) + there(2),
        "cannot compute add.Tensor: its tensors are on several devices (float32[2] on custom:0, "
        "float32[2] on second:0)\n  expected: all on one device\n  try: tensor.to('custom:0')",
    ),
    "a product": (
        lambda: there(2, 3) @ ones(3, 4),
        "cannot compute matmul: its tensors are on several devices (float32[2, 3] on second:0, "
        "float32[3, 4] on custom:0)\n  expected: all on one device\n  try: tensor.to('second:0')",
    ),
    "parts": (
        lambda: f.cat([ones(2), there(2)]),
        "cannot compute cat: its tensors are on several devices (float32[2] on custom:0, "
        "float32[2] on second:0)\n  expected: all on one device\n  try: tensor.to('custom:0')",
    ),
    "an item": (
        lambda: operator.setitem(ones(2), 0, there(1)),
        "cannot assign float32[1] on second:0 to float32[2] on custom:0\n"
        "  expected: both on one device\n  try: value.to('custom:0')",
    ),
    "out": (
        lambda: f.add(ones(2), 1, out=there(2)),
        "cannot put the result of add.Scalar, float32[2] on custom:0, into float32[2] on "
        "second:0\n  expected: both on one device\n  try: tensor.to('custom:0')",
    ),
    "a gradient": (
        lambda: (leaf() * 2).backward(there(2)),
        "the gradient float32[2] is on second:0, the result float32[2] on custom:0\n"
        "  expected: both on one device\n  try: gradient.to('custom:0')",
    ),
    "a result that is moved": (
        lambda: (leaf() * 2).to("second"),
        "cannot move float32[2] from custom:0 to second:0: gradients would have to follow it\n"
        "  expected: a leaf, or a tensor without gradients\n  try: detach() first",
    ),
}


@pytest.mark.parametrize("name", SEVERAL)
def test_tensors_of_two_engines_do_not_meet(name: str) -> None:
    call, text = SEVERAL[name]
    assert str(refusal(call)) == text


def test_a_tensor_goes_to_another_engine_and_back() -> None:
    x = tensor([1.0, 2.0])
    moved = x.to("second")
    assert str(moved.device) == "second:0"
    assert not numpy.shares_memory(moved.data, x.data)
    assert (moved * 2).to("cpu").tolist() == [2, 4]
    parameter = leaf().to("second")
    assert parameter.is_leaf
    (parameter * 3).sum().backward()
    assert parameter.grad is not None
    assert str(parameter.grad.device) == "second:0"

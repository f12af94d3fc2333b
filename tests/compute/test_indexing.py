"""`tensor[index]` and `tensor[index] = value`, against torch and for their errors."""

from __future__ import annotations

from typing import Any

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.base.errors import BadInput, Misuse
from holdfast.compute import functional as f
from holdfast.compute.autograd import tape
from holdfast.compute.tensors.custom_tensor import CustomTensor
from holdfast.compute.tensors.indexing import BadIndex, getitem, setitem
from tests.examples import examples

F: Any = f


# ---- random indices


@st.composite
def shapes_and_indices(draw: st.DrawFn) -> tuple[tuple[int, ...], Any]:
    """A shape, and an index that fits it, with NumPy arrays for tensors."""
    shape = tuple(draw(st.lists(st.integers(0, 4), max_size=4)))
    lengths = draw(st.sampled_from([(), (1,), (3,), (2, 3), (0,)]))
    items: list[Any] = []
    dim, masked = 0, False
    end = draw(st.integers(0, len(shape)))
    while dim < end:
        kind = draw(st.sampled_from(["int", "slice", "slice", "list", "mask", "scalar"]))
        size = shape[dim]
        if kind in ("int", "scalar") and size:
            chosen = draw(st.integers(-size, size - 1))
            items.append(chosen if kind == "int" else numpy.array(chosen))
        elif kind == "list" and (size or 0 in lengths):
            items.append(_places(draw, size, lengths))
        elif kind == "mask" and not masked and lengths in ((), (1,)):
            masked = True
            dims = draw(st.integers(1, min(2, end - dim)))
            items.append(_mask(draw, shape[dim : dim + dims]))
            dim += dims - 1
        else:
            items.append(draw(_slices(size)))
        dim += 1
    _insert(draw, items, [None, None, True, False], 2)
    if draw(st.booleans()) and end == len(shape):
        _insert(draw, items, [Ellipsis], 1)
    if len(items) == 1 and draw(st.booleans()):
        return shape, items[0]
    return shape, tuple(items)


def _insert(draw: st.DrawFn, items: list[Any], extra: list[Any], most: int) -> None:
    for _ in range(draw(st.integers(0, most))):
        items.insert(draw(st.integers(0, len(items))), draw(st.sampled_from(extra)))


def _slices(size: int) -> st.SearchStrategy[slice]:
    bound = st.none() | st.integers(-size - 2, size + 2)
    return st.builds(slice, bound, bound, st.none() | st.integers(1, 3))


def _places(draw: st.DrawFn, size: int, lengths: tuple[int, ...]) -> Any:
    count = int(numpy.prod(lengths))
    places = st.integers(-size, max(size - 1, -size))
    found = draw(st.lists(places, min_size=count, max_size=count))
    array = numpy.array(found, numpy.int64).reshape(lengths)
    return array.tolist() if len(lengths) == 1 and draw(st.booleans()) else array


def _mask(draw: st.DrawFn, shape: tuple[int, ...]) -> Any:
    count = int(numpy.prod(shape))
    truths = draw(st.lists(st.booleans(), min_size=count, max_size=count))
    return numpy.array(truths, bool).reshape(shape)


def for_torch(index: Any) -> Any:
    if isinstance(index, tuple):
        return tuple(for_torch(item) for item in index)
    return torch.from_numpy(index) if isinstance(index, numpy.ndarray) else index


def for_us(index: Any) -> Any:
    """Half of the arrays as our tensors."""
    if isinstance(index, tuple):
        return tuple(for_us(item) for item in index)
    if isinstance(index, numpy.ndarray) and index.size % 2:
        return CustomTensor(index, dtype=index.dtype)
    return index


def numbers(shape: tuple[int, ...], start: int = 1) -> Any:
    return numpy.arange(start, start + int(numpy.prod(shape)), dtype=numpy.float32).reshape(shape)


def weights(shape: Any) -> Any:
    return numpy.asarray(numpy.cos(numbers(tuple(shape))))


def same(ours: CustomTensor, theirs: torch.Tensor) -> None:
    numpy.testing.assert_array_equal(ours.data, theirs.detach().numpy())


def torch_index(value: torch.Tensor, index: Any) -> torch.Tensor | None:
    """None where torch refuses, as it does masks that do not broadcast with each other."""
    try:
        return value[for_torch(index)]
    except (IndexError, RuntimeError):
        return None


# ---- reading


@settings(max_examples=examples(80))
@given(shapes_and_indices())
def test_reading_and_its_gradient_are_torchs(case: Any) -> None:
    shape, index = case
    theirs = torch.from_numpy(numbers(shape)).requires_grad_()
    expected = torch_index(theirs, index)
    ours = CustomTensor(numbers(shape), requires_grad=True)
    if expected is None:
        with pytest.raises(BadInput):
            getitem(ours, for_us(index))
        return
    found = getitem(ours, for_us(index))
    same(found, expected)
    expected.backward(torch.from_numpy(weights(expected.shape)))
    found.backward(CustomTensor(weights(expected.shape)))
    assert ours.grad is not None
    assert theirs.grad is not None
    numpy.testing.assert_allclose(ours.grad.data, theirs.grad.numpy(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("index", [0, slice(1, None, 2), (None, 1), (..., 0), (), (0, 1)])
def test_numbers_slices_and_none_give_views(index: Any) -> None:
    tensor = CustomTensor(numbers((4, 3)))
    view = getitem(tensor, index)
    assert numpy.shares_memory(view.data, tensor.data)
    assert view._base is tensor


def test_a_view_of_a_single_number_can_be_written_to() -> None:
    tensor = CustomTensor(numbers((3,)))
    setitem(getitem(tensor, 1), ..., 9.0)
    assert tensor.data.tolist() == [1, 9, 3]


@pytest.mark.parametrize("index", [[0], numpy.array([True, False]), True, (slice(None), [0, 1])])
def test_lists_and_masks_give_tensors_of_their_own(index: Any) -> None:
    tensor = CustomTensor(numbers((2, 3)))
    assert not numpy.shares_memory(getitem(tensor, index).data, tensor.data)


def test_integers_in_a_tensor_count_as_numbers() -> None:
    tensor = CustomTensor(numbers((2, 3)))
    one = CustomTensor(1, dtype="int64")
    assert getitem(tensor, one).shape == (3,)
    assert getitem(tensor, slice(one, None)).shape == (1, 3)
    assert getitem(tensor, [one, one]).shape == (2, 3)
    assert getitem(tensor, numpy.int32(1)).shape == (3,)


def test_going_through_a_tensor_ends() -> None:
    tensor = CustomTensor(numbers((2, 3)))
    assert len(list(tensor)) == 2


# ---- assigning


@settings(max_examples=examples(80))
@given(shapes_and_indices(), st.booleans(), st.booleans())
def test_assigning_and_its_gradient_are_torchs(case: Any, single: bool, tracked: bool) -> None:
    shape, index = case
    region = torch_index(torch.arange(int(numpy.prod(shape))).reshape(shape), index)
    if region is None:
        return
    # Where a place is written twice, which value stays is nobody's promise.
    single = single or region.unique().numel() < region.numel()
    value = numbers(() if single else tuple(region.shape), 100)
    their_start, their_value = (
        torch.from_numpy(a).requires_grad_() for a in (numbers(shape), value)
    )
    theirs = their_start * 2 if tracked else their_start.detach().clone()
    theirs[for_torch(index)] = their_value
    start, given_value = (CustomTensor(a, requires_grad=True) for a in (numbers(shape), value))
    ours = F.mul(start, 2) if tracked else CustomTensor(numbers(shape))
    setitem(ours, for_us(index), given_value)
    same(ours, theirs)
    if not theirs.requires_grad:
        return
    theirs.backward(torch.from_numpy(weights(shape)))
    ours.backward(CustomTensor(weights(shape)))
    for mine, other in ((start, their_start), (given_value, their_value)):
        if other.grad is None:
            assert mine.grad is None or not mine.grad.data.any()
        else:
            assert mine.grad is not None
            numpy.testing.assert_allclose(mine.grad.data, other.grad.numpy(), rtol=1e-5, atol=1e-5)


@settings(max_examples=examples(40))
@given(shapes_and_indices())
def test_assigning_without_gradients_writes_into_the_memory(case: Any) -> None:
    shape, index = case
    theirs = torch.from_numpy(numbers(shape)).to(torch.int64)
    if torch_index(theirs, index) is None:
        return
    theirs[for_torch(index)] = 7
    ours = CustomTensor(numbers(shape), dtype="int64")
    memory, version = ours.data, ours._current_version()
    setitem(ours, for_us(index), 7)
    same(ours, theirs)
    assert ours.data is memory
    assert ours._current_version() == version + 1


def test_sizes_of_one_in_front_of_a_value_do_not_matter() -> None:
    tensor = CustomTensor(numbers((2, 3)))
    setitem(tensor, 0, numpy.zeros((1, 1, 3)))
    setitem(tensor, [1], numpy.ones((1, 1, 1, 3)))
    assert tensor.data.tolist() == [[0, 0, 0], [1, 1, 1]]


def test_a_part_can_be_assigned_to_another_that_overlaps() -> None:
    tensor = CustomTensor(numbers((4,)))
    setitem(tensor, slice(1, None), getitem(tensor, slice(None, -1)))
    assert tensor.data.tolist() == [1, 1, 2, 3]


def test_everything_overwritten_leaves_no_gradient() -> None:
    start = CustomTensor(numbers((3,)), requires_grad=True)
    result = F.mul(start, 2)
    setitem(result, ..., 0.0)
    F.sum(result).backward()
    assert start.grad is not None
    assert start.grad.data.tolist() == [0, 0, 0]


def test_a_change_after_use_is_noticed_by_the_gradient() -> None:
    start = CustomTensor(numbers((3,)), requires_grad=True)
    used = F.mul(start, 1)
    result = F.sum(F.mul(used, used))
    setitem(used, 0, 5.0)
    with pytest.raises(Misuse, match="was changed in place after it was used"):
        result.backward()


def test_a_leaf_can_be_assigned_to_where_gradients_are_off() -> None:
    leaf = CustomTensor(numbers((3,)), requires_grad=True)
    with tape.no_grad():
        setitem(leaf, 0, 5.0)
    assert leaf.data.tolist() == [5, 2, 3]
    assert leaf.is_leaf


# ---- errors

REFUSED = [
    (5, "cannot index float32[2, 3] with 5: 5 is out of range\n  expected: -2 to 1"),
    (
        (slice(None), -4),
        "cannot index float32[2, 3] with (:, -4): -4 is out of range at dimension 1\n"
        "  expected: -3 to 2",
    ),
    (
        (0, 0, 0),
        "cannot index float32[2, 3] with (0, 0, 0): 3 indices are too many\n  expected: at most 2",
    ),
    (
        [0, 2],
        "cannot index float32[2, 3] with [0, 2]: index 2 is out of range for dimension 0 of "
        "size 2\n  expected: indices that are in range, in shapes that broadcast",
    ),
    (
        numpy.ones(3, bool),
        "cannot index float32[2, 3] with bool[3]: the mask bool[3] does not fit\n"
        "  expected: a mask of shape [2]",
    ),
    (
        (0, numpy.ones((2,), bool)),
        "cannot index float32[2, 3] with (0, bool[2]): the mask bool[2] does not fit at "
        "dimension 1\n  expected: a mask of shape [3]",
    ),
    (
        slice(None, None, -1),
        "cannot index float32[2, 3] with ::-1: the step -1 is not positive\n"
        "  expected: a step of 1 or more, or flip()",
    ),
    (
        slice(0.5, None),
        "cannot index float32[2, 3] with 0.5:: 0.5 bounds a slice\n  expected: integers or None",
    ),
    (
        1.5,
        "cannot index float32[2, 3] with 1.5: it contains a float\n  expected: integers, "
        "slices, None, ..., booleans, or tensors and lists of these",
    ),
    (
        [1.5],
        "cannot index float32[2, 3] with [1.5]: it contains float64[1]\n  expected: "
        "integers, slices, None, ..., booleans, or tensors and lists of these",
    ),
    (
        (..., 0, ...),
        "cannot index float32[2, 3] with (..., 0, ...): ... occurs twice\n"
        "  expected: at most one ...",
    ),
]


@pytest.mark.parametrize(("index", "text"), REFUSED)
def test_an_index_that_is_not_there_is_refused(index: Any, text: str) -> None:
    tensor = CustomTensor(numbers((2, 3)))
    with pytest.raises(BadIndex) as error:
        getitem(tensor, index)
    assert str(error.value) == text
    with pytest.raises(BadIndex) as error:
        setitem(tensor, index, 0)
    assert str(error.value) == text
    assert tensor.data.tolist() == numbers((2, 3)).tolist()


def test_a_value_that_does_not_fit_is_refused() -> None:
    tensor = CustomTensor(numbers((2, 3)))
    with pytest.raises(BadInput) as error:
        setitem(tensor, 0, numpy.zeros(2))
    assert str(error.value) == (
        "cannot assign float32[2] to float32[2, 3] at 0: the shapes do not fit\n"
        "  expected: a value that broadcasts to [3]"
    )
    with pytest.raises(BadInput) as error:
        setitem(tensor, [0, 1], numpy.zeros((3, 2)))
    assert str(error.value) == (
        "cannot assign float32[3, 2] to float32[2, 3] at [0, 1]: the shapes do not fit\n"
        "  expected: a value that broadcasts to [2, 3]"
    )
    with pytest.raises(BadInput) as error:
        setitem(tensor, 0, 1j)
    assert str(error.value) == (
        "cannot assign 1j to float32[2, 3]: the imaginary part would be lost\n"
        "  expected: real numbers\n  try: value.real"
    )


def test_a_leaf_that_requires_a_gradient_is_not_assigned_to() -> None:
    leaf = CustomTensor(numbers((2,)), requires_grad=True)
    with pytest.raises(Misuse) as error:
        setitem(leaf, 0, 1.0)
    assert str(error.value) == (
        "cannot compute index_put in place: float32[2] is a leaf that requires a gradient\n"
        "  expected: a result, or a tensor without requires_grad\n"
        "  try: with no_grad(): …, as optimizers do"
    )


def test_a_view_does_not_take_a_value_that_requires_a_gradient() -> None:
    whole = CustomTensor(numbers((2, 2)))
    value = CustomTensor(1.0, requires_grad=True)
    with pytest.raises(Misuse) as error:
        setitem(getitem(whole, 0), 0, value)
    assert str(error.value) == (
        "cannot assign float32[], which requires a gradient, to float32[2]: that is a view, and "
        "what it is a view of would not know\n"
        "  expected: a tensor with memory of its own\n"
        "  try: assign to the tensor itself, or clone() the view first"
    )


def test_memory_that_repeats_is_not_written_to() -> None:
    spread = F.expand(CustomTensor(numbers((1, 2))), [3, 2])
    with pytest.raises(Misuse) as error:
        setitem(spread, 0, 1.0)
    assert str(error.value) == (
        "cannot assign to float32[3, 2]: several of its elements share memory\n"
        "  expected: a tensor with memory of its own\n  try: clone() first"
    )


# ---- as Python writes it


def test_brackets_read_and_assign() -> None:
    tensor = CustomTensor(numbers((2, 3)))
    tensor[:, 0] = 0.0
    tensor[tensor > 4] = -1.0
    tensor[0, 1:] += 10
    assert tensor.data.tolist() == [[0, 12, 13], [0, -1, -1]]


def test_a_part_that_is_added_to_in_place_passes_the_gradient_on() -> None:
    total, step = CustomTensor(numbers((2,))), CustomTensor(3.0, requires_grad=True)
    total[0] += step
    F.sum(F.mul(total, total)).backward()
    assert total.data.tolist() == [4, 2]
    assert step.grad is not None
    assert step.grad.data.tolist() == 8


def test_chosen_places_can_be_assigned_from_the_same_memory() -> None:
    tensor = CustomTensor(numbers((5,)))
    tensor[[1, 2, 3, 4]] = tensor[:4]
    assert tensor.data.tolist() == [1, 1, 2, 3, 4]


@pytest.mark.parametrize(
    "call",
    [
        lambda x, i: f.gather(x, 0, i),
        lambda x, i: f.scatter(x, 0, i, x[:1]),
        lambda x, i: f.scatter_add(x, 0, i, x[:1]),
    ],
    ids=["gather", "scatter", "scatter_add"],
)
def test_fractions_are_no_indices(call) -> None:
    with pytest.raises(BadInput, match="indices must be integers, not float32"):
        call(CustomTensor([[1, 2], [3, 4]]), CustomTensor([[0, 1]]))

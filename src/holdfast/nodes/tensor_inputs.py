"""What the tensor nodes are given: torch tensors, latents, arrays, lists, `CustomTensor`s.

Covers: an input as a tensor and the way back to its kind, settings and sizes checked.
Promise: what is larger than free memory is refused before it is made. Torch is not imported; where
a torch tensor comes in it is there already.
"""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from holdfast import compute
from holdfast.base.errors import BadInput
from holdfast.nodes.refusing import refuse_beyond_memory
from holdfast.nodes.refusing import shown as brief


class Given(NamedTuple):
    """An input as a tensor, and the way back to its kind; a higher rank decides the result's."""

    tensor: Any
    back: Callable[[Any], Any]
    rank: int


def given(name: str, value: Any) -> Given:
    """The input `name` as a tensor. Raises BadInput for what is none."""
    if isinstance(value, dict) and not isinstance(value.get("samples", {}), dict):  # a latent
        inner = given(name, value["samples"])
        return Given(inner.tensor, lambda t: {**value, "samples": inner.back(t)}, 3)
    if isinstance(value, compute.CustomTensor):
        return Given(value, lambda t: t, 1)
    if _of_torch(value):
        return Given(
            compute.tensor(value, device=None), _to_torch(getattr(value, "device", None)), 2
        )
    if value is None or isinstance(value, str | dict):
        raise BadInput(
            f"{name} is {'missing' if value is None else f'a {type(value).__name__}'}",
            expected="a tensor, an image, a mask or a latent; in Python also an array or a list",
        )
    return Given(compute.tensor(value, device=None), lambda t: t, 0)


def _of_torch(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _to_torch(device: Any) -> Callable[[Any], Any]:
    def back(tensor: Any) -> Any:
        torch = sys.modules["torch"]
        array = tensor.detach().data
        if array.dtype.kind == "V" or array.dtype.name not in _OF_BOTH:  # bfloat16, float8
            array = array.astype("float32")
        made = torch.from_numpy(array if array.flags.writeable else array.copy())
        return made.to(device=device, dtype=getattr(torch, tensor.dtype.name))

    return back


_OF_BOTH = (
    *("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64"),
    *("complex64", "complex128"),
)


def floating(tensor: Any) -> Any:
    """Whole numbers as float32; everything else as it is."""
    return tensor if tensor.is_floating_point() else tensor.to("float32")


def pictures(taken: Given) -> Any:
    """A batch of pictures. Raises BadInput for what is none."""
    tensor = taken.tensor
    if tensor.ndim not in (3, 4):
        raise BadInput(
            f"the image {shown(taken)} has {tensor.ndim} dimensions",
            expected="pictures of [batch, height, width, channels], or one without batch",
            hint="connect an IMAGE",
        )
    return tensor if tensor.ndim == 4 else tensor.unsqueeze(0)


def check_pictures(taken: Given, batch: Any, sizes: tuple[int, ...]) -> None:
    """Raise BadInput where a convolution of these sizes cannot go over the pictures."""
    ins, _, window, _, edge = sizes
    _, height, width, channels = batch.shape
    if channels != ins:
        raise BadInput(
            f"the image {shown(taken)} has {channels} channels, in_channels is {ins}",
            expected=f"pictures of [batch, height, width, {ins}]",
            hint=f"set in_channels to {channels}",
        )
    room = min(height, width) + 2 * edge
    if window > room:
        enough = edge + (window - room + 1) // 2
        raise BadInput(
            f"a window of {window} x {window} does not fit into pictures of {width} x {height} "
            f"with a padding of {edge}",
            expected="kernel_size to be at most the smaller side and twice the padding",
            hint=f"set kernel_size to {room} or less, or padding to {enough}",
        )


# ---- what a result would take, before it is made

_WIDE = 4  # bytes of a number while layers compute
# By measuring: how often there is as much of something as it takes, at the worst moment.
_WEIGHTS, _GIVEN, _MADE = 6, 3, 4  # weights while they are drawn, the input, the result
_TAP = 100  # bytes to plan for each place of a window


def check_linear(taken: Given, ins: int, outs: int) -> None:
    """Raise OutOfMemory where a layer and its result are larger than free memory."""
    rows = taken.tensor.numel() // ins
    refuse_beyond_memory(
        f"put {shown(taken)} through a matrix of {ins} x {outs}",
        _WIDE * (_WEIGHTS * ins * outs + _GIVEN * rows * ins + _MADE * rows * outs),
        hint="fewer out_features, or a smaller tensor",
    )


def check_convolution(batch: Any, sizes: tuple[int, ...]) -> None:
    """Raise OutOfMemory where a window and its result are larger than free memory."""
    ins, outs, window, step, edge = sizes
    count, *sides, _ = batch.shape
    height, width = (side + 2 * edge for side in sides)
    rows, columns = ((side - window) // step + 1 for side in (height, width))
    weights, made = ins * outs * window**2, count * outs * rows * columns
    wide = _WEIGHTS * weights + _GIVEN * batch.numel() + _MADE * made
    refuse_beyond_memory(
        f"move a window of {window} x {window} over pictures of {width} x {height}, padding "
        f"included, with {outs} out_channels",
        _WIDE * wide + _TAP * window**2 + batch.dtype.itemsize * made,
        hint="a smaller padding or kernel_size, fewer out_channels, or a larger stride",
    )


def check_pair(kind: str, a: Any, b: Any) -> None:
    """Raise OutOfMemory where the result of an operation is larger than free memory.

    Shapes that do not meet are left to the operation.
    """
    ends, (first, second) = [], (a.shape, b.shape)
    if kind == "matmul":
        if min(a.ndim, b.ndim) < 2:
            return  # the result is smaller than what goes in
        ends, (first, second) = [a.shape[-2], b.shape[-1]], (a.shape[:-2], b.shape[:-2])
    longer, shorter = sorted((list(first), list(second)), key=len, reverse=True)
    padded = [1] * (len(longer) - len(shorter)) + shorter
    sizes = [max(pair) for pair in zip(longer, padded, strict=True)] + ends
    refuse_beyond_memory(
        f"{kind} {list(a.shape)} and {list(b.shape)}",
        math.prod(sizes) * 2 * max(a.dtype.itemsize, b.dtype.itemsize, _WIDE),
        hint="smaller tensors, or tensors of one shape",
    )


def shown(taken: Given) -> str:
    """The shape of an input, for an error."""
    return str(list(taken.tensor.shape))


def whole(name: str, value: Any, least: int = 1) -> int:
    """A setting that counts something. Raises BadInput."""
    try:
        number = -1 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = -1
    if number < least:
        raise BadInput(
            f"cannot use {name}={brief(value)}", expected=f"a whole number of at least {least}"
        )
    return number


def chosen(name: str, value: Any, kinds: tuple[str, ...]) -> str:
    """A setting that is one of several words. Raises BadInput."""
    if value not in kinds:
        raise BadInput(f"there is no {name} {brief(value)}", expected=f"one of {', '.join(kinds)}")
    return value

"""Inputs of the tensor nodes: torch tensors, latents, arrays, lists, `CustomTensor`s.

Results larger than free memory raise OutOfMemory before they are made. Torch is not imported: an
input that is a torch tensor has it loaded.
"""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from holdfast import compute
from holdfast.base.errors import BadInput
from holdfast.nodes.refusing import format_value, refuse_beyond_memory


class TensorInput(NamedTuple):
    """An input as a tensor. `restore` turns a result into the kind of the input; of two inputs,
    the one of higher `rank` decides the kind.
    """

    tensor: Any
    restore: Callable[[Any], Any]
    rank: int


def read_tensor(name: str, value: Any) -> TensorInput:
    """Read the input `name` as a tensor. Raises BadInput for anything else."""
    if isinstance(value, dict) and not isinstance(value.get("samples", {}), dict):  # a latent
        inner = read_tensor(name, value["samples"])
        return TensorInput(inner.tensor, lambda t: {**value, "samples": inner.restore(t)}, 3)
    if isinstance(value, compute.CustomTensor):
        return TensorInput(value, lambda t: t, 1)
    if _is_torch(value):
        return TensorInput(
            compute.tensor(value, device=None), _to_torch(getattr(value, "device", None)), 2
        )
    if value is None or isinstance(value, str | dict):
        raise BadInput(
            f"{name} is {'missing' if value is None else f'a {type(value).__name__}'}",
            expected="a tensor, an image, a mask or a latent; in Python also an array or a list",
        )
    return TensorInput(compute.tensor(value, device=None), lambda t: t, 0)


def _is_torch(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _to_torch(device: Any) -> Callable[[Any], Any]:
    def restore(tensor: Any) -> Any:
        torch = sys.modules["torch"]
        array = tensor.detach().data
        if array.dtype.kind == "V" or array.dtype.name not in _OF_BOTH:  # bfloat16, float8
            array = array.astype("float32")
        made = torch.from_numpy(array if array.flags.writeable else array.copy())
        return made.to(device=device, dtype=getattr(torch, tensor.dtype.name))

    return restore


_OF_BOTH = (
    *("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64"),
    *("complex64", "complex128"),
)


def to_floating(tensor: Any) -> Any:
    """Integers and booleans as float32; anything else unchanged."""
    return tensor if tensor.is_floating_point() else tensor.to("float32")


def to_image_batch(taken: TensorInput) -> Any:
    """The input as a batch of images. Raises BadInput for another number of dimensions."""
    tensor = taken.tensor
    if tensor.ndim not in (3, 4):
        raise BadInput(
            f"the image {format_shape(taken)} has {tensor.ndim} dimensions",
            expected="pictures of [batch, height, width, channels], or one without batch",
            hint="connect an IMAGE",
        )
    return tensor if tensor.ndim == 4 else tensor.unsqueeze(0)


def check_pictures(taken: TensorInput, batch: Any, sizes: tuple[int, ...]) -> None:
    """Raise BadInput if a convolution of these sizes does not fit the images."""
    ins, _, window, _, edge = sizes
    _, height, width, channels = batch.shape
    if channels != ins:
        raise BadInput(
            f"the image {format_shape(taken)} has {channels} channels, in_channels is {ins}",
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


# ---- memory for a result, checked before it is made

_WIDE = 4  # bytes of an element while layers compute
# Copies that exist at the peak, as measured: of new weights, of the input, of the result.
_WEIGHTS, _GIVEN, _MADE = 6, 3, 4
_TAP = 100  # bytes to plan for each position of a kernel window


def check_linear(taken: TensorInput, ins: int, outs: int) -> None:
    """Raise OutOfMemory if a linear layer and its result exceed free memory."""
    rows = taken.tensor.numel() // ins
    refuse_beyond_memory(
        f"put {format_shape(taken)} through a matrix of {ins} x {outs}",
        _WIDE * (_WEIGHTS * ins * outs + _GIVEN * rows * ins + _MADE * rows * outs),
        hint="fewer out_features, or a smaller tensor",
    )


def check_convolution(batch: Any, sizes: tuple[int, ...]) -> None:
    """Raise OutOfMemory if a convolution and its result exceed free memory."""
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
    """Raise OutOfMemory if the result of an operation exceeds free memory.

    Shapes that do not broadcast are left to the operation.
    """
    ends, (first, second) = [], (a.shape, b.shape)
    if kind == "matmul":
        if min(a.ndim, b.ndim) < 2:
            return  # the result is smaller than the inputs
        ends, (first, second) = [a.shape[-2], b.shape[-1]], (a.shape[:-2], b.shape[:-2])
    longer, shorter = sorted((list(first), list(second)), key=len, reverse=True)
    padded = [1] * (len(longer) - len(shorter)) + shorter
    sizes = [max(pair) for pair in zip(longer, padded, strict=True)] + ends
    refuse_beyond_memory(
        f"{kind} {list(a.shape)} and {list(b.shape)}",
        math.prod(sizes) * 2 * max(a.dtype.itemsize, b.dtype.itemsize, _WIDE),
        hint="smaller tensors, or tensors of one shape",
    )


def format_shape(taken: TensorInput) -> str:
    """The shape of an input, for an error."""
    return str(list(taken.tensor.shape))


def check_integer(name: str, value: Any, least: int = 1) -> int:
    """Check an integer setting and return it. Raises BadInput."""
    try:
        number = -1 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = -1
    if number < least:
        raise BadInput(
            f"cannot use {name}={format_value(value)}", expected=f"an integer of at least {least}"
        )
    return number


def check_choice(name: str, value: Any, kinds: tuple[str, ...]) -> str:
    """Check a setting that is one of `kinds` and return it. Raises BadInput."""
    if value not in kinds:
        raise BadInput(
            f"there is no {name} {format_value(value)}", expected=f"one of {', '.join(kinds)}"
        )
    return value

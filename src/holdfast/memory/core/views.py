"""A block as bytes, NumPy array, torch tensor or DLPack capsule, with no copy.

Both cores' `Block` types use these functions (the C type looks them up by name). Every view keeps
its block alive, and the block counts its open views.
"""

from __future__ import annotations

import abc
import ctypes
import functools
import importlib
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from holdfast.base.errors import BadInput, MissingDependency
from holdfast.base.units import format_bytes

_CPU, _CUDA = 1, 2  # device types of DLPack


@functools.lru_cache(maxsize=256)
def _window_type(size: int) -> type[ctypes.Array[ctypes.c_ubyte]]:
    return type("Window", (ctypes.c_ubyte * size,), {"block": None})


def window(block: Any, address: int, size: int) -> Any:
    """The memory as a ctypes array that keeps `block` alive."""
    made: Any = _window_type(size).from_address(address)
    made.block = block
    return made


def view(block: Any) -> memoryview:
    return memoryview(block)


def content(block: Any) -> bytes:
    """A copy of the bytes. Without it, bytes() would use the block's __index__ as a length."""
    return block.view().tobytes()


def array(block: Any, dtype: Any = "uint8", shape: int | Sequence[int] | None = None) -> Any:
    """A NumPy array over the block, by default all of it. Raises BadInput if it does not fit."""
    numpy = _import("numpy", "arrays over a block need NumPy", "numpy")
    kind = _numpy_type(numpy, dtype)
    wanted, count = _check_shape(block, kind.itemsize, str(kind), shape)
    if not count:
        return _call_library(lambda: numpy.empty(wanted, kind), "NumPy", wanted)
    flat = numpy.frombuffer(block.view(), kind, count)
    return _call_library(lambda: flat.reshape(wanted), "NumPy", wanted)


def tensor(block: Any, dtype: Any = None, shape: int | Sequence[int] | None = None) -> Any:
    """A torch tensor over the block, by default uint8, all of it. Raises BadInput as `array`."""
    torch = _import("torch", "tensors over a block need torch", "'holdfast[torch]'")
    kind = torch.uint8 if dtype is None else _torch_type(torch, dtype)
    wanted, count = _check_shape(block, kind.itemsize, str(kind), shape)
    if not count:
        return _call_library(lambda: torch.empty(wanted, dtype=kind), "torch", wanted)
    if block.host:
        flat = torch.frombuffer(block.view(), dtype=kind, count=count)
    else:
        flat = torch.as_tensor(block, device="cuda")[: count * kind.itemsize].view(kind)
    return _call_library(lambda: flat.view(wanted), "torch", wanted)


def dlpack(block: Any, **options: Any) -> Any:
    if block.host:
        return array(block).__dlpack__(**options)
    return tensor(block).__dlpack__(**{k: v for k, v in options.items() if k == "stream"})


def dlpack_device(block: Any) -> tuple[int, int]:
    """The (device type, device index) of DLPack."""
    if block.host:
        return (_CPU, 0)
    return (_CUDA, tensor(block).device.index)


def array_interface(block: Any) -> dict[str, Any]:
    """For NumPy, where an object is not a buffer."""
    if not block.host:
        raise AttributeError("__array_interface__: this block is not in host memory")
    return {"version": 3, "shape": (block.size,), "typestr": "|u1", "data": block.view()}


def cuda_array_interface(block: Any) -> dict[str, Any]:
    """For CuPy, Numba and torch on a CUDA device."""
    if block.host:
        raise AttributeError("__cuda_array_interface__: this block is in host memory")
    data = (block.address, False)
    return {"version": 3, "shape": (block.size,), "typestr": "|u1", "data": data, "strides": None}


def describe(block: Any) -> str:
    state = ", freed" if block.freed else ", pinned" if block.pinned else ""
    return f"<Block of {format_bytes(block.size)} at {block.address:#x}{state}>"


def _numpy_type(numpy: Any, dtype: Any) -> Any:
    try:
        kind = numpy.dtype(dtype)
    except (TypeError, ValueError, SyntaxError) as exc:
        raise BadInput(
            f"NumPy has no dtype {dtype!r}", expected='a dtype such as "uint8" or "float32"'
        ) from exc
    if not kind.itemsize or kind.hasobject or kind.subdtype:
        raise BadInput(
            f"cannot view memory as elements of dtype {str(kind)!r}",
            expected="a plain dtype with elements of at least 1 byte",
        )
    return kind


def _torch_type(torch: Any, dtype: Any) -> Any:
    kind = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if not isinstance(kind, torch.dtype):
        raise BadInput(
            f"torch has no dtype {dtype!r}", expected='a dtype such as "uint8" or torch.float32'
        )
    return kind


class Viewable(abc.ABC):
    """Mixin: memory (`view()`, `address`, `size`, `host`) as buffer, array, tensor, DLPack."""

    __slots__ = ()
    public_name: ClassVar[str]
    address: int
    size: int

    @abc.abstractmethod
    def view(self) -> memoryview:
        """The bytes."""

    def __buffer__(self, flags: int) -> memoryview:  # read by Python 3.12 and newer
        return self.view()

    def __index__(self) -> int:
        return self.address

    __int__ = __index__

    def __len__(self) -> int:
        return self.size

    def __bool__(self) -> bool:
        return True  # even if it has no bytes

    def __reduce_ex__(self, protocol: Any) -> Any:
        # A copy would free the memory a second time.
        raise TypeError(f"cannot pickle '{self.public_name}' object")

    __bytes__ = content
    array = array
    tensor = tensor
    __dlpack__ = dlpack
    __dlpack_device__ = dlpack_device
    __array_interface__ = property(array_interface)


def _check_shape(
    block: Any, item: int, kind: str, shape: int | Sequence[int] | None
) -> tuple[tuple[int, ...], int]:
    if shape is None:
        return (block.size // item,), block.size // item
    wanted = _dimensions(shape)
    count = math.prod(wanted)
    negative = any(n < 0 for n in wanted)
    if negative or count * item > block.size:
        raise BadInput(
            f"cannot view a block of {block.size} bytes as a {kind} array of shape {wanted}",
            expected="sizes from 0" if negative else f"at least {count * item} bytes",
        )
    return wanted, count


def _dimensions(shape: Any) -> tuple[int, ...]:
    try:
        if hasattr(shape, "__index__"):
            return (operator.index(shape),)
        return tuple(operator.index(n) for n in shape)
    except TypeError as exc:
        raise BadInput(
            f"cannot read {shape!r} as a shape", expected="an integer, or several"
        ) from exc


def _call_library(make: Callable[[], Any], library: str, wanted: tuple[int, ...]) -> Any:
    """Call `make`; a library has limits of its own, such as 64 dimensions."""
    try:
        return make()
    except (ValueError, TypeError, RuntimeError, OverflowError) as exc:
        raise BadInput(
            f"{library} cannot make an array of shape {wanted}: {exc}", expected="a smaller shape"
        ) from exc


def _import(name: str, need: str, hint: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as exc:
        raise MissingDependency(need, expected=name, hint=f"pip install {hint}") from exc

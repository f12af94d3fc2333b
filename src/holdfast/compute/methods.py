"""What a tensor can do beside operators: conversions, sizes given one by one, every op's method.

Covers: numbers out of it (`item`, `numpy`, DLPack …), `to` and its kin, methods from the table.
Leaves to others: operators, indexing, what an op computes.
Promise: `numpy()` and DLPack share memory where the tensor is in the host's memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy

from holdfast.base.errors import BadInput, Misuse
from holdfast.compute import dtype as formats
from holdfast.compute import functional
from holdfast.compute.device import CustomDevice
from holdfast.compute.device import device as as_device
from holdfast.compute.ops.table import PACKETS
from holdfast.compute.schema import described

_EDGE = 1000  # numbers up to which all are printed


class Methods:
    """What `CustomTensor` inherits, beside operators."""

    _array: Any
    device: CustomDevice
    requires_grad: bool
    grad: Any
    grad_fn: Any
    data: Any
    dtype: Any
    shape: Any
    ndim: Any

    if TYPE_CHECKING:  # `install` adds a method for every op of the table

        def __getattr__(self, name: str) -> Any: ...

    # ---- numbers out of it

    def numpy(self) -> numpy.ndarray[Any, Any]:
        """The numbers as a NumPy array: itself in the host's memory, a copy from elsewhere."""
        return self.data

    def item(self) -> Any:
        """The only number. Raises BadInput where there are others."""
        array = self.data
        if array.size != 1:
            raise BadInput(
                f"item() of {described(self)}: there are {array.size} numbers",
                expected="one",
                hint="tolist(), or a reduction such as sum() before it",
            )
        found = array.reshape(())
        return float(found) if formats.category(self.dtype) == formats.FLOATING else found.item()

    def tolist(self) -> Any:
        """Plain numbers, in lists of lists."""
        array = self.data
        return array.astype(formats.working(array.dtype), copy=False).tolist()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return numpy.array(self.data, dtype=dtype, copy=copy)

    def __dlpack__(self, **options: Any) -> Any:
        return _dlpack_array(self).__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return _dlpack_array(self).__dlpack_device__()

    def __len__(self) -> int:
        if not self.ndim:
            raise TypeError("len() of a tensor without dimensions")
        return self.shape[0]

    def __iter__(self) -> Iterator[Any]:
        return iter([self[place] for place in range(len(self))])

    def __bool__(self) -> bool:
        if self.data.size != 1:
            raise BadInput(
                f"{described(self)} is neither true nor false",
                expected="a single number",
                hint=".any() or .all()",
            )
        return bool(self.item())

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __complex__(self) -> complex:
        return complex(self.item())

    def __index__(self) -> int:
        if formats.category(self.dtype) > formats.INTEGER:
            raise TypeError(f"only whole numbers can be an index, this is {described(self)}")
        return int(self.item())

    def __contains__(self, value: Any) -> bool:
        return bool((self.data == getattr(value, "data", value)).any())

    def __repr__(self) -> str:
        array = self.data
        shown = numpy.array2string(
            array.astype(formats.working(array.dtype), copy=False),
            separator=", ",
            prefix="tensor(",
            threshold=_EDGE,
        )
        parts = [shown]
        if self.dtype not in (formats.FLOAT32, formats.INT64, formats.BOOL):
            parts.append(f"dtype={self.dtype.name}")
        if str(self.device) != "custom:0":
            parts.append(f"device='{self.device}'")
        if self.grad_fn is not None:
            parts.append(f"grad_fn={self.grad_fn!r}")
        elif self.requires_grad:
            parts.append("requires_grad=True")
        return f"tensor({', '.join(parts)})"

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if spec else str(self)

    def __copy__(self) -> Any:
        """Another tensor over the same memory."""
        made = type(self).__new__(type(self))
        made.__dict__.update(self.__dict__)
        return made

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        if self.grad_fn is not None:
            raise Misuse(
                f"cannot copy {described(self)}: it is the result of {self.grad_fn.op.name}, and "
                "the way back would be copied with it",
                expected="a leaf",
                hint="detach() first",
            )
        made = type(self).__new__(type(self))
        memo[id(self)] = made
        made.__dict__.update({k: v for k, v in self.__dict__.items() if k in ("requires_grad",)})
        made.device = self.device
        made._array = self.device.engine.upload(self.data)
        made.grad = None if self.grad is None else self.grad.detach().clone()
        return made

    def __reduce__(self) -> Any:
        state = self.data, str(self.device), bool(self.requires_grad and self.grad_fn is None)
        return _unpickled, (type(self), *state)

    # ---- formats and places

    def to(self, *where: Any, dtype: Any = None, device: Any = None, copy: bool = False) -> Any:
        """In another format or on another device; itself if it is there already."""
        for given in where:
            if isinstance(given, CustomDevice):
                device = given
            elif hasattr(given, "_array"):
                dtype, device = given.dtype, given.device
            elif isinstance(given, str) and not _names_format(given):
                device = given
            else:
                dtype = given
        moved: Any = self
        if device is not None:
            moved = _moved(moved, as_device(device))
        if dtype is not None and formats.dtype(dtype) != self.dtype:
            return functional._to_copy(moved, dtype=formats.dtype(dtype))
        return functional.clone(moved) if copy and moved is self else moved

    def cpu(self) -> Any:
        """In the host's memory."""
        return self.to(device="cpu")

    def type(self, dtype: Any) -> Any:
        """In another format."""
        return self.to(dtype=dtype)

    def float(self) -> Any:
        """In float32."""
        return self.to(dtype="float32")

    def double(self) -> Any:
        """In float64."""
        return self.to(dtype="float64")

    def half(self) -> Any:
        """In float16."""
        return self.to(dtype="float16")

    def bfloat16(self) -> Any:
        """In bfloat16."""
        return self.to(dtype="bfloat16")

    def long(self) -> Any:
        """In int64."""
        return self.to(dtype="int64")

    def int(self) -> Any:
        """In int32."""
        return self.to(dtype="int32")

    def bool(self) -> Any:
        """Truth values: what is not zero."""
        return self.to(dtype="bool")

    # ---- sizes given one by one, as torch takes them

    def view(self, *shape: Any) -> Any:
        """The same numbers in another shape, without a copy; or in another format's words."""
        return functional.view(self, _sizes(shape))

    def reshape(self, *shape: Any) -> Any:
        """The same numbers in another shape; a view where that can be."""
        return functional.reshape(self, _sizes(shape))

    def permute(self, *dims: Any) -> Any:
        """Dimensions in another order; a view."""
        return functional.permute(self, _sizes(dims))

    def expand(self, *shape: Any) -> Any:
        """Dimensions of size 1 repeated without a copy; a view."""
        return functional.expand(self, _sizes(shape))

    def repeat(self, *times: Any) -> Any:
        """Copies, one behind the other, along each dimension."""
        return functional.repeat(self, _sizes(times))

    def flip(self, *dims: Any) -> Any:
        """Turned round along these dimensions."""
        return functional.flip(self, _sizes(dims))

    def __getitem__(self, index: Any) -> Any:
        from holdfast.compute import indexing

        of: Any = self
        return indexing.getitem(of, index)

    def __setitem__(self, index: Any, value: Any) -> None:
        from holdfast.compute import indexing

        of: Any = self
        indexing.setitem(of, index, value)

    @property
    def T(self) -> Any:
        """Transposed: dimensions in reverse order."""
        return functional.permute(self, list(range(self.ndim))[::-1])

    @property
    def mT(self) -> Any:
        """Transposed in the last two dimensions."""
        return functional.transpose(self, -2, -1)

    @property
    def H(self) -> Any:
        """Conjugated and transposed."""
        return functional.conj(self.mT) if formats.is_complex(self.dtype) else self.mT

    @property
    def real(self) -> Any:
        """The real part; a view."""
        return functional.real(self) if formats.is_complex(self.dtype) else self

    @property
    def imag(self) -> Any:
        """The imaginary part; a view. Raises BadInput for real numbers."""
        if not formats.is_complex(self.dtype):
            raise BadInput(f"{described(self)} has no imaginary part", expected="complex numbers")
        return functional.imag(self)

    def element_size(self) -> int:
        """Bytes of one number."""
        return self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of all numbers."""
        return self.dtype.itemsize * int(numpy.prod(self.shape, dtype=numpy.int64))

    def stride(self) -> tuple[int, ...]:
        """Steps between neighbours along each dimension, in numbers."""
        return tuple(step // self.dtype.itemsize for step in self._array.strides)

    def is_contiguous(self) -> bool:
        """Whether the numbers lie one behind the other."""
        return bool(self._array.flags.c_contiguous)

    def is_floating_point(self) -> bool:
        """Real numbers with a fraction."""
        return formats.is_floating(self.dtype)

    def is_complex(self) -> bool:
        """Complex numbers."""
        return formats.is_complex(self.dtype)

    @property
    def __memory_block__(self) -> Any:
        """What the leak finder follows to the pool's block."""
        return self._array


def _sizes(given: tuple[Any, ...]) -> Any:
    return given[0] if len(given) == 1 and not isinstance(given[0], int) else list(given)


def _names_format(name: str) -> bool:
    try:
        formats.dtype(name)
    except BadInput:
        return False
    return True


def _moved(tensor: Any, device: CustomDevice) -> Any:
    if device == tensor.device:
        return tensor
    if device.matches(tensor.device):  # the same memory under another name
        made = functional.alias(tensor)
        made.device = device
        return made
    return type(tensor)._moved_from(tensor, device)


def _dlpack_array(tensor: Any) -> Any:
    array = tensor.data
    if array.dtype.name not in _DLPACK:
        raise BadInput(
            f"NumPy has no DLPack for {described(tensor)}",
            expected=f"one of {', '.join(_DLPACK)}",
            hint="to('float32') first",
        )
    return array if array.flags.writeable else array.copy()


_DLPACK = (
    *("bool", "uint8", "int8", "int16", "uint16", "int32", "uint32", "int64", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
)


def _unpickled(kind: Any, array: Any, device: str, requires_grad: bool) -> Any:
    made = kind.__new__(kind)
    made.device = as_device(device)
    made._array = made.device.engine.upload(array)
    made.requires_grad = requires_grad
    return made


# ---- methods from the table

# Ops whose result has the shape of their first argument although they are not pointwise.
_ALSO_IN_PLACE = (
    *("fill", "zero", "copy", "masked_fill", "masked_scatter", "index_put", "index_add"),
    *("index_copy", "index_fill", "scatter", "scatter_add", "scatter_reduce", "tril", "triu"),
    *("cumsum", "cumprod", "uniform", "bernoulli", "random", "exponential", "put", "renorm"),
    *("relu", "clamp", "detach", "addmm", "addmv", "addr", "baddbmm", "addbmm", "where"),
    *("log_normal", "cauchy", "geometric", "index_reduce"),
)


def install(tensor: type, in_place: Callable[[str], Any]) -> None:
    """Give `tensor` a method for every op whose first argument is a tensor named self or input."""
    for name, ops in PACKETS.items():
        first = ops[0].schema.parameters[:1]
        if name.startswith("_") or not (first and first[0].tensor and not first[0].many):
            continue
        if first[0].name not in ("self", "input") or name.endswith("_backward"):
            continue
        if not hasattr(tensor, name):
            setattr(tensor, name, _method(name))
        if any(o.rule.kind for o in ops) or name in _ALSO_IN_PLACE:
            setattr(tensor, f"{name}_", in_place(name))
    if "normal_functional" in PACKETS:
        setattr(tensor, "normal_", in_place("normal_functional"))  # noqa: B010  (made at run time)


def _method(name: str) -> Callable[..., Any]:
    packet = functional.packet(name)

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return packet(self, *args, **kwargs)

    method.__name__ = name
    method.__doc__ = " or ".join(op.schema.text for op in PACKETS[name])
    return method

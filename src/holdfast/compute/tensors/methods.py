"""Methods of tensors: conversions, `to`, views, and one for every op of the table.

`numpy()` and DLPack share memory with tensors on the host.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy

from holdfast.base.errors import BadInput, Misuse
from holdfast.compute import dtype as dtypes
from holdfast.compute import functional
from holdfast.compute.ops.schema import describe
from holdfast.compute.ops.table import PACKETS
from holdfast.compute.tensors import indexing
from holdfast.compute.tensors.device import CustomDevice
from holdfast.compute.tensors.device import device as as_device

_EDGE = 1000  # elements up to which all are printed


class Methods:
    """The methods that `CustomTensor` inherits."""

    if TYPE_CHECKING:  # `CustomTensor` has the attributes, and a method for every op of the table

        def __getattr__(self, name: str) -> Any: ...

    # ---- conversion to Python and NumPy

    def numpy(self) -> numpy.ndarray[Any, Any]:
        """The elements as a NumPy array: shared memory on the host, a copy from other devices."""
        return self.data

    def item(self) -> Any:
        """The only element, as a Python scalar. Raises BadInput if there are more."""
        array = self.data
        if array.size != 1:
            raise BadInput(
                f"item() of {describe(self)}: there are {array.size} elements",
                expected="one",
                hint="tolist(), or a reduction such as sum() before it",
            )
        found = array.reshape(())
        return float(found) if dtypes.category(self.dtype) == dtypes.FLOATING else found.item()

    def tolist(self) -> Any:
        """The elements as nested lists of Python scalars."""
        array = self.data
        return array.astype(dtypes.working(array.dtype), copy=False).tolist()

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
                f"{describe(self)} is neither true nor false",
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
        if dtypes.category(self.dtype) > dtypes.INTEGER:
            raise TypeError(f"only integers can be an index, this is {describe(self)}")
        return int(self.item())

    def __contains__(self, value: Any) -> bool:
        return bool((self.data == getattr(value, "data", value)).any())

    def __repr__(self) -> str:
        array = self.data.astype(dtypes.working(self.dtype), copy=False)
        options: Any = {"separator": ", ", "prefix": "tensor(", "threshold": _EDGE}
        parts = [numpy.array2string(array, **options)]
        if self.dtype not in (dtypes.FLOAT32, dtypes.INT64, dtypes.BOOL):
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

    def __deepcopy__(self, memo: dict[Any, Any]) -> Any:
        if self.grad_fn is not None:
            raise Misuse(
                f"cannot copy {describe(self)}: it is the result of {self.grad_fn.op.name}, and "
                "its graph would be copied with it",
                expected="a leaf",
                hint="detach() first",
            )
        made: Any = type(self).__new__(type(self))
        memo[id(self)] = made
        made.device, made.requires_grad = self.device, self.requires_grad
        made._array = self.device.engine.upload(self.data)
        made.grad = None if self.grad is None else self.grad.detach().clone()
        return made

    def __reduce__(self) -> Any:
        state = self.data, str(self.device), bool(self.requires_grad and self.grad_fn is None)
        return _unpickle, (type(self), *state)

    # ---- dtypes and devices

    def to(self, *where: Any, dtype: Any = None, device: Any = None, copy: bool = False) -> Any:
        """Cast or move; returns the tensor itself if nothing changes and `copy` is False."""
        for given in where:
            if isinstance(given, CustomDevice):
                device = given
            elif hasattr(given, "_array"):
                dtype, device = given.dtype, given.device
            elif isinstance(given, str) and not _is_dtype_name(given):
                device = given
            else:
                dtype = given
        moved: Any = self
        if device is not None:
            moved = _move(moved, as_device(device))
        if dtype is not None and dtypes.dtype(dtype) != self.dtype:
            return functional._to_copy(moved, dtype=dtypes.dtype(dtype))
        return functional.clone(moved) if copy and moved is self else moved

    cpu = functools.partialmethod(to, device="cpu")

    def type(self, dtype: Any) -> Any:
        return self.to(dtype=dtype)

    float = functools.partialmethod(to, dtype="float32")
    double = functools.partialmethod(to, dtype="float64")
    half = functools.partialmethod(to, dtype="float16")
    bfloat16 = functools.partialmethod(to, dtype="bfloat16")
    long = functools.partialmethod(to, dtype="int64")
    int = functools.partialmethod(to, dtype="int32")
    bool = functools.partialmethod(to, dtype="bool")

    # ---- views; sizes as a list or one by one, as in torch

    def view(self, *shape: Any) -> Any:
        """The same elements in another shape without a copy; or the same bytes in another dtype."""
        return functional.view(self, _sizes(shape))

    def reshape(self, *shape: Any) -> Any:
        """The same elements in another shape; a view if possible."""
        return functional.reshape(self, _sizes(shape))

    def permute(self, *dims: Any) -> Any:
        """Reorder dimensions; a view."""
        return functional.permute(self, _sizes(dims))

    def expand(self, *shape: Any) -> Any:
        """Repeat dimensions of size 1 without a copy; a view."""
        return functional.expand(self, _sizes(shape))

    def repeat(self, *times: Any) -> Any:
        """Repeat the tensor along each dimension."""
        return functional.repeat(self, _sizes(times))

    def flip(self, *dims: Any) -> Any:
        """Reverse the order of elements along these dimensions."""
        return functional.flip(self, _sizes(dims))

    __getitem__, __setitem__ = indexing.getitem, indexing.setitem

    @property
    def T(self) -> Any:
        """All dimensions in reverse order."""
        return functional.permute(self, list(range(self.ndim))[::-1])

    @property
    def mT(self) -> Any:
        """The last two dimensions exchanged."""
        return functional.transpose(self, -2, -1)

    @property
    def H(self) -> Any:
        """The conjugate transpose."""
        return functional.conj(self.mT) if dtypes.is_complex(self.dtype) else self.mT

    @property
    def real(self) -> Any:
        """The real part; a view."""
        return functional.real(self) if dtypes.is_complex(self.dtype) else self

    @property
    def imag(self) -> Any:
        """The imaginary part; a view. Raises BadInput for a real tensor."""
        if not dtypes.is_complex(self.dtype):
            raise BadInput(f"{describe(self)} has no imaginary part", expected="complex numbers")
        return functional.imag(self)

    def element_size(self) -> int:
        """Bytes of one element."""
        return self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return self.dtype.itemsize * int(numpy.prod(self.shape, dtype=numpy.int64))

    def stride(self) -> tuple[int, ...]:
        """Strides in elements."""
        return tuple(step // self.dtype.itemsize for step in self._array.strides)

    def is_contiguous(self) -> bool:
        return bool(self._array.flags.c_contiguous)

    def is_floating_point(self) -> bool:
        return dtypes.is_floating(self.dtype)

    def is_complex(self) -> bool:
        return dtypes.is_complex(self.dtype)

    @property
    def __memory_block__(self) -> Any:
        """What the leak finder follows to the pool's block."""
        return self._array


def _sizes(given: tuple[Any, ...]) -> Any:
    return given[0] if len(given) == 1 and not isinstance(given[0], int) else list(given)


def _is_dtype_name(name: str) -> bool:
    try:
        dtypes.dtype(name)
    except BadInput:
        return False
    return True


def _move(tensor: Any, device: CustomDevice) -> Any:
    if device == tensor.device:
        return tensor
    if device.matches(tensor.device):  # the same memory under another name
        made = functional.alias(tensor)
        made.device = device
        return made
    return type(tensor)._copy_to(tensor, device)


def _dlpack_array(tensor: Any) -> Any:
    array = tensor.data
    if array.dtype.name not in dtypes.PLAIN:
        raise BadInput(
            f"NumPy has no DLPack for {describe(tensor)}",
            expected=f"one of {', '.join(dtypes.PLAIN)}",
            hint="to('float32') first",
        )
    return array if array.flags.writeable else array.copy()


def _unpickle(kind: Any, array: Any, device: str, requires_grad: bool) -> Any:
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

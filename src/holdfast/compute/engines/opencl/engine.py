"""The OpenCL engine: the op table on any device with an OpenCL 1.2 driver.

Covers: one engine for each device; arrays up and down; what the host must do.
Leaves to others: memory (`memory`), building (`programs`), launching (`launching`), the kernels in
the files beside this.
Promise: a call returns when its work is queued, and numbers that are read are complete. What a
device cannot compute the host's NumPy engine does: counted for each op, and refused where it is
strict.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy

from holdfast.base.config import Config
from holdfast.base.errors import BadInput
from holdfast.compute import dtype as formats
from holdfast.compute.engine import each, is_strict, on_host
from holdfast.compute.engines.opencl import copying, elementwise, launching
from holdfast.compute.engines.opencl.array import Array, Memory, NotHere
from holdfast.compute.engines.opencl.kernels import KERNELS, Kernel
from holdfast.compute.engines.opencl.memory import Memories
from holdfast.compute.engines.opencl.programs import BuildFailed, Programs, source_of
from holdfast.compute.ops.table import OPS, Op
from holdfast.memory import opencl

_ndarray = numpy.ndarray
MAPPINGS = ("cpu", "gpu")
_GROUP = 256  # work-items that fill a GPU's units well
_HALVES = [k for k in formats.NARROW if k.itemsize == 2]
_NARROWEST = [k for k in formats.NARROW if k.itemsize == 1]


class OpenCLEngine:
    """Arrays are `Array`s of one device."""

    name = "opencl"
    reads_host = True  # `write` takes arrays of NumPy's
    kernels: Mapping[str, Callable[..., Any]] = KERNELS

    def __init__(self, index: int = 0) -> None:
        self.index = index
        self._complained: set[str] = set()
        self._kernels: dict[Any, Any] = {}
        self.plans: dict[Any, Any] = {}  # what calls come to: see `elementwise`
        self.tuned: dict[str, dict[str, int]] = {}  # parameters of kernels: see `tuning`

    def __repr__(self) -> str:
        return f"<OpenCLEngine {self.index}>"

    # ---- the device, which starts with the first use

    @functools.cached_property
    def place(self) -> opencl.Place:
        """The device. Raises Absent where there is none."""
        return opencl.place(self.index)

    @functools.cached_property
    def mapping(self) -> str:
        """How work is laid out: "cpu" (few long work-items) or "gpu" (many short ones)."""
        wanted = Config.load().opencl_mapping
        if wanted in MAPPINGS:
            return wanted
        if wanted != "auto":
            raise BadInput(f"HOLDFAST_OPENCL_MAPPING is {wanted!r}", expected="auto, cpu or gpu")
        kind = opencl.kind_of(opencl.device(self.index))
        return "cpu" if kind == "cpu" else "gpu"

    @functools.cached_property
    def units(self) -> int:
        """How many compute units the device has."""
        return self.place.device.max_compute_units

    @functools.cached_property
    def most_items(self) -> int:
        """The largest work-group."""
        return self.place.device.max_work_group_size

    @functools.cached_property
    def group(self) -> int:
        """Work-items of a group, where a kernel wants many: a power of two."""
        return min(_GROUP, 1 << self.most_items.bit_length() - 1)

    @functools.cached_property
    def local_bytes(self) -> int:
        """The local memory of a work-group."""
        return self.place.device.local_mem_size

    @functools.cached_property
    def has_double(self) -> bool:
        """Whether it computes in float64."""
        return "cl_khr_fp64" in self.place.device.extensions

    @functools.cached_property
    def memories(self) -> Memories:
        """Memory for its arrays."""
        return Memories(self.place)

    @functools.cached_property
    def programs(self) -> Programs:
        """Kernels that were built for it."""
        return Programs(self.place)

    # ---- the protocol

    def on(self, index: int) -> OpenCLEngine:
        return engine_at(index)

    def count(self) -> int:
        """How many devices there are."""
        return len(opencl.devices())

    def alloc(self, shape: tuple[int, ...], dtype: numpy.dtype[Any]) -> Array:
        shape = tuple(shape)
        nbytes = dtype.itemsize
        for size in shape:
            nbytes *= size
        return Array(self, self.memories.make(nbytes), dtype, shape)

    def upload(self, array: Any) -> Array:
        if type(array) is Array:
            return array if array.engine is self else self.upload(array.engine.download(array))
        kind = formats.dtype(array.dtype)
        plain = numpy.array(array, kind, copy=True, order="C")
        made = self.alloc(plain.shape, kind)
        if plain.size:
            self._send(made.memory, plain.reshape(-1).view(numpy.uint8))
        return made

    def _send(self, memory: Memory, words: Any) -> None:
        """Copy bytes that nobody changes any more, without waiting."""
        self.memories.send(memory, words)

    def download(self, array: Array) -> Any:
        if not array.size:
            return numpy.empty(array.shape, array.dtype)
        # Looked at once: another thread may bring the memory back to the device meanwhile.
        if (host := array.memory.host) is not None:
            return _part(host, array).copy()
        plain = array if array.is_contiguous else self.contiguous(array)
        if (host := plain.memory.host) is not None:
            return _part(host, plain).copy()
        words = numpy.empty(plain.nbytes, numpy.uint8)
        with self.place.lock:
            self.memories.read(plain.memory, words, plain.offset)
        return words.view(array.dtype).reshape(array.shape)

    def cast(self, array: Array, dtype: numpy.dtype[Any]) -> Array:
        if array.dtype == dtype:
            return array
        return self.copied(array, dtype)

    def copied(self, array: Array, dtype: numpy.dtype[Any] | None = None) -> Array:
        """The numbers in memory of their own, in the same order, perhaps in another format."""
        made = self.like(array, dtype or array.dtype)
        self.write(made, array)
        return made

    def contiguous(self, array: Array, dtype: numpy.dtype[Any] | None = None) -> Array:
        """The array if its numbers lie side by side and have the format; else a copy."""
        kind = dtype or array.dtype
        if array.dtype == kind and array.is_contiguous:
            return array
        made = self.alloc(array.shape, kind)
        self.write(made, array)
        return made

    def like(self, array: Array, dtype: numpy.dtype[Any], shape: Any = None) -> Array:
        """New memory for an array of this shape, in the same order where that is dense."""
        made = self.alloc(array.shape if shape is None else tuple(shape), dtype)
        if shape is not None or array.is_contiguous or not array.is_dense:
            return made
        size, wide = array.itemsize, dtype.itemsize
        return made.viewed(dtype, array.shape, tuple(s // size * wide for s in array.strides))

    def write(self, array: Array, value: Any) -> None:
        if type(value) is not Array:
            if self._written_straight(array, value):
                return
            value = self.upload(value)
        if value.shape != array.shape:
            value = value.broadcast_to(array.shape)
        if not array.size:
            return
        if value.memory is array.memory and (
            value.offset != array.offset or value.strides != array.strides
        ):
            value = self.copied(value)
        try:
            copying.copy(self, array, value)
        except NotHere:
            self._write_on_host(array, value)

    def _written_straight(self, array: Array, value: Any) -> bool:
        """Send numbers of the host to where they belong, if they can go there as they are."""
        if not array.size or value.shape != array.shape or not array.is_contiguous:
            return False
        if not _casts_alike(value.dtype, array.dtype):
            return False
        with numpy.errstate(over="ignore", invalid="ignore"):  # as the device: inf, without a word
            plain = numpy.array(value, array.dtype, copy=True, order="C")
        with self.place.lock:
            part = _from(array.memory, array.offset)
            self._send(part, plain.reshape(-1).view(numpy.uint8))
        return True

    def _write_on_host(self, array: Array, value: Array) -> None:
        """Copy where the device cannot: formats it does not know, memory it has no room for."""
        source = self.download(value)
        if source.dtype.kind == "c" and array.dtype.kind not in "cb":
            source = source.real
        whole = array.viewed(numpy.dtype(numpy.uint8), (array.memory.nbytes,), (1,), 0)
        with self.place.lock:  # nobody else writes to this memory meanwhile
            words = self.download(whole)
            _part(words, array)[...] = source.astype(array.dtype)
            self._send(array.memory, words)

    def call(self, kernel: Any, args: Any, kwargs: Any) -> Any:
        if type(kernel) is not Kernel:
            return kernel(*args, **kwargs)
        try:
            args = [self.mine(a) for a in args]
            kwargs = kwargs and {k: self.mine(v) for k, v in kwargs.items()}
            return kernel.function(self, *args, **kwargs)
        except NotHere:
            pass
        except BuildFailed as exc:
            self.complain(exc)
        return on_host(OPS[kernel.name], self, args, kwargs)

    def pointwise(self, op: Op, args: Any, kwargs: Any) -> Any:
        """Compute a pointwise op; formats meet inside the kernel."""
        try:
            return elementwise.run(self, op, args, kwargs)
        except NotHere:
            pass
        except BuildFailed as exc:
            self.complain(exc)
        return on_host(op, self, args, kwargs)

    def fused(self, inputs: Any, steps: Any, results: Any, hosted: Any = ()) -> Any:
        """Recorded pointwise steps as one kernel; None where they are called one by one.

        `hosted` are inputs that will be single numbers of NumPy's.
        """
        from holdfast.compute.engines.opencl import fusing

        return fusing.fused(self, inputs, steps, results, hosted)

    # ---- launching

    def mine(self, value: Any) -> Any:
        """An argument with its arrays on this device: numbers and places may be the host's."""
        kind = type(value)
        if kind is _ndarray or (kind is Array and value.engine is not self):
            return self.upload(value)
        if kind is list or kind is tuple:
            return each(value, self.mine)
        return value

    def kernel(self, names: str, function: str, **defines: Any) -> Any:
        """The kernel `function` of kernels/NAME.cl, built with these defines.

        Several names, with spaces between: files that come one behind the other. ON_GPU is defined
        where work is laid out for GPUs.
        """
        key = self.mapping, names, function, *defines.items()
        found = self._kernels.get(key)
        if found is None:
            text = "".join(map(source_of, names.split()))
            if self.mapping == "gpu":
                defines["ON_GPU"] = 1
            found = self._kernels[key] = self.programs.generated(text, function, defines)
        return found

    def launch(self, kernel: Any, size: tuple[int, ...], group: Any, *args: Any) -> None:
        """Queue a kernel. Arrays are two arguments each; ints are long, floats are float.

        `group` is None where the driver may choose. Raises NotHere where memory cannot be there.
        """
        launching.launch(self, kernel, size, group, args)

    def generated(self, text: str, function: str) -> Any:
        """The kernel `function` of a text, built when it is needed first."""
        found = self._kernels.get(text)
        if found is None:
            found = self._kernels[text] = self.programs.generated(text, function)
        return found

    def synchronize(self) -> None:
        """Wait until all work is done."""
        with self.place.noticing(f"finish the work of {self.place.name}"):
            self.place.queue.finish()
        self.memories.all_sent()

    def marker(self) -> launching.Marker:
        """A moment in the work of the device."""
        return launching.Marker(self.place)

    def complain(self, exc: BuildFailed) -> None:
        """Warn of a kernel that cannot be built, once; the host computes then, unless strict."""
        if is_strict():
            raise exc
        if exc.what not in self._complained:
            self._complained.add(exc.what)
            warnings.warn(f"{exc.what}; the host computes instead", RuntimeWarning, stacklevel=4)


def _part(words: Any, array: Array) -> Any:
    """What an array looks at among the bytes of its memory."""
    return numpy.ndarray(array.shape, array.dtype, words, array.offset, array.strides)


def _from(memory: Memory, offset: int) -> Memory:
    """The part of memory behind an offset, while the device is locked: it may move later."""
    part = Memory(memory.nbytes - offset)
    part.buffer, part.start = memory.buffer, memory.start + offset
    part.host = None if memory.host is None else memory.host[offset:]
    return part


def _casts_alike(source: numpy.dtype[Any], kind: numpy.dtype[Any]) -> bool:
    """Whether the host casts as the device does; those that may overflow are the device's."""
    if source == kind:
        return True
    if source.kind == "c" or source in _NARROWEST:
        return False
    if kind == formats.FLOAT32 or kind == formats.FLOAT64:
        return True
    whole = source.kind in "iu" and kind.kind in "iu"
    return whole or (source == formats.FLOAT32 and kind in _HALVES)


@functools.cache
def engine_at(index: int) -> OpenCLEngine:
    """The engine of the device `opencl:index`."""
    return OpenCLEngine(index)

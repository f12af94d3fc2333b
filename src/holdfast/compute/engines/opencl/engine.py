"""The OpenCL engine: the op table on any device with an OpenCL 1.2 driver, one engine per device.

A call returns when its work is queued; downloads wait for it. Ops that a device cannot compute run
on the host's NumPy engine. Such fallbacks are counted per op, and raise in strict mode.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy

from holdfast.base.config import Config
from holdfast.base.errors import BadInput
from holdfast.compute import dtype as dtypes
from holdfast.compute.engine import each, is_strict, on_host
from holdfast.compute.engines.opencl.elementwise import expressions, fused_chains
from holdfast.compute.engines.opencl.layout import strided_copy, views
from holdfast.compute.engines.opencl.runtime import launching
from holdfast.compute.engines.opencl.runtime.array import Array, Memory, NotHere
from holdfast.compute.engines.opencl.runtime.kernel_table import KERNELS, Kernel
from holdfast.compute.engines.opencl.runtime.memory import Memories
from holdfast.compute.engines.opencl.runtime.programs import BuildFailed, Programs, source_of
from holdfast.compute.ops.table import OPS, Op
from holdfast.memory.resources import opencl_devices

_ndarray = numpy.ndarray
MAPPINGS = ("cpu", "gpu")
_GROUP = 256  # work-items that fill a GPU's units well
_HALVES = [k for k in dtypes.NARROW if k.itemsize == 2]
_NARROWEST = [k for k in dtypes.NARROW if k.itemsize == 1]


class OpenCLEngine:
    """Runs ops on the arrays of one device. The device starts on first use."""

    name = "opencl"
    reads_host = True  # `write` takes NumPy arrays
    kernels: Mapping[str, Callable[..., Any]] = KERNELS

    def __init__(self, index: int = 0) -> None:
        self.index = index
        self._complained: set[str] = set()
        self._kernels: dict[Any, Any] = {}
        self.plans: dict[Any, Any] = {}  # prepared launches, see `strided_kernels`
        self.factories: dict[str, Any] = {}  # see `layout.factory`
        self.tuned: dict[str, dict[str, int]] = {}  # kernel parameters, see `tuned_parameters`

    def __repr__(self) -> str:
        return f"<OpenCLEngine {self.index}>"

    @functools.cached_property
    def place(self) -> opencl_devices.OpenCLDevice:
        """The device. Raises Absent if there is none."""
        return opencl_devices.open_device(self.index)

    @functools.cached_property
    def mapping(self) -> str:
        """How work is laid out: "cpu" (few long work-items) or "gpu" (many short ones)."""
        wanted = Config.load().opencl_mapping
        if wanted in MAPPINGS:
            return wanted
        if wanted != "auto":
            raise BadInput(f"HOLDFAST_OPENCL_MAPPING is {wanted!r}", expected="auto, cpu or gpu")
        kind = opencl_devices.kind_of(opencl_devices.device(self.index))
        return "cpu" if kind == "cpu" else "gpu"

    @functools.cached_property
    def units(self) -> int:
        return self.place.device.max_compute_units

    @functools.cached_property
    def most_items(self) -> int:
        """The largest work-group size."""
        return self.place.device.max_work_group_size

    @functools.cached_property
    def group(self) -> int:
        """The work-group size for kernels with many work-items: a power of two."""
        return min(_GROUP, 1 << self.most_items.bit_length() - 1)

    @functools.cached_property
    def local_bytes(self) -> int:
        """Local memory of a work-group."""
        return self.place.device.local_mem_size

    @functools.cached_property
    def has_double(self) -> bool:
        return "cl_khr_fp64" in self.place.device.extensions

    @functools.cached_property
    def memories(self) -> Memories:
        return Memories(self.place)

    @functools.cached_property
    def programs(self) -> Programs:
        return Programs(self.place)

    # ---- the protocol

    def on(self, index: int) -> OpenCLEngine:
        return engine_at(index)

    def count(self) -> int:
        """How many devices there are."""
        return len(opencl_devices.devices())

    def alloc(self, shape: tuple[int, ...], dtype: numpy.dtype[Any]) -> Array:
        shape = tuple(shape)
        nbytes = dtype.itemsize
        for size in shape:
            nbytes *= size
        return Array(self, self.memories.make(nbytes), dtype, shape)

    def upload(self, array: Any) -> Array:
        if type(array) is Array:
            return array if array.engine is self else self.upload(array.engine.download(array))
        kind = dtypes.dtype(array.dtype)
        plain = numpy.array(array, kind, copy=True, order="C")
        made = self.alloc(plain.shape, kind)
        if plain.size:
            # Without waiting: nobody changes the copy afterwards.
            self.memories.send(made.memory, plain.reshape(-1).view(numpy.uint8))
        return made

    def download(self, array: Array) -> Any:
        if not array.size:
            return numpy.empty(array.shape, array.dtype)
        # Read once: another thread may move the memory back to the device meanwhile.
        if (host := array.memory.host) is not None:
            return _host_view(host, array).copy()
        plain = array if array.is_contiguous else self.contiguous(array)
        if (host := plain.memory.host) is not None:
            return _host_view(host, plain).copy()
        words = numpy.empty(plain.nbytes, numpy.uint8)
        with self.place.lock:
            self.memories.read(plain.memory, words, plain.offset)
        return words.view(array.dtype).reshape(array.shape)

    def cast(self, array: Array, dtype: numpy.dtype[Any]) -> Array:
        if array.dtype == dtype:
            return array
        return self.copy(array, dtype)

    def copy(self, array: Array, dtype: numpy.dtype[Any] | None = None) -> Array:
        """A copy in memory of its own with the same dimension order, cast to `dtype` if given."""
        made = self.alloc_like(array, dtype or array.dtype)
        self.write(made, array)
        return made

    def contiguous(self, array: Array, dtype: numpy.dtype[Any] | None = None) -> Array:
        """The array itself if it is contiguous and has the dtype, else a contiguous copy."""
        kind = dtype or array.dtype
        if array.dtype == kind and array.is_contiguous:
            return array
        made = self.alloc(array.shape, kind)
        self.write(made, array)
        return made

    def alloc_like(self, array: Array, dtype: numpy.dtype[Any], shape: Any = None) -> Array:
        """An uninitialized array; it keeps the dimension order of a dense `array` of this shape."""
        made = self.alloc(array.shape if shape is None else tuple(shape), dtype)
        if shape is not None or array.is_contiguous or not array.is_dense:
            return made
        size, wide = array.itemsize, dtype.itemsize
        return made.view(dtype, array.shape, tuple(s // size * wide for s in array.strides))

    def fill(self, array: Array, value: Any) -> None:
        """Write one value to all elements."""
        views.fill(self, array, value)

    def write(self, array: Array, value: Any) -> None:
        if type(value) is not Array:
            if self._try_write_directly(array, value):
                return
            value = self.upload(value)
        if value.shape != array.shape:
            value = value.broadcast_to(array.shape)
        if not array.size:
            return
        if value.memory is array.memory and (
            value.offset != array.offset or value.strides != array.strides
        ):
            value = self.copy(value)
        try:
            strided_copy.copy(self, array, value)
        except NotHere:
            self._write_on_host(array, value)

    def _try_write_directly(self, array: Array, value: Any) -> bool:
        """Send a host array without an upload and a cast on the device, if the target allows it."""
        if not array.size or value.shape != array.shape or not array.is_contiguous:
            return False
        if not _casts_alike(value.dtype, array.dtype):
            return False
        with numpy.errstate(over="ignore", invalid="ignore"):  # overflow gives inf on devices too
            plain = numpy.array(value, array.dtype, copy=True, order="C")
        with self.place.lock:
            part = _memory_from(array.memory, array.offset)
            self.memories.send(part, plain.reshape(-1).view(numpy.uint8))
        return True

    def _write_on_host(self, array: Array, value: Array) -> None:
        """Write by way of the host: for dtypes the device lacks, and for evicted memory."""
        source = self.download(value)
        if source.dtype.kind == "c" and array.dtype.kind not in "cb":
            source = source.real
        whole = array.view(numpy.dtype(numpy.uint8), (array.memory.nbytes,), (1,), 0)
        with self.place.lock:  # no other thread may write to this memory meanwhile
            words = self.download(whole)
            _host_view(words, array)[...] = source.astype(array.dtype)
            self.memories.send(array.memory, words)

    def call(self, kernel: Any, args: Any, kwargs: Any) -> Any:
        if type(kernel) is not Kernel:
            return kernel(*args, **kwargs)
        try:
            args = [self.to_device(a) for a in args]
            kwargs = kwargs and {k: self.to_device(v) for k, v in kwargs.items()}
            return kernel.function(self, *args, **kwargs)
        except NotHere:
            pass
        except BuildFailed as exc:
            self.complain(exc)
        return on_host(OPS[kernel.name], self, args, kwargs)

    def pointwise(self, op: Op, args: Any, kwargs: Any) -> Any:
        """Compute a pointwise op; dtypes are promoted inside the kernel."""
        try:
            return expressions.run(self, op, args, kwargs)
        except NotHere:
            pass
        except BuildFailed as exc:
            self.complain(exc)
        return on_host(op, self, args, kwargs)

    def fuse(self, inputs: Any, steps: Any, results: Any, hosted: Any = ()) -> Any:
        """One kernel for recorded pointwise steps; None if they must run one by one.

        `hosted` are the inputs that will be NumPy scalars.
        """
        return fused_chains.fuse(self, inputs, steps, results, hosted)

    # ---- launching

    def to_device(self, value: Any) -> Any:
        """An argument with its arrays on this device; NumPy arrays are uploaded."""
        kind = type(value)
        if kind is _ndarray or (kind is Array and value.engine is not self):
            return self.upload(value)
        if kind is list or kind is tuple:
            return each(value, self.to_device)
        return value

    def kernel(self, names: str, function: str, **defines: Any) -> Any:
        """The kernel `function` of kernels/NAME.cl, built with these defines.

        Several names, separated by spaces, are concatenated. ON_GPU is defined for the gpu mapping.
        """
        key = self.mapping, names, function, *defines.items()
        found = self._kernels.get(key)
        if found is None:
            text = "".join(map(source_of, names.split()))
            if self.mapping == "gpu":
                defines["ON_GPU"] = 1
            found = self._kernels[key] = self.programs.build(text, function, defines)
        return found

    def launch(self, kernel: Any, size: tuple[int, ...], group: Any, *args: Any) -> None:
        """Queue a kernel. An array becomes two arguments; ints are passed as long, floats as float.

        With `group` None the driver chooses. Raises NotHere if an array does not fit on the device.
        """
        launching.launch(self, kernel, size, group, args)

    def kernel_from(self, text: str, function: str) -> Any:
        """The kernel `function` of a source text, built on first use."""
        found = self._kernels.get(text)
        if found is None:
            found = self._kernels[text] = self.programs.build(text, function)
        return found

    def synchronize(self) -> None:
        """Wait until all queued work is done."""
        with self.place.translate_errors(f"finish the work of {self.place.name}"):
            self.place.queue.finish()
        self.memories.clear_uploads()

    def marker(self) -> launching.Marker:
        """An event behind all work queued so far."""
        return launching.Marker(self.place)

    def complain(self, exc: BuildFailed) -> None:
        """Warn once that a kernel cannot be built and the host computes. Raises if strict."""
        if is_strict():
            raise exc
        if exc.what not in self._complained:
            self._complained.add(exc.what)
            warnings.warn(f"{exc.what}; the host computes instead", RuntimeWarning, stacklevel=4)


def _host_view(words: Any, array: Array) -> Any:
    """The elements of an array, as a view of the bytes of its whole memory on the host."""
    return numpy.ndarray(array.shape, array.dtype, words, array.offset, array.strides)


def _memory_from(memory: Memory, offset: int) -> Memory:
    """The memory from an offset on. Valid while the device is locked: memory may move later."""
    part = Memory(memory.nbytes - offset)
    part.buffer, part.start = memory.buffer, memory.start + offset
    part.host = None if memory.host is None else memory.host[offset:]
    return part


def _casts_alike(source: numpy.dtype[Any], kind: numpy.dtype[Any]) -> bool:
    """Whether a cast on the host gives the device's result. Casts that may overflow do not."""
    if source == kind:
        return True
    if source.kind == "c" or source in _NARROWEST:
        return False
    if kind == dtypes.FLOAT32 or kind == dtypes.FLOAT64:
        return True
    whole = source.kind in "iu" and kind.kind in "iu"
    return whole or (source == dtypes.FLOAT32 and kind in _HALVES)


@functools.cache
def engine_at(index: int) -> OpenCLEngine:
    """The engine of the device `opencl:index`."""
    return OpenCLEngine(index)

"""Random number kernels.

By default the host draws torch's numbers for torch's seeds and uploads them, so that a seed gives
the same image on every engine. With HOLDFAST_OPENCL_RANDOM=device, large uniform, normal and
Bernoulli arrays are drawn on the device: other numbers, equal on all devices for a seed.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy

from holdfast.base.config import Config
from holdfast.base.errors import BadInput
from holdfast.compute import dtype as dtypes
from holdfast.compute.engine import ENGINES, each
from holdfast.compute.engines.numpy import random as host
from holdfast.compute.engines.numpy.kernels import KERNELS as HOST
from holdfast.compute.engines.opencl.elementwise.pointwise import native_dropout_backward
from holdfast.compute.engines.opencl.layout.views import make_copy, make_full
from holdfast.compute.engines.opencl.runtime.array import Array, c_strides
from holdfast.compute.engines.opencl.runtime.engine_protocol import CLEngine
from holdfast.compute.engines.opencl.runtime.kernel_table import kernel, register, storage
from holdfast.compute.ops.layout import shapes
from holdfast.compute.random import current

LARGE = 1 << 14  # elements from which the device draws, if it may
_F32 = dtypes.FLOAT32
_UNIFORM, _NORMAL, _CHANCE = range(3)
_SPARE = 64  # counters per work-item on CPUs, at least

# ---- drawn on the host


def _host_like(array: Array) -> Any:
    """A host array with the layout of a device array; its content does not matter."""
    if not array.is_dense or array.is_contiguous:
        return numpy.empty(array.shape, array.dtype)
    words = numpy.empty(array.nbytes, numpy.uint8)
    return numpy.ndarray(array.shape, array.dtype, words, 0, array.strides)


def _draw_on_host(
    engine: CLEngine, name: str, args: Any, kwargs: Any, reads: tuple[int, ...]
) -> Any:
    """Draw an op's numbers on the host; only the content of the arguments in `reads` matters."""
    given = []
    for place, value in enumerate(args):
        if type(value) is Array:
            value = engine.download(value) if place in reads else _host_like(value)
        given.append(value)
    named = {key: each(value, engine.download) for key, value in kwargs.items()}
    return each(ENGINES["numpy"].call(HOST[name], given, named), engine.upload)


def _make_host_kernel(name: str, reads: tuple[int, ...] = ()) -> Any:
    def draw(engine: CLEngine, *args: Any, **kwargs: Any) -> Any:
        return _draw_on_host(engine, name, args, kwargs, reads)

    return draw


for _name in (
    *("normal.float_float", "log_normal", "cauchy", "exponential", "geometric"),
    *("randint", "randint.low", "randint_like", "randint_like.low_dtype", "randperm"),
    *("random", "random.to", "random.from"),
):
    register(_name, _make_host_kernel(_name))
for _name in ("normal.Tensor_float", "normal.float_Tensor", "normal.Tensor_Tensor", "multinomial"):
    register(_name, _make_host_kernel(_name, (0, 1)))
register("randint_like.Tensor", _make_host_kernel("randint_like.Tensor", (1,)))
register("bernoulli", _make_host_kernel("bernoulli", (0,)))
register("bernoulli.Tensor", _make_host_kernel("bernoulli.Tensor", (1,)))

# ---- drawn on the device


@functools.cache
def _by_device() -> bool:
    wanted = Config.load().opencl_random
    if wanted not in ("host", "device"):
        raise BadInput(f"HOLDFAST_OPENCL_RANDOM is {wanted!r}", expected="host or device")
    return wanted == "device"


def _draws_on_device(engine: CLEngine, size: int, kind: numpy.dtype[Any]) -> bool:
    return size >= LARGE and _by_device() and kind.kind != "c" and kind != dtypes.FLOAT64


def _draw_on_device(engine: CLEngine, made: Array, what: int, one: float, other: float) -> Array:
    """Fill new memory with random numbers of the device; the key comes from the generator."""
    seed = int(current().bits64(1).view(numpy.int64)[0])
    counters = -(-made.size // 4)
    most = engine.units * 8 if engine.mapping == "cpu" else engine.units * 4096
    work = max(1 if engine.mapping == "gpu" else _SPARE, -(-counters // most))
    kernel = engine.kernel("random", "draw", KIND=what, WORD=storage(made.dtype))
    count = -(-counters // work)
    engine.launch(kernel, (count,), None, made, seed, made.size, work, float(one), float(other))
    return made


# ---- ops drawn on either


def _draw(
    engine: CLEngine, name: str, args: Any, made: Any, kind: int, one: float, other: float
) -> Any:
    """Draw on the device if it may, else on the host; `made` is the shape and the dtype."""
    shape, dtype = made
    if not _draws_on_device(engine, math.prod(shape), dtype) or not dtypes.is_floating(dtype):
        return _draw_on_host(engine, name, args, {}, ())
    if kind == _UNIFORM and other < one:
        raise ValueError(f"no numbers lie between {one} and {other}")
    if kind == _NORMAL and other < 0:
        raise ValueError(f"a standard deviation is 0 or more, not {other}")
    return _draw_on_device(engine, engine.alloc(shape, dtype), kind, one, other)


def _register_standard(name: str, what: int) -> None:
    """Between 0 and 1, or with mean 0 and deviation 1: by size, and like another array."""

    def by_size(engine: CLEngine, size: Any, dtype: Any = None) -> Array:
        made = shapes.sizes(size), dtypes.dtype_or(dtype, _F32)
        return _draw(engine, name, (size, dtype), made, what, 0.0, 1.0)

    def like(engine: CLEngine, self: Array, dtype: Any = None) -> Array:
        made = self.shape, dtypes.dtype_or(dtype, self.dtype)
        return _draw(engine, f"{name}_like", (self, dtype), made, what, 0.0, 1.0)

    register(name, by_size)
    register(f"{name}_like", like)


_register_standard("rand", _UNIFORM)
_register_standard("randn", _NORMAL)


@kernel("uniform")
def uniform(engine: CLEngine, self: Array, *limits: float, **named: float) -> Array:
    placed = dict(zip(("from", "to"), limits, strict=False))
    low, high = {"from": 0.0, "to": 1.0, **placed, **named}.values()
    made = self.shape, self.dtype
    return _draw(engine, "uniform", (self, low, high), made, _UNIFORM, low, high)


@kernel("normal_functional")
def normal(engine: CLEngine, self: Array, mean: float = 0.0, std: float = 1.0) -> Array:
    made = self.shape, self.dtype
    return _draw(engine, "normal_functional", (self, mean, std), made, _NORMAL, mean, std)


@kernel("bernoulli.p")
def bernoulli_p(engine: CLEngine, self: Array, p: float = 0.5) -> Array:
    if not _draws_on_device(engine, self.size, self.dtype):
        return _draw_on_host(engine, "bernoulli.p", (self, p), {}, ())
    if not 0 <= p <= 1:
        raise ValueError(f"a probability must be between 0 and 1, not {p}")
    return _draw_on_device(engine, engine.alloc(self.shape, self.dtype), _CHANCE, p, 0.0)


@kernel("native_dropout")
def native_dropout(engine: CLEngine, input: Array, p: float, train: Any) -> tuple[Array, Array]:
    if train is False or not input.size:
        return make_copy(engine, input), make_full(engine, input.shape, dtypes.BOOL, True)
    if p == 1:
        nothing = make_full(engine, input.shape, input.dtype)
        return nothing, make_full(engine, input.shape, dtypes.BOOL)
    strides = input.strides if input.is_dense else c_strides(input.shape, input.itemsize)
    steps = tuple(s // input.itemsize for s in strides)
    if _draws_on_device(engine, input.size, dtypes.BOOL):
        kept = _draw_on_device(engine, engine.alloc(input.shape, dtypes.BOOL), _CHANCE, 1 - p, 0.0)
    else:
        like = numpy.ndarray(input.shape, bool, numpy.empty(input.size, bool), 0, steps)
        kept = engine.upload(ENGINES["numpy"].call(host.bernoulli_p, (like, 1 - p), {}))
    return native_dropout_backward(engine, input, kept, 1 / (1 - p)), kept

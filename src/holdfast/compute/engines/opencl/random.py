"""Kernels that draw random numbers.

Covers: torch's numbers for torch's seeds, which the host draws and sends; numbers of the device's
own where HOLDFAST_OPENCL_RANDOM=device asks for them.
Leaves to others: the generator and its state (holdfast.compute.random), the kernel (random.cl).
Promise: with the host's numbers a seed gives the same picture on every engine. The device's are
others, the same ones for a seed on every device; few numbers, and distributions the device does not
make, come from the host even then.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy

from holdfast.base.config import Config
from holdfast.base.errors import BadInput
from holdfast.compute import dtype as formats
from holdfast.compute.engine import ENGINES, each
from holdfast.compute.engines.numpy import random as host
from holdfast.compute.engines.numpy.kernels import KERNELS as HOST
from holdfast.compute.engines.opencl.array import Array, c_strides
from holdfast.compute.engines.opencl.kernels import kernel, register, storage
from holdfast.compute.engines.opencl.pointwise import native_dropout_backward
from holdfast.compute.engines.opencl.views import filled, fresh
from holdfast.compute.ops import shapes
from holdfast.compute.random import current

if TYPE_CHECKING:
    from holdfast.compute.engines.opencl.engine import OpenCLEngine

LARGE = 1 << 14  # numbers from which the device draws its own, where it may
_F32 = formats.FLOAT32
_UNIFORM, _NORMAL, _CHANCE = range(3)
_SPARE = 64  # counters for each work-item on CPUs, at least

# ---- the host's numbers


def _like(array: Array) -> Any:
    """An array of the host that lies as one of the device does; its numbers do not matter."""
    if not array.is_dense or array.is_contiguous:
        return numpy.empty(array.shape, array.dtype)
    words = numpy.empty(array.nbytes, numpy.uint8)
    return numpy.ndarray(array.shape, array.dtype, words, 0, array.strides)


def _drawn(engine: OpenCLEngine, name: str, args: Any, kwargs: Any, reads: tuple[int, ...]) -> Any:
    """What the host draws for an op; of arguments in `reads` the numbers matter."""
    given = []
    for place, value in enumerate(args):
        if type(value) is Array:
            value = engine.download(value) if place in reads else _like(value)
        given.append(value)
    named = {key: each(value, engine.download) for key, value in kwargs.items()}
    return each(ENGINES["numpy"].call(HOST[name], given, named), engine.upload)


def _by_host(name: str, reads: tuple[int, ...] = ()) -> Any:
    def draw(engine: OpenCLEngine, *args: Any, **kwargs: Any) -> Any:
        return _drawn(engine, name, args, kwargs, reads)

    return draw


for _name in (
    *("normal.float_float", "log_normal", "cauchy", "exponential", "geometric"),
    *("randint", "randint.low", "randint_like", "randint_like.low_dtype", "randperm"),
    *("random", "random.to", "random.from"),
):
    register(_name, _by_host(_name))
for _name in ("normal.Tensor_float", "normal.float_Tensor", "normal.Tensor_Tensor", "multinomial"):
    register(_name, _by_host(_name, (0, 1)))
register("randint_like.Tensor", _by_host("randint_like.Tensor", (1,)))
register("bernoulli", _by_host("bernoulli", (0,)))
register("bernoulli.Tensor", _by_host("bernoulli.Tensor", (1,)))

# ---- the device's numbers


@functools.cache
def _by_device() -> bool:
    wanted = Config.load().opencl_random
    if wanted not in ("host", "device"):
        raise BadInput(f"HOLDFAST_OPENCL_RANDOM is {wanted!r}", expected="host or device")
    return wanted == "device"


def _may(engine: OpenCLEngine, size: int, kind: numpy.dtype[Any]) -> bool:
    return size >= LARGE and _by_device() and kind.kind != "c" and kind != formats.FLOAT64


def _draw(engine: OpenCLEngine, made: Array, what: int, one: float, other: float) -> Array:
    """Fill fresh memory with numbers of the device; the key is drawn from the generator."""
    seed = int(current().bits64(1).view(numpy.int64)[0])
    counters = -(-made.size // 4)
    most = engine.units * 8 if engine.mapping == "cpu" else engine.units * 4096
    work = max(1 if engine.mapping == "gpu" else _SPARE, -(-counters // most))
    kernel = engine.kernel("random", "draw", KIND=what, WORD=storage(made.dtype))
    count = -(-counters // work)
    engine.launch(kernel, (count,), None, made, seed, made.size, work, float(one), float(other))
    return made


# ---- ops that either may draw


def _uniform(
    engine: OpenCLEngine, name: str, args: Any, kwargs: Any, made: Any, limits: Any
) -> Any:
    shape, kind = made
    if not _may(engine, int(numpy.prod(shape)), kind) or not formats.is_floating(kind):
        return _drawn(engine, name, args, kwargs, ())
    if limits[1] < limits[0]:
        raise ValueError(f"no numbers lie between {limits[0]} and {limits[1]}")
    return _draw(engine, engine.alloc(shape, kind), _UNIFORM, *limits)


def _normal(engine: OpenCLEngine, name: str, args: Any, kwargs: Any, made: Any, limits: Any) -> Any:
    shape, kind = made
    if not _may(engine, int(numpy.prod(shape)), kind) or not formats.is_floating(kind):
        return _drawn(engine, name, args, kwargs, ())
    if limits[1] < 0:
        raise ValueError(f"a standard deviation is 0 or more, not {limits[1]}")
    return _draw(engine, engine.alloc(shape, kind), _NORMAL, *limits)


@kernel("rand")
def rand(engine: OpenCLEngine, size: Any, dtype: Any = None) -> Array:
    made = shapes.sizes(size), formats.asked(dtype, _F32)
    return _uniform(engine, "rand", (size, dtype), {}, made, (0.0, 1.0))


@kernel("rand_like")
def rand_like(engine: OpenCLEngine, self: Array, dtype: Any = None) -> Array:
    made = self.shape, formats.asked(dtype, self.dtype)
    return _uniform(engine, "rand_like", (self, dtype), {}, made, (0.0, 1.0))


@kernel("uniform")
def uniform(engine: OpenCLEngine, self: Array, *limits: float, **named: float) -> Array:
    placed = dict(zip(("from", "to"), limits, strict=False))
    low, high = {"from": 0.0, "to": 1.0, **placed, **named}.values()
    made = self.shape, self.dtype
    return _uniform(engine, "uniform", (self, low, high), {}, made, (low, high))


@kernel("randn")
def randn(engine: OpenCLEngine, size: Any, dtype: Any = None) -> Array:
    made = shapes.sizes(size), formats.asked(dtype, _F32)
    return _normal(engine, "randn", (size, dtype), {}, made, (0.0, 1.0))


@kernel("randn_like")
def randn_like(engine: OpenCLEngine, self: Array, dtype: Any = None) -> Array:
    made = self.shape, formats.asked(dtype, self.dtype)
    return _normal(engine, "randn_like", (self, dtype), {}, made, (0.0, 1.0))


@kernel("normal_functional")
def normal(engine: OpenCLEngine, self: Array, mean: float = 0.0, std: float = 1.0) -> Array:
    made = self.shape, self.dtype
    return _normal(engine, "normal_functional", (self, mean, std), {}, made, (mean, std))


@kernel("bernoulli.p")
def bernoulli_p(engine: OpenCLEngine, self: Array, p: float = 0.5) -> Array:
    if not _may(engine, self.size, self.dtype):
        return _drawn(engine, "bernoulli.p", (self, p), {}, ())
    if not 0 <= p <= 1:
        raise ValueError(f"a chance lies between 0 and 1, not at {p}")
    return _draw(engine, engine.alloc(self.shape, self.dtype), _CHANCE, p, 0.0)


@kernel("native_dropout")
def native_dropout(engine: OpenCLEngine, input: Array, p: float, train: Any) -> tuple[Array, Array]:
    if train is False or not input.size:
        return fresh(engine, input), filled(engine, input.shape, formats.BOOL, True)
    if p == 1:
        nothing = filled(engine, input.shape, input.dtype)
        return nothing, filled(engine, input.shape, formats.BOOL)
    strides = input.strides if input.is_dense else c_strides(input.shape, input.itemsize)
    steps = tuple(s // input.itemsize for s in strides)
    if _may(engine, input.size, formats.BOOL):
        kept = _draw(engine, engine.alloc(input.shape, formats.BOOL), _CHANCE, 1 - p, 0.0)
    else:
        like = numpy.ndarray(input.shape, bool, numpy.empty(input.size, bool), 0, steps)
        kept = engine.upload(ENGINES["numpy"].call(host.bernoulli_p, (like, 1 - p), {}))
    return native_dropout_backward(engine, input, kept, 1 / (1 - p)), kept

"""Kernels that draw random numbers.

They draw as many bits, in the same order, as torch does on a CPU. An array is filled in memory
order: a transposed one along its columns.
"""

from __future__ import annotations

from typing import Any

import numpy

from holdfast.compute import dtype as dtypes
from holdfast.compute.engines.numpy.kernels import kernel, register, widen
from holdfast.compute.ops.layout import shapes
from holdfast.compute.random import BLOCK, Generator, current

_F32 = dtypes.FLOAT32
_WIDE = 1 << 28  # ranges of this size or more are drawn from 64 bits


def _fill_like(like: Any, values: Any) -> Any:
    """A new array in the shape, dtype and memory order of `like`, filled with `values`."""
    made = numpy.empty_like(like, subok=False)
    flat = made.ravel(order="K")
    flat[...] = values
    return made


def _empty(size: Any, dtype: Any, default: Any = _F32) -> Any:
    return numpy.empty(shapes.sizes(size), dtypes.dtype_or(dtype, default))


def _empty_like(like: Any, dtype: Any) -> Any:
    return numpy.empty_like(like, dtypes.dtype_or(dtype, like.dtype))


def _empty_pairs(like: Any) -> Any:
    """An array for the real and imaginary parts of `like`, which are drawn one by one."""
    return numpy.empty((*like.shape, 2), dtypes.real_of(like.dtype))


# ---- uniform


def _draw_uniform(like: Any, low: float, high: float) -> Any:
    if high < low:
        raise ValueError(f"no numbers lie between {low} and {high}")
    if dtypes.is_complex(like.dtype):
        return _draw_uniform(_empty_pairs(like), low, high).view(like.dtype)[..., 0]
    if not dtypes.is_floating(like.dtype):
        raise TypeError(f"uniform samples need a floating-point or complex dtype, not {like.dtype}")
    generator, wide = current(), like.dtype == dtypes.FLOAT64
    drawn = generator.uniform64(like.size) if wide else generator.uniform32(like.size)
    if (low, high) != (0, 1):
        drawn = _scale_to_range(drawn, low, high)
    if wide or (like.dtype == _F32 and (low, high) == (0, 1)):
        return _fill_like(like, drawn)
    rounded = drawn.astype(like.dtype)
    top = like.dtype.type(high)
    rounded[rounded == top] = like.dtype.type(low)  # the upper end is excluded
    return _fill_like(like, rounded)


def _scale_to_range(drawn: Any, low: float, high: float) -> Any:
    """drawn * (high - low) + low, computed in a wider dtype and rounded once."""
    kind = drawn.dtype.type
    more = numpy.float64 if kind is numpy.float32 else numpy.longdouble
    span = more(kind(high) - kind(low))
    return (drawn.astype(more) * span + more(kind(low))).astype(kind)


@kernel("uniform")
def uniform(self: Any, *limits: float, **named: float) -> Any:
    low, high = _read_limits(limits, named, {"from": 0.0, "to": 1.0})
    return _draw_uniform(self, low, high)


def _read_limits(given: Any, named: Any, defaults: dict[str, Any]) -> list[Any]:
    """Read arguments one of which is called `from`, which Python does not allow as a name."""
    found = {**defaults, **dict(zip(defaults, given, strict=False)), **named}
    return [found[name] for name in defaults]


# ---- normal


def _draw_normal(like: Any, mean: float, std: float) -> Any:
    if std < 0:
        raise ValueError(f"a standard deviation is 0 or more, not {std}")
    if dtypes.is_complex(like.dtype):
        made = _draw_normal(_empty_pairs(like), 0, std * 2**-0.5).view(like.dtype)[..., 0]
        return made + like.dtype.type(mean)
    if not dtypes.is_floating(like.dtype):
        raise TypeError(f"normal samples need a floating-point or complex dtype, not {like.dtype}")
    if like.size < BLOCK or not like.flags.c_contiguous:
        return _fill_like(like, (current().normals(like.size) * std + mean).astype(like.dtype))
    kind = dtypes.working(like.dtype)
    drawn = current().normal_blocks(like.size, kind, like.dtype == kind)
    drawn *= kind.type(std)
    drawn += kind.type(mean)
    return drawn.astype(like.dtype, copy=False).reshape(like.shape)


@kernel("normal_functional")
def normal(self: Any, mean: float = 0.0, std: float = 1.0) -> Any:
    return _draw_normal(self, mean, std)


for _name, _draw in (("rand", _draw_uniform), ("randn", _draw_normal)):
    register(_name, lambda size, dtype=None, draw=_draw: draw(_empty(size, dtype), 0, 1))
    register(
        f"{_name}_like", lambda self, dtype=None, draw=_draw: draw(_empty_like(self, dtype), 0, 1)
    )
register(
    "normal.float_float",
    lambda mean, std, size, dtype=None: _draw_normal(_empty(size, dtype), mean, std),
)


@kernel("normal.Tensor_float", "normal.float_Tensor", "normal.Tensor_Tensor")
def normal_tensors(mean: Any, std: Any = 1.0) -> Any:
    given = [one for one in (mean, std) if hasattr(one, "shape")]
    kind = dtypes.result_type(*given)
    if numpy.any(numpy.asarray(std) < 0):
        raise ValueError("standard deviations must be 0 or more")
    shape = numpy.broadcast_shapes(*(one.shape for one in given))
    work = dtypes.working(kind)
    drawn = _draw_normal(numpy.empty(shape, kind), 0, 1).astype(work, copy=False)
    scaled = (drawn * _to_dtype(std, work)).astype(kind).astype(work, copy=False)
    return (scaled + _to_dtype(mean, work)).astype(kind, copy=False)


def _to_dtype(value: Any, kind: Any) -> Any:
    return value.astype(kind, copy=False) if hasattr(value, "shape") else kind.type(value)


@kernel("log_normal")
def log_normal(self: Any, mean: float = 1.0, std: float = 2.0) -> Any:
    if std <= 0:
        raise ValueError(f"a standard deviation must be more than 0, not {std}")
    return _fill_like(self, numpy.exp(current().normals(self.size) * std + mean).astype(self.dtype))


# ---- integers


def _draw_integers(count: int, low: int, high: int) -> Any:
    """Integers in [low, high), as int64."""
    span = high - low
    if span <= 0:
        raise ValueError(f"there are no integers in [{low}, {high})")
    generator = current()
    if span >= _WIDE:
        bits = generator.bits64(count)
        drawn = bits if span == 1 << 64 else bits % numpy.uint64(span)
    else:
        drawn = (generator.bits32(count) % numpy.uint32(span)).astype(numpy.uint64)
    # The unsigned sum wraps around, which gives negative integers.
    return (drawn + numpy.uint64(low % (1 << 64))).view(numpy.int64)


def _draw_into(like: Any, low: int, high: int | None) -> Any:
    if high is None:
        high = _largest_integer(like.dtype) + 1
    drawn = _draw_integers(like.size, low, high)
    return _fill_like(like, drawn.astype(like.dtype))


def _largest_integer(kind: Any) -> int:
    """The largest integer up to which a dtype holds every integer."""
    if kind == dtypes.BOOL:
        return 1
    if dtypes.category(kind) == dtypes.INTEGER:
        return int(numpy.iinfo(kind).max)
    return 1 << {"float16": 11, "bfloat16": 8, "float32": 24}.get(kind.name, 53)


@kernel("randint")
def randint(high: int, size: Any, dtype: Any = "int64") -> Any:
    return randint_low(0, high, size, dtype)


@kernel("randint.low")
def randint_low(low: int, high: int, size: Any, dtype: Any = "int64") -> Any:
    return _draw_into(_empty(size, dtype, dtypes.INT64), low, high)


@kernel("randint_like", "randint_like.Tensor")
def randint_like(self: Any, high: Any, dtype: Any = None) -> Any:
    return _draw_into(_empty_like(self, dtype), 0, int(high))


@kernel("randint_like.low_dtype")
def randint_like_low(self: Any, low: int, high: int, dtype: Any = None) -> Any:
    return _draw_into(_empty_like(self, dtype), low, high)


@kernel("random")
def random_all(self: Any) -> Any:
    """Integers from 0 to the largest that the dtype of `self` holds exactly."""
    span, generator = _largest_integer(self.dtype) + 1, current()
    if self.dtype.itemsize == 8:
        drawn = generator.bits64(self.size) % numpy.uint64(span)
    else:
        drawn = generator.bits32(self.size) % numpy.uint64(span)
    return _fill_like(self, drawn.astype(self.dtype))


register("random.to", lambda self, to: _draw_into(self, 0, to))


@kernel("random.from")
def random_from(self: Any, *limits: Any, **named: Any) -> Any:
    low, high = _read_limits(limits, named, {"from": 0, "to": None})
    return _draw_into(self, low, high)


@kernel("randperm")
def randperm(n: int, dtype: Any = "int64") -> Any:
    """Swap each element with itself or a later one (Fisher-Yates)."""
    if n < 0:
        raise ValueError(f"n must be 0 or more, not {n}")
    order = list(range(n))
    indices = numpy.arange(max(n - 1, 0))
    others = (current().bits32(indices.size) % (n - indices) + indices).tolist()
    # Each swap depends on those before it, so this cannot be vectorised.
    for index, other in enumerate(others):
        order[index], order[other] = order[other], order[index]
    return numpy.array(order, dtypes.dtype_or(dtype, dtypes.INT64))


# ---- other distributions


@kernel("bernoulli.p")
def bernoulli_p(self: Any, p: float = 0.5) -> Any:
    if not 0 <= p <= 1:
        raise ValueError(f"a probability must be between 0 and 1, not {p}")
    return _fill_like(self, (current().uniform64(self.size) < p).astype(self.dtype))


@kernel("bernoulli.Tensor")
def bernoulli_tensor(self: Any, p: Any) -> Any:
    chances = widen(p)
    if chances.size and not (chances.min() >= 0 and chances.max() <= 1):
        raise ValueError("probabilities must be between 0 and 1")
    count, wide = self.size, p.dtype == dtypes.FLOAT64
    drawn = current().uniform64(count) if wide else current().uniform32(count)
    hits = drawn.reshape(self.shape) < numpy.broadcast_to(chances, self.shape)
    return hits.astype(self.dtype)


register("bernoulli", lambda self: bernoulli_tensor(self, self))


def draw_exponentials(generator: Generator, count: int) -> Any:
    """Samples of the exponential distribution of rate 1, as float64; never 0."""
    made = -numpy.log1p(-generator.uniform64(count))
    return numpy.maximum(made, 2.0**-53, out=made)


@kernel("exponential")
def exponential(self: Any, lambd: float = 1.0) -> Any:
    if not lambd > 0:
        raise ValueError(f"lambd must be more than 0, not {lambd}")
    return _fill_like(self, (draw_exponentials(current(), self.size) / lambd).astype(self.dtype))


@kernel("cauchy")
def cauchy(self: Any, median: float = 0.0, sigma: float = 1.0) -> Any:
    if not sigma > 0:
        raise ValueError(f"sigma must be more than 0, not {sigma}")
    angle = numpy.pi * (current().uniform64(self.size) - 0.5)
    return _fill_like(self, (median + sigma * numpy.tan(angle)).astype(self.dtype))


@kernel("geometric")
def geometric(self: Any, p: float) -> Any:
    if not 0 < p < 1:
        raise ValueError(f"a probability must be between 0 and 1, not {p}")
    drawn = current().uniform64(self.size)
    with numpy.errstate(divide="ignore"):
        made = numpy.ceil(numpy.log(drawn) / numpy.log1p(-p))
    return _fill_like(self, made.astype(self.dtype))


@kernel("multinomial")
def multinomial(self: Any, num_samples: int, replacement: bool = False) -> Any:
    weights = widen(self)
    _check_weights(weights, num_samples, replacement)
    if not replacement or num_samples == 1:
        # The largest weight / exponential sample are a draw without replacement.
        times = draw_exponentials(current(), self.size).astype(weights.dtype).reshape(self.shape)
        race = weights / times
        return numpy.argsort(-race, axis=-1, kind="stable")[..., :num_samples].astype(numpy.int64)
    chances = numpy.cumsum(weights, -1)
    chances /= chances[..., -1:]
    lines = chances.reshape(-1, self.shape[-1])
    drawn = current().uniform64(len(lines) * num_samples).reshape(-1, num_samples)
    found = [numpy.searchsorted(line, one) for line, one in zip(lines, drawn, strict=True)]
    made = numpy.minimum(numpy.array(found, numpy.int64), self.shape[-1] - 1)
    return made.reshape(*self.shape[:-1], num_samples)


def _check_weights(weights: Any, count: int, replacement: bool) -> None:
    if weights.ndim not in (1, 2) or not dtypes.is_floating(weights.dtype):
        raise ValueError("weights must be floating-point, with one or two dimensions")
    if count <= 0 or (not replacement and count > weights.shape[-1]):
        raise ValueError(f"cannot draw {count} samples from {weights.shape[-1]}")
    if not weights.size:
        return
    if not numpy.isfinite(weights).all() or weights.min() < 0:
        raise ValueError("weights must be 0 or more, and finite")
    if not weights.sum(-1).all():
        raise ValueError("the weights of a row must not all be 0")

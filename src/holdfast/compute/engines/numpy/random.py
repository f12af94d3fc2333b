"""Kernels that draw random numbers.

Promise: a kernel draws as many bits, in the same order, as torch does on a CPU. Numbers go into an
array in the order of its memory: one that lies transposed is filled along its columns.
"""

from __future__ import annotations

from typing import Any

import numpy

from holdfast.compute import dtype as formats
from holdfast.compute.engines.numpy.kernels import kernel, widened
from holdfast.compute.ops import shapes
from holdfast.compute.random import BLOCK, Generator, current

_F32 = formats.FLOAT32
_WIDE = 1 << 28  # from this range on a whole number is made of 64 bits


def _placed(like: Any, numbers: Any) -> Any:
    """A fresh array in the shape, format and memory order of `like`."""
    made = numpy.empty_like(like, subok=False)
    flat = made.ravel(order="K")
    flat[...] = numbers
    return made


def _parts(like: Any) -> Any:
    """Complex numbers as pairs of real ones, which are drawn one by one."""
    return numpy.empty((*like.shape, 2), formats.real_of(like.dtype))


# ---- uniform


def _uniform(like: Any, low: float, high: float) -> Any:
    if high < low:
        raise ValueError(f"no numbers lie between {low} and {high}")
    if formats.is_complex(like.dtype):
        return _uniform(_parts(like), low, high).view(like.dtype)[..., 0]
    if not formats.is_floating(like.dtype):
        raise TypeError(f"{like.dtype} holds no uniform numbers")
    generator, wide = current(), like.dtype == formats.FLOAT64
    drawn = generator.uniform64(like.size) if wide else generator.uniform32(like.size)
    if (low, high) != (0, 1):
        drawn = _scaled(drawn, low, high)
    if wide or (like.dtype == _F32 and (low, high) == (0, 1)):
        return _placed(like, drawn)
    rounded = drawn.astype(like.dtype)
    top = like.dtype.type(high)
    rounded[rounded == top] = like.dtype.type(low)  # the upper end itself is never an answer
    return _placed(like, rounded)


def _scaled(drawn: Any, low: float, high: float) -> Any:
    """Multiplied and added with one rounding: in more bits than the numbers have."""
    kind = drawn.dtype.type
    more = numpy.float64 if kind is numpy.float32 else numpy.longdouble
    span = more(kind(high) - kind(low))
    return (drawn.astype(more) * span + more(kind(low))).astype(kind)


@kernel("uniform")
def uniform(self: Any, *limits: float, **named: float) -> Any:
    low, high = _limits(limits, named, {"from": 0.0, "to": 1.0})
    return _uniform(self, low, high)


def _limits(given: Any, named: Any, defaults: dict[str, Any]) -> list[Any]:
    """Arguments one of which is called `from`, which is no name in Python."""
    found = {**defaults, **dict(zip(defaults, given, strict=False)), **named}
    return [found[name] for name in defaults]


@kernel("rand")
def rand(size: Any, dtype: Any = None) -> Any:
    return _uniform(numpy.empty(shapes.sizes(size), formats.asked(dtype, _F32)), 0, 1)


@kernel("rand_like")
def rand_like(self: Any, dtype: Any = None) -> Any:
    return _uniform(numpy.empty_like(self, formats.asked(dtype, self.dtype)), 0, 1)


# ---- normal


def _normal(like: Any, mean: float, std: float) -> Any:
    if std < 0:
        raise ValueError(f"a standard deviation is 0 or more, not {std}")
    if formats.is_complex(like.dtype):
        made = _normal(_parts(like), 0, std * 2**-0.5).view(like.dtype)[..., 0]
        return made + like.dtype.type(mean)
    if not formats.is_floating(like.dtype):
        raise TypeError(f"{like.dtype} holds no normal numbers")
    if like.size < BLOCK or not like.flags.c_contiguous:
        return _placed(like, (current().normals(like.size) * std + mean).astype(like.dtype))
    kind = formats.working(like.dtype)
    drawn = current().normal_blocks(like.size, kind, like.dtype == kind)
    drawn *= kind.type(std)
    drawn += kind.type(mean)
    return drawn.astype(like.dtype, copy=False).reshape(like.shape)


@kernel("normal_functional")
def normal(self: Any, mean: float = 0.0, std: float = 1.0) -> Any:
    return _normal(self, mean, std)


@kernel("randn")
def randn(size: Any, dtype: Any = None) -> Any:
    return _normal(numpy.empty(shapes.sizes(size), formats.asked(dtype, _F32)), 0, 1)


@kernel("randn_like")
def randn_like(self: Any, dtype: Any = None) -> Any:
    return _normal(numpy.empty_like(self, formats.asked(dtype, self.dtype)), 0, 1)


@kernel("normal.float_float")
def normal_numbers(mean: float, std: float, size: Any, dtype: Any = None) -> Any:
    return _normal(numpy.empty(shapes.sizes(size), formats.asked(dtype, _F32)), mean, std)


@kernel("normal.Tensor_float", "normal.float_Tensor", "normal.Tensor_Tensor")
def normal_tensors(mean: Any, std: Any = 1.0) -> Any:
    given = [one for one in (mean, std) if hasattr(one, "shape")]
    kind = formats.result_type(*given)
    if numpy.any(numpy.asarray(std) < 0):
        raise ValueError("a standard deviation is 0 or more")
    shape = numpy.broadcast_shapes(*(one.shape for one in given))
    work = formats.working(kind)
    drawn = _normal(numpy.empty(shape, kind), 0, 1).astype(work, copy=False)
    scaled = (drawn * _in(std, work)).astype(kind).astype(work, copy=False)
    return (scaled + _in(mean, work)).astype(kind, copy=False)


def _in(value: Any, kind: Any) -> Any:
    return value.astype(kind, copy=False) if hasattr(value, "shape") else kind.type(value)


@kernel("log_normal")
def log_normal(self: Any, mean: float = 1.0, std: float = 2.0) -> Any:
    if std <= 0:
        raise ValueError(f"a standard deviation is more than 0, not {std}")
    return _placed(self, numpy.exp(current().normals(self.size) * std + mean).astype(self.dtype))


# ---- whole numbers


def _whole(count: int, low: int, high: int) -> Any:
    """From `low` up to, but without, `high`; as int64."""
    span = high - low
    if span <= 0:
        raise ValueError(f"no whole numbers lie from {low} up to {high}")
    generator = current()
    if span >= _WIDE:
        words = generator.bits64(count)
        drawn = words if span == 1 << 64 else words % numpy.uint64(span)
    else:
        drawn = (generator.bits32(count) % numpy.uint32(span)).astype(numpy.uint64)
    # Sums of 64 bits wrap around, which is what takes numbers below zero.
    return (drawn + numpy.uint64(low % (1 << 64))).view(numpy.int64)


def _random(like: Any, low: int, high: int | None) -> Any:
    if high is None:
        high = _most(like.dtype) + 1
    drawn = _whole(like.size, low, high)
    return _placed(like, drawn.astype(like.dtype))


def _most(kind: Any) -> int:
    """The largest whole number up to which a format holds all of them."""
    if kind == formats.BOOL:
        return 1
    if formats.category(kind) == formats.INTEGER:
        return int(numpy.iinfo(kind).max)
    return 1 << {"float16": 11, "bfloat16": 8, "float32": 24}.get(kind.name, 53)


@kernel("randint")
def randint(high: int, size: Any, dtype: Any = "int64") -> Any:
    return _random(numpy.empty(shapes.sizes(size), formats.asked(dtype, formats.INT64)), 0, high)


@kernel("randint.low")
def randint_low(low: int, high: int, size: Any, dtype: Any = "int64") -> Any:
    return _random(numpy.empty(shapes.sizes(size), formats.asked(dtype, formats.INT64)), low, high)


@kernel("randint_like")
def randint_like(self: Any, high: int, dtype: Any = None) -> Any:
    return _random(numpy.empty_like(self, formats.asked(dtype, self.dtype)), 0, high)


@kernel("randint_like.low_dtype")
def randint_like_low(self: Any, low: int, high: int, dtype: Any = None) -> Any:
    return _random(numpy.empty_like(self, formats.asked(dtype, self.dtype)), low, high)


@kernel("randint_like.Tensor")
def randint_like_tensor(self: Any, high: Any, dtype: Any = None) -> Any:
    return randint_like(self, int(high.item()), dtype)


@kernel("random")
def random_all(self: Any) -> Any:
    """All whole numbers, from 0 on, that the format of `self` holds."""
    span, generator = _most(self.dtype) + 1, current()
    if self.dtype.itemsize == 8:
        drawn = generator.bits64(self.size) % numpy.uint64(span)
    else:
        drawn = generator.bits32(self.size) % numpy.uint64(span)
    return _placed(self, drawn.astype(self.dtype))


@kernel("random.to")
def random_to(self: Any, to: int) -> Any:
    return _random(self, 0, to)


@kernel("random.from")
def random_from(self: Any, *limits: Any, **named: Any) -> Any:
    low, high = _limits(limits, named, {"from": 0, "to": None})
    return _random(self, low, high)


@kernel("randperm")
def randperm(n: int, dtype: Any = "int64") -> Any:
    """Each number changes places with one that comes later, or stays."""
    if n < 0:
        raise ValueError(f"{n} numbers cannot be ordered")
    order = list(range(n))
    places = numpy.arange(max(n - 1, 0))
    others = (current().bits32(places.size) % (n - places) + places).tolist()
    # Each exchange depends on those before it: there is nothing to vectorise.
    for place, other in enumerate(others):
        order[place], order[other] = order[other], order[place]
    return numpy.array(order, formats.asked(dtype, formats.INT64))


# ---- chances


@kernel("bernoulli.p")
def bernoulli_p(self: Any, p: float = 0.5) -> Any:
    if not 0 <= p <= 1:
        raise ValueError(f"a chance lies between 0 and 1, not at {p}")
    return _placed(self, (current().uniform64(self.size) < p).astype(self.dtype))


@kernel("bernoulli")
def bernoulli(self: Any) -> Any:
    return bernoulli_tensor(self, self)


@kernel("bernoulli.Tensor")
def bernoulli_tensor(self: Any, p: Any) -> Any:
    chances = widened(p)
    if chances.size and not (chances.min() >= 0 and chances.max() <= 1):
        raise ValueError("chances lie between 0 and 1")
    count, wide = self.size, p.dtype == formats.FLOAT64
    drawn = current().uniform64(count) if wide else current().uniform32(count)
    hits = drawn.reshape(self.shape) < numpy.broadcast_to(chances, self.shape)
    return hits.astype(self.dtype)


def exponentials(generator: Generator, count: int) -> Any:
    """Exponential numbers of rate 1, as float64; never 0."""
    made = -numpy.log1p(-generator.uniform64(count))
    return numpy.maximum(made, 2.0**-53, out=made)


@kernel("exponential")
def exponential(self: Any, lambd: float = 1.0) -> Any:
    if not lambd > 0:
        raise ValueError(f"a rate is more than 0, not {lambd}")
    return _placed(self, (exponentials(current(), self.size) / lambd).astype(self.dtype))


@kernel("cauchy")
def cauchy(self: Any, median: float = 0.0, sigma: float = 1.0) -> Any:
    if not sigma > 0:
        raise ValueError(f"sigma is more than 0, not {sigma}")
    angle = numpy.pi * (current().uniform64(self.size) - 0.5)
    return _placed(self, (median + sigma * numpy.tan(angle)).astype(self.dtype))


@kernel("geometric")
def geometric(self: Any, p: float) -> Any:
    if not 0 < p < 1:
        raise ValueError(f"a chance lies between 0 and 1, not at {p}")
    drawn = current().uniform64(self.size)
    with numpy.errstate(divide="ignore"):
        made = numpy.ceil(numpy.log(drawn) / numpy.log1p(-p))
    return _placed(self, made.astype(self.dtype))


@kernel("multinomial")
def multinomial(self: Any, num_samples: int, replacement: bool = False) -> Any:
    weights = widened(self)
    _check_weights(weights, num_samples, replacement)
    if not replacement or num_samples == 1:
        # Weights divided by exponential numbers: the largest quotients are a draw without repeats.
        times = exponentials(current(), self.size).astype(weights.dtype).reshape(self.shape)
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
    if weights.ndim not in (1, 2) or not formats.is_floating(weights.dtype):
        raise ValueError("weights are floating-point numbers in one or two dimensions")
    if count <= 0 or (not replacement and count > weights.shape[-1]):
        raise ValueError(f"{count} cannot be drawn from {weights.shape[-1]}")
    if not weights.size:
        return
    if not numpy.isfinite(weights).all() or weights.min() < 0:
        raise ValueError("weights are 0 or more, and finite")
    if not weights.sum(-1).all():
        raise ValueError("some weights are more than 0")

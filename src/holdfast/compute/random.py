"""The random generator: for one seed, the same numbers as torch on a CPU.

The bits come from a Mersenne Twister (MT19937). 32 of them make a float32, 64 a float64 or the
uniform number behind most other distributions (`engines/numpy/random`). A draw is not interleaved
with draws of other threads; a saved state reproduces everything that followed it.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
from collections.abc import Iterator
from numbers import Integral
from typing import Any

import numpy

from holdfast.base.errors import BadInput

Array = Any
BLOCK = 16  # normals come in blocks of 8 cosines and 8 sines
_DEFAULT_SEED = 67280421310721  # unless one is set
_TWO_PI = 2 * numpy.pi
_PIECE = 1 << 14


class Generator:
    """A stream of random numbers with its own state."""

    def __init__(self, seed: int = _DEFAULT_SEED) -> None:
        self._lock = threading.RLock()
        self._bits = numpy.random.MT19937()
        self._words = numpy.random.Generator(self._bits)
        self._next_normal: float | None = None
        self._seed = 0
        self.manual_seed(seed)

    # ---- seed and state

    def manual_seed(self, seed: int) -> Generator:
        """Restart from `seed`; only its lower 32 bits count. Raises BadInput."""
        if not isinstance(seed, Integral) or not -(1 << 63) <= seed < 1 << 64:
            raise BadInput(f"{seed!r} is no seed", expected="an integer of at most 64 bits")
        with self._lock:
            self._seed = int(seed) % (1 << 64)
            self._bits._legacy_seeding(self._seed & 0xFFFFFFFF)
            self._next_normal = None
        return self

    def seed(self) -> int:
        """Restart from a random seed, and return it."""
        chosen = secrets.randbits(53)
        self.manual_seed(chosen)
        return chosen

    def initial_seed(self) -> int:
        """The seed of the last restart."""
        return self._seed

    def get_state(self) -> dict[str, Any]:
        """Everything the next numbers depend on, as plain values and one array."""
        with self._lock:
            state: Any = self._bits.state
            return {
                "key": state["state"]["key"].copy(),
                "position": int(state["state"]["pos"]),
                "next_normal": self._next_normal,
                "seed": self._seed,
            }

    def set_state(self, state: dict[str, Any]) -> None:
        """Continue from a state that `get_state` returned. Raises BadInput."""
        try:
            key = numpy.asarray(state["key"], numpy.uint32)
            place, normal, seed = state["position"], state["next_normal"], state["seed"]
            if key.shape != (624,) or not 0 <= place <= 624:
                raise ValueError("624 words and a position among them are needed")
        except (KeyError, TypeError, ValueError) as exc:
            raise BadInput(f"this is no state: {exc}", expected="what get_state returned") from exc
        with self._lock:
            made: Any = {"bit_generator": "MT19937", "state": {"key": key.copy(), "pos": place}}
            self._bits.state = made
            self._next_normal, self._seed = normal, seed

    def whole(self) -> contextlib.AbstractContextManager[Any]:
        """A block in which no other thread draws from this generator."""
        return self._lock

    # ---- bits

    def bits32(self, count: int) -> Array:
        """Random uint32 numbers."""
        with self._lock:
            return self._words.integers(0, 1 << 32, count, numpy.uint32)

    def bits64(self, count: int) -> Array:
        """Random uint64 numbers, each from two 32-bit draws, the upper half first."""
        pairs = self.bits32(2 * count).astype(numpy.uint64)
        return (pairs[0::2] << numpy.uint64(32)) | pairs[1::2]

    # ---- uniform and normal

    def uniform32(self, count: int) -> Array:
        """In [0, 1), float32 with 24 random bits."""
        found = (self.bits32(count) & numpy.uint32(0xFFFFFF)).astype(numpy.float32)
        found *= numpy.float32(2.0**-24)
        return found

    def uniform64(self, count: int) -> Array:
        """In [0, 1), float64 with 53 random bits."""
        found = (self.bits64(count) & numpy.uint64((1 << 53) - 1)).astype(numpy.float64)
        found *= 2.0**-53
        return found

    def normals(self, count: int) -> Array:
        """Normal numbers as float64, made in pairs: an odd one is kept for the next call."""
        with self._lock:
            kept = self._next_normal is not None and count > 0
            found = numpy.empty(count, numpy.float64)
            if kept:
                found[0] = self._next_normal
                self._next_normal = None
            missing = count - kept
            pairs = self.uniform64(missing + missing % 2).reshape(-1, 2)
            radius = numpy.sqrt(-2 * numpy.log1p(-pairs[:, 1]))
            angle = _TWO_PI * pairs[:, 0]
            made = numpy.stack([radius * numpy.cos(angle), radius * numpy.sin(angle)], 1).ravel()
            found[kept:] = made[:missing]
            if missing % 2:
                self._next_normal = float(made[-1])
            return found

    def normal_blocks(self, count: int, kind: Any, whole: bool) -> Array:
        """At least 16 normal numbers in blocks, as float32 or float64.

        If the blocks do not fill `count`, the last 16 are drawn again. `whole`: draw uniform
        numbers for all of them first; otherwise only for full blocks.
        """
        draw = self.uniform32 if kind == numpy.float32 else self.uniform64
        full = count - count % BLOCK
        with self._lock:
            found = draw(count if whole else full)[:count]
            made = numpy.empty(count, kind)
            made[:full] = _box_muller(found[:full])
            if full != count:
                made[-BLOCK:] = _box_muller(draw(BLOCK))
        return made


def _box_muller(uniform: Array) -> Array:
    """Normal numbers from uniform ones, by blocks: 8 cosines, then their 8 sines."""
    made = numpy.empty_like(uniform)
    # In pieces that fit the cache.
    for begin in range(0, len(uniform), _PIECE):
        blocks = uniform[begin : begin + _PIECE].reshape(-1, 2, BLOCK // 2)
        out = made[begin : begin + _PIECE].reshape(blocks.shape)
        radius = numpy.sqrt(-2 * numpy.log(1 - blocks[:, 0]))
        angle = uniform.dtype.type(_TWO_PI) * blocks[:, 1]
        numpy.multiply(radius, numpy.cos(angle), out=out[:, 0])
        numpy.multiply(radius, numpy.sin(angle), out=out[:, 1])
    return made


# ---- the generator that ops draw from

default_generator = Generator()


class _Current(threading.local):
    generator: Generator | None = None


_current = _Current()


def current() -> Generator:
    """The generator that ops of this thread draw from."""
    return _current.generator or default_generator


@contextlib.contextmanager
def using(generator: Generator) -> Iterator[Generator]:
    """Ops of this thread draw from `generator` inside the block."""
    before, _current.generator = _current.generator, generator
    try:
        yield generator
    finally:
        _current.generator = before


def manual_seed(seed: int) -> Generator:
    """Seed the default generator, so that results repeat. Raises BadInput."""
    return default_generator.manual_seed(seed)


def seed() -> int:
    """Restart from a random seed, and return it."""
    return default_generator.seed()


def initial_seed() -> int:
    """The seed of the last restart."""
    return default_generator.initial_seed()


def get_state() -> dict[str, Any]:
    """The state of the default generator."""
    return default_generator.get_state()


def set_state(state: dict[str, Any]) -> None:
    """Continue from a state that `get_state` returned. Raises BadInput."""
    default_generator.set_state(state)

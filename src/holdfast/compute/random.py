"""Random numbers: the same ones for the same seed, and the same ones as torch's on a CPU.

Covers: the generator, its seed and state, uniform and normal numbers.
Leaves to others: the distributions that ops are named after (`engines/numpy/random`).
Promise: one draw is whole, whatever other threads draw; a state that was kept brings back all
numbers that followed it.

The bits come from a Mersenne Twister (MT19937). 32 of them make a float32, 64 make a float64 or the
uniform number behind most other distributions.
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
BLOCK = 16  # normal numbers are made in blocks of 8 cosines and 8 sines
_DEFAULT_SEED = 67280421310721  # until somebody chooses one
_TWO_PI = 2 * numpy.pi
_PIECE = 1 << 14


class Generator:
    """A stream of random numbers with a state of its own."""

    def __init__(self, seed: int = _DEFAULT_SEED) -> None:
        self._lock = threading.RLock()
        self._bits = numpy.random.MT19937()
        self._words = numpy.random.Generator(self._bits)
        self._next_normal: float | None = None
        self._seed = 0
        self.manual_seed(seed)

    # ---- seed and state

    def manual_seed(self, seed: int) -> Generator:
        """Begin again from `seed`; only its lower 32 bits count. Raises BadInput."""
        if not isinstance(seed, Integral) or not -(1 << 63) <= seed < 1 << 64:
            raise BadInput(f"{seed!r} is no seed", expected="a whole number of at most 64 bits")
        with self._lock:
            self._seed = int(seed) % (1 << 64)
            self._bits._legacy_seeding(self._seed & 0xFFFFFFFF)
            self._next_normal = None
        return self

    def seed(self) -> int:
        """Begin again from a seed nobody knows, which is returned."""
        chosen = secrets.randbits(53)
        self.manual_seed(chosen)
        return chosen

    def initial_seed(self) -> int:
        """The seed it last began from."""
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
        """Go on from a state that `get_state` returned. Raises BadInput."""
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
        """A block within which no other thread draws from this generator."""
        return self._lock

    # ---- bits

    def bits32(self, count: int) -> Array:
        """Words of 32 bits, as uint32."""
        with self._lock:
            return self._words.integers(0, 1 << 32, count, numpy.uint32)

    def bits64(self, count: int) -> Array:
        """Words of 64 bits, as uint64: of two words the first is the upper one."""
        pairs = self.bits32(2 * count).astype(numpy.uint64)
        return (pairs[0::2] << numpy.uint64(32)) | pairs[1::2]

    # ---- uniform and normal

    def uniform32(self, count: int) -> Array:
        """From 0 up to 1, as float32 with 24 bits."""
        found = (self.bits32(count) & numpy.uint32(0xFFFFFF)).astype(numpy.float32)
        found *= numpy.float32(2.0**-24)
        return found

    def uniform64(self, count: int) -> Array:
        """From 0 up to 1, as float64 with 53 bits."""
        found = (self.bits64(count) & numpy.uint64((1 << 53) - 1)).astype(numpy.float64)
        found *= 2.0**-53
        return found

    def normals(self, count: int) -> Array:
        """Normal numbers, one after the other, as float64. They come in pairs: one may be kept."""
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
        """16 or more normal numbers in blocks, as float32 or float64.

        The last 16 are made anew where blocks do not fill the count. `whole`: uniform numbers are
        drawn for all of them first; otherwise only for those that fill blocks.
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
    """Normal numbers from uniform ones, block by block: cosines of 8, then their sines."""
    made = numpy.empty_like(uniform)
    # In pieces that stay in the processor's cache.
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
    """Within the block, ops of this thread draw from `generator`."""
    before, _current.generator = _current.generator, generator
    try:
        yield generator
    finally:
        _current.generator = before


def manual_seed(seed: int) -> Generator:
    """Let all that follows be the same each time. Raises BadInput."""
    return default_generator.manual_seed(seed)


def seed() -> int:
    """Begin again from a seed nobody knows, which is returned."""
    return default_generator.seed()


def initial_seed() -> int:
    """The seed that the numbers began from."""
    return default_generator.initial_seed()


def get_state() -> dict[str, Any]:
    """What the next numbers depend on."""
    return default_generator.get_state()


def set_state(state: dict[str, Any]) -> None:
    """Go on from a state that `get_state` returned. Raises BadInput."""
    default_generator.set_state(state)

"""What a plan is made for, and what a plan is.

Covers: weights, their uses and how fast a device is; chunks, visits and the plan itself.
Leaves to others: finding a plan (course, making), how long it takes (simulation).
Promise: all values are frozen and hold nothing but numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.residency.ring import Slot

CHUNK_BYTES = 96 << 20  # each costs the host some calls


@dataclass(frozen=True, slots=True)
class Weight:
    """A stretch of bytes that moves as one: `raw_bytes` in use, `payload_bytes` over the link."""

    raw_bytes: int
    payload_bytes: int
    packed: bool = False


@dataclass(frozen=True, slots=True)
class Use:
    """One run of a layer: the numbers of its weights, and the time until the next layer begins."""

    weights: tuple[int, ...]
    compute_ms: float


@dataclass(frozen=True, slots=True)
class Rates:
    """How fast a device is beside its computing."""

    link_gb_s: float
    decode_gb_s: float = 1000.0
    copy_ms: float = 0.008  # what each copy costs besides its bytes


@dataclass(frozen=True, slots=True)
class Chunk:
    """Weights that are kept or streamed together; offsets are those inside of it."""

    weights: tuple[int, ...]
    raw_offsets: tuple[int, ...]
    payload_offsets: tuple[int, ...]
    raw_bytes: int
    payload_bytes: int
    packed: bool

    @property
    def kept_bytes(self) -> int:
        """What it takes on the device when it stays there decoded."""
        return self.raw_bytes


@dataclass(frozen=True, slots=True)
class Visit:
    """A stay of a chunk, from the beginning of use `first` to the end of use `last`.

    `slot` is its place in the ring (None for a chunk that is kept packed), `decoded` its place in
    the ring of decoded chunks (None for one that is not packed).
    """

    chunk: int
    first: int
    last: int
    slot: Slot | None
    decoded: Slot | None


@dataclass(frozen=True, slots=True)
class Plan:
    """What stays, what passes through, and how long one pass will take."""

    chunks: tuple[Chunk, ...]
    kept: frozenset[int]  # chunks that stay decoded
    kept_packed: frozenset[int]  # chunks that stay as payload and are decoded for each use
    visits: tuple[Visit, ...]
    ring_bytes: int
    decoded_bytes: int
    kept_bytes: int
    streamed_bytes: int  # over the link in one pass
    step_ms: float
    floor_ms: float  # computing, or what crosses the link, whichever is longer

    @property
    def device_bytes(self) -> int:
        """What all of it takes on the device."""
        return self.kept_bytes + self.ring_bytes + self.decoded_bytes


@dataclass(frozen=True, slots=True)
class Problem:
    """What a plan is made for. `pinned` are weights that can only stay."""

    weights: tuple[Weight, ...]
    uses: tuple[Use, ...]
    rates: Rates
    pinned: frozenset[int] = frozenset()
    chunk_bytes: int = CHUNK_BYTES

    @property
    def compute_ms(self) -> float:
        """A pass in which no weight has to be waited for."""
        return sum(use.compute_ms for use in self.uses)

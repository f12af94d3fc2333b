"""The data of planning: the problem (weights, uses, rates) and the plan (chunks, visits)."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.residency.stream.ring import RingSlot

CHUNK_BYTES = 96 << 20  # smaller chunks cost the host more calls


@dataclass(frozen=True, slots=True)
class Weight:
    """A range of bytes that moves as one: `raw_bytes` in use, `payload_bytes` over the link."""

    raw_bytes: int
    payload_bytes: int
    packed: bool = False


@dataclass(frozen=True, slots=True)
class Use:
    """One run of a layer: the indices of its weights, and the time until the next layer begins."""

    weights: tuple[int, ...]
    compute_ms: float


@dataclass(frozen=True, slots=True)
class Rates:
    """How fast a device copies and decodes."""

    link_gb_s: float
    decode_gb_s: float = 1000.0
    copy_ms: float = 0.008  # fixed cost of each copy


@dataclass(frozen=True, slots=True)
class Chunk:
    """Weights that are kept or streamed together; offsets are relative to the chunk."""

    weights: tuple[int, ...]
    raw_offsets: tuple[int, ...]
    payload_offsets: tuple[int, ...]
    raw_bytes: int
    payload_bytes: int
    packed: bool


@dataclass(frozen=True, slots=True)
class Visit:
    """A stay of a chunk, from the beginning of use `first` to the end of use `last`.

    `slot` is its slot in the ring (None for a chunk that is kept packed), `decoded` its slot in the
    ring of decoded chunks (None for one that is not packed).
    """

    chunk: int
    first: int
    last: int
    slot: RingSlot | None
    decoded: RingSlot | None


@dataclass(frozen=True, slots=True)
class Plan:
    """What stays, what is streamed, and how long one pass takes."""

    chunks: tuple[Chunk, ...]
    kept: frozenset[int]  # chunks that stay decoded
    kept_packed: frozenset[int]  # chunks that stay as payload and are decoded for each use
    visits: tuple[Visit, ...]
    ring_bytes: int
    decoded_bytes: int
    kept_bytes: int
    streamed_bytes: int  # over the link in one pass
    step_ms: float
    floor_ms: float  # compute time or link time, whichever is longer

    @property
    def device_bytes(self) -> int:
        """Device memory of the whole plan."""
        return self.kept_bytes + self.ring_bytes + self.decoded_bytes


@dataclass(frozen=True, slots=True)
class Problem:
    """What a plan is made for. `pinned` are weights that cannot be streamed."""

    weights: tuple[Weight, ...]
    uses: tuple[Use, ...]
    rates: Rates
    pinned: frozenset[int] = frozenset()
    chunk_bytes: int = CHUNK_BYTES

    @property
    def compute_ms(self) -> float:
        """The time of a pass without any wait for weights."""
        return sum(use.compute_ms for use in self.uses)

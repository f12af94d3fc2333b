"""Decide which weights stay on a device, and where and when the others pass through it.

    made = plan.make(problem, allowance_bytes)
    made.kept, made.visits, made.step_ms

Words: a *weight* is a stretch of bytes that moves as one. A *use* is one run of a layer. A *chunk*
is a group of weights that are used one after the other, and is kept or streamed as a whole. A
*visit* is one stay of a chunk in the ring, from its first use to its last. Packed chunks cross the
link as their payload, and their first use begins with decoding them into a second ring.

Leaves to others: what is used when (trace), moving bytes (stream), time on real devices (rates).
Promise: everything here only reads its arguments; the same arguments give the same plan.
"""

from __future__ import annotations

from holdfast.residency.plan.course import RING_BYTES, Course, course_of, rings_of
from holdfast.residency.plan.making import make, packing, resident, smallest_bytes, streaming
from holdfast.residency.plan.model import (
    CHUNK_BYTES,
    Chunk,
    Plan,
    Problem,
    Rates,
    Use,
    Visit,
    Weight,
)
from holdfast.residency.plan.simulation import simulate

__all__ = [
    "CHUNK_BYTES",
    "RING_BYTES",
    "Chunk",
    "Course",
    "Plan",
    "Problem",
    "Rates",
    "Use",
    "Visit",
    "Weight",
    "course_of",
    "make",
    "packing",
    "resident",
    "rings_of",
    "simulate",
    "smallest_bytes",
    "streaming",
]

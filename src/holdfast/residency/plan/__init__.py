"""Decides which weights stay on the device, and in what order and where the others pass through it.

    made = plan.make(problem, allowance_bytes)
    made.kept, made.visits, made.step_ms

Terms: a *weight* is a range of bytes that moves as one. A *use* is one run of a layer. A *chunk*
is a group of consecutively used weights that is kept or streamed as a whole. A *visit* is one stay
of a chunk in the ring, from its first use to its last. Packed chunks cross the link as payload and
are decoded into a second ring at their first use.

All functions are pure: the same arguments give the same plan.

    model       the data classes: Problem, Plan, Chunk, Visit, Rates
    planner     finds the fastest plan for a problem, and the smallest budget that works
    course      what all plans of a problem share: chunks, their uses, ring sizes
"""

from __future__ import annotations

from holdfast.residency.plan.model import CHUNK_BYTES, Chunk, Plan, Problem, Rates, Use, Weight
from holdfast.residency.plan.planner import find_smallest_bytes, make, simulate

__all__ = ["CHUNK_BYTES", "Chunk", "Plan", "Problem", "Rates", "Use", "Weight"]
__all__ += ["find_smallest_bytes", "make", "simulate"]

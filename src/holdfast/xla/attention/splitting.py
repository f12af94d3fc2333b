"""A fused kernel over several devices: XLA cannot split it, so each device gets its own problem.

Heads are split along "tp" (queries, where heads do not divide), the batch along the other axes, and
what does not divide is computed everywhere. The result is that of one device.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, AxisType, Mesh
from jax.sharding import PartitionSpec as P

from holdfast.xla.attention.problem import Problem

HEADS_AXIS = "tp"
AnyMesh = Mesh | AbstractMesh
Kernel = Callable[[Problem], jax.Array]


@dataclass(frozen=True, slots=True)
class Cut:
    """Axes of the mesh for dimensions of the problem; None: not cut."""

    batch: tuple[str, ...] | None
    heads: str | None
    queries: str | None


def ambient_mesh(mesh: AnyMesh | None) -> AnyMesh | None:
    """The mesh to cut over: the one given, else JAX's current one; None for a single device.

    Inside of a shard_map each device has its part already, so there is none to cut over.
    """
    current = jax.sharding.get_abstract_mesh()
    if not current.empty and AxisType.Manual in current.axis_types:
        return None
    found = mesh if mesh is not None else current
    return None if found.empty or found.size == 1 else found


def cut(mesh: AnyMesh, problem: Problem) -> Cut:
    """How this problem goes over this mesh."""
    batch, heads, _, _ = problem.query.shape
    sizes = dict(mesh.shape)
    tensor = sizes.pop(HEADS_AXIS, 1)
    others = tuple(name for name, size in sizes.items() if size > 1)
    by_batch = bool(others) and batch % math.prod(sizes.values()) == 0
    by_heads = tensor > 1 and heads % tensor == 0
    by_queries = tensor > 1 and not by_heads and not problem.is_causal
    return Cut(
        batch=others if by_batch else None,
        heads=HEADS_AXIS if by_heads else None,
        queries=HEADS_AXIS if by_queries else None,
    )


def run_split(mesh: AnyMesh, problem: Problem, kernel: Kernel) -> jax.Array:
    """The kernel's answer to the problem, computed in parts."""
    how = cut(mesh, problem)
    parts = dict(mesh.shape).get(HEADS_AXIS, 1)
    problem = _make_divisible(problem, how, parts)
    queries = problem.query.shape[2]
    padded = _pad_queries(problem, -queries % parts if how.queries else 0)
    key_heads = how.heads if problem.key.shape[1] > 1 else None
    keys = P(how.batch, key_heads, None, None)
    rows = P(how.batch, how.heads, how.queries, None)

    def part(query: jax.Array, key: jax.Array, value: jax.Array, *masks: jax.Array) -> jax.Array:
        own = replace(padded, query=query, key=key, value=value, mask=masks[0] if masks else None)
        return kernel(own)

    masks = () if padded.mask is None else (padded.mask,)
    specs = (rows, keys, keys, *(_mask_spec(how, one) for one in masks))
    # What the kernels write is not followed by JAX's check of varying axes.
    cut_up = jax.shard_map(part, mesh=mesh, in_specs=specs, out_specs=rows, check_vma=False)
    return cut_up(padded.query, padded.key, padded.value, *masks)[:, :, :queries]


def _make_divisible(problem: Problem, how: Cut, parts: int) -> Problem:
    """Key heads that can be cut like the heads: one, or so many that each part has its own."""
    key_heads, heads = problem.key.shape[1], problem.query.shape[1]
    if how.heads is None or key_heads == 1 or key_heads % parts == 0:
        return problem
    key, value = (
        jnp.repeat(one, heads // key_heads, axis=1) for one in (problem.key, problem.value)
    )
    return replace(problem, key=key, value=value)


def _pad_queries(problem: Problem, more: int) -> Problem:
    if not more:
        return problem
    pad = ((0, 0), (0, 0), (0, more), (0, 0))
    mask = problem.mask
    if mask is not None and mask.shape[2] > 1:
        mask = jnp.pad(mask, pad)
    return replace(problem, query=jnp.pad(problem.query, pad), mask=mask)


def _mask_spec(how: Cut, mask: jax.Array) -> P:
    wished = (how.batch, how.heads, how.queries)
    return P(*(axis if size > 1 else None for axis, size in zip(wished, mask.shape, strict=False)))

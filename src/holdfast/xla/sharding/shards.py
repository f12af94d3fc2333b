"""Weights in shards: placing them, counting bytes, and the collectives of a program.

No weight is ever whole on one device unless its rule says so. Inputs are only read, and share no
memory with the arrays that are made.
"""

from __future__ import annotations

import math
import re
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import jax
import numpy as np
import torch
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from torch import nn

from holdfast.base.errors import BadInput
from holdfast.base.units import format_bytes
from holdfast.xla.arrays import dtype_of, to_numpy
from holdfast.xla.cluster.mesh import Device
from holdfast.xla.sharding.rules import Rules, axes_in, compile_rules, fit_spec, match

Read = Callable[[tuple[slice, ...]], np.ndarray]
_NAMED = 5  # replicated weights that a report names
_COLLECTIVE = re.compile(
    r"\s(all-reduce|all-gather|reduce-scatter|collective-permute|all-to-all|collective-broadcast"
    r"|ragged-all-to-all)(?:-start)?\("
)


def place(
    name: str, read: Read, shape: tuple[int, ...], dtype: Any, spec: PartitionSpec, mesh: Mesh
) -> jax.Array:
    """Place one weight in shards. `read(index)` returns the part that one shard needs.

    Each part is read once, however many devices hold it, and becomes `dtype` (torch's, NumPy's or
    JAX's; 64 bits become 32, as everywhere in JAX). Raises BadInput for a spec that does not split
    the shape evenly, and for a part of another shape.
    """
    spec = fit_spec(name, shape, spec, mesh.shape)
    sharding = NamedSharding(mesh, spec)
    as_numpy = dtype_of(dtype) if isinstance(dtype, torch.dtype) else np.dtype(dtype)
    wanted = jax.dtypes.canonicalize_dtype(as_numpy)
    expected = sharding.shard_shape(shape)
    parts: dict[tuple[tuple[Any, Any], ...], np.ndarray] = {}

    def part(index: tuple[slice, ...] | None) -> np.ndarray:
        given = index or ()
        key = tuple((one.start, one.stop) for one in given)
        if key not in parts:
            parts[key] = _part(name, read(given), expected, wanted)
        return parts[key]

    return jax.make_array_from_callback(shape, sharding, part, wanted)


def _part(name: str, found: Any, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Copy: on the CPU, JAX would keep using the caller's memory."""
    array = np.array(found, dtype=dtype, order="C")
    if array.shape != shape:
        raise BadInput(
            f"a part of {name!r} was read with shape {array.shape}", expected=f"shape {shape}"
        )
    return array


def place_all(
    weights: Mapping[str, torch.Tensor], rules: Rules, mesh: Mesh, dtype: Any = None
) -> dict[str, jax.Array]:
    """Place CPU tensors by their rules; floating ones are cast to `dtype` if given."""
    return {
        name: place(
            name,
            to_numpy(tensor).__getitem__,
            tuple(tensor.shape),
            tensor.dtype if dtype is None or not tensor.is_floating_point() else dtype,
            rules[name].spec,
            mesh,
        )
        for name, tensor in weights.items()
    }


def shard_weight_dict(params: Any, sharding_rules: Mapping[str, Any] | Rules, mesh: Mesh) -> Any:
    """The same dict with its weights in shards, as JAX arrays; prints how many and how large.

    Names are the keys joined by dots; the first expression that matches the beginning of a name
    wins, and what none matches is replicated. Weights may be tensors of torchax, of torch's CPU, or
    arrays; anything else stays as it is. Raises BadInput for a rule that does not fit a weight:
    somebody wrote it, so it is not softened.
    """
    exact = sharding_rules if isinstance(sharding_rules, Rules) else None
    wanted = [] if exact is not None else compile_rules(sharding_rules)
    sizes: dict[bool, list[int]] = {True: [], False: []}

    def shard(path: tuple[Any, ...], param: Any) -> Any:
        array = _array(param)
        if array is None:
            return param
        name = jax.tree_util.keystr(path, simple=True, separator=".")
        if exact is not None:
            spec = exact[name].spec if name in exact else PartitionSpec()
        else:
            spec = (match(wanted, name) or (None, PartitionSpec()))[1]
        if isinstance(array, jax.Array):
            spec = fit_spec(name, array.shape, spec, mesh.shape)
            placed = jax.device_put(array, NamedSharding(mesh, spec))
        else:
            placed = place(name, array.__getitem__, array.shape, array.dtype, spec, mesh)
        sizes[not placed.sharding.is_fully_replicated].append(placed.nbytes)
        return placed

    result = jax.tree_util.tree_map_with_path(shard, params)
    split, whole = ((len(one), sum(one) / 1e9) for one in (sizes[True], sizes[False]))
    sys.stdout.write(
        f"  weights: {split[0]} split ({split[1]:.2f} GB), "
        f"{whole[0]} replicated ({whole[1]:.2f} GB)\n"
    )
    return result


def _array(param: Any) -> jax.Array | np.ndarray | None:
    if hasattr(param, "_elem"):  # torchax's
        return param._elem
    if isinstance(param, torch.Tensor):
        return to_numpy(param)
    return param if isinstance(param, jax.Array | np.ndarray) else None


def move_module_to_xla(env: Any, module: nn.Module) -> None:
    """Parameters and buffers become torchax tensors, in place, in the memory of the host.

    Buffers that are not saved with the module as well. What is tied stays tied.
    """
    moved: dict[int, torch.Tensor] = {}

    def move(tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in moved:
            found = env.to_xla(tensor.detach())
            if isinstance(tensor, nn.Parameter):
                found = nn.Parameter(found, requires_grad=tensor.requires_grad)
            moved[id(tensor)] = found
        return moved[id(tensor)]

    with jax.default_device(jax.devices("cpu")[0]):
        tables: Any = (t for one in module.modules() for t in (one._parameters, one._buffers))
        for table in tables:
            for name, tensor in table.items():
                if tensor is not None:
                    table[name] = move(tensor)


@dataclass(frozen=True)
class Replicated:
    """A weight that every device holds whole, and why."""

    name: str
    bytes: int
    reason: str


@dataclass(frozen=True)
class ShardReport:
    """Counts and bytes of split and replicated weights. Ideal: all are split along the axis."""

    axis: str
    parts: int
    split_count: int
    replicated_count: int
    split_bytes: int
    replicated_bytes: int
    device_bytes: int
    largest: tuple[Replicated, ...]

    @property
    def total_bytes(self) -> int:
        return self.split_bytes + self.replicated_bytes

    @property
    def ideal_bytes(self) -> int:
        return -(-self.total_bytes // self.parts)

    @property
    def ratio(self) -> float:
        """Bytes on a device over the ideal; 1 is the best, `parts` means that nothing is split."""
        return self.device_bytes / self.ideal_bytes if self.total_bytes else 1.0

    def to_dict(self) -> dict[str, Any]:
        derived = ("total_bytes", "ideal_bytes", "ratio")
        return asdict(self) | {name: getattr(self, name) for name in derived}

    def __str__(self) -> str:
        all_count = self.split_count + self.replicated_count
        split_on_device = self.device_bytes - self.replicated_bytes
        lines = [
            f"{'weights':<12}{'count':>6}{'bytes':>12}  on each of {self.parts} ({self.axis})",
            _row("split", self.split_count, self.split_bytes, split_on_device),
            _row("replicated", self.replicated_count, self.replicated_bytes, self.replicated_bytes),
            _row("all", all_count, self.total_bytes, self.device_bytes)
            + f"  {self.ratio:.3f} x the ideal {format_bytes(self.ideal_bytes)}",
        ]
        if self.largest:
            width = max(len(one.name) for one in self.largest)
            lines.append("largest that are replicated:")
            lines += [
                f"  {one.name:<{width}}{format_bytes(one.bytes):>10}  {one.reason}"
                for one in self.largest
            ]
        return "\n".join(lines)


def _row(word: str, count: int, whole: int, device: int) -> str:
    return f"{word:<12}{count:>6}{format_bytes(whole):>12}{format_bytes(device):>12}"


def report(rules: Rules, dtype: torch.dtype | None = None) -> ShardReport:
    """The report of rules alone, without weights; floating ones are counted as `dtype` if given."""
    sizes: dict[str, int] = {}
    for name, rule in rules.items():
        used = rule.dtype if dtype is None or not rule.dtype.is_floating_point else dtype
        stored = jax.dtypes.canonicalize_dtype(dtype_of(used))
        sizes[name] = math.prod(rule.shape) * stored.itemsize
    parts = {
        name: math.prod(rules.sizes[axis] for entry in rule.spec for axis in axes_in(entry))
        for name, rule in rules.items()
    }
    whole = [
        Replicated(name, sizes[name], rule.reason.removeprefix("replicated: "))
        for name, rule in rules.items()
        if parts[name] == 1
    ]
    replicated = sum(one.bytes for one in whole)
    return ShardReport(
        axis=rules.axis,
        parts=rules.sizes[rules.axis],
        split_count=len(rules) - len(whole),
        replicated_count=len(whole),
        split_bytes=sum(sizes.values()) - replicated,
        replicated_bytes=replicated,
        device_bytes=sum(sizes[name] // parts[name] for name in rules),
        largest=tuple(sorted(whole, key=lambda one: -one.bytes)[:_NAMED]),
    )


def bytes_on(device: Device, weights: Any) -> int:
    """Bytes that the arrays of a tree hold on one device of this process."""
    return sum(
        shard.data.nbytes
        for array in jax.tree_util.tree_leaves(weights)
        for shard in array.addressable_shards
        if shard.device == device
    )


def collectives(program: Any) -> Counter[str]:
    """Count the collectives of one run by kind: all-reduce, all-gather, reduce-scatter, ...

    `program` is the text of compiled HLO, or what `jit(f).lower(...)` gives, compiled or not. What
    stands in a loop is counted once, so with `scan` the blocks count as one.
    """
    if hasattr(program, "compile"):  # before that, XLA has not yet put them in
        program = program.compile()
    text = program if isinstance(program, str) else program.as_text()
    return Counter(_COLLECTIVE.findall(text))

"""A module on XLA: its weights in shards, its methods compiled.

    placed = Placed(transformer)                       # over all devices
    noise = placed.run("forward", {"hidden_states": x, "timestep": t, "return_dict": False})

CPU tensors in and out; a method is compiled for the inputs it gets. No weight is whole on a device
unless its rule says so. The module's own tensors are not changed, or, with `free=True`, freed one
after the other.
"""

from __future__ import annotations

import hashlib
import inspect
import threading
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
import torch
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from torch import nn
from torch.utils import _pytree as tree

from holdfast.base.errors import BadInput
from holdfast.xla.arrays import to_numpy, to_torch
from holdfast.xla.cluster.hosts import from_host, whole
from holdfast.xla.cluster.mesh import make_mesh
from holdfast.xla.errors import needs_a_value, translate_errors
from holdfast.xla.module.cache import Programs, use_compile_cache
from holdfast.xla.module.calls import ModuleCall, Slot
from holdfast.xla.module.identity import identity
from holdfast.xla.module.scan import Scan
from holdfast.xla.ops import describe_overrides
from holdfast.xla.sharding.loading import Reader
from holdfast.xla.sharding.rules import Rules, rules_for
from holdfast.xla.sharding.shards import ShardReport, place, report

Progress = Callable[[int, int], None]


class Placed:
    """A module whose weights lie on the devices of a mesh.

    `rules` come before those that are derived from the module; `scan` names lists of equal blocks,
    which are compiled once where that costs no time later (not on GPUs); `static` names inputs
    whose values shapes depend on. `read` gives weights that the module does not have itself (it may
    be on meta); `progress` is called with (bytes placed, bytes in all).
    """

    def __init__(
        self,
        module: nn.Module,
        *,
        mesh: Mesh | None = None,
        rules: Mapping[str, Any] | None = None,
        scan: Scan | None = None,
        overrides: Mapping[Any, Any] | None = None,
        static: tuple[str, ...] = (),
        read: Reader | None = None,
        free: bool = False,
        progress: Progress | None = None,
        programs: Programs | None = None,
    ) -> None:
        self.module = module
        self.mesh = make_mesh() if mesh is None else mesh
        self.rules: Rules = rules_for(module, rules, mesh=self.mesh)
        self.report: ShardReport = report(self.rules)
        self.static = _static(module, static)
        # A GPU copies the weights of a block out of the stack before it computes: 9 % of a step.
        unrolls = self.mesh.devices.flat[0].platform == "gpu"
        self._scan = {} if scan is None or unrolls else dict(scan)
        self._overrides = overrides
        self._programs = Programs() if programs is None else programs
        use_compile_cache()
        self._compiled: dict[Any, Callable[..., Any]] = {}
        self._calls: dict[str, ModuleCall] = {}
        self._fixed: set[Any] = set()  # calls whose integer inputs are constants
        self._lock = threading.RLock()
        replaced = tuple(one.func for one in (overrides or {}).values())
        self._identity = identity(module, replaced)
        self.weights = self._place(read or self._own, free, progress)

    def call(self, method: str = "forward") -> ModuleCall:
        """A method as a pure function of (weights, inputs)."""
        if method not in self._calls:
            self._calls[method] = ModuleCall(
                self.module,
                method,
                overrides=self._overrides,
                scan=self._scan,
                mesh=self.mesh,
                platform=platform_of(self.mesh),
            )
        return self._calls[method]

    def spec(self, slot: Slot) -> PartitionSpec:
        """How an array of a call is split: stacked weights as each of them would be."""
        spec = self.rules[slot.parts[0]].spec
        return PartitionSpec(None, *spec) if slot.is_stacked else spec

    def _own(self, name: str, index: tuple[slice, ...]) -> torch.Tensor:
        owner, _, last = name.rpartition(".")
        return getattr(self.module.get_submodule(owner), last).detach()[index]

    def _place(self, read: Reader, free: bool, progress: Progress | None) -> dict[str, jax.Array]:
        slots = self.call().slots
        sizes = {name: int(np.prod(s.shape)) * s.dtype.itemsize for name, s in slots.items()}
        total, done = sum(sizes.values()), 0
        found: dict[str, jax.Array] = {}
        for name, slot in slots.items():
            if progress is not None:
                progress(done, total)
            with translate_errors(f"placing {name!r}", self.report):
                reading = _make_reader(read, slot)
                spec = self.spec(slot)
                found[name] = place(name, reading, slot.shape, slot.dtype, spec, self.mesh)
            done += sizes[name]
            if free:
                _free_weights(self.module, slot.parts)
        if progress is not None:
            progress(total, total)
        return found

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """`forward`, with the arguments of the module."""
        return self.run("forward", self.bind("forward", *args, **kwargs))

    def bind(self, method: str, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Bind arguments to the names of the method's parameters."""
        bound = inspect.signature(getattr(self.module, method)).bind(*args, **kwargs)
        found = dict(bound.arguments)
        signature = bound.signature.parameters.values()
        for rest in [p.name for p in signature if p.kind is inspect.Parameter.VAR_KEYWORD]:
            found |= found.pop(rest, {})
        return found

    def run(self, method: str, inputs: Mapping[str, Any]) -> Any:
        """Run a method with CPU tensors in and out, in tuples and dicts.

        Floating tensors are arguments of the compiled program. Integer tensors are too, unless a
        shape depends on their values: then they are constants, and other values compile another
        program.
        """
        with translate_errors(f"running {type(self.module).__name__}.{method}", self.report):
            program, values = self._program(method, dict(inputs))
            # What goes wrong may show only here.
            return _restore_keys(program(self.weights, values))

    def _program(self, method: str, inputs: dict[str, Any]) -> tuple[Callable[..., Any], Any]:
        leaves, form = tree.tree_flatten(inputs)
        names = [name for name, value in inputs.items() for _ in tree.tree_leaves(value)]
        described = (method, str(form))
        for fixed in (True,) if described in self._fixed else (False, True):
            traced = [
                isinstance(leaf, torch.Tensor)
                and name not in self.static
                and (leaf.is_floating_point() or not fixed)
                for name, leaf in zip(names, leaves, strict=True)
            ]
            values = [self.put(one) for one, is_in in zip(leaves, traced, strict=True) if is_in]
            constants = [None if is_in else one for one, is_in in zip(leaves, traced, strict=True)]
            try:
                return self._ready(method, form, traced, constants, values), values
            except Exception as exc:
                tensors = [one for one in leaves if isinstance(one, torch.Tensor)]
                has_integers = not all(one.is_floating_point() for one in tensors)
                if fixed or not needs_a_value(exc) or not has_integers:
                    raise
                self._fixed.add(described)
        raise AssertionError("unreachable")

    def _ready(
        self, method: str, form: Any, traced: list[bool], constants: list[Any], values: list[Any]
    ) -> Callable[..., Any]:
        call = self.call(method)
        replicated = NamedSharding(self.mesh, PartitionSpec())

        def function(weights: Any, values: list[jax.Array]) -> Any:
            arrived = iter(values)
            pairs = zip(traced, constants, strict=True)
            leaves = [next(arrived) if is_in else one for is_in, one in pairs]
            answer = call(weights, tree.tree_unflatten(leaves, form))
            return jax.lax.with_sharding_constraint(_number_keys(answer), replicated)

        described = (method, str(form), tuple(traced), digest_of(constants))
        return self.program(function, described, (values,))

    def program(
        self,
        function: Callable[..., Any],
        described: Any,
        arguments: tuple[Any, ...],
        donate: tuple[int, ...] = (),
    ) -> Callable[..., Any]:
        """`function(weights, *arguments)` compiled, from an earlier process if there is one.

        `described` is unique among programs of the module; each is compiled once for arguments
        of the same shapes. Of `donate`, 0 is the first after the weights.
        """
        shapes = [(one.shape, str(one.dtype)) for one in jax.tree.leaves(arguments)]
        known = repr((described, shapes, jax.tree.structure(arguments)))
        with self._lock:
            if known not in self._compiled:
                self._compiled[known] = self._programs.program(
                    self._key(described),
                    function,
                    (self.weights, *arguments),
                    donate=tuple(one + 1 for one in donate),
                )
            return self._compiled[known]

    def _key(self, described: Any) -> dict[str, Any] | None:
        """The cache key of a program, besides its arguments; None for code without a version.

        A file would then outlive the code that it was traced from.
        """
        if self._identity is None:
            return None
        return {
            "module": self._identity,
            "scan": sorted(self._scan.items()),
            "rules": sorted((name, str(spec)) for name, spec in self.rules.specs.items()),
            "mesh": sorted(self.mesh.shape.items()),
            "overrides": describe_overrides(self._overrides or {}),
            "described": described,
        }

    def put(self, tensor: torch.Tensor) -> jax.Array:
        """A CPU tensor, replicated on every device."""
        return from_host(to_numpy(tensor), NamedSharding(self.mesh, PartitionSpec()))


def _static(module: nn.Module, names: tuple[str, ...]) -> frozenset[str]:
    """Raises BadInput for a name that no method of the module's class takes."""
    takes: dict[str, inspect.Parameter] = {}
    for method in {"forward", *(set(dir(type(module))) - set(dir(nn.Module)))}:
        if inspect.isfunction(function := getattr(type(module), method, None)):
            takes |= inspect.signature(function).parameters
    takes_any = inspect.Parameter.VAR_KEYWORD in {
        one.kind for one in inspect.signature(module.forward).parameters.values()
    }
    if isinstance(names, str) or not (takes_any or takes.keys() >= set(names)):
        inputs = ", ".join(inspect.signature(module.forward).parameters)
        raise BadInput(
            f"{type(module).__name__} has no such inputs to be static: {names!r}",
            expected=f"a tuple of names of its inputs: {inputs}",
        )
    return frozenset(names)


def platform_of(mesh: Mesh) -> str:
    """The platform by attention's names: cpu, tpu, cuda; "gpu" is one that is not NVIDIA's."""
    device = mesh.devices.flat[0]
    is_cuda = device.platform == "gpu" and "cuda" in device.client.platform_version.lower()
    return "cuda" if is_cuda else device.platform


def _make_reader(read: Reader, slot: Slot) -> Callable[[tuple[slice, ...]], np.ndarray]:
    def part(index: tuple[slice, ...]) -> np.ndarray:
        if not slot.is_stacked:
            return to_numpy(read(slot.parts[0], index).to(slot.dtype))
        blocks, *inner = index
        parts = [read(name, tuple(inner)) for name in slot.parts[blocks]]
        return np.stack([to_numpy(one.to(slot.dtype)) for one in parts])

    return part


def _free_weights(module: nn.Module, names: tuple[str, ...]) -> None:
    """Replace weights, and tensors tied to them, by meta tensors."""
    for name in names:
        owner, _, last = name.rpartition(".")
        held = module.get_submodule(owner)
        old = getattr(held, last)
        empty = torch.empty_like(old, device="meta")
        new = nn.Parameter(empty, requires_grad=False) if isinstance(old, nn.Parameter) else empty
        for one in module.modules():
            for held_there in (vars(one)["_parameters"], vars(one)["_buffers"]):
                for key in [key for key, value in held_there.items() if value is old]:
                    held_there[key] = new


def _number_keys(answer: Any) -> Any:
    """Prefix keys by their index: a compiled program returns dicts sorted by key."""
    if isinstance(answer, dict):
        return {f"{i:03} {name}": _number_keys(answer[name]) for i, name in enumerate(answer)}
    if isinstance(answer, tuple):
        return tuple(map(_number_keys, answer))
    return answer


def _restore_keys(answer: Any) -> Any:
    """Undo `_number_keys`, with the arrays as CPU tensors."""
    if isinstance(answer, dict):
        return {key.partition(" ")[2]: _restore_keys(answer[key]) for key in sorted(answer)}
    if isinstance(answer, list | tuple):
        return tuple(map(_restore_keys, answer))
    return to_torch(whole(answer)) if isinstance(answer, jax.Array) else answer


def digest_of(constants: list[Any]) -> str:
    """A digest of a program's constants, by value."""
    found = hashlib.sha256()
    for one in constants:
        if isinstance(one, torch.Tensor):
            found.update(repr((tuple(one.shape), one.dtype)).encode())
            found.update(to_numpy(one).tobytes())
        else:
            found.update(repr(one).encode())
    return found.hexdigest()

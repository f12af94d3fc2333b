"""A method of a module as a pure function of its weights and inputs, for `jax.jit`.

    call = ModuleCall(transformer)
    weights = {name: to_jax(tensor) for name, tensor in call.weights.items()}
    step = jax.jit(lambda weights, x: call(weights, {"hidden_states": x, "return_dict": False}))

The module is not changed, nor its caches and hooks; nothing is enabled in torch before or after a
call. Works in any thread and inside `torch.inference_mode`, under which ComfyUI runs nodes.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

import jax
import torch
from torch import nn

from holdfast.residency.predict.shadow import shadow
from holdfast.xla.compat import experts
from holdfast.xla.compat.environment import Environment, Tensor
from holdfast.xla.module.scan import Scan, Scanned, blocks_of, require_carried
from holdfast.xla.sharding.rules import weights_of

_SEED = 0  # of what a model draws for itself; programs are the same each time


@dataclass(frozen=True)
class Slot:
    """One array that a call takes: a weight, or one weight of all blocks of a list, stacked."""

    parts: tuple[str, ...]  # names of the module's tensors
    is_stacked: bool
    shape: tuple[int, ...]
    dtype: torch.dtype


class ModuleCall:
    """`call(weights, inputs)` returns what `module.method(**inputs)` would, as JAX arrays.

    Tensors in `inputs` that are JAX's are traced. Everything else is a constant of the program:
    torch tensors as well, so that shapes may depend on them.
    `scan` names lists of equal blocks that are compiled once, with what goes from block to block.
    `attending` is for attention: the `mesh` that arrays are split over, the `platform` that it is
    compiled for.
    """

    def __init__(
        self,
        module: nn.Module,
        method: str = "forward",
        *,
        overrides: Mapping[Any, Any] | None = None,
        scan: Scan | None = None,
        **attending: Any,
    ) -> None:
        self.module, self.method = module, method
        self._scan = dict(scan or {})
        self._environment = Environment(overrides, **attending)
        self._counts = {path: len(blocks_of(module, path)) for path in self._scan}
        for path, carried in self._scan.items():
            require_carried(module, path, carried)

    @property
    def weights(self) -> dict[str, torch.Tensor]:
        """Parameters and buffers by name; tied ones appear once."""
        return weights_of(self.module)

    @property
    def slots(self) -> dict[str, Slot]:
        """The arrays of `weights` by name; `blocks.*.weight` is stacked over all blocks."""
        found: dict[str, Slot] = {}
        for name, tensor in self.weights.items():
            path = next((one for one in self._scan if name.startswith(f"{one}.")), None)
            shape = tuple(tensor.shape)
            if path is None:
                found[name] = Slot((name,), False, shape, tensor.dtype)
                continue
            index, _, inner = name.removeprefix(f"{path}.").partition(".")
            if index == "0":
                count = self._counts[path]
                parts = tuple(f"{path}.{i}.{inner}" for i in range(count))
                found[f"{path}.*.{inner}"] = Slot(parts, True, (count, *shape), tensor.dtype)
        return found

    def __call__(self, weights: Mapping[str, jax.Array], inputs: Mapping[str, Any]) -> Any:
        """Returns tuples, dicts and arrays. Errors of JAX, torchax and the module pass through."""
        environment = self._environment
        key = jax.random.key(_SEED)
        with (
            warnings.catch_warnings(),
            torch.inference_mode(False),
            torch.no_grad(),
            environment.override_property(prng=key),
        ):
            # 64-bit dtypes become 32-bit: torch's models use many.
            warnings.filterwarnings("ignore", "Explicitly requested dtype", UserWarning)
            module = self._double(weights)
            given = self._inside(dict(inputs))
            with environment:
                answer = getattr(module, self.method)(**given)
            return self._outside(answer)

    def _double(self, weights: Mapping[str, jax.Array]) -> nn.Module:
        """Copy the module with these weights: a call must leave no state in the original."""
        names = {id(tensor): name for name, tensor in self.weights.items()}

        def tensor(_: str, old: torch.Tensor) -> Any:
            name = names.get(id(old), "")
            return Tensor(weights[name], self._environment) if name in weights else old

        double = shadow(self.module, tensor)
        for module in double.modules():
            _own_caches(module, _library(module))
        experts.rewrite(double)
        for path, carried in self._scan.items():
            self._scan_in(double, path, carried, weights)
        return double

    def _scan_in(
        self,
        double: nn.Module,
        path: str,
        carried: tuple[str, ...],
        weights: Mapping[str, jax.Array],
    ) -> None:
        block = self.module.get_submodule(f"{path}.0")
        tensors = {**dict(block.named_parameters()), **dict(block.named_buffers())}
        names = {id(tensor): name for name, tensor in tensors.items()}
        stacked = {name: weights[f"{path}.*.{name}"] for name in names.values()}
        above, _, last = path.rpartition(".")
        scanned = Scanned(block, names, stacked, carried, self._environment)
        double.get_submodule(above)._modules[last] = nn.ModuleList([scanned])

    def _inside(self, value: Any) -> Any:
        if isinstance(value, jax.Array):
            return Tensor(value, self._environment)
        if isinstance(value, torch.Tensor):
            return self._environment.constant(value)
        if isinstance(value, dict):
            return {key: self._inside(one) for key, one in value.items()}
        if isinstance(value, list | tuple):
            return type(value)(self._inside(one) for one in value)
        return value

    def _outside(self, value: Any) -> Any:
        """Convert outputs to JAX arrays, in containers that JAX knows."""
        if isinstance(value, torch.Tensor):
            return self._environment.constant(value).jax()
        if isinstance(value, Mapping):
            return {key: self._outside(one) for key, one in value.items()}
        if isinstance(value, list | tuple):
            return tuple(self._outside(one) for one in value)
        return value


def _own_caches(holder: Any, library: str) -> None:
    """Copy an object's containers and the helper objects of its library, which may be caches."""
    for name, value in vars(holder).items():
        if name in _OWN or isinstance(value, _SHARED):
            continue
        if type(value) in (dict, list, set):
            vars(holder)[name] = value.copy()
        elif isinstance(value, Mapping):
            continue  # a configuration, which nobody writes into
        elif _library(value) == library and hasattr(value, "__dict__"):
            vars(holder)[name] = copied = copy.copy(value)
            _own_caches(copied, library)


def _library(value: Any) -> str:
    return type(value).__module__.partition(".")[0]


# Modules and tensors have doubles already; there is only one of each of the others.
_SHARED = (nn.Module, torch.Tensor, Enum, type)
# A module's own tables, which the double has already.
_OWN = frozenset(vars(nn.Module())) | {"_parameters", "_buffers", "_modules"}

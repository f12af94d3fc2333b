"""Which weight is split along which dimension, and why.

Rules come from the user, from diffusers' `_tp_plan`, or are derived from the module. Only names,
types and shapes are read, so a module on the meta device will do. The same weight of two equal
blocks gets the same rule. The model's result does not depend on the rules: XLA moves what has to be
moved, so a rule decides bytes and speed alone.

The weight of a Linear is (outputs, inputs). A *column* layer is split along its outputs, and so is
its bias; a *row* layer along its inputs, and its bias is whole. A row layer that follows a column
layer costs one sum over the devices, and nothing moves between the two. Such a *pair* is what is
looked for. A column layer without a row layer after it (modulation: one vector in, six out) would
leave its split to all that follows, each block's norms included, so it becomes a row.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jax.sharding import Mesh, PartitionSpec
from torch import nn

from holdfast.base.errors import BadInput
from holdfast.xla.cluster.mesh import AXIS

LARGE = 1 << 20  # elements; smaller embeddings and tables are not worth a split
_COLUMN, _ROW = "column", "row"
_DIMENSION = {_COLUMN: 0, _ROW: 1}
# Into attention: to_q, add_k_proj, v, wq, query, to_qkv_mlp_proj, img_attn_qkv, to_gate, ...
_INTO = re.compile(r"(?:^|_)(?:w?[qkv]|qkv|kv|query|key|value|gate)(?:_|$)")
_OUT_OF = re.compile(r"(?:^|_)(?:w?o|out)(?:_|$)")  # to_out, to_add_out, out_proj, o, wo


@dataclass(frozen=True)
class Rule:
    """How one weight is split. `reason` begins with user, _tp_plan, derived or replicated."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    spec: PartitionSpec
    reason: str


class Rules(dict[str, Rule]):
    """A rule for every parameter and buffer of a module, by its name in torch.

    `sizes` are the devices along each axis of the mesh.
    """

    def __init__(self, axis: str, sizes: Mapping[str, int], weights: Mapping[str, Rule]) -> None:
        super().__init__(weights)
        self.axis, self.sizes = axis, sizes

    @property
    def specs(self) -> dict[str, PartitionSpec]:
        return {name: rule.spec for name, rule in self.items()}


def rules_for(
    module: nn.Module,
    user: Mapping[str, Any] | None = None,
    axis: str = AXIS,
    size: int = 8,
    *,
    mesh: Mesh | None = None,
) -> Rules:
    """A rule for every weight of `module`, for `size` devices along `axis`, or those of `mesh`.

    `user` maps regular expressions, matched from the beginning of a name, to a PartitionSpec or a
    tuple; the first that matches wins. Then comes the class's `_tp_plan`, then what the module
    itself shows. Where `size` does not divide the dimension that should be split, the other one is
    taken, or none. Raises BadInput for a rule of the user that does not fit its weight.
    """
    sizes = {axis: size} if mesh is None else dict(mesh.shape)
    if sizes.get(axis, 0) < 1:
        raise BadInput(
            f"weights cannot be split along {axis!r}: the mesh has {_axes(sizes)}",
            expected=f"a mesh with an axis {axis!r}, such as make_mesh(axes={axis!r})",
        )
    wanted = compile_rules(user or {})
    derive = _Deriver(module, axis, sizes[axis])
    found: dict[str, Rule] = {}
    for name, tensor in weights_of(module).items():
        shape = tuple(tensor.shape)
        asked = match(wanted, name)
        if asked is None:
            spec, reason = derive(name, tensor)
        else:
            pattern, given = asked
            spec, reason = fit_spec(name, shape, given, sizes), f"user: {pattern.pattern}"
        found[name] = Rule(shape, tensor.dtype, spec, reason)
    return Rules(axis, sizes, found)


def weights_of(module: nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and buffers by name, also unsaved ones; tied ones appear once."""
    found: dict[str, torch.Tensor] = dict(module.named_parameters())
    known = {id(tensor) for tensor in found.values()}
    return found | {n: one for n, one in module.named_buffers() if id(one) not in known}


def compile_rules(user: Mapping[str, Any]) -> list[tuple[re.Pattern[str], PartitionSpec]]:
    """Compile a user's rules. Raises BadInput for an invalid expression or spec."""
    found: list[tuple[re.Pattern[str], PartitionSpec]] = []
    for pattern, spec in user.items():
        try:
            found.append((re.compile(pattern), as_spec(spec)))
        except re.error as exc:
            raise BadInput(
                f"a sharding rule is no regular expression: {pattern!r}: {exc}",
                expected=r"one such as r'.*\.attn\.to_q\.weight'",
            ) from exc
        except TypeError as exc:
            raise BadInput(
                f"the sharding rule {pattern!r} is {spec!r}",
                expected=f'a PartitionSpec or a tuple, such as ("{AXIS}", None)',
            ) from exc
    return found


def as_spec(given: Any) -> PartitionSpec:
    """A PartitionSpec of one, or of a tuple. Raises TypeError for anything else."""
    if isinstance(given, PartitionSpec):
        return given
    if isinstance(given, tuple):  # of None, the name of an axis, or a tuple of names
        entries = [one if isinstance(one, tuple) else (one,) for one in given if one is not None]
        if all(isinstance(name, str) for names in entries for name in names):
            return PartitionSpec(*given)
    raise TypeError(f"{given!r} is no PartitionSpec")


def match(
    wanted: list[tuple[re.Pattern[str], PartitionSpec]], name: str
) -> tuple[re.Pattern[str], PartitionSpec] | None:
    """The first rule whose expression matches the beginning of the name."""
    return next((rule for rule in wanted if rule[0].match(name)), None)


def fit_spec(
    name: str, shape: tuple[int, ...], spec: PartitionSpec, sizes: Mapping[str, int]
) -> PartitionSpec:
    """Return `spec` for this weight, without trailing None for dimensions that it does not have.

    Raises BadInput if it splits one of those, names an axis that is not in the mesh, or splits a
    dimension into parts that are not equal.
    """
    entries = tuple(spec)
    while len(entries) > len(shape) and entries[-1] is None:
        entries = entries[:-1]
    problem = _problem(shape, entries, sizes)
    if problem is not None:
        raise BadInput(
            f"cannot split {name!r} of shape {shape} by {spec}: {problem}",
            expected=f"equal parts over the mesh of {_axes(sizes)}",
            hint=f"a rule for it before the others: {{{re.escape(name)!r}: ()}} leaves it whole",
        )
    return PartitionSpec(*entries)


def _problem(
    shape: tuple[int, ...], entries: tuple[Any, ...], sizes: Mapping[str, int]
) -> str | None:
    if len(entries) > len(shape):
        return f"the shape has {len(shape)} of its {len(entries)} dimensions"
    named = Counter(axis for entry in entries for axis in axes_in(entry))
    if named and named.most_common(1)[0][1] > 1:
        return f"{named.most_common(1)[0][0]!r} is there twice"
    for dimension, entry in enumerate(entries):
        unknown = [axis for axis in axes_in(entry) if axis not in sizes]
        if unknown:
            return f"there is no axis {unknown[0]!r}"
        parts = math.prod(sizes[axis] for axis in axes_in(entry))
        if shape[dimension] % parts:
            return f"{shape[dimension]} is not divisible by {parts}"
    return None


def axes_in(entry: Any) -> tuple[str, ...]:
    """The axes of the mesh that one entry of a spec names."""
    if isinstance(entry, str):
        return (entry,)
    return tuple(entry) if isinstance(entry, tuple) else ()


def _axes(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{name}={size}" for name, size in sizes.items())


class _Deriver:
    """Rules of `_tp_plan`, and those that the module itself shows."""

    def __init__(self, module: nn.Module, axis: str, size: int) -> None:
        self._module, self._axis, self._size = module, axis, size
        self._plan = _parse_tp_plan(module)
        self._pairs = _Pairs(module)
        # Such models add the time embedding to a table at the end, and its modulation to the
        # tables of all blocks. A row's split would reach the embedding and from there each block;
        # a column's ends where the modulation is reshaped.
        self._has_table = "scale_shift_table" in module._parameters

    def __call__(self, name: str, tensor: torch.Tensor) -> tuple[PartitionSpec, str]:
        path, _, leaf = name.rpartition(".")
        owner = self._module.get_submodule(path)
        if leaf in owner._buffers:
            return self._whole("a buffer")
        if tensor.ndim < 2:
            return self._vector(path, owner)
        if _is_linear(owner):
            return self._linear(path, tensor)
        if isinstance(owner, nn.modules.conv._ConvNd):
            return self._whole("a convolution")
        if tensor.numel() < LARGE:
            return self._whole("small")
        if isinstance(owner, nn.Embedding):
            return self._split(tensor, (1, 0), "derived: embedding")
        largest = sorted(range(tensor.ndim), key=lambda one: -tensor.shape[one])
        return self._split(tensor, tuple(largest), "derived: large")

    def _linear(self, path: str, weight: torch.Tensor) -> tuple[PartitionSpec, str]:
        style, reason = self._style(path)
        if style is None and weight.numel() < LARGE:
            return self._whole("small")
        if style is None:
            style = _COLUMN if self._has_table and weight.shape[0] > weight.shape[1] else _ROW
            reason = f"derived: {style} of no pair"
        first = _DIMENSION[style]
        return self._split(weight, (first, 1 - first), reason)

    def _style(self, path: str) -> tuple[str | None, str]:
        for pattern, (style, word) in self._plan.items():
            if pattern.fullmatch(path):
                return style, f"_tp_plan: {word}"
        style = self._pairs.style(path)
        return style, f"derived: {style}"

    def _vector(self, path: str, owner: nn.Module) -> tuple[PartitionSpec, str]:
        weight = getattr(owner, "weight", None)
        if _is_linear(owner) and isinstance(weight, torch.Tensor):
            spec, reason = self._linear(path, weight)
            if spec and spec[0] == self._axis:
                return PartitionSpec(self._axis), reason
            return self._whole("the bias of a layer whose outputs are whole")
        return self._whole("a vector")

    def _split(
        self, tensor: torch.Tensor, order: tuple[int, ...], reason: str
    ) -> tuple[PartitionSpec, str]:
        """Along the first dimension of `order` that comes out even."""
        for dimension in order:
            if tensor.shape[dimension] % self._size == 0:
                entries = [self._axis if one == dimension else None for one in range(tensor.ndim)]
                if dimension != order[0]:
                    wanted = tensor.shape[order[0]]
                    reason += f"; turned, {wanted} is not divisible by {self._size}"
                return PartitionSpec(*entries), reason
        sizes = " x ".join(str(one) for one in tensor.shape)
        return self._whole(f"nothing of {sizes} is divisible by {self._size}")

    @staticmethod
    def _whole(reason: str) -> tuple[PartitionSpec, str]:
        return PartitionSpec(), f"replicated: {reason}"


class _Pairs:
    """Which Linears follow each other: those of one attention, those of one feed-forward."""

    def __init__(self, module: nn.Module) -> None:
        linears: dict[str, Any] = {
            n: one.weight for n, one in module.named_modules() if n and _is_linear(one)
        }
        self._expands = {name: one.shape[0] > one.shape[1] for name, one in linears.items()}
        places = {name: _split_path(name) for name in linears}
        alone = Counter(parent for parent, _ in places.values())
        self._scope = {
            name: _container(parent) if alone[parent] == 1 else parent
            for name, (parent, _) in places.items()
        }
        self._leaf = {name: leaf for name, (_, leaf) in places.items()}
        self._attending = {self._scope[name] for name in linears if self._is_into(name)}
        self._first = {self._scope[name] for name in linears if self._expands[name]}
        self._second = {self._scope[name] for name in linears if not self._expands[name]}

    def style(self, path: str) -> str | None:
        """Column or row; None for one that is in no pair."""
        scope = self._scope.get(path, "")
        if scope in self._attending:  # narrow keys are columns too, and wide outputs rows
            if self._is_into(path):
                return _COLUMN
            if _OUT_OF.search(self._leaf[path]) or not self._expands[path]:
                return _ROW
        # What stands in the model itself leads into its blocks and out of them.
        if scope == "" or scope not in self._first & self._second:
            return None
        return _COLUMN if self._expands[path] else _ROW

    def _is_into(self, path: str) -> bool:
        return _INTO.search(self._leaf[path]) is not None


def _parse_tp_plan(module: nn.Module) -> dict[re.Pattern[str], tuple[str, str]]:
    """`_tp_plan` as expressions; styles that split neither way are left to be derived.

    A packed style is several layers in one, of which diffusers splits each. Here the whole is
    split, which holds the same bytes, and XLA moves the parts.
    """
    found: dict[re.Pattern[str], tuple[str, str]] = {}
    for pattern, given in (getattr(module, "_tp_plan", None) or {}).items():
        word = given if isinstance(given, str) else type(given).__name__
        style = next((s for w, s in _WORDS.items() if w in word.lower()), None)
        if style is not None:
            found[re.compile(re.escape(pattern).replace(r"\*", "[^.]+"))] = style, word
    return found


_WORDS = {"colwise": _COLUMN, "rowwise": _ROW}


def _split_path(path: str) -> tuple[str, str]:
    """A layer's module and its name there; `attn.to_out.0` is `to_out` of `attn`."""
    parts = path.split(".")
    while len(parts) > 1 and parts[-1].isdigit():
        parts.pop()
    return ".".join(parts[:-1]), parts[-1]


def _container(path: str) -> str:
    """The module that holds this one in a list; itself, if it is in none: `ff.net.0` is of `ff`."""
    parent, leaf = _split_path(path)
    return parent if path.rpartition(".")[2].isdigit() and leaf else path


def _is_linear(module: Any) -> bool:
    """A Linear, or a convolution that is one: some models have them in their feed-forward."""
    if isinstance(module, nn.Linear):
        return module.weight.ndim == 2
    return (
        isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d)
        and set(module.kernel_size) == {1}
        and module.groups == 1
    )

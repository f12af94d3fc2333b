"""Reverse-mode differentiation: recorded calls (`Node`), `backward`, `grad`, `no_grad`.

A node keeps only the tensors that its gradient lines use, and detects if one was changed in place
since. `backward` frees what nodes keep, unless `retain_graph` is set.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from holdfast.base.errors import BadInput, Misuse, Unsupported
from holdfast.compute import dtype as dtypes
from holdfast.compute import functional
from holdfast.compute.autograd.gradient_lines import differentiable, formula_names, recipe
from holdfast.compute.ops.rules import Meta
from holdfast.compute.ops.schema import describe
from holdfast.compute.ops.table import Op

Tensor = Any  # a CustomTensor, whose module imports this one


class _Mode(threading.local):
    enabled = True


mode = _Mode()


class set_grad_enabled(contextlib.ContextDecorator):
    """Record ops for gradients, or not, inside the block or the decorated function."""

    def __init__(self, enabled: bool) -> None:
        self.enabled = enabled
        self._before: list[bool] = []

    def _recreate_cm(self) -> set_grad_enabled:
        return set_grad_enabled(self.enabled)  # each call of a decorated function has its own

    def __enter__(self) -> None:
        self._before.append(mode.enabled)
        mode.enabled = self.enabled

    def __exit__(self, *_: object) -> None:
        mode.enabled = self._before.pop()


def no_grad(function: Callable[..., Any] | None = None) -> Any:
    """Do not record ops for gradients, inside the block or the decorated function."""
    off = set_grad_enabled(False)
    return off if function is None else off(function)


def enable_grad() -> set_grad_enabled:
    """Record ops again, inside a `no_grad` block."""
    return set_grad_enabled(True)


def is_grad_enabled() -> bool:
    """Whether ops are recorded in this thread."""
    return mode.enabled


# ---- the tape


class Node:
    """A recorded call: computes gradients of its inputs from gradients of its results."""

    __slots__ = ("_owners", "_saved", "_versions", "edges", "hooks", "metas", "op", "results")

    def __init__(self, op: Op, bound: Mapping[str, Any], results: Sequence[Tensor]) -> None:
        self.op = op
        self.metas: list[Any] = [
            None if r is None else (tuple(r.shape), r.dtype, r.device) for r in results
        ]
        self.edges: dict[str, Any] = {}
        self._saved: dict[str, Any] | None
        saved: dict[str, Any] = {}
        self._versions: list[tuple[str, Tensor, int]] = []
        self.results: tuple[Any, ...] | None = None
        self.hooks: dict[int, list[Callable[[Any], Any]]] | None = None
        # Owners of the results' memory; weak, because results refer to this call in `grad_fn`.
        self._owners: list[tuple[Any, int]] = []
        for name in recipe(op).inputs:
            value = bound[name]
            if any(t.requires_grad for t in _tensors_of(value)):
                many = isinstance(value, list | tuple)
                self.edges[name] = [_edge(t) for t in value] if many else _edge(value)
        needs = recipe(op, tuple(self.edges))
        for name, value in bound.items():
            tensors = _tensors_of(value)
            if not tensors:
                saved[name] = value
            elif name in needs.whole:
                self._versions.extend((name, t, t._current_version()) for t in tensors)
                saved[name] = value
            elif name in needs.meta:
                saved[name] = _metadata(value, op)
        self._saved = saved
        if needs.results:
            self.results = tuple(None if r is None else r._array for r in results)
            self._owners = [
                (weakref.ref(r._root()), r._current_version()) for r in results if r is not None
            ]

    def __call__(self, grads: Sequence[Tensor | None]) -> Iterator[tuple[Any, Any]]:
        """Yield (edge, gradient) for every input that requires a gradient."""
        if self._saved is None:
            raise Misuse(
                f"cannot go backward through {self.op.name} a second time: what it kept for "
                "that was freed after the first",
                expected="one backward for each forward",
                hint="backward(retain_graph=True) the first time, or compute the loss again",
            )
        self._check_versions()
        names = self._names(grads)
        for line in recipe(self.op, tuple(self.edges)).lines:
            wanted = [name in self.edges for name in line.inputs]
            if not any(wanted):
                continue
            if len(line.inputs) > 1:  # with one input, `mask` may be an argument of that name
                names["mask"] = wanted
            found = eval(line.code, formula_names(), names)  # code from the op table only
            if len(line.inputs) == 1:
                found = (found,)
            for name, gradient in zip(line.inputs, found, strict=True):
                if name in self.edges and gradient is not None:
                    yield from _to_edges(self.edges[name], gradient)

    def _names(self, grads: Sequence[Tensor | None]) -> dict[str, Any]:
        tensor = next(g for g in grads if g is not None)  # its class makes the other tensors
        names: dict[str, Any] = dict(self._saved or {})
        filled = [
            tensor._zeros_view(meta) if g is None and meta is not None else g
            for g, meta in zip(grads, self.metas, strict=True)
        ]
        names["grads"], names["grad"] = tuple(filled), filled[0]
        names["given"] = tuple(g is not None for g in grads)
        if self.results is not None:
            for place, array in enumerate(self.results):
                if array is None:
                    continue
                made = tensor._wrap(array, self.metas[place][2])
                if differentiable(self.op, place, made):
                    made.requires_grad, made.grad_fn, made._place = True, self, place
                names[f"result{place}"] = made
            names["result"] = names["result0"]
        return names

    def _check_versions(self) -> None:
        changes = [
            f"argument {name!r} ({describe(tensor)}) was changed in place after it was used"
            for name, tensor, version in self._versions
            if tensor._current_version() != version
        ]
        changes += [
            f"result ({describe(tensor)}) was changed in place"
            for tensor, version in ((owner(), version) for owner, version in self._owners)
            if tensor is not None and tensor._version != version
        ]
        if changes:
            raise Misuse(
                f"cannot go backward through {self.op.name}: its {changes[0]}",
                expected="tensors that a gradient needs to stay as they were",
                hint="the op without the underscore, or clone() before the change",
            )

    def keep_copy(self, target: Tensor) -> None:
        """`target` is about to be overwritten by this call's result: keep a copy of it instead."""
        saved = self._saved or {}
        names = [name for name, value in saved.items() if value is target]
        if not names:
            return
        copy = target._wrap(target.device.engine.upload(target.data), target.device)
        copy.requires_grad, copy.grad_fn = target.requires_grad, target.grad_fn
        copy._place = target._place
        saved.update(dict.fromkeys(names, copy))
        self._versions = [noted for noted in self._versions if noted[1] is not target]

    def watch(self, place: int, hook: Callable[[Any], Any]) -> None:
        """Call `hook` with the gradient of a result before it is passed on; it may return a new
        one.
        """
        self.hooks = self.hooks or {}
        self.hooks.setdefault(place, []).append(hook)

    def release(self) -> None:
        """Free everything that was kept."""
        self._saved, self.results, self._versions, self._owners = None, None, [], []

    def next_nodes(self) -> Iterator[Node]:
        """The calls that computed this call's inputs."""
        for edge in self.edges.values():
            for one in edge if isinstance(edge, list) else (edge,):
                if one is not None and one.node is not None:
                    yield one.node

    def __repr__(self) -> str:
        return f"<backward of {self.op.name}>"


class Unknown(Node):
    """A call of an op without a gradient: backward through it raises."""

    __slots__ = ()

    def __call__(self, grads: Sequence[Tensor | None]) -> Iterator[tuple[Any, Any]]:
        raise Unsupported(
            f"cannot go backward through {self.op.name}: the table has no gradient for it",
            expected="ops with a gradient line, or a decomposition into such",
            hint="detach() what goes into it, if its gradient does not matter",
        )


@dataclass(frozen=True, slots=True)
class Edge:
    """Where a gradient goes: a result of an earlier call, or a leaf."""

    node: Node | None
    place: int
    leaf: Tensor | None
    meta: Meta


def _edge(tensor: Tensor | None) -> Edge | None:
    if tensor is None or not tensor.requires_grad:
        return None
    meta = Meta(tuple(tensor.shape), tensor.dtype)
    if tensor.grad_fn is None:
        return Edge(None, 0, tensor, meta)
    if tensor._base is not None and tensor._base.grad_fn is not tensor._history:
        raise Misuse(
            f"cannot use {describe(tensor)}, a view made by {tensor.grad_fn.op.name}: the tensor "
            "it is a view of was changed in place since, by something that requires a gradient",
            expected="a view made after the change",
            hint="make the view again",
        )
    return Edge(tensor.grad_fn, tensor._place, None, meta)


def _tensors_of(value: Any) -> list[Tensor]:
    if hasattr(value, "_array"):
        return [value]
    if isinstance(value, list | tuple):
        return [v for v in value if hasattr(v, "_array")]
    return []


class MetaWithLayout(NamedTuple):
    """Shape, dtype and memory layout of a tensor that is not kept."""

    shape: tuple[int, ...]
    dtype: Any
    layout: tuple[tuple[int, ...], int]

    @property
    def ndim(self) -> int:
        return len(self.shape)


def _metadata(value: Any, op: Op) -> Any:
    if isinstance(value, list | tuple):
        return [_metadata(v, op) for v in value]
    if value is None:
        return None
    if not any(".layout" in line for line in op.gradient.values()):
        return Meta(tuple(value.shape), value.dtype)
    start = functional.sym_storage_offset(value)
    return MetaWithLayout(tuple(value.shape), value.dtype, (value.stride(), start))


def _to_edges(edge: Any, gradient: Any) -> Iterator[tuple[Edge, Tensor]]:
    pairs = zip(edge, gradient, strict=True) if isinstance(edge, list) else [(edge, gradient)]
    for one, part in pairs:
        if one is not None and part is not None:
            yield one, _fit(part, one.meta)


def _fit(gradient: Any, meta: Meta) -> Any:
    """Reduce and cast a gradient to the shape and dtype of its tensor."""
    if tuple(gradient.shape) != meta.shape:
        gradient = _sum_to(gradient, meta.shape)
    if gradient.dtype != meta.dtype:
        if dtypes.is_complex(gradient.dtype) and not dtypes.is_complex(meta.dtype):
            gradient = gradient.real
        gradient = gradient.to(meta.dtype)
    return gradient


def _sum_to(gradient: Any, shape: tuple[int, ...]) -> Any:
    extra = gradient.ndim - len(shape)
    dims = list(range(extra)) + [
        extra + d for d, size in enumerate(shape) if size == 1 and gradient.shape[extra + d] != 1
    ]
    if extra < 0 or not dims:
        return gradient.expand(shape)
    return gradient.sum(dims, keepdim=True).reshape(shape)


# ---- backward


def backward(
    outputs: Sequence[Tensor],
    gradients: Sequence[Any],
    *,
    retain_graph: bool = False,
    create_graph: bool = False,
    only: Sequence[Tensor] | None = None,
) -> list[Tensor | None]:
    """Propagate gradients from `outputs`.

    They are added to the `.grad` of every leaf; if `only` is given, they are returned for those
    tensors instead.
    """
    pending: dict[Node, list[Any]] = {}
    leaves: dict[int, tuple[Any, Any]] = {}  # id -> (leaf, sum of its gradients)
    wanted = {id(t) for t in only} if only is not None else None
    found: dict[int, Any] = {}
    # The requested tensors that are no leaves: (node id, result index) -> tensor id.
    targets = {(id(t.grad_fn), t._place): id(t) for t in only or () if t.grad_fn is not None}
    for output, gradient in zip(outputs, gradients, strict=True):
        _add_gradient(_edge(output), gradient, pending, leaves, wanted)
    with set_grad_enabled(create_graph):
        for node in _order(list(pending)):
            grads = pending.pop(node, None)
            if grads is None:
                continue
            for place, gradient in enumerate(grads):
                if gradient is None:
                    continue
                grads[place] = _run_hooks((node.hooks or {}).get(place), gradient)
                key = targets.get((id(node), place))
                if key is not None:
                    found[key] = grads[place]
            for edge, gradient in node(grads):
                _add_gradient(edge, gradient, pending, leaves, wanted)
            if not (retain_graph or create_graph):
                node.release()
        while leaves:
            key = next(iter(leaves))
            leaf, gradient = leaves.pop(key)
            gradient = _run_hooks(leaf._hooks, gradient)
            if wanted is None:
                leaf._accumulate(gradient)
            else:
                found[key] = gradient
    return [found.get(id(t)) for t in only] if only is not None else []


def _run_hooks(hooks: Sequence[Callable[[Any], Any]] | None, gradient: Any) -> Any:
    for hook in hooks or ():
        changed = hook(gradient)
        gradient = gradient if changed is None else changed
    return gradient


def _add_gradient(edge: Any, gradient: Any, pending: Any, leaves: Any, wanted: Any) -> None:
    """Add a gradient to the sum for a call's result or for a leaf."""
    if edge is None:
        return
    if edge.node is not None:
        grads = pending.setdefault(edge.node, [None] * len(edge.node.metas))
        before = grads[edge.place]
        grads[edge.place] = gradient if before is None else before + gradient
    elif wanted is None or id(edge.leaf) in wanted:
        _, before = leaves.get(id(edge.leaf), (None, None))
        leaves[id(edge.leaf)] = edge.leaf, gradient if before is None else before + gradient


def _order(roots: list[Node]) -> list[Node]:
    """Sort calls so that each comes before the calls that computed its inputs."""
    seen: set[int] = set()
    done: list[Node] = []
    stack: list[tuple[Node, Iterator[Node] | None]] = [(root, None) for root in roots]
    while stack:
        node, rest = stack.pop()
        if rest is None:
            if id(node) in seen:
                continue
            seen.add(id(node))
            rest = node.next_nodes()
        following = next((n for n in rest if id(n) not in seen), None)
        if following is None:
            done.append(node)
        else:
            stack.append((node, rest))
            stack.append((following, None))
    return done[::-1]


def grad(
    outputs: Any,
    inputs: Any,
    grad_outputs: Any = None,
    *,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    allow_unused: bool = False,
) -> tuple[Tensor | None, ...]:
    """Gradients of `outputs` with respect to `inputs`; no `.grad` is changed.

    Raises BadInput for an input that the outputs do not depend on, unless `allow_unused`.
    """
    ends = [outputs] if hasattr(outputs, "_array") else list(outputs)
    starts = [inputs] if hasattr(inputs, "_array") else list(inputs)
    if grad_outputs is None or hasattr(grad_outputs, "_array"):
        grad_outputs = [grad_outputs] * len(ends)
    if len(grad_outputs) != len(ends):
        raise BadInput(
            f"grad() was given {len(ends)} outputs and {len(grad_outputs)} grad_outputs",
            expected="one for each output, or none",
        )
    seeds = [seed(e, g) for e, g in zip(ends, grad_outputs, strict=True)]
    keep = create_graph if retain_graph is None else retain_graph
    found = backward(ends, seeds, retain_graph=keep, create_graph=create_graph, only=starts)
    missing = [i for i, g in enumerate(found) if g is None]
    if missing and not allow_unused:
        raise BadInput(
            f"the outputs do not depend on input {missing[0]}",
            expected="inputs that require gradients and were used",
            hint="allow_unused=True, which returns None for it",
        )
    return tuple(found)


def seed(output: Tensor, gradient: Any) -> Tensor:
    """The initial gradient of a backward pass: 1 for a scalar. Raises BadInput."""
    if not output.requires_grad:
        raise BadInput(
            f"cannot go backward from {describe(output)}: it does not depend on any tensor that "
            "requires a gradient",
            expected="a result of tensors with requires_grad=True, computed outside of no_grad",
        )
    if gradient is None:
        if output.numel() != 1:
            raise BadInput(
                f"cannot go backward from {describe(output)} without a gradient: it has more "
                "than one element",
                expected="a loss of one element",
                hint="loss.sum().backward(), or backward(gradient) of the same shape",
            )
        return output._full(1, (tuple(output.shape), output.dtype, output.device))
    given = gradient if hasattr(gradient, "_array") else output._new(gradient)
    if tuple(given.shape) != tuple(output.shape):
        raise BadInput(
            f"the gradient {describe(given)} does not fit the result {describe(output)}",
            expected="equal shapes",
        )
    if not given.device.matches(output.device):
        raise BadInput(
            f"the gradient {describe(given)} is on {given.device}, the result "
            f"{describe(output)} on {output.device}",
            expected="both on one device",
            hint=f"gradient.to({str(output.device)!r})",
        )
    return given

"""Which nodes of a graph run together: runs of pointwise calls over large arrays of one shape.

Random elements are drawn, and inputs are changed, in the order of the graph.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from torch.fx import Node

from holdfast.compute.ops.rules import Meta
from holdfast.compute.torch_device.compile import nodes
from holdfast.compute.torch_device.compile.fusion_steps import OpCall, steps_of
from holdfast.compute.torch_device.compile.runtime import packed_strides

Fits = Callable[[Node], OpCall | None]
LARGE = 1 << 14  # elements from which one pass over blocks is faster than one pass for each op


@dataclass
class Group:
    """Pointwise calls that run in one pass, and the nodes they come from."""

    calls: list[OpCall] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    steps: int = 0

    def inputs(self) -> list[Node]:
        """Nodes that the calls read and none of them makes."""
        made = set(self.nodes)
        read = {i: None for node in self.nodes for i in node.all_input_nodes if i not in made}
        return list(read)

    def results(self) -> list[Node]:
        """Nodes that others read."""
        made = set(self.nodes)
        return [node for node in self.nodes if any(user not in made for user in node.users)]


def group_nodes(graph: Iterable[Node], fits: Fits | None = None) -> list[Node | Group]:
    """Nodes in the order they run in, pointwise ones in groups.

    `fits` returns a node as a call that can be in a group, or None; by default calls over large
    arrays can.
    """
    return _Grouping(fits or _large_call).of(graph)


class _Grouping:
    def __init__(self, fits: Fits) -> None:
        self._fits = fits
        self._ordered: list[Node | Group] = []
        self._open: dict[tuple[int, ...], Group] = {}
        self._within: dict[Node, tuple[int, ...]] = {}  # which open group makes a node

    def of(self, graph: Iterable[Node]) -> list[Node | Group]:
        for node in _with_late_views(graph):
            call = self._fits(node)
            self._close_what_is_read(node, None if call is None else call.meta.shape)
            if call is None:
                if _changes(node):
                    self._close_all()
                self._ordered.append(node)
            else:
                self._join(node, call)
        self._close_all()
        return self._ordered

    def _join(self, node: Node, call: OpCall) -> None:
        group = self._open.setdefault(call.meta.shape, Group())
        group.calls.append(call)
        group.nodes.append(node)
        self._within[node] = call.meta.shape

    def _close_what_is_read(self, node: Node, own: tuple[int, ...] | None) -> None:
        shapes = [self._within.get(i) for i in node.all_input_nodes]
        for shape in dict.fromkeys(s for s in shapes if s is not None and s != own):
            self._close(shape)

    def _close_all(self) -> None:
        for shape in list(self._open):
            self._close(shape)

    def _close(self, shape: tuple[int, ...]) -> None:
        group = self._open.pop(shape)
        for node in group.nodes:
            del self._within[node]
        if len(group.nodes) == 1:
            self._ordered.append(group.nodes[0])
        elif group.results():
            self._ordered.append(group)


def _with_late_views(graph: Iterable[Node]) -> list[Node]:
    """The nodes of a graph, each view right before its first reader: groups stay open longer."""
    ordered = list(graph)
    position = {node: number for number, node in enumerate(ordered)}
    changing = [number for number, node in enumerate(ordered) if _changes(node)]
    late: dict[Node, float] = dict(position)
    for node in reversed(ordered):
        op = nodes.op_of(node)
        if op is None or not op.schema.view or not node.users:
            continue
        first = min(late[user] for user in node.users)
        if not any(position[node] < number <= first for number in changing):
            late[node] = first - 0.5
    return sorted(ordered, key=lambda node: (late[node], position[node]))


def _changes(node: Node) -> bool:
    """Whether a node writes to something that an earlier one may read, or ends the graph."""
    schema = getattr(node.target, "_schema", None)
    return node.op == "output" or (schema is not None and schema.is_mutable)


def _large_call(node: Node) -> OpCall | None:
    """A node as a call that can be in a group."""
    if node.op != "call_function":
        return None
    call = nodes.call_of(node)
    if call is None or math.prod(call.meta.shape) < LARGE:
        return None
    if not is_packed(node):
        return None
    return call if steps_of(call, input_metas(node)) is not None else None


def is_packed(node: Node) -> bool:
    """Whether a node's tensor is contiguous."""
    value = nodes.value_of(node)
    shape = nodes.meta_of(value).shape
    return nodes.steps_of(value) == packed_strides(shape, range(len(shape)))


def input_metas(node: Node) -> dict[str, Meta]:
    """Shapes and dtypes of a node's inputs, by name."""
    read = (i for i in node.all_input_nodes if nodes.is_tensor(i))
    return {i.name: nodes.meta_of(nodes.value_of(i)) for i in read}

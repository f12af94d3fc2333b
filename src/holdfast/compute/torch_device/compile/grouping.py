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

    def add(self, call: OpCall, node: Node) -> None:
        """Add a call at the end."""
        self.calls.append(call)
        self.nodes.append(node)

    def inputs(self) -> list[Node]:
        """Nodes that the calls read and none of them makes."""
        made = set(self.nodes)
        read = (i for node in self.nodes for i in node.all_input_nodes if i not in made)
        return list(dict.fromkeys(read))

    def results(self) -> list[Node]:
        """Nodes that others read."""
        made = set(self.nodes)
        return [node for node in self.nodes if any(user not in made for user in node.users)]


def group_nodes(graph: Iterable[Node], fits: Fits | None = None) -> list[Node | Group]:
    """Nodes in the order they run in, pointwise ones in groups.

    `fits` returns a node as a call that can be in a group, or None; by default calls over large
    arrays can.
    """
    fits = fits or _large_call
    ordered: list[Node | Group] = []
    groups: dict[tuple[int, ...], Group] = {}  # the open ones, by shape
    within: dict[Node, tuple[int, ...]] = {}  # which open group makes a node

    def close(shapes: Iterable[tuple[int, ...]]) -> None:
        for shape in list(dict.fromkeys(shapes)):
            group = groups.pop(shape)
            for node in group.nodes:
                del within[node]
            if len(group.nodes) == 1:
                ordered.append(group.nodes[0])
            elif group.results():
                ordered.append(group)

    for node in _with_late_views(graph):
        call = fits(node)
        own = None if call is None else call.meta.shape
        read = [within.get(i) for i in node.all_input_nodes]
        close(shape for shape in read if shape is not None and shape != own)
        if call is not None:
            groups.setdefault(call.meta.shape, Group()).add(call, node)
            within[node] = call.meta.shape
            continue
        if _changes(node):
            close(groups)
        ordered.append(node)
    close(groups)
    return ordered


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
    if node.op != "call_function":
        return None
    call = nodes.call_of(node)
    if call is None or math.prod(call.meta.shape) < LARGE or not is_packed(node):
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

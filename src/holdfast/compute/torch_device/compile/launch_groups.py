"""Which nodes of a graph become one launch, on an engine that makes kernels of chains.

Nodes that do not fit are called as before. Independent parts of a group are launched separately:
equal ones then share a kernel.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from holdfast.compute.torch_device.compile import grouping, nodes
from holdfast.compute.torch_device.compile.fusion_steps import OpCall
from holdfast.compute.torch_device.compile.grouping import Group
from holdfast.compute.torch_device.compile.launches import Launch, fuse_group

_aten: Any = torch.ops.aten
_MOST_ARRAYS = 20  # of a kernel, whose arguments must fit into 1 KiB
_MOST_NODES = 100  # a kernel of thousands takes minutes to build
_FILLS = {
    _aten.full_like.default: None,
    _aten.full.default: None,
    _aten.zeros_like.default: 0.0,
    _aten.ones_like.default: 1.0,
}  # and the value, where the overload implies it


def rebuild(module: GraphModule, engine: Any) -> GraphModule:
    """Rebuild a graph with runs of pointwise nodes as one launch each."""
    fits = _Fits(engine)
    _numbers_for_fills(module, fits)
    items: list[Node | Group] = []
    for item in grouping.group_nodes(module.graph.nodes, fits):
        items += _pieces(item, fits) if isinstance(item, Group) else [_alone(item, fits)]
    return GraphModule(module, _Writer(items).graph)


class _Fits:
    """Which nodes, and which groups of them, an engine makes a kernel of."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self._known: dict[Node, OpCall | None] = {}

    def __call__(self, node: Node) -> OpCall | None:
        if node not in self._known:
            self._known[node] = self._call(node)
        return self._known[node]

    def forget(self, node: Node) -> None:
        """The node has changed."""
        self._known.pop(node, None)

    def _call(self, node: Node) -> OpCall | None:
        if node.op != "call_function" or not nodes.is_on_device(node):
            return None
        call = nodes.call_of(node)
        if call is None or 0 in call.meta.shape or not grouping.is_packed(node):
            return None
        if not all(map(_is_readable, node.all_input_nodes)):
            return None
        return call if self._can(Group([call], [node]), [node]) else None

    def all(self, group: Group) -> bool:
        """Whether a group fits into one kernel."""
        results = group.results()
        if len(group.nodes) > _MOST_NODES or len(group.inputs()) + len(results) > _MOST_ARRAYS:
            return False
        return not results or self._can(group, results)

    def _can(self, group: Group, results: list[Node]) -> bool:
        metas = {i.name: nodes.meta_of(nodes.value_of(i)) for i in group.inputs()}
        return fuse_group(group, results, metas, self._engine) is not None


def _is_readable(node: Node) -> bool:
    """Whether a kernel can read a value: a tensor of the device, or a scalar on the CPU."""
    value = nodes.value_of(node)
    if not isinstance(value, torch.Tensor) or value.is_neg() or value.is_conj():
        return False
    return nodes.is_on_device(node) or (value.device.type == "cpu" and not value.dim())


# ---- groups in pieces


def _alone(node: Node, fits: _Fits) -> Node | Group:
    """A node that is in no group: a launch where it can write to an input."""
    call = fits(node)
    if call is None:
        return node
    group = Group([call], [node])
    return group if _targets(group) else node


def _pieces(group: Group, fits: _Fits) -> list[Node | Group]:
    found: list[Node | Group] = []
    for part in _split_connected(group):
        for piece in [part] if fits.all(part) else _cut(part, fits):
            if len(piece.nodes) == 1:
                found.append(_alone(piece.nodes[0], fits))
            elif piece.results():
                found.append(piece)
    return found


def _split_connected(group: Group) -> list[Group]:
    """Parts of a group that share no value of its shape."""
    above: dict[Node, Node] = {}  # values that are connected lead to the same one

    def top(node: Node) -> Node:
        while above.setdefault(node, node) is not node:
            node = above[node]
        return node

    for call, node in zip(group.calls, group.nodes, strict=True):
        for value in node.all_input_nodes:
            if nodes.meta_of(nodes.value_of(value)).shape == call.meta.shape:
                above[top(value)] = top(node)
    parts: dict[Node, Group] = {}
    for call, node in zip(group.calls, group.nodes, strict=True):
        parts.setdefault(top(node), Group()).add(call, node)
    return list(parts.values())


def _cut(group: Group, fits: _Fits) -> list[Group]:
    """A group as pieces that fit, one behind the other, each as long as can be."""
    found: list[Group] = []
    for call, node in zip(group.calls, group.nodes, strict=True):
        last = found[-1] if found else Group()
        longer = Group([*last.calls, call], [*last.nodes, node])
        if found and fits.all(longer):
            found[-1] = longer
        else:
            found.append(Group([call], [node]))
    return found


# ---- constants


def _numbers_for_fills(module: GraphModule, fits: _Fits) -> None:
    """Let pointwise nodes read a number where they read a tensor filled with it."""
    for node in list(module.graph.nodes):
        number = _filling(node)
        if number is None:
            continue
        value = torch.tensor(number, dtype=nodes.value_of(node).dtype)
        for user in list(node.users):
            if fits(user) is not None:
                _read_instead(module, user, node, value, fits)
        if not node.users:
            module.graph.erase_node(node)


def _filling(node: Node) -> float | None:
    """The number that a node fills a tensor of float32 with; None for all other nodes."""
    value = nodes.value_of(node)
    fills = node.target in _FILLS and nodes.is_on_device(node)
    if not fills or value.dtype != torch.float32:
        return None
    target: Any = node.target
    number = _FILLS[target]
    if number is None:
        number = node.args[1] if len(node.args) > 1 else node.kwargs.get("fill_value")
    return float(number) if isinstance(number, int | float) else None


def _read_instead(
    module: GraphModule, user: Node, before: Node, value: torch.Tensor, fits: _Fits
) -> None:
    name = f"number_{before.name}_{user.name}"
    module.register_buffer(name, value)
    with module.graph.inserting_before(user):
        number = module.graph.get_attr(name)
    number.meta["val"] = value
    user.replace_input_with(before, number)
    fits.forget(user)
    if fits(user) is None:  # all that it reads are numbers now, say
        user.replace_input_with(number, before)
        fits.forget(user)
        module.graph.erase_node(number)


# ---- results that go into inputs


def _targets(group: Group) -> dict[Node, Node]:
    """Results that are only computed to be copied into an input, and the copies.

    Nobody else may read that input: the copy was to come last, and now comes first.
    """
    made = set(group.nodes)
    found: dict[Node, Node] = {}
    for result in group.results():
        outside = [user for user in result.users if user not in made]
        if len(outside) == 1 and _is_copy(outside[0], result, made):
            found[result] = outside[0]
    return found


def _is_copy(node: Node, result: Node, made: set[Node]) -> bool:
    target: Any = node.args[0] if node.target is _aten.copy_.default else None
    if target is None or node.args[1] is not result or target.op != "placeholder":
        return False
    one, other = nodes.value_of(target), nodes.value_of(result)
    if not nodes.is_on_device(target) or nodes.meta_of(one) != nodes.meta_of(other):
        return False
    return not (one.is_neg() or one.is_conj()) and made.issuperset(target.users.keys() - {node})


# ---- the graph anew


class _Writer:
    """Nodes and groups, in the order they run in, as a graph."""

    def __init__(self, items: list[Node | Group]) -> None:
        self.graph = Graph()
        self._made: dict[Node, Node] = {}
        self._launches = 0
        for item in items:
            if isinstance(item, Group):
                self._launch(item)
            elif item not in self._made:
                self._made[item] = self.graph.node_copy(item, self._made.__getitem__)

    def _launch(self, group: Group) -> None:
        copies = _targets(group)
        into: Any = {result: copy.args[0] for result, copy in copies.items()}
        self._launches += 1
        launch = Launch(f"launch_{self._launches}", group, into)
        called = self.graph.call_function(launch, tuple(self._made[i] for i in launch.inputs))
        for copy in copies.values():
            target: Any = copy.args[0]
            self._made[copy] = self._made[target]
        if len(launch.returned) == 1:
            self._made[launch.returned[0]] = called
            return
        for place, result in enumerate(launch.returned):
            self._made[result] = self.graph.call_function(operator.getitem, (called, place))

"""Nodes that are one short expression over arrays, without a kernel: views, sizes, input writes.

A view of an array that is laid out as torch traced it is a view, else a copy: to a graph that
changes nothing but its inputs that is the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.fx import Node

from holdfast.compute.torch_device.compile import nodes

Text = Callable[[Any], str]
Form = Callable[[Node, Text], str | None]


def write_layout(node: Node) -> str:
    """An expression for a node's array with the strides that torch traced."""
    return f"lay_out({node.name}, {nodes.steps_of(nodes.value_of(node))!r})"


def _first(node: Node, text: Text) -> str:
    return text(node.args[0])


def _reshape(node: Node, text: Text) -> str:
    value = nodes.value_of(node)
    sizes = repr(tuple(value.shape)) if nodes.is_fixed(value) else text(node.args[1])
    return f"{_first(node, text)}.reshape({sizes})"


def _reshape_fixed(node: Node, text: Text) -> str | None:
    return _reshape(node, text) if nodes.is_fixed(nodes.value_of(node)) else None


def _transpose(node: Node, text: Text) -> str | None:
    if not nodes.value_of(node).dim():
        return None
    one, other = node.args[1:3]
    return f"{_first(node, text)}.swapaxes({one}, {other})"


def _as_strided(node: Node, text: Text) -> str:
    source: Any = node.args[0]
    args: list[Any] = [*node.args[1:], *node.kwargs.values()]
    begin = nodes.size(nodes.value_of(source).storage_offset())
    offset = "0"
    if len(args) > 2 and args[2] is not None:
        offset = f"{text(args[2])} - {begin}" if begin else text(args[2])
    return f"restride({write_layout(source)}, {text(args[0])}, {text(args[1])}, {offset})"


def _step(node: Node, text: Text) -> str:
    array = _first(node, text)
    return f"{array}.strides[{text(node.args[1])}] // {array}.itemsize"


# Functions that write a call of an overload, by its name.
FORMS: dict[str, Form] = {
    "aten::view": _reshape,
    "aten::_unsafe_view": _reshape,
    "aten::reshape": _reshape,
    "aten::unsqueeze": _reshape_fixed,
    "aten::squeeze": _reshape_fixed,
    "aten::squeeze.dim": _reshape_fixed,
    "aten::squeeze.dims": _reshape_fixed,
    "aten::permute": lambda node, text: f"{_first(node, text)}.transpose({text(node.args[1])})",
    "aten::transpose.int": _transpose,
    "aten::t": lambda node, text: f"{_first(node, text)}.T",
    "aten::detach": _first,
    "aten::alias": _first,
    "aten::as_strided": _as_strided,
    "aten::copy_": lambda node, text: f"write({_first(node, text)}, {text(node.args[1])})",
    "aten::_local_scalar_dense": lambda node, text: f"{_first(node, text)}.item()",
    "aten::sym_size.int": lambda node, text: f"{_first(node, text)}.shape[{text(node.args[1])}]",
    "aten::sym_numel": lambda node, text: f"{_first(node, text)}.size",
    "aten::sym_stride.int": _step,
}

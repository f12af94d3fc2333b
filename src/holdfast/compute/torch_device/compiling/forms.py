"""Nodes that are one short expression over arrays, without a kernel.

Covers: views, sizes, copies into an input. A form gets a node and how its arguments are written.
Promise: a view of an array that lies as torch traced it is a view; where it lies otherwise, a copy,
which is the same to a graph that changes nothing but its inputs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.fx import Node

from holdfast.compute.torch_device.compiling import nodes

Text = Callable[[Any], str]
Form = Callable[[Node, Text], str | None]


def short(name: str) -> Form | None:
    """How a node that calls the overload `name` is written, if there is a short way."""
    return _FORMS.get(name)


def laid(node: Node) -> str:
    """A node's array in memory as torch laid it out."""
    return f"laid({node.name}, {nodes.steps_of(nodes.value_of(node))!r})"


def _first(node: Node, text: Text) -> str:
    return text(node.args[0])


def _seen_as(node: Node, text: Text) -> str:
    value = nodes.value_of(node)
    sizes = repr(tuple(value.shape)) if nodes.is_fixed(value) else text(node.args[1])
    return f"{_first(node, text)}.reshape({sizes})"


def _same_numbers(node: Node, text: Text) -> str | None:
    return _seen_as(node, text) if nodes.is_fixed(nodes.value_of(node)) else None


def _permuted(node: Node, text: Text) -> str:
    return f"{_first(node, text)}.transpose({text(node.args[1])})"


def _transposed(node: Node, text: Text) -> str | None:
    if not nodes.value_of(node).dim():
        return None
    one, other = node.args[1:3]
    return f"{_first(node, text)}.swapaxes({one}, {other})"


def _strided(node: Node, text: Text) -> str:
    source: Any = node.args[0]
    args: list[Any] = [*node.args[1:], *node.kwargs.values()]
    begin = nodes.size(nodes.value_of(source).storage_offset())
    offset = "0"
    if len(args) > 2 and args[2] is not None:
        offset = f"{text(args[2])} - {begin}" if begin else text(args[2])
    return f"restrided({laid(source)}, {text(args[0])}, {text(args[1])}, {offset})"


def _of_dim(what: str) -> Form:
    return lambda node, text: f"{_first(node, text)}.{what}[{text(node.args[1])}]"


def _step(node: Node, text: Text) -> str:
    array = _first(node, text)
    return f"{array}.strides[{text(node.args[1])}] // {array}.itemsize"


_FORMS: dict[str, Form] = {
    "aten::view": _seen_as,
    "aten::_unsafe_view": _seen_as,
    "aten::reshape": _seen_as,
    "aten::unsqueeze": _same_numbers,
    "aten::squeeze": _same_numbers,
    "aten::squeeze.dim": _same_numbers,
    "aten::squeeze.dims": _same_numbers,
    "aten::permute": _permuted,
    "aten::transpose.int": _transposed,
    "aten::t": lambda node, text: f"{_first(node, text)}.T",
    "aten::detach": _first,
    "aten::alias": _first,
    "aten::as_strided": _strided,
    "aten::copy_": lambda node, text: f"write({_first(node, text)}, {text(node.args[1])})",
    "aten::_local_scalar_dense": lambda node, text: f"{_first(node, text)}.item()",
    "aten::sym_size.int": _of_dim("shape"),
    "aten::sym_numel": lambda node, text: f"{_first(node, text)}.size",
    "aten::sym_stride.int": _step,
}

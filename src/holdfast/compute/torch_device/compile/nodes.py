"""Shapes, dtypes, arguments and ops of the nodes of torch's graph, in the op table's terms.

Reading a symbolic size adds no guard to the graph.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from holdfast.compute.ops.rules import Meta
from holdfast.compute.ops.table import Op
from holdfast.compute.torch_device.compile.fusion_steps import OpCall, Value
from holdfast.compute.torch_device.dispatch import resolve
from holdfast.compute.torch_device.storage import tensor_bridge

_UNKNOWN = 8  # assumed for a size that is known only at run time


def value_of(node: Node) -> Any:
    """torch's example of a node's value: a fake tensor, a size, or None."""
    return node.meta.get("val")


def is_tensor(node: Any) -> bool:
    """Whether a node's value is one tensor."""
    return isinstance(node, Node) and isinstance(value_of(node), torch.Tensor)


def is_on_device(node: Node) -> bool:
    """Whether a node's value is one tensor on the device."""
    return is_tensor(node) and value_of(node).device.type == tensor_bridge.DEVICE


def size(length: Any) -> int:
    """A size as an integer; of a symbolic one, the example that torch traced with."""
    if isinstance(length, int):
        return length
    hint = length.node.hint if length.node.has_hint() else None
    return _UNKNOWN if hint is None else int(hint)


def is_fixed(value: torch.Tensor) -> bool:
    """Whether no size or stride of a tensor is symbolic."""
    return all(isinstance(n, int) for n in (*value.shape, *value.stride()))


def meta_of(value: torch.Tensor) -> Meta:
    """Shape and dtype as the op table has them. Raises Unsupported."""
    return Meta(tuple(size(n) for n in value.shape), tensor_bridge.numpy_dtype(value.dtype))


def steps_of(value: torch.Tensor) -> tuple[int, ...]:
    """Strides in elements; of symbolic ones, the example."""
    return tuple(size(n) for n in value.stride())


def op_of(node: Node) -> Op | None:
    """The op of the table that a node calls, in its functional form."""
    if not isinstance(node.target, torch._ops.OpOverload) or node.target.namespace != "aten":
        return None
    op, form = resolve.counterpart(node.target)
    return op if form == resolve.FUNCTIONAL else None


def arguments(node: Node) -> tuple[list[Any], dict[str, Any]]:
    """A node's arguments as the table's signatures have them."""
    listed: Any = node.target
    schema = listed._schema.arguments
    args = [a for a, s in zip(node.args, schema, strict=False) if s.name not in resolve.DROPPED]
    kwargs = {k: v for k, v in node.kwargs.items() if k not in resolve.DROPPED}
    return args, kwargs


def has_generator(node: Node) -> bool:
    """Whether the caller passes a generator."""
    return node.kwargs.get("generator") is not None


def call_of(node: Node) -> OpCall | None:
    """A node as a call that may be pointwise; None where it cannot be."""
    op = op_of(node)
    if op is None or not is_tensor(node) or has_generator(node):
        return None
    args, kwargs = arguments(node)
    if any(isinstance(a, Node) and not is_tensor(a) for a in (*args, *kwargs.values())):
        return None  # a scalar that is known only at run time
    meta = meta_of(value_of(node))
    if op.name == "_to_copy":
        first: Any = args[0]
        same = value_of(first).dtype == value_of(node).dtype
        return None if same else OpCall(node.name, None, (Value(first.name),), {}, meta)
    if op.rule.kind is None or op.effect or op.schema.view:
        return None
    named = {k: _name_arguments(v) for k, v in kwargs.items()}
    return OpCall(node.name, op, tuple(map(_name_arguments, args)), named, meta)


def _name_arguments(value: Any) -> Any:
    if isinstance(value, Node):
        return Value(value.name)
    if isinstance(value, list | tuple):
        return [_name_arguments(v) for v in value]
    return tensor_bridge.TO_NUMPY[value] if isinstance(value, torch.dtype) else value


def describe(node: Node) -> str:
    """A node as text: the call and the type of its result."""
    args = [_format_value(a) for a in node.args]
    named = [f"{k}={_format_value(v)}" for k, v in node.kwargs.items()]
    return f"{node.target}({', '.join([*args, *named])}) -> {_format_type(value_of(node))}"


def _format_value(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_format_value, value))}]"
    return str(value)


def _format_type(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        sizes = ", ".join(map(str, value.shape))
        return f"{str(value.dtype).removeprefix('torch.')}[{sizes}]"
    if isinstance(value, list | tuple):
        return f"({', '.join(map(_format_type, value))})"
    return str(value)

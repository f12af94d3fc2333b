"""Python source of a graph: one line for each node, with a comment that names it.

A buffer is reused only where nobody reads it again; large arrays are deleted after their last use.
"""

from __future__ import annotations

import itertools
import math
import operator
import re
from typing import Any

import numpy
import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.fx import Graph, Node

from holdfast.compute.engine import ENGINES, run
from holdfast.compute.engines.numpy import kernels
from holdfast.compute.fusion.chain import Step, Traced
from holdfast.compute.fusion.record import cast_step
from holdfast.compute.ops.table import Op
from holdfast.compute.torch_device.compile import (
    expressions,
    fusion_steps,
    grouping,
    nodes,
    runtime,
)
from holdfast.compute.torch_device.compile.grouping import Group
from holdfast.compute.torch_device.storage import tensor_bridge

_numbers = itertools.count()
_REUSED = 1 << 11  # elements from which a buffer is worth reusing
_LET_GO = 1 << 12  # elements from which an array is freed before the end


def generate(graph: Graph, title: str) -> runtime.Source:
    """Generate and compile the source of a graph. Raises Unsupported."""
    return _Writer(graph, title).write()


class _Writer:
    def __init__(self, graph: Graph, title: str) -> None:
        self._title = title
        self._items = grouping.group_nodes(graph.nodes)
        self._lines: list[str] = []
        self._owners: dict[int, str] = {}
        self._names: dict[Any, str] = {}
        self._space: dict[str, Any] = {
            "arrays": runtime.arrays, "by_torch": runtime.by_torch, "cast": kernels.cast,
            "inf": math.inf, "lay_out": runtime.lay_out, "nan": math.nan, "asarray": numpy.asarray,
            "restride": runtime.restride, "write": runtime.write,
            "save_state": runtime.save_state, "with_state": runtime.with_state,
        }  # fmt: skip
        self._last = self._last_uses()
        self._now = 0
        self._spare = _own_buffers(self._items)
        self._where = ""
        self._chains = 0

    def write(self) -> runtime.Source:
        inputs = [i.name for i in self._items if isinstance(i, Node) and i.op == "placeholder"]
        self._lines += [f"# {self._title}", "def computed(inputs):"]
        if inputs:
            self._put(f"{', '.join(inputs)}, = inputs")
        self._put("inputs.clear()")
        for number, item in enumerate(self._items):
            self._now = number
            if isinstance(item, Group):
                self._group(item)
            elif item.op != "placeholder":
                self._node(item)
            self._let_go()
        name = f"<holdfast {self._title} {next(_numbers)}>"
        return runtime.Source(name, "\n".join(self._lines) + "\n", self._space, self._owners)

    def _put(self, text: str, owner: str = "") -> None:
        self._lines.append(f"    {text}")
        if owner:
            self._owners[len(self._lines)] = owner

    # ---- lifetimes

    def _last_uses(self) -> dict[Node, int]:
        found: dict[Node, int] = {}
        for number, item in enumerate(self._items):
            read = item.inputs() if isinstance(item, Group) else item.all_input_nodes
            for node in read:
                found[node] = number
        return found

    def _let_go(self) -> None:
        item = self._items[self._now]
        if isinstance(item, Node) and item.op == "output":
            return
        read = item.inputs() if isinstance(item, Group) else item.all_input_nodes
        over = [n.name for n in read if self._last[n] == self._now and _is_large(n)]
        if over:
            self._put(f"del {', '.join(over)}")

    # ---- nodes

    def _node(self, node: Node) -> None:
        if node.op == "output":
            results: Any = node.args[0]
            self._lines.append("")
            self._put(f"return [{', '.join(self._text(r) for r in results)}]")
            return
        self._heading(node)
        if node.op == "get_attr":
            self._put(f"{node.name} = {self._constant(node)}")
            return
        shown = nodes.describe(node)
        self._put(f"# {shown}")
        alone = _steps_alone(node)
        if alone is None:
            self._put(f"{node.name} = {self._expression(node)}", shown)
            return
        steps, places = alone
        names = {traced.place: name for name, traced in places.items()}
        for number, step in enumerate(steps):
            last = number == len(steps) - 1
            made = names[step.result.place] = node.name if last else f"{node.name}_step{number}"
            out = self._buffer(node, step) if len(steps) == 1 else None
            self._put(f"{made} = {self._step(step, names, out)}", shown)

    def _heading(self, node: Node, gap: bool = True) -> None:
        """Write the line of the program that a node comes from, where it changes."""
        trace = node.meta.get("stack_trace") or ""
        where = [line.strip() for line in trace.splitlines() if line.strip().strip("^~")]
        origin = where[-1] if where else ""
        if origin and origin != self._where:
            self._where = origin
            self._lines += [""] * gap
            self._put(f"# ---- {origin}")

    def _constant(self, node: Node) -> str:
        held: Any = operator.attrgetter(str(node.target))(node.graph.owning_module)
        if isinstance(held, torch.Tensor):
            with unset_fake_temporarily():  # torch compiles with fake tensors; this one is real
                held = tensor_bridge.as_array_any(held.detach())
        return self._bind(held, f"constant_{node.name}")

    # ---- pointwise

    def _group(self, group: Group) -> None:
        inputs, results = group.inputs(), group.results()
        chain = fusion_steps.Chain(group.calls, [i.name for i in inputs], [r.name for r in results])
        self._chains += 1
        name = self._bind(chain, f"chain_{self._chains}")
        self._lines.append("")
        self._put("# in one pass:")
        for node in group.nodes:
            self._heading(node, gap=False)
            self._put(f"#   {node.name} = {nodes.describe(node)}")
        made = ", ".join(r.name for r in results)
        read = ", ".join(i.name for i in inputs)
        first = group.nodes[0]
        self._put(f"{made}, = {name}({read})", f"{first.name} and what follows it")

    def _step(self, step: Step, names: dict[int, str], out: str | None) -> str:
        words = [names[a.place] if isinstance(a, Traced) else self._text(a) for a in step.args] + [
            f"{k}={self._text(v)}" for k, v in step.kwargs.items()
        ]
        if step.kernel is cast_step:
            return f"cast({', '.join(words)})"
        is_ufunc = isinstance(step.kernel, numpy.ufunc)
        called = getattr(step.kernel, "__name__", "kernel")
        name = self._bind(step.kernel, f"numpy_{called}" if is_ufunc else f"kernel_{called}")
        if out is not None:
            return f"{name}({', '.join(words)}, out={out})"
        text = f"{name}({', '.join(words)})"
        if not _foreseen(step):
            return f"cast({text}, {self._text(step.result.dtype)})"
        return f"asarray({text})" if not step.result.ndim else text

    def _buffer(self, node: Node, step: Step) -> str | None:
        """The name of an array that is read here for the last time, to write the result into."""
        if not isinstance(step.kernel, numpy.ufunc) or node not in self._spare:
            return None
        if math.prod(step.result.shape) < _REUSED or not _foreseen(step):
            return None
        for read in node.all_input_nodes:
            if read not in self._spare or self._last[read] != self._now:
                continue
            one, other = nodes.value_of(read), nodes.value_of(node)
            layouts = {(t.dtype, t.shape, t.stride()) for t in (one, other) if nodes.is_fixed(t)}
            if len(layouts) == 1 and nodes.is_fixed(one) and nodes.is_fixed(other):
                return read.name
        return None

    # ---- everything else

    def _expression(self, node: Node) -> str:
        target: Any = node.target
        if not isinstance(target, torch._ops.OpOverload):
            return self._plain(node)
        form = expressions.FORMS.get(target.name())
        written = form(node, self._text) if form is not None else None
        if written is not None:
            return written
        op, place = nodes.op_of(node), place_of(node)
        if op is None or nodes.has_generator(node) or (op.effect and place == "cpu"):
            return self._by_torch(node, place)
        return self._by_table(node, op)

    def _plain(self, node: Node) -> str:
        """A function of Python, or one of torch's that takes functions."""
        target: Any = node.target
        if isinstance(target, torch._ops.HigherOrderOperator):
            return self._redrawn(node) or self._by_torch(node, place_of(node))
        if getattr(target, "__name__", "") == "getitem":
            return f"{self._text(node.args[0])}[{self._text(node.args[1])}]"
        name = self._bind(target, f"python_{target.__name__}")
        return f"{name}({self._words(list(node.args), dict(node.kwargs))})"

    def _redrawn(self, node: Node) -> str | None:
        """Numbers that a checkpoint draws twice: torch knows the states of its own devices."""
        called = {"run_and_save_rng_state": "save_state", "run_with_rng_state": "with_state"}
        function = called.get(str(getattr(node.target, "_name", node.target)))
        if function is None or place_of(node) != tensor_bridge.DEVICE:
            return None
        return f"{function}({self._write_arguments(node)})"

    def _by_torch(self, node: Node, place: str) -> str:
        name = self._bind(node.target, f"torch_{node.target}")
        is_aten = getattr(node.target, "namespace", "") == "aten"
        device = place if _drawn_on_cpu(node, place) or not is_aten else tensor_bridge.DEVICE
        return f"by_torch({name}, {device!r}, {self._write_arguments(node)})"

    def _write_arguments(self, node: Node) -> str:
        """A node's arguments as torch has them: a list and a dictionary."""
        named = ", ".join(f"{k!r}: {self._text(v, plain=True)}" for k, v in node.kwargs.items())
        return f"{self._text(list(node.args), plain=True)}, {{{named}}}"

    def _by_table(self, node: Node, op: Op) -> str:
        args, kwargs = nodes.arguments(node)
        kernel = ENGINES["numpy"].kernels.get(op.name)
        if kernel is None or op.rule.kind is not None:
            name = self._bind(op, f"op_{op.name}")
            listed = self._text(args)
            named = ", ".join(f"{k!r}: {self._text(v)}" for k, v in kwargs.items())
            engine = self._bind(ENGINES["numpy"], "engine")
            return f"{self._bind(run, 'run')}({name}, {engine}, {listed}, {{{named}}})"
        if op.effect and args and nodes.is_tensor(args[0]):
            args = [_Text(expressions.write_layout(args[0])), *args[1:]]
        words = self._words(args, kwargs)
        text = f"{self._bind(kernel, f'kernel_{op.name}')}({words})"
        # A kernel may return a NumPy scalar for a tensor without dimensions.
        surely_array = nodes.is_tensor(node) and nodes.value_of(node).dim() > 0
        return text if surely_array else f"arrays({text})"

    # ---- words

    def _words(self, args: list[Any], kwargs: dict[str, Any]) -> str:
        named = [f"{k}={self._text(v)}" for k, v in kwargs.items()]
        return ", ".join([*(a if isinstance(a, _Text) else self._text(a) for a in args), *named])

    def _text(self, value: Any, plain: bool = False) -> str:
        """A value as it is written in source; `plain`: as torch has it, not the table."""
        if isinstance(value, Node):
            return value.name
        if isinstance(value, list):
            return f"[{', '.join(self._text(v, plain) for v in value)}]"
        if isinstance(value, tuple):
            return f"({''.join(self._text(v, plain) + ', ' for v in value)})"
        if value is None or isinstance(value, bool | int | float | complex | str):
            return repr(value)
        if isinstance(value, torch.dtype) and not plain:
            value = tensor_bridge.numpy_dtype(value)
        if isinstance(value, numpy.dtype):
            return self._bind(value, f"format_{value.name}")
        return self._bind(value, f"word_{value}")

    def _bind(self, value: Any, wanted: str) -> str:
        """The name of an object in the source's namespace."""
        key = value if isinstance(value, numpy.dtype | torch.dtype) else id(value)
        if key not in self._names:
            name = re.sub(r"\W", "_", wanted)
            while name in self._space:
                name += "_"
            self._names[key] = name
            self._space[name] = value
        return self._names[key]


class _Text(str):
    """Source that is written already."""


def place_of(node: Node) -> str:
    """The kind of device that a node's value is on, or a part of it; else what it reads."""
    values = _tensors(nodes.value_of(node))
    values = values or [t for i in node.all_input_nodes for t in _tensors(nodes.value_of(i))]
    found = {v.device.type for v in values}
    found |= {d.type for d in (*node.args, *node.kwargs.values()) if isinstance(d, torch.device)}
    return tensor_bridge.DEVICE if tensor_bridge.DEVICE in found else next(iter(found), "cpu")


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, list | tuple):
        return [t for v in value for t in _tensors(v)]
    return [value] if isinstance(value, torch.Tensor) else []


def _drawn_on_cpu(node: Node, place: str) -> bool:
    """Whether torch's own generator draws."""
    op = nodes.op_of(node)
    drawn = op is not None and op.effect
    drawn = drawn or torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())
    return place == "cpu" and (drawn or nodes.has_generator(node))


def _is_large(node: Node) -> bool:
    if not nodes.is_tensor(node):
        return False
    return math.prod(nodes.meta_of(nodes.value_of(node)).shape) >= _LET_GO


def _foreseen(step: Step) -> bool:
    """Whether a step's result certainly has the dtype that was recorded."""
    kinds = [a.dtype if isinstance(a, Traced) else type(a) for a in step.args]
    if not isinstance(step.kernel, numpy.ufunc):
        return all(isinstance(k, numpy.dtype) for k in kinds)
    try:
        found = step.kernel.resolve_dtypes((*kinds, *[None] * step.kernel.nout))
    except TypeError:
        return False
    return found[-1] == step.result.dtype


def _own_buffers(items: list[Node | Group]) -> set[Node]:
    """Nodes whose arrays only NumPy functions make and read, so that they can be reused."""
    called = (i for i in items if isinstance(i, Node) and i.op == "call_function")
    made = {node for node in called if _is_direct(node)}
    return {node for node in made if made.issuperset(node.users)}


def _is_direct(node: Node) -> bool:
    alone = _steps_alone(node)
    return alone is not None and all(isinstance(s.kernel, numpy.ufunc) for s in alone[0])


def _steps_alone(node: Node) -> tuple[list[Step], dict[str, Traced]] | None:
    """The steps of a pointwise node, and its values by name; None for other nodes."""
    call = nodes.call_of(node)
    return None if call is None else fusion_steps.steps_of(call, grouping.input_metas(node))

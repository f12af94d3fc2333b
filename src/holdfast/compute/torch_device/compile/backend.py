"""`torch.compile(backend="holdfast")`: torch's forward and backward graphs as functions.

Results equal those without compiling, random ones too, for tensors on the device and on the CPU.
What the table cannot compute falls back and is counted, as without compiling.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.fx import GraphModule, Node

from holdfast.base.errors import BadInput, Unsupported
from holdfast.compute.torch_device.api.engine_choice import choice
from holdfast.compute.torch_device.compile import codegen, foreach, interpreter, nodes, runtime
from holdfast.compute.torch_device.dispatch import resolve
from holdfast.compute.torch_device.registration import register
from holdfast.compute.torch_device.storage import tensor_bridge

_OPTIONS = {"show": "print the generated source; or a function that is called with it"}
_ALIASES = (torch.ops.aten.detach.default, torch.ops.aten.alias.default)
Show = Callable[[str], object]


def compiled(
    module: GraphModule, inputs: list[Any], *, options: Any = None, mode: Any = None
) -> Callable[..., Any]:
    """Compile a graph for torch. Raises BadInput for unknown options."""
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch.partitioners import min_cut_rematerialization_partition

    show = _show(options, mode)
    register()
    backend = aot_autograd(
        fw_compiler=functools.partial(_compile_graph, "forward", show),
        bw_compiler=functools.partial(_compile_graph, "backward", show),
        inference_compiler=functools.partial(_compile_graph, "graph", show),
        decompositions=decompositions(),
        partition_fn=min_cut_rematerialization_partition,
        keep_inference_input_mutations=True,
    )
    return backend(module, inputs)


def _show(options: Any, mode: Any) -> Show | None:
    if mode is not None and mode != "default":
        raise BadInput(
            f"backend 'holdfast' has no mode {mode!r}",
            expected="no mode",
            hint='options={"show": True} prints the source',
        )
    strange = [name for name in options or {} if name not in _OPTIONS]
    if strange:
        raise BadInput(
            f"backend 'holdfast' has no option {strange[0]!r}",
            expected="; ".join(f"{name!r}: {about}" for name, about in _OPTIONS.items()),
        )
    wanted = (options or {}).get("show")
    if callable(wanted):
        return wanted
    return (lambda text: sys.stdout.write(text + "\n")) if wanted else None


@functools.cache
def decompositions() -> dict[Any, Callable[..., Any]]:
    """torch's decompositions of the overloads that the table has no op for."""
    from torch._decomp import decomposition_table

    found: dict[Any, Callable[..., Any]] = {}
    for overload, apart in decomposition_table.items():
        aten = isinstance(overload, torch._ops.OpOverload) and overload.namespace == "aten"
        if aten and resolve.counterpart(overload)[0] is None:
            found[overload] = apart
    return found | foreach.decompositions()


def _compile_graph(
    title: str, show: Show | None, module: GraphModule, _: Any
) -> Callable[..., Any]:
    for node in list(module.graph.nodes):
        if node.target in _ALIASES and nodes.is_tensor(node.args[0]):
            node.replace_all_uses_with(node.args[0])
            module.graph.erase_node(node)
    made = codegen.generate(module.graph, title)
    if show is not None:
        show(made.text)
    inputs = [n for n in module.graph.nodes if n.op == "placeholder"]
    (last,) = module.graph.find_nodes(op="output")
    outputs = [_output(o, inputs) for o in last.args[0]]
    fused = runtime.make_runner(made, [_lower(n) for n in inputs], outputs)
    return _choose_runner(module, fused, outputs)


def _choose_runner(module: GraphModule, fused: Any, outputs: Any) -> Callable[..., Any]:
    """The graph as generated source, or node by node where that cannot read the arrays."""
    on_device = any(map(nodes.is_on_device, module.graph.nodes))
    steps: list[Any] = []  # made on first use

    def compiled(args: list[Any]) -> list[Any]:
        engine = interpreter.engine_of(args, on_device) if choice.elsewhere else None
        if engine is None:
            return fused(args)
        if not steps:
            steps.append(interpreter.make_runner(module, outputs, engine))
        return steps[0](args)

    made: Any = compiled
    made._boxed_call, made.source = True, fused.source  # the first is what torch looks for
    return compiled


def _lower(node: Node) -> Callable[[Any], Any] | None:
    value = nodes.value_of(node)
    if not isinstance(value, torch.Tensor):
        return None
    nodes.meta_of(value)  # raises for a dtype that the table lacks
    if value.device.type == "cpu":
        return runtime.from_cpu
    if value.device.type != tensor_bridge.DEVICE:
        raise Unsupported(
            f"backend 'holdfast' cannot compute with a tensor on {value.device}",
            expected=f"tensors on {tensor_bridge.DEVICE!r} or 'cpu'",
            hint='backend="inductor"',
        )
    return runtime.from_device if value.is_conj() or value.is_neg() else tensor_bridge.as_array


def _output(value: Any, inputs: list[Node]) -> int | Callable[[Any], Any] | None:
    if not nodes.is_tensor(value):
        return None
    if value in inputs:
        return inputs.index(value)
    tensor = nodes.value_of(value)
    place, width = tensor.device.type, tensor.element_size()
    steps = nodes.steps_of(tensor)
    if nodes.is_fixed(tensor):
        return runtime.Output(place, width, steps, None)
    order = sorted(range(len(steps)), key=lambda dim: -steps[dim])
    whole = runtime.packed_strides(nodes.meta_of(tensor).shape, order) == steps
    return runtime.Output(place, width, None, order if whole else None)

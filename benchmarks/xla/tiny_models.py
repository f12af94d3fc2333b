"""Tiny networks in float32: ours on JAX, torch eager, torchax as it comes.

`ours` and `torchax` are compiled programs over JAX arrays; `placed` takes and gives tensors of the
CPU, as torch does. torchax does not import beside this torch by itself: it gets our import, and its
own environment and operators.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import torch
from torch.utils import _pytree as tree

from holdfast.xla.arrays import to_jax
from holdfast.xla.cluster.mesh import make_mesh
from holdfast.xla.compat import torchax
from holdfast.xla.module.calls import ModuleCall
from holdfast.xla.module.placed import Placed
from holdfast.xla.tiny import Made, make
from xla.flux_torch import relative
from xla.working import Settings, in_turns_ms, timed

Ready = tuple[Callable[[], object], dict[str, Any]]  # a step, and what is known of it already
NETWORKS = (
    "diffusers:FluxTransformer2DModel",
    "diffusers:WanTransformer3DModel",
    "diffusers:UNet2DConditionModel",
    "diffusers:AutoencoderKL",
)


def measure(settings: Settings) -> dict[str, Any]:
    """Every network on every system."""
    torch.set_num_threads(1)
    torchax()
    return {name: _measured(make(name), settings) for name in settings.variants or NETWORKS}


def _measured(made: Made, settings: Settings) -> dict[str, Any]:
    inputs = made.inputs()

    def eager() -> None:
        with torch.no_grad():
            made(**inputs)

    with torch.no_grad():
        want = made(**made.inputs())[0].numpy()
    figures: dict[str, Any] = {"torch": {}}
    steps: dict[str, Callable[[], object]] = {"torch": eager}
    for name, way in (("ours", _ours), ("torchax", _torchax), ("placed", _placed)):
        try:
            steps[name], figures[name] = way(made, want)
        except Exception as exc:  # noqa: BLE001  (a peer that cannot is part of the answer)
            figures[name] = {"error": f"{type(exc).__name__}: {str(exc).splitlines()[0]}"}
    for name, times in in_turns_ms(steps, settings).items():
        figures[name] |= timed(times)
    return figures


def _ours(made: Made, want: Any) -> Ready:
    call = ModuleCall(made.module, made.tiny.method)
    weights = {name: to_jax(tensor) for name, tensor in call.weights.items()}
    arrays, together = split(made.inputs())
    program = jax.jit(lambda weights, arrays: call(weights, together(arrays))[0])
    return _compiled(program, weights, arrays, want)


def _torchax(made: Made, want: Any) -> Ready:
    with torch.no_grad():
        weights, function = extracted(made)
        arrays, together = split(made.inputs())

        def first(weights: Any, arrays: Any) -> Any:
            return function(weights, (), together(arrays))[0]

        return _compiled(jax.jit(first), weights, arrays, want)


def extracted(made: Made) -> Any:
    """torchax's own: weights and a function of them."""
    if made.tiny.method != "forward":
        raise NotImplementedError(f"extract_jax has no {made.tiny.method}")
    return torchax().extract_jax(made.module)


def split(inputs: dict[str, Any]) -> tuple[list[jax.Array], Callable[[Any], dict[str, Any]]]:
    """Tensors as arrays, and a function that puts arrays in their place."""
    leaves, form = tree.tree_flatten(inputs)
    arrays = [to_jax(one) for one in leaves if isinstance(one, torch.Tensor)]

    def together(arrays: list[Any]) -> dict[str, Any]:
        left = iter(arrays)
        filled = [next(left) if isinstance(one, torch.Tensor) else one for one in leaves]
        return tree.tree_unflatten(filled, form)

    return arrays, together


def _compiled(program: Any, weights: Any, arrays: Any, want: Any) -> Ready:
    start = time.perf_counter()
    compiled = program.lower(weights, arrays).compile()
    compile_s = time.perf_counter() - start
    error = relative(compiled(weights, arrays), want)

    def step() -> None:
        compiled(weights, arrays).block_until_ready()

    return step, {"compile_s": compile_s, "error": error}


def _placed(made: Made, want: Any) -> Ready:
    placed = Placed(made.module, mesh=make_mesh("cpu"), static=made.tiny.static)
    step = partial(placed.run, made.tiny.method, made.inputs())
    return step, {"error": relative(step()[0].numpy(), want)}

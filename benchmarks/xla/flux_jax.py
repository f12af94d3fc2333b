"""One step of FLUX.1's shape through JAX, with the weights that the torch part has.

    unrolled     each block compiled by itself
    unmerged     so too, products of one input not made one
    scan         one block compiled, the weights of all stacked
    slices       scan, products asked to take a block's weights where they lie in the stack
    kept         scan, by way of `Programs`, which keeps it for later processes
    xla          scan, attention in XLA's own operations
Covers: weights over to JAX on the device, tracing, compiling, timing, how far from torch eager.
"""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from residency.shapes import SHAPES
from residency.weights import on_device

from holdfast.xla.arrays import to_jax
from holdfast.xla.attention import scaled_dot_product_attention
from holdfast.xla.module.cache import Programs
from holdfast.xla.module.calls import ModuleCall
from holdfast.xla.ops import overrides
from holdfast.xla.ports import FLUX as PORT
from xla import kernels
from xla.flux_torch import OUTPUT, relative, step_inputs
from xla.working import Settings, steps_ms, timed

VARIANTS = ("unrolled", "unmerged", "scan", "slices", "kept", "xla")
UNROLLED = ("unrolled", "unmerged")
OPTIONS: dict[str, dict[str, Any]] = {
    "unmerged": {"xla_gpu_dot_merger_threshold_mb": 0},
    "slices": {"xla_gpu_enable_dynamic_slice_fusion": True, "xla_gpu_enable_cublaslt": False},
}
PLAIN = {
    "torch.nn.functional.scaled_dot_product_attention": partial(
        scaled_dot_product_attention, engine="xla"
    )
}


def measure(settings: Settings) -> dict[str, Any]:
    """Every variant, one after the other."""
    shape = SHAPES["flux"](tiny=settings.tiny)
    device = torch.device(settings.device)
    held = on_device(shape, device)
    tensors: dict[str, torch.Tensor] = dict(held.named_parameters())
    inputs = {
        name: arrived(value) if isinstance(value, torch.Tensor) else value
        for name, value in step_inputs(shape, device).items()
    }
    figures: dict[str, Any] = {"versions": {"jax": jax.__version__}}
    for variant in settings.variants or VARIANTS:
        call = ModuleCall(
            shape.module(),
            scan=None if variant in UNROLLED else PORT.scan,
            overrides=overrides(PLAIN) if variant == "xla" else None,
        )
        try:
            figures[variant] = measured(variant, call, stacked(call, tensors), inputs, settings)
        except jax.errors.JaxRuntimeError as exc:
            figures[variant] = {"times_ms": [], "error": str(exc).splitlines()[0]}
        jax.clear_caches()
    return figures


def arrived(tensor: torch.Tensor) -> jax.Array:
    """The same memory where that can be: torch and JAX on one device of NVIDIA."""
    tensor = tensor.detach().contiguous()
    return jax.dlpack.from_dlpack(tensor) if tensor.is_cuda else to_jax(tensor)


def stacked(call: ModuleCall, tensors: dict[str, torch.Tensor]) -> dict[str, jax.Array]:
    """What the call takes."""
    found: dict[str, jax.Array] = {}
    for name, slot in call.slots.items():
        parts = [arrived(tensors[part]) for part in slot.parts]
        found[name] = jnp.stack(parts) if slot.is_stacked else parts[0]
    return found


def measured(
    variant: str,
    call: ModuleCall,
    weights: dict[str, jax.Array],
    inputs: dict[str, Any],
    settings: Settings,
) -> dict[str, Any]:
    """Compile and time one variant."""
    arrays = {name: one for name, one in inputs.items() if isinstance(one, jax.Array)}
    constants = {name: one for name, one in inputs.items() if name not in arrays}

    def function(weights: Any, arrays: Any) -> Any:
        return call(weights, {**arrays, **constants})[0]

    start = time.perf_counter()
    made: Any = jax.jit(function)
    if variant == "kept":
        programs = Programs(Path(settings.folder) / "programs")
        made = programs.program({"part": "flux"}, function, (weights, arrays))
    lowered = made.lower(weights, arrays)
    traced_s = time.perf_counter() - start
    start = time.perf_counter()
    program = lowered.compile(OPTIONS.get(variant))
    compiled_s = time.perf_counter() - start
    output = np.asarray(program(weights, arrays).astype(jnp.float32))

    def step() -> None:
        program(weights, arrays).block_until_ready()

    figures = timed(steps_ms(step, settings), trace_s=traced_s, compile_s=compiled_s)
    if settings.kernels:
        figures["kernels"] = kernels.of_jax(step)
    expected = Path(settings.folder) / OUTPUT
    difference = relative(output, np.load(expected)) if expected.exists() else None
    return figures | {"difference": difference}

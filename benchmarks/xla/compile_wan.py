"""How long the first call of a Wan with forty blocks takes, in a first and in a second process.

Narrow blocks: tracing and compiling do not depend on widths. Variants: `scan` (Holdfast's port),
`unrolled` (ours without it), `torchax` (its extract_jax, with JAX's cache).
"""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import Any

import jax
import torch

from holdfast.xla.cluster.mesh import make_mesh
from holdfast.xla.module.cache import Programs, use_compile_cache
from holdfast.xla.module.placed import Placed
from holdfast.xla.port import PORTS
from holdfast.xla.tiny import Made, class_of, make
from xla.flux_torch import relative
from xla.tiny_models import extracted, split
from xla.working import Settings, steps_ms, timed

NAME = "diffusers:WanTransformer3DModel"
BLOCKS = 40
TINY_BLOCKS = 3


def measure(settings: Settings) -> dict[str, Any]:
    """One variant; a second process with the same folder finds what the first one kept."""
    (variant,) = settings.variants
    torch.set_num_threads(1)
    blocks = TINY_BLOCKS if settings.tiny else BLOCKS
    made = _deep(blocks)
    inputs = made.inputs()
    with torch.no_grad():
        want = made(**made.inputs())[0].numpy()
    use_compile_cache(Path(settings.folder) / "jax")
    programs = Programs(Path(settings.folder) / "programs")
    step = _torchax(made) if variant == "torchax" else _placed(made, variant, programs, inputs)
    wall, cpu = time.perf_counter(), time.process_time()
    got = step()
    figures: dict[str, Any] = {"blocks": blocks}
    figures |= {"first_s": time.perf_counter() - wall, "first_cpu_s": time.process_time() - cpu}
    figures |= {"error": relative(got, want), "found": programs.found, "made": programs.made}
    return figures | timed(steps_ms(step, settings))


def _deep(blocks: int) -> Made:
    shallow = make(NAME)
    tiny = dataclasses.replace(shallow.tiny, config={**shallow.tiny.config, "num_layers": blocks})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = class_of(NAME)(**tiny.config).eval()
    return dataclasses.replace(shallow, module=module, tiny=tiny)


def _placed(made: Made, variant: str, programs: Programs, inputs: dict[str, Any]) -> Any:
    scan = PORTS["wan21"].scan if variant == "scan" else None
    placed = Placed(made.module, mesh=make_mesh("cpu"), scan=scan, programs=programs)
    return lambda: placed.run("forward", inputs)[0].numpy()


def _torchax(made: Made) -> Any:
    with torch.no_grad():
        weights, function = extracted(made)
    arrays, together = split(made.inputs())
    program = jax.jit(lambda weights, arrays: function(weights, (), together(arrays))[0])

    def step() -> Any:
        with torch.no_grad():
            return jax.block_until_ready(program(weights, arrays))

    return step

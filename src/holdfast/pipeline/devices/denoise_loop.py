"""The denoising loop in torch, for every model and device."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as tree

from holdfast.residency.managed.lockstep import together
from holdfast.xla.denoising import Denoising

if TYPE_CHECKING:
    from holdfast.pipeline.devices.torch_devices import Device

StepDone = Callable[[int], None]


def denoise(
    device: Device, network: Any, work: Denoising, generator: torch.Generator, step_done: StepDone
) -> torch.Tensor:
    """Run all steps on `device`; returns the latents on the CPU."""
    scheduler = type(work.scheduler).from_config(work.scheduler.config)
    latents = device.put(work.latents)
    count = () if work.steps is None else (work.steps,)
    scheduler.set_timesteps(*count, device=latents.device, **work.options)
    if hasattr(scheduler, "set_begin_index"):
        scheduler.set_begin_index(0)
    if work.is_scaled:
        latents = latents * scheduler.init_noise_sigma
    fixed, texts = tree.tree_map_only(torch.Tensor, device.put, (work.fixed, work.texts))
    if work.is_batched:  # the negative prompt first, as diffusers has it
        texts = [tree.tree_map(lambda *parts: torch.cat(parts), *reversed(texts))]
    # Schedulers that add noise draw it from the seeded generator.
    takes_it = "generator" in inspect.signature(scheduler.step).parameters
    extra = {"generator": generator} if takes_it else {}
    for done, timestep in enumerate(scheduler.timesteps, start=1):
        given = torch.cat([latents] * len(work.texts)) if work.is_batched else latents
        if work.is_scaled:
            given = scheduler.scale_model_input(given, timestep)
        inputs = {
            work.latents_name: given if work.dtype is None else given.to(work.dtype),
            work.time_name: _time_input(work, timestep, latents),
            **fixed,
        }
        is_strong = work.weak is None or timestep >= work.boundary
        output = _predict(network if is_strong else work.weak, work, inputs, texts)
        latents = scheduler.step(output, timestep, latents, **extra, return_dict=False)[0]
        del output  # its memory is for the next step
        listen = getattr(step_done, "latents", None)
        if listen is not None:
            listen(partial(device.fetch, latents))
        step_done(done)
    return device.fetch(latents)


def _predict(
    model: Any, work: Denoising, inputs: dict[str, Any], texts: Sequence[dict[str, Any]]
) -> torch.Tensor:
    """The model's output, guided away from that of the negative prompt."""
    outputs = [out[0] for out in together(model, [((), inputs | text) for text in texts])]
    if work.is_batched:
        outputs = outputs[0].chunk(len(work.texts))[::-1]
    output, *away = outputs
    return away[0] + work.guidance * (output - away[0]) if away else output


def _time_input(work: Denoising, timestep: torch.Tensor, latents: torch.Tensor) -> torch.Tensor:
    if work.is_time_per_token:
        tokens = latents[0, 0, :, ::2, ::2].numel()
        return (timestep * latents.new_ones(tokens)).unsqueeze(0)
    if work.time_scale == 1:
        return timestep.expand(1)
    # Divided, not multiplied, as diffusers does it: the bits are the same.
    return timestep.expand(1).to(latents.dtype) / (1 / work.time_scale)

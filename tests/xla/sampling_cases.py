"""Schedulers of diffusers by a short name, a made-up model, and the loop as diffusers has it."""

from __future__ import annotations

from typing import Any

import diffusers
import jax
import jax.numpy as jnp
import numpy as np
import torch

from holdfast.xla.sampling import Table

SD = {"beta_schedule": "scaled_linear", "beta_start": 0.00085, "beta_end": 0.012}
FLOW = {"use_flow_sigmas": True, "prediction_type": "flow_prediction"}
TO_MIN = {"final_sigmas_type": "sigma_min"}  # bh1 and dpmsolver divide by zero without


def make(name: str, **config: Any) -> Any:
    """A scheduler by its class, without the last word of it."""
    return getattr(diffusers, f"{name}Scheduler")(**config)


def _unipc() -> dict[str, tuple[str, dict[str, Any]]]:
    found = {}
    for order in (1, 2, 3):
        for kind, extra in (("bh1", TO_MIN), ("bh2", {})):
            same = {"solver_order": order, "solver_type": kind, **extra}
            found[f"unipc-{order}-{kind}"] = ("UniPCMultistep", same | SD)
            found[f"unipc-{order}-{kind}-flow"] = (
                "UniPCMultistep",
                same | FLOW | {"flow_shift": 5.0},
            )
    return found


def _dpm() -> dict[str, tuple[str, dict[str, Any]]]:
    kinds = {
        "dpmsolver": {"algorithm_type": "dpmsolver", **TO_MIN, **SD},
        "dpmsolver++": SD,
        "heun": {"solver_type": "heun", **SD},
        "karras": {"use_karras_sigmas": True, **SD},
        "flow": {**FLOW, "flow_shift": 3.0},
    }
    return {
        f"dpm-{order}-{name}": ("DPMSolverMultistep", {"solver_order": order, **more})
        for order in (1, 2, 3)
        for name, more in kinds.items()
    }


SCHEDULERS: dict[str, tuple[str, dict[str, Any]]] = {
    "flow": ("FlowMatchEulerDiscrete", {}),
    "flow-shift": ("FlowMatchEulerDiscrete", {"shift": 3.0}),
    "flow-dynamic": ("FlowMatchEulerDiscrete", {"use_dynamic_shifting": True}),
    "flow-sigmas": ("FlowMatchEulerDiscrete", {"shift": 3.0}),
    **_unipc(),
    "unipc-epsilon": ("UniPCMultistep", {"predict_x0": False, **TO_MIN, **SD}),
    "unipc-karras": ("UniPCMultistep", {"use_karras_sigmas": True, **SD}),
    "unipc-around-dpm": ("UniPCMultistep", {"solver_p": make("DPMSolverMultistep", **SD), **SD}),
    "unipc-late-corrector": ("UniPCMultistep", {"disable_corrector": [0, 1], **SD}),
    **_dpm(),
    "dpm-v": ("DPMSolverMultistep", {"prediction_type": "v_prediction", **SD}),
    "dpm-single": ("DPMSolverSinglestep", {"lower_order_final": True, **SD}),
    "euler-leading": ("EulerDiscrete", {"timestep_spacing": "leading", "steps_offset": 1, **SD}),
    "euler-trailing": ("EulerDiscrete", {"timestep_spacing": "trailing", **SD}),
    "euler-karras": ("EulerDiscrete", {"use_karras_sigmas": True, **SD}),
    "euler-v": ("EulerDiscrete", {"prediction_type": "v_prediction", **SD}),
    "ddim": ("DDIM", {"clip_sample": False, "set_alpha_to_one": False, **SD}),
    "ddim-v": ("DDIM", {"clip_sample": False, "prediction_type": "v_prediction", **SD}),
    "pndm": ("PNDM", {"skip_prk_steps": True, "steps_offset": 1, **SD}),
    "pndm-runge-kutta": ("PNDM", SD),  # takes 4 steps or more
    "lms": ("LMSDiscrete", SD),
    "heun": ("HeunDiscrete", SD),
    "flow-heun": ("FlowMatchHeunDiscrete", {}),
    "kdpm2": ("KDPM2Discrete", SD),
    **{f"deis-{order}": ("DEISMultistep", {"solver_order": order, **SD}) for order in (1, 2, 3)},
    "deis-flow": ("DEISMultistep", FLOW),
    "edm": ("EDMEuler", {}),
    "ipndm": ("IPNDM", {}),
}


def named(name: str) -> Any:
    """One of the schedulers above, new."""
    cls, config = SCHEDULERS[name]
    return make(cls, **config)


def options(name: str, steps: int) -> dict[str, Any]:
    """What its `set_timesteps` is given besides the number of steps."""
    if name == "flow-dynamic":
        return {"mu": 1.15}
    if name == "flow-sigmas":
        return {"sigmas": np.linspace(1.0, 1 / steps, steps)}
    return {}


def torch_model(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    """Nonlinear in its latents and in time."""
    return torch.tanh(0.7 * x + torch.sin(t * 0.013)) * 0.8 + 0.3 * x / (1 + x.abs())


def jax_model(weights: Any, inputs: dict[str, Any]) -> jax.Array:
    """The same, and `push` on top."""
    x, t = inputs["x"], inputs["t"].reshape(-1, 1, 1, 1)
    push = inputs.get("push", 0.0)
    return jnp.tanh(0.7 * x + jnp.sin(t * 0.013)) * 0.8 + 0.3 * x / (1 + jnp.abs(x)) + push


def noise() -> torch.Tensor:
    return torch.randn(2, 4, 8, 8, generator=torch.Generator().manual_seed(0))


def start(table: Table) -> jax.Array:
    """The noise, as strong as the scheduler begins with."""
    return jnp.asarray(noise().numpy()) * table.init_noise_sigma


def as_diffusers_does(
    name: str, steps: int, dtype: torch.dtype, predict: Any = torch_model
) -> np.ndarray:
    """The loop of a diffusers pipeline."""
    scheduler = named(name)
    scheduler.set_timesteps(steps, **options(name, steps))
    if hasattr(scheduler, "set_begin_index"):
        scheduler.set_begin_index(0)
    x = noise().to(dtype) * getattr(scheduler, "init_noise_sigma", 1.0)
    for t in scheduler.timesteps:
        told = scheduler.scale_model_input(x, t) if hasattr(scheduler, "scale_model_input") else x
        x = scheduler.step(predict(told, t.to(dtype)), t, x, return_dict=False)[0]
    return x.double().numpy()

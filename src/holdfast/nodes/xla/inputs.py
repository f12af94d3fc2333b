"""The inputs of the TPU nodes: types, defaults, limits and tooltips."""

from __future__ import annotations

from typing import Any, TypeAlias

from holdfast.nodes.xla.models import AUTO, DEVICES

Input: TypeAlias = tuple[str, dict[str, Any]]

_PROMPT = {"flux": "a handwritten seven", "wan": "a handwritten seven moving right"}


def model(family: str) -> Input:
    """Which model."""
    tooltip = (
        f"tiny-{family} comes with Holdfast. Else a folder in diffusers layout in ComfyUI's "
        "models/diffusers, a file in models/checkpoints, or a hub id such as "
        + (
            "black-forest-labs/FLUX.1-dev."
            if family == "flux"
            else "Wan-AI/Wan2.1-T2V-14B-Diffusers."
        )
    )
    return "STRING", {"default": f"tiny-{family}", "tooltip": tooltip}


def device() -> tuple[list[str], dict[str, Any]]:
    """Where it runs."""
    tooltip = "auto is JAX: all TPUs, else GPUs, else the CPU. The others run the model in torch."
    return list(DEVICES), {"default": AUTO, "tooltip": tooltip}


def prompt(family: str) -> Input:
    """What to draw, with an example that the tiny model knows."""
    options = {"multiline": True, "dynamicPrompts": True, "default": _PROMPT[family]}
    return "STRING", options | {"tooltip": "What to draw."}


def _integer(default: int, most: int, tooltip: str, **more: Any) -> Input:
    return "INT", {"default": default, "min": 0, "max": most, "tooltip": tooltip, **more}


def sampling(family: str) -> dict[str, Any]:
    """Inputs of a sampler; 0, and a guidance of -1, mean the model's default."""
    own = "what FluxGuidance says, else the model's own" if family == "flux" else "the model's own"
    guidance = {
        "default": -1.0,
        "min": -1.0,
        "max": 100.0,
        "step": 0.1,
        "tooltip": f"How closely the prompt is followed. -1: {own}.",
    }
    frames = _integer(
        0, 10_000, "Frames of the video: 1 more than a multiple of 4. 0: the model's."
    )
    return {
        "height": _integer(0, 8192, "Height in pixels. 0: the model's own.", step=8),
        "width": _integer(0, 8192, "Width in pixels. 0: the model's own.", step=8),
        **({"num_frames": frames} if family == "wan" else {}),
        "steps": _integer(0, 1000, "Steps from noise to picture. 0: the model's own."),
        "guidance": ("FLOAT", guidance),
        "seed": _integer(
            *(42, 2**63 - 1, "Where the noise begins: the same seed draws the same again."),
            control_after_generate=True,
        ),
    }


FPS = (
    "INT",
    {"default": 8, "min": 1, "max": 240, "tooltip": "Frames a second, for the node that saves."},
)


def negative_prompt() -> Input:
    """For the node that does it all."""
    tooltip = (
        "What to keep away from. Models with built-in guidance, such as FLUX.1 dev, take none."
    )
    return "STRING", {"multiline": True, "default": "", "tooltip": tooltip}


def conditionings(encoder: str) -> tuple[Input, Input]:
    """What to draw, and what not."""
    positive = f"What to draw, of {encoder}. Its model and device draw."
    negative = (
        f"What to keep away from, of {encoder}. Left open, it is an empty prompt. Models with "
        "built-in guidance, such as FLUX.1 dev, take none."
    )
    return ("CONDITIONING", {"tooltip": positive}), ("CONDITIONING", {"tooltip": negative})


def latents(sampler: str) -> tuple[Input, Input]:
    """What to decode, and with which model."""
    samples = f"Latents of {sampler}, also after ComfyUI's own nodes for latents."
    model = f"Empty: the model that drew them. Latents that are not of {sampler} need a name."
    return ("LATENT", {"tooltip": samples}), ("STRING", {"default": "", "tooltip": model})

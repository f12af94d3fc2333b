"""What a sampling loop needs besides its network. No JAX: loops in torch take the same."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch


@dataclass(frozen=True, kw_only=True)
class Denoising:
    """Latents, scheduler and inputs of all steps. Tensors are on the CPU.

    `steps` and `options` are for the scheduler's `set_timesteps`. `texts` are the inputs of the
    prompt and, where there is guidance, those of the negative one; `fixed` is the same for both and
    in every step. `weak` takes over below the timestep `boundary`.
    """

    latents: torch.Tensor
    scheduler: Any
    steps: int | None
    options: Mapping[str, Any] = field(default_factory=dict)
    texts: tuple[Mapping[str, Any], ...]
    fixed: Mapping[str, Any] = field(default_factory=dict)
    guidance: float = 1.0
    latents_name: str = "hidden_states"
    time_name: str = "timestep"
    time_scale: float = 1.0
    is_time_per_token: bool = False  # one timestep for each token of a video: Wan 2.2 TI2V
    is_scaled: bool = False  # the scheduler scales the noise and the network's input
    is_batched: bool = False  # in torch: both prompts are one call of the network
    dtype: torch.dtype | None = None  # of the latents that the network takes; None is their own
    weak: Any = None
    boundary: float = float("-inf")

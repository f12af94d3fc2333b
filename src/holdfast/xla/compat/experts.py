"""Mixture of experts, in a form that XLA can compile.

diffusers' HiDream sorts the tokens by expert and splits at data-dependent indices. An XLA program
has fixed shapes: here every expert computes every token, weighted by its gate. That is twice the
work for two experts out of four, and the same sum.
This is the only class that is rewritten: all others run as they are.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import nn


def rewrite(double: nn.Module) -> None:
    """In a double of a model, which belongs to one call."""
    for module in double.modules():
        if type(module).__name__ == "MOEFeedForwardSwiGLU" and hasattr(module, "moe_infer"):
            vars(module)["moe_infer"] = functools.partial(_all_experts, module)


def _all_experts(module: Any, x: Any, chosen: Any, weights: Any) -> Any:
    """`chosen` and `weights` have a row for each token and each expert chosen for it."""
    count = module.num_activated_experts
    numbers = torch.arange(len(module.experts), device=x.device)
    shares = ((chosen.view(-1, count, 1) == numbers) * weights.view(-1, count, 1)).sum(1)
    parts = [expert(x) * shares[:, i : i + 1] for i, expert in enumerate(module.experts)]
    return torch.stack(parts).sum(0)

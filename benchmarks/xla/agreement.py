"""Whether what runs on this device is right: attention in many forms, tiny networks, a FLUX block.

Attention: bfloat16 against float32 of the same rounded numbers on torch's CPU. Networks: float32
through `Placed`, products in full precision, against torch on the CPU.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from residency.shapes import drawn, network
from torch import nn
from torch.nn import functional

from holdfast.xla.arrays import to_jax
from holdfast.xla.attention import attention
from holdfast.xla.cluster.mesh import make_mesh
from holdfast.xla.module.placed import Placed
from holdfast.xla.port import PORTS
from holdfast.xla.tiny import make
from xla.flux_torch import relative
from xla.working import Settings

NETWORKS = {
    "diffusers:FluxTransformer2DModel": "flux",
    "diffusers:WanTransformer3DModel": "wan21",
    "diffusers:UNet2DConditionModel": "sdxl",
    "diffusers:AutoencoderKL": None,
    "transformers:CLIPTextModel": None,
    "transformers:T5EncoderModel": None,
}
LENGTHS = ((1, 1), (3, 7), (65, 63), (1031, 1021), (1031, 77), (1, 509))
DIMS = (64, 72, 128)


def measure(settings: Settings) -> dict[str, Any]:
    """The error of each; a text where one cannot be run at all."""
    platform = "gpu" if settings.device == "cuda" else "cpu"
    with jax.default_matmul_precision("highest"):
        networks = {name: _told(_tiny, name, port, platform) for name, port in NETWORKS.items()}
        networks["FLUX.1, one block of each kind"] = _told(_flux_blocks, settings, platform)
    return {"attention": _attentions(settings), "networks": networks}


def _told(function: Any, *given: Any) -> Any:
    """Any failure of one is a word about it; the others are still to be seen."""
    try:
        return function(*given)
    except Exception as exc:  # noqa: BLE001
        return f"{type(exc).__name__}: {exc}"


def _tiny(name: str, port: str | None, platform: str) -> float:
    made = make(name)
    options: dict[str, Any] = {"static": made.tiny.static, "mesh": make_mesh(platform)}
    if port is not None:
        options["scan"] = PORTS[port].scan
    placed = Placed(made.module, **options)
    with torch.no_grad():
        want = made(**made.inputs())
    got = placed.run(made.tiny.method, made.inputs())
    return relative(_first(got).numpy(), _first(want).numpy())


def _first(answer: Any) -> Any:
    """transformers answers with a dict, diffusers with a tuple."""
    return next(iter(answer.values() if isinstance(answer, Mapping) else answer))


def _flux_blocks(settings: Settings, platform: str) -> float:
    """FLUX.1's true widths (tiny: small ones), in float32, torch on the same device."""
    small: dict[str, Any] = {"attention_head_dim": 16, "num_attention_heads": 2}
    small |= {"axes_dims_rope": (4, 6, 6)}
    module: nn.Module = network("FluxTransformer2DModel")(
        num_layers=1, num_single_layers=1, guidance_embeds=True, **(small if settings.tiny else {})
    ).eval()
    generator = torch.Generator().manual_seed(1)
    for name, weight in module.named_parameters():
        weight.data = drawn(name, weight.shape, generator).float()
    inputs: dict[str, Any] = {
        "hidden_states": torch.randn(1, 1024, 64, generator=generator),
        "encoder_hidden_states": torch.randn(1, 77, 4096, generator=generator),
        "pooled_projections": torch.randn(1, 768, generator=generator),
        "timestep": torch.tensor([0.5]),
        "img_ids": torch.rand(1024, 3, generator=generator).mul(32).floor(),
        "txt_ids": torch.zeros(77, 3),
        "guidance": torch.tensor([3.5]),
        "return_dict": False,
    }
    placed = Placed(module, mesh=make_mesh(platform))
    got = placed.run("forward", inputs)[0].numpy()
    device = torch.device(settings.device)
    there = {k: v.to(device) if isinstance(v, torch.Tensor) else v for k, v in inputs.items()}
    with torch.no_grad():
        want = module.to(device)(**there)[0].cpu().numpy()
    return relative(got, want)


def _attentions(settings: Settings) -> dict[str, Any]:
    engine = "cudnn" if settings.device == "cuda" else "xla"
    found: dict[str, Any] = {}
    for queries, keys in LENGTHS:
        for causal in (False, True):
            name = f"{queries} x {keys}{', causal' if causal else ''}"
            found[name] = _told(_error, engine, queries, keys, 128, {"is_causal": causal})
    for dim in DIMS:
        found[f"dim {dim}"] = _told(_error, engine, 197, 129, dim, {})
    for heads in (1, 2, 3):
        options: dict[str, Any] = {"key_heads": heads}
        found[f"6 heads, {heads} of keys"] = _told(_error, engine, 197, 129, 64, options)
    for kind in ("keys", "bool", "float", "nothing kept"):
        found[f"mask: {kind}"] = _told(_error, engine, 197, 129, 128, {"mask": kind})
    return found


def _error(engine: str, queries: int, keys: int, dim: int, options: dict[str, Any]) -> float:
    random = np.random.default_rng(queries + keys)
    key_heads, causal = options.get("key_heads", 6), options.get("is_causal", False)
    shapes = ((2, 6, queries, dim), (2, key_heads, keys, dim), (2, key_heads, keys, dim))
    tensors = [torch.from_numpy(random.standard_normal(one)).bfloat16() for one in shapes]
    mask = _mask(options.get("mask"), queries, keys, random)
    grouped = key_heads != 6
    want = functional.scaled_dot_product_attention(
        *(one.float() for one in tensors),
        attn_mask=None if mask is None else mask if mask.dtype == torch.bool else mask.float(),
        is_causal=causal,
        enable_gqa=grouped,
    )
    got = jax.jit(
        lambda q, k, v, m: attention(
            q, k, v, m, is_causal=causal, enable_gqa=grouped, engine=engine
        )
    )(*map(to_jax, tensors), None if mask is None else to_jax(mask))
    return relative(np.asarray(got.astype(jnp.float32)), want.numpy())


def _mask(kind: str | None, queries: int, keys: int, random: Any) -> torch.Tensor | None:
    if kind is None:
        return None
    if kind == "keys":
        return torch.from_numpy(random.random((2, 1, 1, keys)) > 0.3)
    mask = torch.from_numpy(random.random((2, 1, queries, keys)) > 0.3)
    if kind == "nothing kept":
        mask[1, :, :1] = False
    return torch.randn(mask.shape).bfloat16() if kind == "float" else mask

"""Attention with the arguments and the meaning of torch's.

At inference the result is that of torch.nn.functional.scaled_dot_product_attention: True keeps a
key, a float mask is added, causal order starts at the first key, a query without keys gets zeros,
the softmax is computed in float32 at least.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
from jax.sharding import Mesh

from holdfast.base.errors import NotFound, Unsupported
from holdfast.xla.attention.choosing import ENGINES, Engine, choose, obstacle
from holdfast.xla.attention.cudnn import cudnn
from holdfast.xla.attention.plain import CPU_SCORE_BYTES, SCORE_BYTES, plain
from holdfast.xla.attention.problem import Problem, problem
from holdfast.xla.attention.splash import splash
from holdfast.xla.attention.splitting import AnyMesh, ambient_mesh, run_split


def attention(
    query: Any,
    key: Any,
    value: Any,
    mask: Any = None,
    *,
    scale: float | None = None,
    is_causal: bool = False,
    enable_gqa: bool = False,
    engine: str | None = None,
    interpret: bool = False,
    mesh: AnyMesh | None = None,
    platform: str | None = None,
    score_bytes: int | None = None,
) -> jax.Array:
    """Attention over JAX arrays in torch's layout [..., heads, length, dim].

    `engine`: splash, cudnn or xla; chosen by platform and form when None.
    `mesh`: the devices that the arrays are split over; JAX's current mesh when None.
    `platform`: tpu, cuda, cpu … to choose for; the one JAX computes on when None. For export.
    `interpret`: splash without a TPU, slowly.
    `score_bytes`: how large scores may be on each device before xla takes queries in runs.
    """
    asked = problem(
        query, key, value, mask, scale=scale, is_causal=is_causal, enable_gqa=enable_gqa
    )
    here, capability = _find_device(mesh)
    platform = platform or here
    mesh = ambient_mesh(mesh)
    chosen = _engine(engine, asked, platform, capability)
    if chosen == "xla":
        limit = score_bytes or (CPU_SCORE_BYTES if platform == "cpu" else SCORE_BYTES)
        return plain(asked, limit * (mesh.size if mesh else 1)).reshape(asked.shape)
    kernel = partial(splash, interpret=interpret) if chosen == "splash" else cudnn
    out = kernel(asked) if mesh is None else run_split(mesh, asked, kernel)
    return out.reshape(asked.shape)


def scaled_dot_product_attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    **ours: Any,
) -> jax.Array:
    """torch's function for JAX arrays. `ours`: what only `attention` takes (engine, mesh …)."""
    if dropout_p > 0:
        raise Unsupported(
            f"attention with dropout_p={dropout_p}",
            expected="dropout_p=0.0: ports run models, they do not train them",
            hint="model.eval()",
        )
    ours |= {"scale": scale, "is_causal": is_causal, "enable_gqa": enable_gqa}
    return attention(query, key, value, attn_mask, **ours)


def _engine(
    name: str | None, asked: Problem, platform: str, capability: tuple[int, int] | None
) -> Engine:
    if name is None:
        return choose(platform, asked.form, capability=capability).engine
    engine = ENGINES.get(name)
    if engine is None:
        raise NotFound(
            f"no attention engine {name!r}",
            expected="splash, cudnn or xla",
            hint="engine=None, which chooses",
        )
    why_not = obstacle(engine, asked.form, capability=capability)
    if why_not is not None:
        raise Unsupported(
            f"attention by {engine}: {why_not}",
            expected="a form that the engine has",
            hint='engine="xla", or engine=None, which chooses',
        )
    return engine


def _find_device(mesh: AnyMesh | None) -> tuple[str, tuple[int, int] | None]:
    """Where it is computed: on the mesh, else where JAX does. And an NVIDIA card's capability."""
    device = mesh.devices.flat[0] if isinstance(mesh, Mesh) else jax.default_device.value
    if device is None or isinstance(device, str):
        device = jax.local_devices(backend=device)[0]
    if "cuda" not in device.client.platform_version.lower():
        return device.platform, None
    major, _, minor = str(device.compute_capability).partition(".")
    return "cuda", (int(major), int(minor or 0))

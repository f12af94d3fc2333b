"""One denoising step as a pure function: model, guidance and scheduler together.

It may be jitted, exported and have its state donated. Timesteps, guidance and conditioning are
arguments: other values do not recompile.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax import export

from holdfast.base.errors import BadInput
from holdfast.xla.sampling.table import SamplerState, Table, TableRow

Model: TypeAlias = Callable[[Any, dict[str, Any]], jax.Array]
Step: TypeAlias = Callable[[Any, SamplerState, Any, "Conditioning"], SamplerState]
Moment: TypeAlias = Callable[[jax.Array, jax.Array], jax.Array]


class Conditioning(NamedTuple):
    """Inputs of the model besides latents and time. A pytree.

    `uncond` holds only what differs from `cond`. `guidance` overrides that of `make_step`.
    """

    cond: Mapping[str, Any]
    uncond: Mapping[str, Any] | None = None
    guidance: Any = None


export.register_namedtuple_serialization(Conditioning, serialized_name="holdfast.xla.Conditioning")


def apply_guidance(outputs: Sequence[jax.Array], guidance: Any) -> jax.Array:
    """Classifier-free guidance in float32: outputs are [cond], or [cond, uncond]."""
    cond, *rest = (output.astype(jnp.float32) for output in outputs)
    if not rest:
        return cond
    (uncond,) = rest
    return uncond + guidance * (cond - uncond)


def per_sample(moment: jax.Array, latents: jax.Array) -> jax.Array:
    """The same timestep for each sample of the batch, as most models take it."""
    return jnp.full(latents.shape[:1], moment, jnp.float32)


def make_step(
    model: Model,
    table: Table | None,
    *,
    latents_name: str,
    time_name: str,
    time_scale: float = 1.0,
    guidance: float | None = None,
    dtype: Any = None,
    moment: Moment = per_sample,
) -> Step:
    """`step(weights, state, at, conditioning) -> state`, with `at` an index or a `TableRow`.

    A step that is only ever given rows can do without a table, and serves all tables whose history
    is of the same size. `dtype` is what the model takes its latents in; None leaves them as they
    are. `moment` makes the model's time from a number and the latents.
    """

    def step(
        weights: Any, state: SamplerState, at: Any, conditioning: Conditioning
    ) -> SamplerState:
        latents, history = state
        row = _row(table, at)
        scaled = latents.astype(jnp.float32) * row.scale
        inputs = {
            latents_name: scaled.astype(latents.dtype if dtype is None else dtype),
            time_name: moment(jnp.asarray(row.timestep) * time_scale, latents),
        }
        inputs |= conditioning.cond
        calls = [inputs]
        if conditioning.uncond is not None:
            calls.append(inputs | dict(conditioning.uncond))
        outputs = [model(weights, call) for call in calls]
        scale = _scale(conditioning, guidance) if len(outputs) > 1 else None
        return row.step(latents, history, apply_guidance(outputs, scale))

    return step


def _row(table: Table | None, at: Any) -> TableRow:
    if isinstance(at, TableRow):
        return at
    if table is None:
        raise BadInput(
            "a step that was made without a table was given an index",
            expected="a row: table.row(i)",
        )
    return table.row(at)


def _scale(conditioning: Conditioning, guidance: float | None) -> Any:
    scale = guidance if conditioning.guidance is None else conditioning.guidance
    if scale is None:
        raise BadInput(
            "there is an unconditional input but no guidance",
            expected="a number such as 5.0, in Conditioning or in make_step",
        )
    return scale

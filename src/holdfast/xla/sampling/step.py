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
    batched: bool = False,
    dtype: Any = None,
    moment: Moment = per_sample,
) -> Step:
    """`step(weights, state, at, conditioning) -> state`, with `at` an index or a `TableRow`.

    A step that is only ever given rows can do without a table, and serves all tables whose history
    is of the same size. With `batched`, cond and uncond are one call of the model with twice the
    batch, else two calls. `dtype` is what the model takes its latents in; None leaves them as they
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
        calls = _inputs(inputs, conditioning)
        outputs = (_call_batched if batched and len(calls) > 1 else _call_separately)(
            model, weights, calls
        )
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


def _inputs(inputs: dict[str, Any], conditioning: Conditioning) -> list[dict[str, Any]]:
    cond = inputs | dict(conditioning.cond)
    if conditioning.uncond is None:
        return [cond]
    return [cond, cond | dict(conditioning.uncond)]


def _scale(conditioning: Conditioning, guidance: float | None) -> Any:
    scale = guidance if conditioning.guidance is None else conditioning.guidance
    if scale is None:
        raise BadInput(
            "there is an unconditional input but no guidance",
            expected="a number such as 5.0, in Conditioning or in make_step",
        )
    return scale


def _call_separately(model: Model, weights: Any, calls: list[dict[str, Any]]) -> list[jax.Array]:
    return [model(weights, inputs) for inputs in calls]


def _call_batched(model: Model, weights: Any, calls: list[dict[str, Any]]) -> list[jax.Array]:
    """One call with cond and uncond concatenated along the batch."""
    cond, uncond = calls
    both = sorted(cond.keys() | uncond.keys())
    batch = next(iter(cond.values())).shape[0]
    joined = {name: _join(name, cond.get(name), uncond.get(name), batch) for name in both}
    return list(jnp.split(model(weights, joined), 2))


def _join(name: str, cond: Any, uncond: Any, batch: int) -> Any:
    shared = cond is uncond

    def join(one: Any, other: Any) -> Any:
        if jnp.shape(one)[:1] == (batch,) and jnp.shape(one) == jnp.shape(other):
            return jnp.concatenate([one, other])
        if shared:
            return one
        raise _join_error(name, f"{list(jnp.shape(one))} and {list(jnp.shape(other))}", batch)

    if jax.tree.structure(cond) != jax.tree.structure(uncond):
        raise _join_error(name, "present in one of them only", batch)
    return jax.tree.map(join, cond, uncond)


def _join_error(name: str, found: str, batch: int) -> BadInput:
    return BadInput(
        f"cond and uncond cannot be one call: '{name}' is {found}",
        expected=f"equal shapes with the batch of {batch} in front",
        hint="make_step(..., batched=False), or leave out of uncond what is the same in both",
    )

"""The loop around a denoising step.

The step is compiled once and its state donated; latents of the caller stay alive. With `step_done`
each step is finished before the callback, so that times are true, and an exception that it raises
ends the loop with nothing left running. Without it nothing is waited for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec

from holdfast.xla.sampling.step import Conditioning, Step
from holdfast.xla.sampling.table import SamplerState, Table

StepDone = Callable[[int], None]


class Sampler:
    """A step made ready to be repeated. One that is compiled already is taken as it is."""

    def __init__(self, step: Step) -> None:
        self._step = step
        self._compiled: dict[Any, Callable[..., SamplerState]] = {}

    def run(
        self,
        weights: Any,
        latents: jax.Array,
        table: Table,
        conditioning: Conditioning,
        step_done: StepDone | None = None,
    ) -> jax.Array:
        """Latents after all steps; `step_done` gets how many of them are done."""
        state = table.start(latents)
        return self.advance(weights, state, table, conditioning, step_done)[0]

    def advance(
        self,
        weights: Any,
        state: SamplerState,
        table: Table,
        conditioning: Conditioning,
        step_done: StepDone | None = None,
        *,
        begin: int = 0,
        end: int | None = None,
    ) -> SamplerState:
        """Some of the steps. `state` is used up. For two models, one after the other:

        switch = table.index_below(boundary)
        state = sampler.advance(strong, table.start(noise), table, conditioning, end=switch)
        state = sampler.advance(weak, state, table, conditioning, begin=switch)
        """
        state = _put_on_mesh(weights, state)
        step = self._ready(state)
        for i in range(len(table))[begin:end]:
            state = step(weights, state, table.row(i), conditioning)
            if step_done is not None:
                jax.block_until_ready(state)
                listen = getattr(step_done, "latents", None)
                if listen is not None:  # now: the next step donates them
                    listen(lambda latents=state[0]: latents)
                step_done(i + 1)
        return state

    def _ready(self, state: SamplerState) -> Callable[..., SamplerState]:
        if isinstance(self._step, jax.stages.Wrapped | jax.stages.Compiled):
            return self._step
        places = jax.tree.map(lambda array: array.sharding, state)
        key = tuple(jax.tree.leaves(places))
        if key not in self._compiled:
            # On a mesh the state leaves as it came: else the second step would be compiled anew.
            on_mesh = all(isinstance(place, NamedSharding) for place in key)
            options = {"out_shardings": places} if on_mesh else {}
            self._compiled[key] = jax.jit(self._step, donate_argnums=1, **options)
        return self._compiled[key]


def _put_on_mesh(weights: Any, state: SamplerState) -> SamplerState:
    """On the mesh of the weights, whole on each device, if it is not on a mesh yet."""
    places = (getattr(leaf, "sharding", None) for leaf in jax.tree.leaves(weights))
    mesh = next((p.mesh for p in places if isinstance(p, NamedSharding)), None)
    if mesh is None or isinstance(state[0].sharding, NamedSharding):
        return state
    return jax.device_put(state, NamedSharding(mesh, PartitionSpec()))

"""A scheduler as coefficients, and one step of it in JAX.

A step is arithmetic on arrays of the latents' shape, in float32; nothing is looked up in Python, so
the index may be traced. A `TableRow` is a pytree: as an argument, it lets one compiled step
serve any number of steps.

The *history* is what a scheduler remembers between two calls of the model, as arrays of the
latents' shape: earlier outputs, earlier latents, or mixtures of both. Each row of the table has a
matrix that takes [latents, history..., output] to [latents, history...].
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import export

from holdfast.base.errors import BadInput

History: TypeAlias = tuple[jax.Array, ...]
SamplerState: TypeAlias = tuple[jax.Array, History]


class TableRow(NamedTuple):
    """One call of the model: its timestep, the factor of its input, the update matrix."""

    timestep: Any
    scale: Any
    matrix: Any  # [1 + history, 1 + history + 1]

    def step(self, latents: jax.Array, history: History, output: jax.Array) -> SamplerState:
        """The next latents, in the same dtype; the history stays in float32."""
        self._check_shapes(latents, history, output)
        terms = [array.astype(jnp.float32) for array in (latents, *history, output)]
        mixed = [_mix(self.matrix[to], terms) for to in range(1 + len(history))]
        return mixed[0].astype(latents.dtype), tuple(mixed[1:])

    def _check_shapes(self, latents: jax.Array, history: History, output: jax.Array) -> None:
        if output.shape != latents.shape:
            raise BadInput(
                f"the model's output is {list(output.shape)}, its latents are "
                f"{list(latents.shape)}",
                expected="the same shape",
                hint="let the port's output keep the part that predicts, without the variance",
            )
        if len(history) != np.shape(self.matrix)[0] - 1:
            raise BadInput(
                f"the history has {len(history)} arrays, the table's is of "
                f"{np.shape(self.matrix)[0] - 1}",
                expected="the state that Table.start or the step before gave",
            )


# Without it, a program that takes a row could not be written down (see cache).
export.register_namedtuple_serialization(TableRow, serialized_name="holdfast.xla.Row")


@dataclass(frozen=True, eq=False)
class Table:
    """All calls of the model, in order. A scheduler of second order calls it twice in a step."""

    scheduler: str  # name of its class
    timesteps: np.ndarray  # [calls], float32
    scale: np.ndarray  # [calls]: factor of the latents on their way into the model
    matrices: np.ndarray  # [calls, 1 + history, 1 + history + 1], float64
    init_noise_sigma: float  # for the caller to multiply its noise with

    def __len__(self) -> int:
        """How often the model is called."""
        return len(self.timesteps)

    @property
    def history_size(self) -> int:
        """How many arrays of the latents' shape the scheduler remembers."""
        return self.matrices.shape[1] - 1

    def row(self, i: Any) -> TableRow:
        """The coefficients of call `i`, which may be traced, in float32."""
        arrays = (self.timesteps, self.scale, self.matrices)
        if isinstance(i, jax.Array):
            return TableRow(*(jnp.take(jnp.asarray(a, jnp.float32), i, axis=0) for a in arrays))
        return TableRow(*(np.asarray(a[i], np.float32) for a in arrays))

    def start(self, latents: jax.Array) -> SamplerState:
        """A state of its own, to be donated: the latents of the caller stay alive."""
        zeros = (jnp.zeros_like(latents, jnp.float32) for _ in range(self.history_size))
        return jnp.copy(latents), tuple(zeros)

    def step(self, i: Any, latents: jax.Array, history: History, output: jax.Array) -> SamplerState:
        """From the model's output in call `i` to the latents and the history of the next."""
        return self.row(i).step(latents, history, output)

    def index_below(self, boundary: float) -> int:
        """The first call whose timestep is below `boundary`; `len(table)` when there is none."""
        below = np.flatnonzero(self.timesteps < boundary)
        return int(below[0]) if below.size else len(self)


def _mix(factors: Any, terms: list[jax.Array]) -> jax.Array:
    """Products and sums one by one: a dot would be computed in bfloat16 on a TPU."""
    total = factors[0] * terms[0]
    for place, term in enumerate(terms[1:], start=1):
        total = total + factors[place] * term
    return total

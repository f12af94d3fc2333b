"""The stages of a model on XLA: text encoder -> sampler -> decoder of the autoencoder.

Covers: networks as the code around them calls them (`OnXla`), the whole denoise loop (`sample`).
Leaves to others: one network (placed), schedulers as numbers (sampling), what a family of models is
(holdfast.pipeline).
Promise: tensors of the CPU at every boundary. A step is one compiled program with model, guidance
and scheduler inside and its latents donated; `step_done` hears of each, and what it raises ends the
loop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import torch
from jax.sharding import NamedSharding, PartitionSpec

from holdfast.base.errors import Unsupported
from holdfast.xla.arrays import dtype_of, to_torch
from holdfast.xla.errors import translated
from holdfast.xla.hosts import whole
from holdfast.xla.ops import code_of
from holdfast.xla.placed import Placed, digest_of
from holdfast.xla.sampling import Conditioning, Sampler, make_step, per_sample, table_of

# Methods that run the network; everything else is asked of the module.
_COMPILED = ("decode", "encode", "get_text_features")


class OnXla:
    """Stands for a module in code that was written for torch: called, it runs on XLA.

    Answers can be asked by name and by number, as those of diffusers and transformers. `output` is
    the part of them that a sampler takes.
    """

    def __init__(self, placed: Placed, output: int | str = 0) -> None:
        self.placed, self.output = placed, output

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._run("forward", *args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name in _COMPILED:
            return lambda *args, **kwargs: self._run(name, *args, **kwargs)
        return getattr(self.placed.module, name)

    @property
    def device(self) -> torch.device:
        """Where its inputs and answers are."""
        return torch.device("cpu")

    def _run(self, method: str, *args: Any, **kwargs: Any) -> Any:
        answer = self.placed.run(method, self.placed.named(method, *args, **kwargs))
        return Answer(answer) if isinstance(answer, dict) else answer


class Answer(dict[str, Any]):
    """Several tensors with names; by number, those that are there."""

    def __getattr__(self, name: str) -> Any:
        if name in self:
            return self[name]
        raise AttributeError(name)

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str):
            return super().__getitem__(key)
        return tuple(one for one in self.values() if one is not None)[key]


@dataclass(frozen=True, kw_only=True)
class Denoising:
    """What a sampler needs besides its network. Tensors are on the CPU.

    `steps` and `options` are for the scheduler's `set_timesteps`. `texts` are the inputs of the
    prompt and, where there is guidance, those of the negative one; `fixed` is the same for both and
    in every step. `moment` makes what the model is told of the time; `weak` takes over below the
    timestep `boundary`.
    """

    latents: torch.Tensor
    scheduler: Any
    steps: int | None
    options: Mapping[str, Any] = field(default_factory=dict)
    texts: tuple[Mapping[str, Any], ...]
    fixed: Mapping[str, Any]
    guidance: float = 1.0
    latents_name: str = "hidden_states"
    time_name: str = "timestep"
    time_scale: float = 1.0
    moment: Callable[[jax.Array, jax.Array], jax.Array] = per_sample
    dtype: torch.dtype | None = None
    weak: OnXla | None = None
    boundary: float = float("-inf")


def per_token(moment: jax.Array, latents: jax.Array) -> jax.Array:
    """A moment for each token of a video, as Wan 2.2 TI2V takes it."""
    tokens = latents[0, 0, :, ::2, ::2].size
    return jnp.full((1, tokens), moment, jnp.float32)


class Told:
    """Passes steps on, and latents to who has an ear for them, as `turned` makes them."""

    def __init__(self, step_done: Callable[[int], None], turned: Callable[[Any], Any]) -> None:
        self._step_done, self._turned = step_done, turned

    def __call__(self, done: int) -> None:
        self._step_done(done)

    def latents(self, get: Callable[[], Any]) -> None:
        """Before the step is told; nothing is fetched unless somebody wants it."""
        listen = getattr(self._step_done, "latents", None)
        if listen is not None:
            listen(lambda: self._turned(get()))


def sample(network: OnXla, work: Denoising, step_done: Callable[[int], None]) -> torch.Tensor:
    """Latents without noise.

    Raises Unsupported for a scheduler that is random or not linear, and for prompts that differ in
    what is no tensor, before anything is computed.
    """
    table = table_of(work.scheduler, work.steps, **work.options)
    switch = table.index_below(work.boundary)
    networks = [(network, 0, switch)] if switch else []
    if switch < len(table):
        networks.append((work.weak or network, switch, len(table)))
    state: Any = None
    told = Told(step_done, lambda latents: to_torch(whole(latents)).to(work.latents.dtype))
    for one, begin, end in networks:
        placed = one.placed
        with translated(f"sampling with {type(placed.module).__name__}", placed.report):
            state = state or table.start(placed.put(work.latents))
            arguments, constants = _split(placed, work)
            step = _step(one, work, constants, (state, table.row(0), arguments))
            state = Sampler(step).advance(
                placed.weights, state, table, arguments, told, begin=begin, end=end
            )
    return to_torch(whole(state[0])).to(work.latents.dtype)


def _split(placed: Placed, work: Denoising) -> tuple[Conditioning, dict[str, Any]]:
    """Tensors are arguments of the compiled step; everything else is part of it."""
    cond, *away = ({**work.fixed, **text} for text in work.texts)
    is_argument = {name: _has_tensors(value) for name, value in cond.items()}
    is_argument |= dict.fromkeys(placed.static, False)
    arguments = [
        {name: _put(placed, value) for name, value in text.items() if is_argument[name]}
        for text in (cond, *({name: one[name] for name in work.texts[1]} for one in away))
    ]
    constants = {name: value for name, value in cond.items() if not is_argument[name]}
    for one in away:
        _refuse_others(placed, constants, one)
    guidance = jnp.float32(work.guidance)
    found = Conditioning(arguments[0], arguments[1] if away else None, guidance if away else None)
    return found, constants


def _refuse_others(placed: Placed, constants: Mapping[str, Any], away: Mapping[str, Any]) -> None:
    """One program computes both prompts."""
    for name, value in constants.items():
        if digest_of([value]) != digest_of([away[name]]):
            raise Unsupported(
                f"{type(placed.module).__name__} cannot be called with two prompts in one step: "
                f"{name!r} is part of the program and not the same for both",
                expected="tensors for what differs between the prompt and the negative one",
            )


def _step(network: OnXla, work: Denoising, constants: Mapping[str, Any], arguments: Any) -> Any:
    placed = network.placed
    call = placed.call()
    replicated = NamedSharding(placed.mesh, PartitionSpec())

    def model(weights: Any, inputs: Mapping[str, Any]) -> jax.Array:
        answer = call(weights, {**inputs, **constants})
        return (Answer(answer) if isinstance(answer, dict) else answer)[network.output]

    made = make_step(
        model,
        None,
        latents_name=work.latents_name,
        time_name=work.time_name,
        time_scale=work.time_scale,
        moment=work.moment,
        dtype=None if work.dtype is None else dtype_of(work.dtype),
    )

    def step(weights: Any, state: Any, row: Any, conditioning: Conditioning) -> Any:
        return jax.lax.with_sharding_constraint(made(weights, state, row, conditioning), replicated)

    described = (
        *("step", work.latents_name, work.time_name, work.time_scale, str(work.dtype)),
        *(network.output, code_of(work.moment)),
        sorted(constants),
        digest_of([constants[name] for name in sorted(constants)]),
    )
    return placed.program(step, described, arguments, donate=(0,))


def _has_tensors(value: Any) -> bool:
    return any(isinstance(one, torch.Tensor) for one in jax.tree.leaves(value))


def _put(placed: Placed, value: Any) -> Any:
    return jax.tree.map(
        lambda one: placed.put(one) if isinstance(one, torch.Tensor) else one, value
    )

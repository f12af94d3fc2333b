"""The stages of a model on XLA: text encoder -> sampler -> decoder of the autoencoder.

Every boundary is CPU tensors. A denoising step is one compiled program with model, guidance and
scheduler inside and its latents donated; `step_done` is called after each, and an exception that it
raises ends the loop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import torch
from jax.sharding import NamedSharding, PartitionSpec

from holdfast.base.errors import Unsupported
from holdfast.xla.arrays import dtype_of, to_torch
from holdfast.xla.cluster.hosts import whole
from holdfast.xla.denoising import Denoising
from holdfast.xla.errors import translate_errors
from holdfast.xla.module.placed import Placed, digest_of
from holdfast.xla.ops import code_of
from holdfast.xla.sampling import Conditioning, Sampler, make_step, per_sample, table_of

# Methods that run the network; all other attributes are the module's own.
_COMPILED = ("decode", "encode", "get_text_features")


class OnXla:
    """Replaces a module in code that was written for torch; calls run on XLA.

    Outputs can be indexed by name and by number, as those of diffusers and transformers. `output`
    is the index or name of the part that a sampler takes.
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
        """The device of inputs and outputs."""
        return torch.device("cpu")

    def _run(self, method: str, *args: Any, **kwargs: Any) -> Any:
        answer = self.placed.run(method, self.placed.bind(method, *args, **kwargs))
        return NamedOutput(answer) if isinstance(answer, dict) else answer


class NamedOutput(dict[str, Any]):
    """Named outputs; an integer indexes those that are not None."""

    def __getattr__(self, name: str) -> Any:
        if name in self:
            return self[name]
        raise AttributeError(name)

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str):
            return super().__getitem__(key)
        return tuple(one for one in self.values() if one is not None)[key]


def per_token(moment: jax.Array, latents: jax.Array) -> jax.Array:
    """One timestep for each token of a video, as Wan 2.2 TI2V takes it."""
    tokens = latents[0, 0, :, ::2, ::2].size
    return jnp.full((1, tokens), moment, jnp.float32)


class StepCallback:
    """Forwards step callbacks and counts steps.

    Sends `convert(latents)` to listeners that accept latents.
    """

    def __init__(
        self, step_done: Callable[[int], None], convert: Callable[[Any], Any] = lambda one: one
    ) -> None:
        self._step_done, self._convert = step_done, convert
        self.done = 0

    def __call__(self, done: int) -> None:
        self.done = done
        self._step_done(done)

    def latents(self, get: Callable[[], Any]) -> None:
        """Runs before the step's callback; latents are fetched only if the listener wants them."""
        listen = getattr(self._step_done, "latents", None)
        if listen is not None:
            listen(lambda: self._convert(get()))


def sample(network: OnXla, work: Denoising, step_done: Callable[[int], None]) -> torch.Tensor:
    """Run all denoising steps and return the latents.

    Raises Unsupported, before anything is computed, for a scheduler that is random or not linear
    and for prompts that differ in inputs that are not tensors.
    """
    table = table_of(work.scheduler, work.steps, **work.options)
    switch = table.index_below(work.boundary)
    networks = [(network, 0, switch)] if switch else []
    if switch < len(table):
        networks.append((work.weak or network, switch, len(table)))
    latents = work.latents * table.init_noise_sigma if work.is_scaled else work.latents
    state: Any = None
    callback = StepCallback(
        step_done, lambda latents: to_torch(whole(latents)).to(work.latents.dtype)
    )
    for one, begin, end in networks:
        placed = one.placed
        with translate_errors(f"sampling with {type(placed.module).__name__}", placed.report):
            state = state or table.start(placed.put(latents))
            arguments, constants = _split(placed, work)
            step = _step(one, work, constants, (state, table.row(0), arguments))
            state = Sampler(step).advance(
                placed.weights, state, table, arguments, callback, begin=begin, end=end
            )
    return to_torch(whole(state[0])).to(work.latents.dtype)


def _split(placed: Placed, work: Denoising) -> tuple[Conditioning, dict[str, Any]]:
    """Split the inputs: tensors are arguments of the compiled step, the rest its constants."""
    cond, *away = ({**work.fixed, **text} for text in work.texts)
    is_argument = {
        name: any(isinstance(one, torch.Tensor) for one in jax.tree.leaves(value))
        for name, value in cond.items()
    }
    is_argument |= dict.fromkeys(placed.static, False)

    def put(one: Any) -> Any:
        return placed.put(one) if isinstance(one, torch.Tensor) else one

    arguments = [
        {name: jax.tree.map(put, value) for name, value in text.items() if is_argument[name]}
        for text in (cond, *({name: one[name] for name in work.texts[1]} for one in away))
    ]
    constants = {name: value for name, value in cond.items() if not is_argument[name]}
    for one in away:
        _refuse_differing(placed, constants, one)
    guidance = jnp.float32(work.guidance)
    found = Conditioning(arguments[0], arguments[1] if away else None, guidance if away else None)
    return found, constants


def _refuse_differing(
    placed: Placed, constants: Mapping[str, Any], away: Mapping[str, Any]
) -> None:
    """Raise Unsupported if a constant differs: one program computes both prompts."""
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
    moment = per_token if work.is_time_per_token else per_sample

    def model(weights: Any, inputs: Mapping[str, Any]) -> jax.Array:
        answer = call(weights, {**inputs, **constants})
        return (NamedOutput(answer) if isinstance(answer, dict) else answer)[network.output]

    made = make_step(
        model,
        None,
        latents_name=work.latents_name,
        time_name=work.time_name,
        time_scale=work.time_scale,
        moment=moment,
        dtype=None if work.dtype is None else dtype_of(work.dtype),
    )

    def step(weights: Any, state: Any, row: Any, conditioning: Conditioning) -> Any:
        return jax.lax.with_sharding_constraint(made(weights, state, row, conditioning), replicated)

    described = (
        *("step", work.latents_name, work.time_name, work.time_scale, str(work.dtype)),
        *(network.output, code_of(moment)),
        sorted(constants),
        digest_of([constants[name] for name in sorted(constants)]),
    )
    return placed.program(step, described, arguments, donate=(0,))

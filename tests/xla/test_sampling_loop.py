"""A compiled denoising step: guidance, what the model is told, the loop around it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from holdfast.base.errors import BadInput
from holdfast.xla import sampling
from holdfast.xla.sampling import Conditioning, Sampler, apply_guidance, make_step, table_of
from tests.xla.sampling_cases import (
    FLOW,
    as_diffusers_does,
    jax_model,
    make,
    named,
    start,
    torch_model,
)

# Guidance, and what the model is told.


def test_guidance_goes_from_uncond_towards_cond() -> None:
    cond, uncond = jnp.array([3.0]), jnp.array([1.0])
    assert apply_guidance([cond], None).tolist() == [3.0]
    assert apply_guidance([cond, uncond], 2.5).tolist() == [6.0]
    assert apply_guidance([cond.astype(jnp.bfloat16)], None).dtype == jnp.float32


def test_guided_loop_is_that_of_torch() -> None:
    table = table_of(named("unipc-2-bh2-flow"), 8)
    step = make_step(jax_model, table, latents_name="x", time_name="t")
    push, other = (torch.full((2, 4, 1, 1), value) for value in (0.3, -0.2))
    conditioning = Conditioning(
        {"push": jnp.asarray(push.numpy())}, {"push": jnp.asarray(other.numpy())}, 4.0
    )
    ours = Sampler(step).run({}, start(table), table, conditioning)

    def predict(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        yes, no = torch_model(x, t) + push, torch_model(x, t) + other
        return no + 4.0 * (yes - no)

    theirs = as_diffusers_does("unipc-2-bh2-flow", 8, torch.float32, predict)
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5 * np.abs(theirs).max())


def told(**how: Any) -> tuple[list[dict[str, Any]], Callable[..., Any], sampling.Table]:
    """What a model is given in each of its calls."""
    table = table_of(named("euler-leading"), 4)
    seen: list[dict[str, Any]] = []

    def model(weights: Any, inputs: dict[str, Any]) -> jax.Array:
        seen.append(inputs)
        return inputs["x"]

    return seen, make_step(model, table, latents_name="x", time_name="t", **how), table


def test_the_model_is_told_scaled_latents_in_its_own_type_and_scaled_time() -> None:
    seen, step, table = told(time_scale=0.001, dtype=jnp.bfloat16)
    latents = jnp.full((2, 4, 1, 1), 10.0)
    (after, _) = step({}, table.start(latents), 1, Conditioning({"text": jnp.ones(3)}))
    (inputs,) = seen
    assert inputs["x"].dtype == jnp.bfloat16
    np.testing.assert_allclose(inputs["x"], latents * table.scale[1], rtol=1e-2)
    np.testing.assert_allclose(inputs["t"], [0.501, 0.501], rtol=1e-6)
    assert inputs["text"].shape == (3,)
    assert after.dtype == jnp.float32


def test_time_can_be_given_for_each_token() -> None:
    seen, step, table = told(moment=lambda moment, x: jnp.full((x.shape[0], 5), moment))
    step({}, table.start(jnp.ones((2, 4, 1, 1))), 0, Conditioning({}))
    assert seen[0]["t"].tolist() == [[751.0] * 5] * 2


def test_guidance_takes_texts_of_different_lengths() -> None:
    cond, uncond = {"text": jnp.ones((2, 3))}, {"text": jnp.ones((2, 5))}
    seen, step, table = told(guidance=2.0)
    step({}, table.start(jnp.ones((2, 4, 1, 1))), 0, Conditioning(cond, uncond))
    assert [inputs["text"].shape for inputs in seen] == [(2, 3), (2, 5)]


def test_mistakes_in_a_step_are_named() -> None:
    _, step, table = told()
    state = table.start(jnp.ones((1, 1, 1, 1)))
    with pytest.raises(BadInput) as caught:
        step({}, state, 0, Conditioning({}, {}))
    assert str(caught.value) == (
        "there is an unconditional input but no guidance\n"
        "  expected: a number such as 5.0, in Conditioning or in make_step"
    )
    with pytest.raises(BadInput) as caught:
        table.step(0, state[0], (state[0],), state[0])
    assert str(caught.value) == (
        "the history has 1 arrays, the table's is of 0\n"
        "  expected: the state that Table.start or the step before gave"
    )
    with pytest.raises(BadInput) as caught:
        table.step(0, *state, jnp.ones((1, 2, 1, 1)))
    assert str(caught.value) == (
        "the model's output is [1, 2, 1, 1], its latents are [1, 1, 1, 1]\n"
        "  expected: the same shape\n"
        "  try: let the port's output keep the part that predicts, without the variance"
    )
    alone = make_step(jax_model, None, latents_name="x", time_name="t")
    with pytest.raises(BadInput) as caught:
        alone({}, state, 0, Conditioning({}))
    assert str(caught.value) == (
        "a step that was made without a table was given an index\n  expected: a row: table.row(i)"
    )


# The loop.


def counted() -> tuple[list[int], Sampler]:
    """Notes each time that the model is traced."""
    traces: list[int] = []

    def model(weights: Any, inputs: dict[str, Any]) -> jax.Array:
        traces.append(1)
        return jax_model(weights, inputs) * weights["w"]

    return traces, Sampler(make_step(model, None, latents_name="x", time_name="t", guidance=3.0))


def test_one_compilation_serves_all_steps_numbers_of_steps_and_guidance() -> None:
    traces, sampler = counted()
    weights = {"w": jnp.ones(())}
    for steps, scheduler in (
        (4, make("UniPCMultistep", **FLOW)),
        (9, make("UniPCMultistep", **FLOW, flow_shift=3.0)),
    ):
        table = table_of(scheduler, steps)
        sampler.run(weights, start(table), table, Conditioning({}, None))
    assert len(traces) == 1
    for guidance in (2.0, 7.5):
        sampler.run(weights, start(table), table, Conditioning({}, {}, guidance))
    assert len(traces) == 3  # cond and uncond are two calls


def test_state_is_donated_and_the_callers_latents_are_not() -> None:
    table = table_of(make("UniPCMultistep", **FLOW), 4)
    step = jax.jit(make_step(jax_model, table, latents_name="x", time_name="t"), donate_argnums=1)
    latents = start(table)
    state = table.start(latents)
    step({}, state, 0, Conditioning({}))
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(state))
    Sampler(step).run({}, latents, table, Conditioning({}))
    assert not latents.is_deleted()


def test_an_index_given_to_a_jitted_step_is_traced_once() -> None:
    table = table_of(make("UniPCMultistep", **FLOW), 4)
    traces: list[int] = []

    def model(weights: Any, inputs: dict[str, Any]) -> jax.Array:
        traces.append(1)
        return jax_model(weights, inputs)

    step = jax.jit(make_step(model, table, latents_name="x", time_name="t"), donate_argnums=1)
    state = table.start(start(table))
    for i in range(len(table)):
        state = step({}, state, i, Conditioning({}))
    assert len(traces) == 1
    by_rows = Sampler(step).run({}, start(table), table, Conditioning({}))
    np.testing.assert_allclose(state[0], by_rows, rtol=1e-5, atol=1e-6)


def test_step_done_hears_of_each_step_and_may_stop_the_run() -> None:
    sampler = Sampler(make_step(jax_model, None, latents_name="x", time_name="t"))
    table = table_of(make("FlowMatchEulerDiscrete"), 6)
    heard: list[int] = []
    whole = sampler.run({}, start(table), table, Conditioning({}), heard.append)
    assert heard == [1, 2, 3, 4, 5, 6]

    def stop(done: int) -> None:
        if done == 3:
            raise KeyboardInterrupt

    latents = start(table)
    with pytest.raises(KeyboardInterrupt):
        sampler.run({}, latents, table, Conditioning({}), stop)
    again = sampler.run({}, latents, table, Conditioning({}))
    np.testing.assert_array_equal(again, whole)


def test_two_models_take_turns_at_the_boundary() -> None:
    traces, sampler = counted()
    table = table_of(named("unipc-2-bh2-flow"), 8)
    switch = table.index_below(875.0)
    strong, weak = {"w": jnp.asarray(1.0)}, {"w": jnp.asarray(0.5)}
    heard: list[int] = []
    state = table.start(start(table))
    state = sampler.advance(strong, state, table, Conditioning({}), heard.append, end=switch)
    state = sampler.advance(weak, state, table, Conditioning({}), heard.append, begin=switch)
    assert heard == list(range(1, 9))
    assert len(traces) == 1

    def predict(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        return torch_model(x, t) * (1.0 if t >= 875 else 0.5)

    theirs = as_diffusers_does("unipc-2-bh2-flow", 8, torch.float32, predict)
    np.testing.assert_allclose(state[0], theirs, rtol=0, atol=1e-5 * np.abs(theirs).max())


@pytest.mark.slow
@pytest.mark.parametrize("placed", [False, True])
def test_a_loop_on_eight_devices_compiles_once_and_gives_the_same(placed: bool) -> None:
    mesh = Mesh(np.array(jax.devices()[:8]), ("tp",))
    split = NamedSharding(mesh, PartitionSpec(None, None, "tp"))
    table = table_of(make("UniPCMultistep", **FLOW), 5)
    latents, weights = start(table), {"w": jnp.ones((1, 1, 8, 8))}
    traces, sampler = counted()
    alone = sampler.run(weights, latents, table, Conditioning({}))
    if placed:
        latents = jax.device_put(latents, split)
    weights = jax.device_put(weights, split)
    ours = sampler.run(weights, latents, table, Conditioning({}))
    np.testing.assert_allclose(ours, alone, rtol=1e-5, atol=1e-6)
    assert len(traces) == 2
    jitted: list[Any] = list(sampler._compiled.values())
    assert [one._cache_size() for one in jitted] == [1, 1]
    assert ours.sharding.is_equivalent_to(split, 4) == placed


def test_a_compiled_step_runs_for_another_number_of_steps() -> None:
    step = make_step(jax_model, None, latents_name="x", time_name="t")
    table = table_of(make("UniPCMultistep", **FLOW), 5)
    state = table.start(start(table))
    shapes = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), (state, table.row(0)))
    compiled = jax.jit(step, donate_argnums=1).lower({}, *shapes, Conditioning({})).compile()
    longer = table_of(make("UniPCMultistep", **FLOW), 12)
    latents = start(longer)
    ours = Sampler(compiled).run({}, latents, longer, Conditioning({}))
    plain = Sampler(step).run({}, latents, longer, Conditioning({}))
    np.testing.assert_allclose(ours, plain, rtol=1e-5, atol=1e-6)

"""Schedulers as tables: whole loops against diffusers, what a table holds, refusals."""

from __future__ import annotations

import copy
import dataclasses
import os
from typing import Any

import diffusers
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from holdfast.base.errors import BadInput, Unsupported
from holdfast.xla.sampling import Conditioning, Sampler, TableRow, make_step, table_of
from tests.tolerance import assert_near
from tests.xla.sampling_cases import (
    FLOW,
    SCHEDULERS,
    SD,
    as_diffusers_does,
    jax_model,
    make,
    named,
    options,
    start,
)

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*algorithm_types dpmsolver:FutureWarning"),
    # DEIS and KDPM2 give torch tensors to NumPy's functions.
    pytest.mark.filterwarnings("ignore:__array_wrap__ must accept context:DeprecationWarning"),
]

COUNTS = (1, 2, 4, 20)
REPRESENTATIVE = (
    *("flow-dynamic", "flow-sigmas", "unipc-2-bh2-flow", "unipc-3-bh1", "dpm-2-dpmsolver++"),
    *("dpm-3-flow", "euler-leading", "ddim", "pndm", "lms", "heun", "deis-2"),
)


@pytest.fixture(scope="module")
def sampler() -> Sampler:
    """One for all: rows are arguments."""
    return Sampler(make_step(jax_model, None, latents_name="x", time_name="t"))


def check_loops(sampler: Sampler, name: str) -> None:
    scheduler = named(name)
    for steps in COUNTS:
        if name == "pndm-runge-kutta" and steps < 4:
            continue  # it refuses itself
        table = table_of(scheduler, steps, **options(name, steps))
        exact = as_diffusers_does(name, steps, torch.float64)
        ours = np.asarray(sampler.run({}, start(table), table, Conditioning({})))
        # Not against diffusers in float32, whose rounding is worse for DEIS and Heun on few steps.
        assert_near(ours, exact, "float32", 8 * COUNTS[-1], f"{steps} steps")


@pytest.mark.parametrize("name", REPRESENTATIVE)
def test_a_whole_loop_gives_what_diffusers_gives(name: str, sampler: Sampler) -> None:
    check_loops(sampler, name)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(SCHEDULERS.keys() - set(REPRESENTATIVE)))
def test_a_whole_loop_of_the_others_gives_what_diffusers_gives(name: str, sampler: Sampler) -> None:
    check_loops(sampler, name)


# What a table holds.


@pytest.mark.parametrize(
    ("name", "size"),
    [
        *(("flow", 0), ("euler-leading", 0), ("ddim", 0), ("dpm-2-dpmsolver++", 1)),
        *(("dpm-3-dpmsolver++", 2), ("unipc-2-bh2-flow", 3), ("heun", 2), ("lms", 3)),
    ],
)
def test_history_is_as_small_as_what_is_still_needed(name: str, size: int) -> None:
    assert table_of(named(name), 20).history_size == size


def test_a_table_has_timesteps_scale_and_noise_of_the_scheduler() -> None:
    scheduler = make("EulerDiscrete", timestep_spacing="leading", steps_offset=1, **SD)
    table = table_of(scheduler, 4)
    scheduler.set_timesteps(4)
    sigmas = scheduler.sigmas.numpy()[:-1]
    assert table.scheduler == "EulerDiscreteScheduler"
    assert table.timesteps.tolist() == [751.0, 501.0, 251.0, 1.0]
    assert table.timesteps.dtype == np.float32
    np.testing.assert_allclose(table.scale, 1 / np.sqrt(sigmas**2 + 1), rtol=1e-6)
    assert table.init_noise_sigma == pytest.approx(float(np.sqrt(sigmas[0] ** 2 + 1)))
    assert table.matrices.shape == (4, 1, 2)
    name_of_a_field = dataclasses.fields(table)[0].name
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(table, name_of_a_field, "another")


def test_a_scheduler_of_second_order_has_a_row_for_each_call_of_the_model() -> None:
    assert len(table_of(named("heun"), 20)) == 39


def test_probing_leaves_scheduler_and_random_numbers_alone() -> None:
    scheduler = make("UniPCMultistep", **FLOW)
    scheduler.set_timesteps(7)
    scheduler.step(torch.ones(1, 1, 2, 2), scheduler.timesteps[0], torch.ones(1, 1, 2, 2))
    before, random = copy.deepcopy(vars(scheduler)), torch.get_rng_state()
    table_of(scheduler, 3)
    assert str(vars(scheduler)) == str(before)
    assert torch.equal(torch.get_rng_state(), random)


def test_probing_works_inside_inference_mode() -> None:
    with torch.inference_mode():
        inside = table_of(make("UniPCMultistep", **FLOW), 4)
    np.testing.assert_array_equal(
        inside.matrices, table_of(make("UniPCMultistep", **FLOW), 4).matrices
    )


def test_steps_may_be_left_to_the_sigmas() -> None:
    table = table_of(make("FlowMatchEulerDiscrete"), None, sigmas=[1.0, 0.7, 0.3])
    np.testing.assert_allclose(table.timesteps, [1000, 700, 300])


def test_index_below_is_where_the_second_model_begins() -> None:
    table = table_of(make("FlowMatchEulerDiscrete", shift=5.0), 20)
    switch = table.index_below(875.0)
    assert (table.timesteps[:switch] >= 875).all()
    assert (table.timesteps[switch:] < 875).all()
    assert 0 < switch < 20
    assert table.index_below(0.0) == 20
    assert table.index_below(2000.0) == 0


def test_a_traced_index_gives_the_same_step_as_a_number() -> None:
    table = table_of(named("unipc-2-bh2-flow"), 6)
    latents, history = table.start(jnp.ones((1, 2, 2)))
    history = tuple(part + i for i, part in enumerate(history))
    output = latents * 0.5
    traced = jax.jit(table.step)(3, latents, history, output)
    plain = table.step(3, latents, history, output)
    for one, other in zip(jax.tree.leaves(traced), jax.tree.leaves(plain), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)


def test_latents_keep_their_type_and_history_is_float32() -> None:
    table = table_of(named("dpm-2-flow"), 4)
    latents = jnp.ones((1, 2, 2), jnp.bfloat16)
    latents, history = table.step(0, *table.start(latents), latents * 0.5)
    assert latents.dtype == jnp.bfloat16
    assert [part.dtype for part in history] == [jnp.float32]


def test_a_row_is_a_pytree_of_float32() -> None:
    row = table_of(make("FlowMatchEulerDiscrete"), 3).row(1)
    assert isinstance(row, TableRow)
    assert [leaf.dtype for leaf in jax.tree.leaves(row)] == [np.float32] * 3


# Refusals.


def refusal(scheduler: Any, steps: int = 4, **more: Any) -> str:
    with pytest.raises((BadInput, Unsupported)) as caught:
        table_of(scheduler, steps, **more)
    return str(caught.value)


LINEAR = "  expected: steps that are linear in the latents and the model's outputs, without noise\n"
OTHERS = "  try: EulerDiscreteScheduler, DPMSolverMultistepScheduler or UniPCMultistepScheduler"


@pytest.mark.parametrize(
    "scheduler",
    [
        make("EulerAncestralDiscrete"),
        make("LCM"),
        make("DDPM", clip_sample=False),
        make("TCD"),
        make("DPMSolverMultistep", algorithm_type="sde-dpmsolver++"),
        make("FlowMatchEulerDiscrete", stochastic_sampling=True),
    ],
    ids=lambda one: type(one).__name__,
)
def test_a_scheduler_that_draws_noise_is_refused(scheduler: Any) -> None:
    assert refusal(scheduler) == (
        f"{type(scheduler).__name__} cannot be put inside a compiled loop: "
        f"call 0 adds noise of its own\n{LINEAR}{OTHERS}"
    )


@pytest.mark.parametrize(
    ("scheduler", "switch"),
    [
        (make("DDIM"), "clip_sample=False"),
        (make("DDIM", thresholding=True, clip_sample=False), "thresholding=False"),
        (make("DPMSolverMultistep", thresholding=True), "thresholding=False"),
        (make("HeunDiscrete", clip_sample=True), "clip_sample=False"),
    ],
)
def test_a_scheduler_that_clips_is_refused(scheduler: Any, switch: str) -> None:
    assert refusal(scheduler) == (
        f"{type(scheduler).__name__} cannot be put inside a compiled loop: call 0 is not linear\n"
        f"{LINEAR}  try: the same scheduler with {switch}"
    )


def test_a_scheduler_that_divides_by_zero_is_refused() -> None:
    assert refusal(make("UniPCMultistep", solver_type="bh1")) == (
        "UniPCMultistepScheduler cannot be put inside a compiled loop: call 3 gives values that "
        f"are not finite\n{LINEAR}  try: the same scheduler with final_sigmas_type='sigma_min'"
    )


def test_a_scheduler_with_another_way_of_stepping_is_refused() -> None:
    assert refusal(make("CogVideoXDPM")) == (
        "CogVideoXDPMScheduler cannot be put inside a compiled loop: call 0 failed: TypeError: "
        "CogVideoXDPMScheduler.step() missing 2 required positional arguments: 'timestep_back' "
        f"and 'sample'\n{LINEAR}{OTHERS}"
    )


def test_a_scheduler_that_remembers_everything_is_refused() -> None:
    class Hoarder:
        def set_timesteps(self, steps: int) -> None:
            self.timesteps, self.kept = torch.arange(steps), []

        def step(self, output: Any, timestep: Any, sample: Any, return_dict: bool) -> Any:
            self.kept.append(output)
            return (sample - sum(self.kept),)

    assert refusal(Hoarder(), 40) == (
        "Hoarder cannot be put inside a compiled loop: after call 30 it remembers 31 tensors\n"
        f"{LINEAR}{OTHERS}"
    )


def test_options_that_the_scheduler_refuses_are_the_callers_mistake() -> None:
    found = refusal(make("FlowMatchEulerDiscrete", use_dynamic_shifting=True))
    assert found == (
        "FlowMatchEulerDiscreteScheduler.set_timesteps(4) failed: ValueError: `mu` must be passed "
        "when `use_dynamic_shifting` is set to be `True`\n"
        "  expected: options that this scheduler takes together"
    )
    assert (
        refusal(make("FlowMatchEulerDiscrete"), 0)
        == "0 steps were asked for\n  expected: 1 or more"
    )


@pytest.mark.skipif(not os.environ.get("HOLDFAST_TEST_ALL"), reason="HOLDFAST_TEST_ALL is not set")
def test_every_scheduler_of_diffusers_has_a_table_or_a_reason() -> None:
    outcomes: dict[str, str] = {}
    for name in sorted(one for one in dir(diffusers) if one.endswith("Scheduler")):
        try:
            scheduler = getattr(diffusers, name)()
        except (TypeError, ImportError, ValueError):
            continue  # needs arguments, or a package
        try:
            outcomes[name] = f"{table_of(scheduler, 4).history_size} remembered"
        except (BadInput, Unsupported) as exc:
            outcomes[name] = exc.what
    good = [name for name, found in outcomes.items() if found.endswith("remembered")]
    assert len(good) >= 18, outcomes

"""The denoise loop on XLA: what is compiled, what is written down, what is given back."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler
from torch import nn

from holdfast.base.errors import Unsupported
from holdfast.xla import tiny
from holdfast.xla.cluster.mesh import make_mesh
from holdfast.xla.module.cache import Programs
from holdfast.xla.module.placed import Placed
from holdfast.xla.stages import Denoising, OnXla, sample


class Denoiser(nn.Module):
    """Predicts noise from latents, a text and the time."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Linear(16, 64)
        self.narrow = nn.Linear(64, 16)

    def forward(
        self,
        hidden_states: torch.Tensor,
        timestep: torch.Tensor,
        text: torch.Tensor,
        lengths: list[int] | None = None,
    ) -> tuple[torch.Tensor]:
        mixed = hidden_states + text.mean(1, keepdim=True) + timestep[:, None, None]
        return (self.narrow(self.wide(mixed).relu()) * sum(lengths or [1]),)


def network(folder: Path, devices: int = 8) -> OnXla:
    torch.manual_seed(0)
    module = Denoiser().requires_grad_(False)
    mesh = make_mesh(jax.devices()[:devices])
    return OnXla(Placed(module, mesh=mesh, programs=Programs(folder)))


def work(text: int = 3, **other: Any) -> Denoising:
    numbers = torch.Generator().manual_seed(0)
    texts: tuple[Mapping[str, Any], ...] = tuple(
        {"text": torch.randn(1, text, 16, generator=numbers)} for _ in range(2)
    )
    given: dict[str, Any] = {
        "latents": torch.randn(1, 8, 16, generator=numbers),
        "scheduler": FlowMatchEulerDiscreteScheduler(),
        "steps": 3,
        "texts": texts,
        "fixed": {},
        "guidance": 2.0,
        "time_scale": 1e-3,
    }
    return Denoising(**(given | other))


def drawn(one: OnXla, asked: Denoising) -> torch.Tensor:
    return sample(one, asked, lambda _: None)


def counted(one: OnXla) -> tuple[int, int]:
    programs = one.placed._programs
    assert programs.failures == []
    return programs.made, programs.found


@pytest.mark.slow
@pytest.mark.parametrize("devices", [1, 8])
def test_a_step_is_written_down_and_found_by_the_next_process(tmp_path: Path, devices: int) -> None:
    made = tiny.make("diffusers:FluxTransformer2DModel")
    inputs = made.inputs()
    texts = ({"encoder_hidden_states": inputs.pop("encoder_hidden_states")},)
    inputs.pop("timestep")
    asked = work(latents=inputs.pop("hidden_states"), texts=texts, fixed=inputs)
    mesh = make_mesh(jax.devices()[:devices])
    first, second = (
        OnXla(Placed(made.module, mesh=mesh, programs=Programs(tmp_path))) for _ in range(2)
    )
    wanted = drawn(first, asked)
    assert counted(first) == (1, 0)
    assert torch.equal(drawn(second, asked), wanted)
    assert counted(second) == (0, 1)


def test_a_step_is_compiled_again_only_for_other_shapes(tmp_path: Path) -> None:
    one = network(tmp_path)
    drawn(one, work())
    drawn(one, work(steps=7))
    drawn(one, work(guidance=5.0, latents=torch.zeros(1, 8, 16)))
    assert counted(one) == (1, 0)
    drawn(one, work(text=5))
    drawn(one, work(latents=torch.zeros(1, 4, 16)))
    assert counted(one) == (3, 0)


@pytest.mark.parametrize("devices", [1, 8])
def test_what_is_donated_is_used_up(tmp_path: Path, devices: int) -> None:
    placed = network(tmp_path, devices).placed
    latents = placed.put(torch.ones(1, 8, 16))
    program = placed.program(lambda weights, x: x + weights["narrow.bias"], "add", (latents,), (0,))
    program(placed.weights, latents)
    assert latents.is_deleted()


def test_a_network_that_is_dropped_gives_its_arrays_back(tmp_path: Path) -> None:
    gc.collect()
    before = {id(array) for array in jax.live_arrays()}
    one = network(tmp_path)
    drawn(one, work())
    module = weakref.ref(one.placed.module)
    weights = [weakref.ref(array) for array in one.placed.weights.values()]
    del one
    gc.collect()
    assert module() is None
    assert not any(weight() is not None for weight in weights)
    assert [array.shape for array in jax.live_arrays() if id(array) not in before] == []


def test_two_prompts_that_differ_in_what_is_no_tensor_are_refused(tmp_path: Path) -> None:
    one = network(tmp_path)
    texts = tuple({**text, "lengths": [i]} for i, text in enumerate(work().texts))
    with pytest.raises(Unsupported) as caught:
        drawn(one, work(texts=texts))
    assert str(caught.value) == (
        "Denoiser cannot be called with two prompts in one step: 'lengths' is part of the program "
        "and not the same for both\n"
        "  expected: tensors for what differs between the prompt and the negative one"
    )
    alike = tuple({**text, "lengths": [2]} for text in work().texts)
    assert not torch.equal(drawn(one, work(texts=alike)), drawn(one, work()))

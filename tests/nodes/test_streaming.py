"""A network that streams for ComfyUI: granted memory, left alone, given back."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
from torch import nn

from holdfast.base.errors import BadInput
from holdfast.nodes.residency import HoldfastStreamModel, streaming
from holdfast.nodes.residency.streaming import Streaming
from tests.residency.models import device, some_input, stack, weight_bytes


class Holder(nn.Module):
    """What ComfyUI calls a model: something around the network that it may write on."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.diffusion_model = network


def begun(holder: Holder, share: float = 0.5, **more: Any) -> Streaming:
    network = holder.diffusion_model
    settings = {
        "version": "one",
        "device": device(),
        "granted_bytes": int(weight_bytes(network) * share),
        "pack": False,
    }
    return Streaming.begin(network, holder, **(settings | more))


@pytest.fixture
def holder() -> Holder:
    return Holder(stack())


def test_results_are_those_of_the_network_and_weights_stay_inside_of_the_grant(holder):
    x = some_input()
    wanted = holder.diffusion_model(x)
    found = begun(holder)
    granted = weight_bytes(holder.diffusion_model) // 2
    for _ in range(4):
        assert torch.equal(holder.diffusion_model(x), wanted)
        assert found.held_bytes <= granted
    assert found.held_bytes > granted // 2
    assert found.weight_bytes >= weight_bytes(holder.diffusion_model)


def test_another_grant_holds_from_the_next_pass_on(holder):
    x = some_input()
    wanted = holder.diffusion_model(x)
    found = begun(holder)
    for _ in range(3):
        holder.diffusion_model(x)
    less = weight_bytes(holder.diffusion_model) // 3
    found.grant(less)
    assert found.held_bytes <= less
    assert torch.equal(holder.diffusion_model(x), wanted)
    assert 0 < found.held_bytes <= less
    found.grant(None)
    for _ in range(3):
        assert torch.equal(holder.diffusion_model(x), wanted)
    assert found.held_bytes >= weight_bytes(holder.diffusion_model)


def test_leaving_the_device_frees_what_it_says_and_the_next_pass_comes_back(holder):
    x = some_input()
    wanted = holder.diffusion_model(x)
    found = begun(holder)
    holder.diffusion_model(x)
    holder.diffusion_model(x)
    held = found.held_bytes
    assert held > 0
    assert found.leave() == held
    assert found.held_bytes == 0
    assert torch.equal(holder.diffusion_model(x), wanted)
    assert found.active


def test_who_moves_it_to_the_cpu_gets_it_back_as_it_was(holder):
    network = holder.diffusion_model
    before = {name: (p, p.clone()) for name, p in network.named_parameters()}
    found = begun(holder)
    network(some_input())
    holder.to("cpu")
    assert not found.active
    assert "forward" not in network.__dict__
    for name, parameter in network.named_parameters():
        same, value = before[name]
        assert parameter is same
        assert torch.equal(parameter, value)


def test_moving_it_elsewhere_changes_nothing(holder):
    found = begun(holder)
    holder.to("meta")
    assert found.active


def test_ending_twice_is_ending_once(holder):
    found = begun(holder)
    found.end()
    found.end()
    assert found.leave() == 0
    assert (found.held_bytes, found.weight_bytes, found.managed) == (0, 0, None)


def test_a_network_that_nobody_wants_is_gone_at_once_with_all_that_it_held():
    holder = Holder(stack())
    on = device()
    found = begun(holder, device=on)
    holder.diffusion_model(some_input())
    holder.diffusion_model(some_input())
    assert on.held_bytes > 0
    network = weakref.ref(holder.diffusion_model)
    gc.disable()
    try:
        del found, holder
        assert network() is None
    finally:
        gc.enable()
    assert on.held_bytes == 0


def test_packed_weights_are_whole_again_before_anybody_reads_them(monkeypatch):
    monkeypatch.setattr(streaming, "pays", lambda _: True)
    holder = Holder(stack(dtype=torch.bfloat16))
    x = some_input(dtype=torch.bfloat16)
    before = {name: value.clone() for name, value in holder.state_dict().items()}
    wanted = holder.diffusion_model(x)
    found = begun(holder, pack=True)
    assert torch.equal(holder.diffusion_model(x), wanted)
    assert found.managed.packed
    read = holder.state_dict()
    assert not found.active
    assert all(torch.equal(read[name], value) for name, value in before.items())
    parameters = dict(holder.named_parameters())
    assert all(torch.equal(parameters[name], before[name]) for name in parameters)


def test_packed_weights_are_read_from_the_network_itself_while_it_streams_on(monkeypatch):
    monkeypatch.setattr(streaming, "pays", lambda _: True)
    holder = Holder(stack(dtype=torch.bfloat16))
    x = some_input(dtype=torch.bfloat16)
    before = {name: value.clone() for name, value in holder.diffusion_model.state_dict().items()}
    wanted = holder.diffusion_model(x)
    found = begun(holder, pack=True)
    read = holder.diffusion_model.state_dict()
    assert all(torch.equal(read[name], value) for name, value in before.items())
    assert found.active
    assert found.managed.packed
    assert torch.equal(holder.diffusion_model(x), wanted)


def test_parameters_that_somebody_kept_have_their_values_when_the_network_is_packed(monkeypatch):
    monkeypatch.setattr(streaming, "pays", lambda _: True)
    holder = Holder(stack(dtype=torch.bfloat16))
    first = next(iter(holder.diffusion_model.children()))
    first.register_parameter("tied", next(holder.diffusion_model.parameters()))
    kept = dict(holder.named_parameters())
    before = {name: value.detach().clone() for name, value in kept.items()}
    found = begun(holder, pack=True)
    assert found.managed.packed
    assert all(torch.equal(kept[name], value) for name, value in before.items())
    found.end()
    assert dict(holder.named_parameters()).keys() == kept.keys()  # one that is tied stays so
    assert all(torch.equal(value, before[name]) for name, value in holder.named_parameters())


def test_nothing_is_packed_where_that_does_not_pay():
    holder = Holder(stack(dtype=torch.bfloat16))
    found = begun(holder, pack=True)
    assert found.pack
    assert not found.managed.packed
    read = holder.state_dict()
    assert found.active
    assert read


def test_stopping_while_weights_are_prepared_leaves_the_network_whole(holder):
    x = some_input()
    wanted = holder.diffusion_model(x)

    def stop(*_: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        begun(holder, progress=stop)
    assert torch.equal(holder.diffusion_model(x), wanted)
    assert "forward" not in holder.diffusion_model.__dict__
    found = begun(holder)
    assert torch.equal(holder.diffusion_model(x), wanted)
    found.end()


def test_options_of_the_caller_reach_the_network_as_they_are():
    class Writes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor, options: dict[str, Any]) -> torch.Tensor:
            options["seen"] = True
            return self.layer(x) + options["shift"]

    holder = Holder(Writes().requires_grad_(False))
    begun(holder, share=2.0)
    options = {"shift": torch.ones(4)}
    holder.diffusion_model(torch.ones(1, 4), options)
    assert options["seen"]


# ---- the node


@pytest.mark.parametrize("budget", [-1.0, float("nan"), float("inf"), 5000.0, "4", None, True, [4]])
def test_a_budget_that_is_none_is_refused(budget):
    with pytest.raises(BadInput) as caught:
        HoldfastStreamModel().stream(object(), budget)
    assert str(caught.value) == (
        f"cannot give {budget!r} GiB to the weights of a model\n"
        "  expected: a number from 0 (ComfyUI's own choice) to 4096"
    )


def test_what_is_no_model_of_comfyui_is_refused():
    with pytest.raises(BadInput) as caught:
        HoldfastStreamModel().stream(nn.Linear(1, 1))
    assert str(caught.value) == (
        "cannot stream a Linear\n"
        "  expected: a MODEL of ComfyUI\n"
        "  try: in plain Python: holdfast.residency.manage(module, budget=…)"
    )

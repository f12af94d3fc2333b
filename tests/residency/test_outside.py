"""What others do with a module while it is managed: saving, loading, moving, copying."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn

from holdfast.base.errors import InUse, Misuse
from holdfast.residency import manage, unmanage
from tests.residency.models import device, some_input, stack, weight_bytes

FORMATS = (torch.float32, torch.bfloat16)  # the second is packed


@pytest.fixture(params=FORMATS, ids=["fp32", "bf16"])
def case(request):
    module = stack(dtype=request.param)
    x = some_input(dtype=request.param)
    values = {name: value.clone() for name, value in module.state_dict().items()}
    wanted = module(x)
    managed = manage(module, budget=weight_bytes(module) // 2 + 60_000, device=device())
    for _ in range(3):
        assert torch.equal(module(x), wanted)
    yield module, managed, x, values, wanted
    unmanage(module)
    assert managed.carrier.held_bytes == 0


def test_state_dict_has_the_true_values_on_the_host(case):
    module, _, _, values, _ = case
    saved = module.state_dict()
    assert saved.keys() == values.keys()
    assert all(torch.equal(saved[name], value) for name, value in values.items())
    assert {value.device.type for value in saved.values()} == {"cpu"}


def test_state_dict_of_a_part_has_the_true_values(case):
    module, _, _, values, _ = case
    for name, value in module.blocks[3].state_dict().items():
        assert torch.equal(value, values[f"blocks.3.{name}"])


def test_new_weights_are_loaded_and_used(case):
    module, _, x, values, _ = case
    doubled = {name: value * 2 for name, value in values.items()}
    module.load_state_dict(doubled)
    other = stack(seed=5, dtype=x.dtype)
    other.load_state_dict(doubled)
    for _ in range(4):
        assert torch.equal(module(x), other(x))


def test_new_weights_of_a_part_are_loaded_and_used(case):
    module, _, x, values, wanted = case
    part = module.blocks[2]
    halved = {name: value / 2 for name, value in part.state_dict().items()}
    part.load_state_dict(halved)
    other = stack(seed=5, dtype=x.dtype)
    other.load_state_dict(values | {f"blocks.2.{name}": v for name, v in halved.items()})
    for _ in range(4):
        result = module(x)
        assert torch.equal(result, other(x))
        assert not torch.equal(result, wanted)


def test_assigned_parameters_are_taken_over(case):
    module, _, x, values, _ = case
    module.load_state_dict({n: v * 3 for n, v in values.items()}, assign=True)
    other = stack(seed=5, dtype=x.dtype)
    other.load_state_dict({n: v * 3 for n, v in values.items()})
    assert torch.equal(module(x), other(x))


def test_moving_to_the_cpu_leaves_the_device_and_the_next_call_comes_back(case):
    module, managed, x, _, wanted = case
    assert managed.held_bytes > 0
    assert module.to("cpu") is module
    assert managed.held_bytes == 0
    assert torch.equal(module(x), wanted)
    assert managed.held_bytes > 0


def test_another_format_is_taken_over(case):
    module, managed, x, values, _ = case
    managed.set_budget(weight_bytes(module) * 3)
    module.to(torch.float64)
    other = stack(seed=5).to(torch.float64)
    other.load_state_dict({name: value.double() for name, value in values.items()})
    for _ in range(3):
        assert torch.equal(module(x.double()), other(x.double()))
    assert module.blocks[0].up.weight.dtype == torch.float64


def test_a_weight_changed_in_place_between_calls_stays_changed(case):
    module, _, x, values, _ = case
    other = stack(seed=5, dtype=x.dtype)
    other.load_state_dict(values)
    for part in (module, other):
        with torch.no_grad():
            # a packed weight has no values to change in place: that is refused, never lost
            try:
                part.blocks[0].gate.mul_(2)
            except RuntimeError:
                assert part is module
                return
    for _ in range(3):
        assert torch.equal(module(x), other(x))


def test_a_managed_module_is_not_copied(case):
    module = case[0]
    text = (
        "cannot copy or pickle Stack while it is managed\n"
        "  expected: a module that is not managed\n"
        "  try: residency.unmanage(module) first, or save its state_dict()"
    )
    for copying in (copy.deepcopy, pickle.dumps):
        with pytest.raises(Misuse) as caught:
            copying(module)
        assert str(caught.value) == text


def test_weights_cannot_be_changed_while_it_runs(case):
    module, _, x, values, wanted = case
    handle = module.blocks[4].register_forward_hook(lambda *_: module.load_state_dict(values))
    with pytest.raises(InUse) as caught:
        module(x)
    assert str(caught.value) == (
        "cannot change the weights of Stack while it runs\n  expected: a call that is over"
    )
    handle.remove()
    assert torch.equal(module(x), wanted)


def test_tensors_that_cannot_be_pointed_elsewhere_stay_whole():
    module = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)).requires_grad_(False)
    module.register_buffer("nothing", torch.empty(0, 3))
    module.register_buffer("sparse", torch.eye(3).to_sparse())
    before = (module.nothing, module.sparse)
    x = torch.randn(2, 8)
    wanted = module(x)
    manage(module, budget="1MB", device=device())
    assert torch.equal(module(x), wanted)
    unmanage(module)
    assert (module.nothing, module.sparse) == before or (
        module.nothing is before[0] and module.sparse is before[1]
    )

"""Modules that move to the device and back."""

from __future__ import annotations

import weakref
from typing import Any

import pytest
import torch
from torch import nn

import holdfast.torch
from holdfast.base.errors import Misuse

assert holdfast.torch
DEVICE = "holdfast"


class Tied(nn.Module):
    def __init__(self, device: Any = None) -> None:
        super().__init__()
        self.first = nn.Linear(3, 3, device=device)
        self.last = nn.Linear(3, 3, device=device)
        self.last.weight = self.first.weight
        self.again = self.first.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.relu(self.first(x)))

    def is_tied(self) -> bool:
        return self.first.weight is self.last.weight is self.again


def places(model: nn.Module) -> set[str]:
    return {t.device.type for t in model.state_dict().values()}


def test_weights_stay_tied_and_the_same_objects_there_and_back() -> None:
    model = Tied()
    before = dict(model.named_parameters())
    wanted = model.first.weight.detach().clone()
    for move, place in (
        (lambda: model.to(DEVICE), DEVICE),
        (lambda: model.cpu(), "cpu"),
        (lambda: model.holdfast(), DEVICE),
        (lambda: model.to("cpu"), "cpu"),
    ):
        move()
        assert model.is_tied()
        assert places(model) == {place}
        assert all(p is before[name] for name, p in model.named_parameters())
        assert torch.equal(model.first.weight.cpu(), wanted)


def test_an_optimizer_made_before_the_move_trains_the_module() -> None:
    model = nn.Linear(3, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    model.to(DEVICE)
    before = model.weight.detach().cpu()
    model(torch.ones(1, 3, device=DEVICE)).sum().backward()
    optimizer.step()
    assert torch.equal(model.weight.detach().cpu(), before - 1)


def test_gradients_hooks_and_attributes_move_along() -> None:
    model = nn.Linear(2, 1, bias=False)
    model(torch.ones(1, 2)).sum().backward()
    weight: Any = model.weight
    weight.tag, seen = "mine", []
    weight.register_hook(lambda grad: seen.append(grad.device.type))
    weight.register_post_accumulate_grad_hook(lambda p: seen.append("done"))
    model.to(DEVICE)
    assert model.weight is weight
    assert weight.tag == "mine"
    assert weight.grad.device.type == DEVICE
    model(torch.ones(1, 2, device=DEVICE)).sum().backward()
    assert seen == [DEVICE, "done"]
    assert weight.grad.cpu().tolist() == [[2, 2]]


def test_a_parameter_that_somebody_refers_to_weakly_is_replaced_and_stays_tied() -> None:
    model = Tied()
    old = model.first.weight
    reference = weakref.ref(old)
    model.to(DEVICE)
    assert reference() is old
    assert old.device.type == "cpu"
    assert model.is_tied()
    assert places(model) == {DEVICE}


def test_a_graph_from_before_the_move_is_refused() -> None:
    model = nn.Linear(2, 2)
    loss = model(torch.ones(1, 2)).sum()
    model.to(DEVICE)
    with pytest.raises(RuntimeError, match="poisoned by swap_tensors"):
        loss.backward()
    model(torch.ones(1, 2, device=DEVICE)).sum().backward()
    assert model.bias.grad is not None


def test_data_of_the_device_is_given_to_a_parameter_and_taken_back() -> None:
    parameter = nn.Parameter(torch.ones(3), requires_grad=False)
    same = parameter
    parameter.data = parameter.data.to(DEVICE)
    assert parameter is same
    assert type(parameter) is nn.Parameter
    assert parameter.device.type == DEVICE
    parameter.data = torch.zeros(3)
    assert parameter.device.type == "cpu"
    assert parameter.tolist() == [0, 0, 0]


def test_data_of_the_device_for_a_parameter_that_others_hold_is_refused() -> None:
    parameter = nn.Parameter(torch.ones(3))
    others = weakref.ref(parameter)
    with pytest.raises(Misuse, match=r"module\.to"):
        parameter.data = torch.zeros(3, device=DEVICE)
    assert others() is parameter


def test_number_formats_change_in_place() -> None:
    model = Tied().to(DEVICE)
    weight = model.first.weight
    for move, dtype in (
        (model.half, torch.float16),
        (model.double, torch.float64),
        (model.bfloat16, torch.bfloat16),
        (model.float, torch.float32),
    ):
        move()
        assert model.first.weight is weight
        assert model.is_tied()
        assert weight.dtype is dtype
        assert places(model) == {DEVICE}
    model.to("cpu", torch.float64)
    assert model.is_tied()
    assert weight.dtype is torch.float64


def test_a_module_without_numbers_gets_memory_on_the_device() -> None:
    model = Tied(device="meta")
    model.to_empty(device=DEVICE)
    assert model.is_tied()
    assert places(model) == {DEVICE}
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(1)
    assert model(torch.ones(1, 3, device=DEVICE)).tolist() == [[13, 13, 13]]


@pytest.mark.parametrize(
    "build",
    [
        lambda: nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)),
        lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4)).eval(),
        lambda: nn.LSTM(4, 4, batch_first=True),
        lambda: nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).eval(),
        lambda: nn.ParameterDict({"a": nn.Parameter(torch.ones(4))}),
    ],
    ids=["weight_norm", "spectral_norm", "LSTM", "BatchNorm", "ParameterDict"],
)
def test_modules_compute_the_same_after_the_move(build: Any) -> None:
    torch.manual_seed(0)
    model = build()
    x = torch.rand(2, 4)

    def out(x: torch.Tensor) -> torch.Tensor:
        if isinstance(model, nn.ParameterDict):
            return model["a"] * x
        found = model(x[None] if isinstance(model, nn.LSTM) else x)
        return found[0] if isinstance(found, tuple) else found

    expected = out(x)
    model.to(DEVICE)
    torch.testing.assert_close(out(x.to(DEVICE)).cpu(), expected)
    model.cpu()
    torch.testing.assert_close(out(x), expected)


def test_a_lazy_module_is_made_where_it_is_sent() -> None:
    model = nn.LazyLinear(2).to(DEVICE)
    assert model(torch.ones(1, 5, device=DEVICE)).shape == (1, 2)
    assert type(model.weight) is nn.Parameter
    assert model.weight.device.type == DEVICE


def test_modules_elsewhere_move_as_torch_moves_them() -> None:
    model = Tied()
    weight = model.first.weight
    model.double()
    assert model.first.weight is weight
    model.to("meta")
    assert model.first.weight is not weight
    assert not model.is_tied()


def test_data_parallel_leaves_a_module_where_it_is() -> None:
    here, there = nn.Linear(2, 2), nn.Linear(2, 2).to(DEVICE)
    for model, place in ((here, "cpu"), (there, DEVICE)):
        x = torch.ones(1, 2, device=place)
        assert torch.equal(nn.DataParallel(model)(x).cpu(), model(x).cpu())
        assert places(model) == {place}

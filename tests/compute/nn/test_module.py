"""What every module can do: registration, walking, modes, conversion, state, hooks, copies."""

from __future__ import annotations

import copy
import pickle
from collections import OrderedDict
from typing import Any

import ml_dtypes
import numpy
import pytest
import torch

from holdfast.base.errors import BadInput
from holdfast.compute import nn
from holdfast.compute.tensors.custom_tensor import CustomTensor


class Net(nn.Module):
    """A module with everything."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 4)
        self.norm = nn.BatchNorm1d(4)
        self.rest = nn.Sequential(OrderedDict(act=nn.ReLU(), last=nn.Linear(4, 2, bias=False)))
        self.scale = nn.Parameter([1.0])
        self.register_buffer("seen", CustomTensor([0.0]))
        self.register_buffer("passing", CustomTensor([0.0]), persistent=False)

    def forward(self, x: Any) -> Any:
        return self.rest(self.norm(self.first(x))) * self.scale


_KEYS = [
    *("scale", "seen", "first.weight", "first.bias", "norm.weight", "norm.bias"),
    *("norm.running_mean", "norm.running_var", "norm.num_batches_tracked", "rest.last.weight"),
]


def _input() -> CustomTensor:
    return CustomTensor(numpy.random.default_rng(0).standard_normal((5, 3)))


def test_what_is_set_is_registered_and_named() -> None:
    net = Net()
    assert [name for name, _ in net.named_parameters()] == [
        *("scale", "first.weight", "first.bias", "norm.weight", "norm.bias", "rest.last.weight"),
    ]
    assert [name for name, _ in net.named_buffers()] == [
        *("seen", "passing", "norm.running_mean", "norm.running_var"),
        "norm.num_batches_tracked",
    ]
    assert [name for name, _ in net.named_modules()] == [
        *("", "first", "norm", "rest", "rest.act", "rest.last"),
    ]
    assert [name for name, _ in net.named_children()] == ["first", "norm", "rest"]
    assert list(net.state_dict()) == _KEYS
    assert net.get_submodule("rest.last") is net.rest.last
    assert net.get_parameter("first.bias") is net.first.bias


def test_a_parameter_that_is_shared_comes_once() -> None:
    net = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    net[1].weight = net[0].weight
    assert len(list(net.parameters())) == 3
    assert "1.weight" in net.state_dict()


def test_setting_something_else_takes_the_place_of_what_was_there() -> None:
    net = Net()
    net.scale = nn.Parameter([2.0, 3.0])
    assert net.scale.tolist() == [2.0, 3.0]
    net.first = nn.Identity()
    assert "first.weight" not in net.state_dict()
    net.norm = None
    assert net.norm is None
    del net.scale
    assert not hasattr(net, "scale")


def test_modes_and_gradients_reach_everything_inside() -> None:
    net = Net().eval()
    assert not any(module.training for module in net.modules())
    assert all(module.training for module in net.train().modules())
    net.requires_grad_(False)
    assert not any(p.requires_grad for p in net.parameters())
    net.requires_grad_()
    net(_input()).sum().backward()
    assert all(p.grad is not None for p in net.parameters())
    net.zero_grad()
    assert all(p.grad is None for p in net.parameters())
    names: list[str] = []
    net.apply(lambda module: names.append(type(module).__name__))
    assert names == ["Linear", "BatchNorm1d", "ReLU", "Linear", "Sequential", "Net"]


@pytest.mark.parametrize("call", ["double", "half", "bfloat16", "to"])
def test_conversion_changes_fractions_and_keeps_parameters(call: str) -> None:
    net = Net()
    before = list(net.parameters())
    net(_input()).sum().backward()
    assert (net.to("float64") if call == "to" else getattr(net, call)()) is net
    kind = {"double": "float64", "half": "float16", "to": "float64"}.get(call, call)
    assert all(one is other for one, other in zip(before, net.parameters(), strict=True))
    assert {str(p.dtype) for p in net.parameters()} == {kind}
    assert {str(p.grad.dtype) for p in net.parameters() if p.grad is not None} == {kind}
    assert str(net.norm.running_mean.dtype) == kind
    assert str(net.norm.num_batches_tracked.dtype) == "int64"


def test_a_module_can_be_told_a_device_and_a_format_at_once() -> None:
    net = Net().to("numpy:0", "float64")
    assert str(net.scale.device) == "numpy:0"
    assert str(net.scale.dtype) == "float64"
    assert Net().to(net.scale).scale.device == net.scale.device


def test_hooks_see_and_change_what_goes_through_until_they_are_removed() -> None:
    net = nn.Linear(3, 2)
    x = _input()
    plain = net(x).tolist()
    first = net.register_forward_pre_hook(lambda module, args: args[0] * 2)
    second = net.register_forward_hook(lambda module, args, out: out - module.bias)
    doubled = (net(x) + net.bias).tolist()
    first.remove()
    second.remove()
    second.remove()
    expected = (2 * (numpy.array(plain) - net.bias.data) + net.bias.data).tolist()
    assert numpy.allclose(doubled, expected, atol=1e-5)
    assert net(x).tolist() == plain


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_a_copy_computes_the_same_and_learns_apart(copied: Any) -> None:
    net = Net().eval()
    net.scale.requires_grad_(False)
    other = copied(net)
    x = _input()
    assert other(x).tolist() == net(x).tolist()
    assert isinstance(other.first.weight, nn.Parameter)
    assert not other.scale.requires_grad
    assert other.first.weight.requires_grad
    nn.init.zeros_(other.first.weight)
    assert net.first.weight.data.any()


def test_a_module_prints_its_parts() -> None:
    assert repr(Net()) == (
        "Net(\n"
        "  (first): Linear(in_features=3, out_features=4, bias=True)\n"
        "  (norm): BatchNorm1d(4, eps=1e-05, momentum=0.1, affine=True, bias=True, "
        "track_running_stats=True)\n"
        "  (rest): Sequential(\n"
        "    (act): ReLU()\n"
        "    (last): Linear(in_features=4, out_features=2, bias=False)\n"
        "  )\n"
        ")"
    )


# ---- state


def test_a_state_shares_memory_and_loads_back() -> None:
    net, other = Net(), Net()
    state = net.state_dict()
    assert state["scale"].data.base is not None or state["scale"].data is net.scale.data
    assert other.load_state_dict(state) == ([], [])
    assert other.first.weight.tolist() == net.first.weight.tolist()
    nn.init.zeros_(net.scale)
    assert state["scale"].tolist() == [0.0]


def test_a_state_may_hold_arrays_and_torchs_tensors_of_any_format() -> None:
    net = nn.Linear(2, 1)
    net.load_state_dict(
        {
            "weight": torch.tensor([[1.0, 2.5]], dtype=torch.bfloat16),
            "bias": numpy.array([3.5], ml_dtypes.bfloat16),
        }
    )
    assert (net.weight.tolist(), net.bias.tolist()) == ([[1.0, 2.5]], [3.5])
    assert str(net.weight.dtype) == "float32"


def test_a_state_that_does_not_fit_is_refused_whole_and_changes_nothing() -> None:
    net = Net()
    before = {name: tensor.data.copy() for name, tensor in net.state_dict().items()}
    state: dict[str, Any] = {name: array + 1 for name, array in before.items()}
    del state["seen"], state["first.bias"]
    state["extra"] = numpy.zeros(3)
    state["scale"] = numpy.zeros((2, 2))
    with pytest.raises(BadInput) as caught:
        net.load_state_dict(state)
    assert str(caught.value) == (
        "the state does not fit Net: missing: seen, first.bias; unexpected: extra; "
        "of another shape: scale is [2, 2], not [1]\n"
        "  expected: the names and shapes of its state_dict()"
    )
    for name, tensor in net.state_dict().items():
        assert numpy.array_equal(tensor.data, before[name])
    del state["scale"]
    with pytest.raises(BadInput) as caught:
        net.load_state_dict(state)
    assert str(caught.value) == (
        "the state does not fit Net: missing: scale, seen, first.bias; unexpected: extra\n"
        "  expected: the names and shapes of its state_dict()\n"
        "  try: load_state_dict(state, strict=False), which passes over them"
    )
    keys = net.load_state_dict(state, strict=False)
    assert keys == (["scale", "seen", "first.bias"], ["extra"])
    assert numpy.array_equal(net.norm.running_mean.data, before["norm.running_mean"] + 1)


def test_a_wrong_shape_is_refused_even_when_not_strict() -> None:
    with pytest.raises(BadInput) as caught:
        nn.Linear(2, 1).load_state_dict({"weight": numpy.zeros((1, 3))}, strict=False)
    assert str(caught.value) == (
        "the state does not fit Linear: of another shape: weight is [1, 3], not [1, 2]\n"
        "  expected: the names and shapes of its state_dict()"
    )


# ---- misuse


@pytest.mark.parametrize(
    ("use", "text"),
    [
        (
            lambda net: setattr(net, "scale", 3.0),
            "cannot set the parameter 'scale' of Net to a float\n"
            "  expected: a Parameter, or None\n  try: Parameter(tensor)",
        ),
        (
            lambda net: setattr(net, "seen", 3.0),
            "cannot set the buffer 'seen' of Net to a float\n  expected: a tensor, or None",
        ),
        (
            lambda net: setattr(net, "first", len),
            "cannot set the module 'first' of Net to a builtin_function_or_method\n"
            "  expected: a Module, or None",
        ),
        (
            lambda net: net.register_buffer("forward", None),
            "'forward' is no name for a part of Net\n"
            "  expected: a name without dots that is not taken by an attribute",
        ),
        (
            lambda net: net.add_module("a.b", nn.ReLU()),
            "'a.b' is no name for a part of Net\n"
            "  expected: a name without dots that is not taken by an attribute",
        ),
        (
            lambda net: net.load_state_dict([1, 2]),
            "a list is no state for Net\n"
            "  expected: a mapping from names to tensors, as state_dict() gives it",
        ),
    ],
)
def test_misuse_is_refused(use: Any, text: str) -> None:
    with pytest.raises(BadInput) as caught:
        use(Net())
    assert str(caught.value) == text


def test_a_forgotten_super_call_is_named() -> None:
    class Forgetful(nn.Module):
        def __init__(self) -> None:
            self.weight = nn.Parameter([1.0])

    with pytest.raises(BadInput) as caught:
        Forgetful()
    assert str(caught.value) == (
        "cannot set 'weight' on Forgetful yet\n"
        "  expected: super().__init__() as the first line of __init__"
    )


def test_a_module_without_forward_and_an_unknown_attribute() -> None:
    with pytest.raises(NotImplementedError, match=r"Module has no forward\(\)"):
        nn.Module()()
    with pytest.raises(AttributeError, match="'Net' has no attribute 'nothing'"):
        _ = Net().nothing


# ---- containers


def test_lists_and_dicts_of_modules_behave_like_lists_and_dicts() -> None:
    layers = nn.ModuleList([nn.Linear(1, 1), nn.ReLU()])
    layers.append(nn.Tanh())
    layers.insert(1, nn.Sigmoid())
    layers += [nn.Identity()]
    assert [type(m).__name__ for m in layers] == ["Linear", "Sigmoid", "ReLU", "Tanh", "Identity"]
    assert [type(m).__name__ for m in layers[1:3]] == ["Sigmoid", "ReLU"]
    layers[-1] = nn.GELU()
    del layers[0]
    assert (len(layers), list(layers._modules)) == (4, ["0", "1", "2", "3"])
    assert isinstance(layers[3], nn.GELU)
    with pytest.raises(IndexError, match="ModuleList has 4 modules, none at 4"):
        _ = layers[4]
    named = nn.ModuleDict({"a": nn.ReLU(), "b": nn.Linear(1, 2)})
    named["c"] = nn.Tanh()
    assert ("a" in named, len(named), list(named)) == (True, 3, ["a", "b", "c"])
    assert isinstance(named.pop("c"), nn.Tanh)
    del named["a"]
    assert list(named.state_dict()) == ["b.weight", "b.bias"]
    assert repr(nn.ModuleList()) == repr(torch.nn.ModuleList())


def test_a_sequential_is_cut_and_named() -> None:
    net = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    part = net[:2]
    assert isinstance(part, nn.Sequential)
    assert part[0] is net[0]
    assert part(CustomTensor([[1.0, 2.0]])).shape == (1, 3)
    named = nn.Sequential(OrderedDict(a=nn.Linear(2, 3)))
    assert list(named.state_dict()) == ["a.weight", "a.bias"]


# ---- dropout


def test_dropout_keeps_the_mean_and_only_in_training() -> None:
    from holdfast.compute import random

    random.manual_seed(0)
    x = CustomTensor(numpy.ones((100, 100)), requires_grad=True)
    module = nn.Dropout(0.25)
    out = module(x)
    assert set(numpy.unique(out.data)) == {numpy.float32(0), numpy.float32(1 / 0.75)}
    assert out.data.mean() == pytest.approx(1, abs=0.02)
    out.sum().backward()
    assert x.grad is not None
    assert numpy.array_equal(x.grad.data, out.data)
    assert module.eval()(x) is x
    assert not nn.Dropout(1.0)(x).data.any()


@pytest.mark.parametrize(
    ("kind", "shape"),
    [(nn.Dropout1d, (50, 8, 3)), (nn.Dropout2d, (50, 8, 3, 4)), (nn.Dropout3d, (50, 8, 3, 2, 2))],
)
def test_feature_dropout_drops_whole_channels(kind: Any, shape: tuple[int, ...]) -> None:
    out = kind(0.5)(CustomTensor(numpy.ones(shape))).data.reshape(400, -1)
    assert set(numpy.unique(out)) == {numpy.float32(0), numpy.float32(2)}
    assert (out == out[:, :1]).all()


def test_dropout_between_recurrent_layers_happens_in_training_only() -> None:
    net = nn.LSTM(3, 4, num_layers=2, dropout=0.5)
    x = CustomTensor(numpy.ones((5, 2, 3)))
    assert net(x)[0].tolist() != net(x)[0].tolist()
    net.eval()
    assert net(x)[0].tolist() == net(x)[0].tolist()

"""Optimizers and schedulers against torch's, their state, and their errors."""

from __future__ import annotations

import copy
from typing import Any

import numpy
import pytest
import torch

from holdfast.base.errors import BadInput, Misuse
from holdfast.compute import get_num_threads, nn, optim, set_num_threads
from holdfast.compute.engine import ENGINES
from holdfast.compute.optim import lr_scheduler, update
from holdfast.compute.tensors.custom_tensor import CustomTensor
from tests.tolerance import bound

NEAR = bound("float32", 64)  # of tens of steps

_OPTIMIZERS = [
    ("SGD", {"lr": 0.1}),
    ("SGD", {"lr": 0.1, "momentum": 0.9}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "dampening": 0.3, "maximize": True}),
    ("Adam", {}),
    ("Adam", {"lr": 0.01, "betas": (0.8, 0.99), "eps": 1e-6, "weight_decay": 0.1}),
    ("Adam", {"lr": 0.01, "amsgrad": True, "maximize": True, "weight_decay": 0.1}),
    ("AdamW", {}),
    ("AdamW", {"lr": 0.01, "weight_decay": 0.1, "amsgrad": True}),
    ("RMSprop", {}),
    ("RMSprop", {"momentum": 0.9, "weight_decay": 0.01}),
    ("RMSprop", {"centered": True, "momentum": 0.5, "maximize": True}),
    ("Adagrad", {}),
    ("Adagrad", {"lr_decay": 0.1, "weight_decay": 0.01, "initial_accumulator_value": 0.2}),
]
_SHAPES = [(7, 5), (5,), (), (3, 2, 2)]


def _ids(value: Any) -> str | None:
    return ",".join(f"{k}={v}" for k, v in value.items()) if isinstance(value, dict) else None


def _parameters() -> tuple[list[Any], list[Any]]:
    rng = numpy.random.default_rng(0)
    arrays = [numpy.asarray(rng.standard_normal(shape), "float32") for shape in _SHAPES]
    return (
        [torch.nn.Parameter(torch.tensor(a)) for a in arrays],
        [nn.Parameter(a) for a in arrays],
    )


def _follow(theirs: Any, ours: Any, first: Any, second: Any, steps: int, seed: int = 1) -> None:
    rng = numpy.random.default_rng(seed)
    for _ in range(steps):
        for one, other in zip(first, second, strict=True):
            gradient = numpy.asarray(rng.standard_normal(tuple(one.shape)), "float32")
            one.grad, other.grad = torch.tensor(gradient), CustomTensor(gradient)
        theirs.step()
        ours.step()
        for one, other in zip(first, second, strict=True):
            numpy.testing.assert_allclose(other.data, one.detach().numpy(), rtol=NEAR, atol=NEAR)


@pytest.mark.parametrize(("name", "options"), _OPTIMIZERS, ids=_ids)
def test_twenty_steps_go_where_torchs_go(name: str, options: dict[str, Any]) -> None:
    first, second = _parameters()
    theirs = getattr(torch.optim, name)(first, **options)
    ours = getattr(optim, name)(second, **options)
    _follow(theirs, ours, first, second, 20)


@pytest.mark.parametrize(("name", "options"), _OPTIMIZERS, ids=_ids)
def test_a_state_goes_to_torch_and_comes_from_there(name: str, options: dict[str, Any]) -> None:
    first, second = _parameters()
    theirs = getattr(torch.optim, name)(first, **options)
    ours = getattr(optim, name)(second, **options)
    _follow(theirs, ours, first, second, 3)
    ours_again = getattr(optim, name)(second, lr=1.0)
    ours_again.load_state_dict(theirs.state_dict())
    _follow(theirs, ours_again, first, second, 3, seed=2)
    state = ours_again.state_dict()
    for kept in state["state"].values():
        for key, value in kept.items():
            kept[key] = torch.tensor(numpy.asarray(value.data, "float32") if key != "step"
                                     else float(value))  # fmt: skip
    theirs_again = getattr(torch.optim, name)(first, lr=1.0)
    for mine, own in zip(state["param_groups"], theirs_again.param_groups, strict=True):
        mine.update({k: v for k, v in own.items() if k not in mine})
    theirs_again.load_state_dict(state)
    _follow(theirs_again, ours_again, first, second, 3, seed=3)


@pytest.mark.parametrize(("name", "options"), _OPTIMIZERS, ids=_ids)
def test_other_engines_take_the_same_steps(
    name: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked, whole = _parameters()[1], _parameters()[1]
    quick, plain = (getattr(optim, name)(p, **options) for p in (blocked, whole))
    rng = numpy.random.default_rng(0)
    for _ in range(3):
        for one, other in zip(blocked, whole, strict=True):
            one.grad = CustomTensor(rng.standard_normal(tuple(one.shape)))
            other.grad = one.grad.clone()
        quick.step()
        with monkeypatch.context() as patch:  # the way every engine but NumPy goes
            patch.setattr(type(ENGINES["numpy"]), "name", "another")
            plain.step()
        for one, other in zip(blocked, whole, strict=True):
            numpy.testing.assert_allclose(one.data, other.data, rtol=NEAR, atol=NEAR)


def test_blocks_and_views_with_gaps_are_updated_like_whole_arrays() -> None:
    rng = numpy.random.default_rng(0)
    array = rng.standard_normal((3, update.BLOCK)).astype("float32")
    wide = CustomTensor(numpy.stack([array, array], 1))
    parameter, view = nn.Parameter(array), nn.Parameter(wide[:, 0].detach())
    assert not view.data.flags.c_contiguous
    for one in (parameter, view):
        one.grad = CustomTensor(array)
        optim.Adam([one], lr=0.1).step()
    assert numpy.array_equal(parameter.data, view.data)
    assert numpy.array_equal(wide.data[:, 1], array)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_threads_share_a_large_parameter_without_a_gap(count: int) -> None:
    rng = numpy.random.default_rng(0)
    array, gradient = (rng.standard_normal(9 * update.BLOCK + 5).astype("float32") for _ in "ab")
    before = get_num_threads()
    set_num_threads(count)
    try:
        parameter = nn.Parameter(array)
        parameter.grad = CustomTensor(gradient)
        optim.SGD([parameter], lr=0.5).step()
    finally:
        set_num_threads(before)
    assert numpy.array_equal(parameter.data, array - numpy.float32(0.5) * gradient)


@pytest.mark.parametrize("kind", ["float64", "bfloat16", "float16"])
def test_parameters_of_other_formats_are_learned(kind: str) -> None:
    parameter = nn.Parameter(CustomTensor([1.0, -2.0], dtype=kind))
    parameter.grad = CustomTensor([0.5, -0.5], dtype=kind)
    optim.Adam([parameter], lr=0.25).step()
    assert str(parameter.dtype) == kind
    assert parameter.tolist() == pytest.approx([0.75, -1.75], abs=1e-3)


def test_groups_have_options_of_their_own() -> None:
    one, two, three = (nn.Parameter([1.0]) for _ in range(3))
    made = optim.SGD([{"params": [one]}, {"params": [two], "lr": 0.5}], lr=0.1)
    made.add_param_group({"params": three, "lr": 0.0})
    for parameter in (one, two, three):
        parameter.grad = CustomTensor([1.0])
    made.step()
    assert [p.item() for p in (one, two, three)] == pytest.approx([0.9, 0.5, 1.0])


def test_zero_grad_forgets_or_fills_with_zeros() -> None:
    parameter = nn.Parameter([1.0])
    made = optim.SGD([parameter])
    parameter.grad = CustomTensor([2.0])
    made.zero_grad(set_to_none=False)
    assert parameter.grad is not None
    assert parameter.grad.tolist() == [0.0]
    made.zero_grad()
    assert parameter.grad is None
    made.step()
    assert parameter.tolist() == [1.0]


def test_a_closure_is_called_with_gradients_on() -> None:
    parameter = nn.Parameter([3.0])
    made = optim.SGD([parameter], lr=0.5)

    def closure() -> Any:
        made.zero_grad()
        loss = (parameter * parameter).sum()
        loss.backward()
        return loss

    assert made.step(closure).item() == 9.0
    assert parameter.item() == 0.0


def test_custom_adam_has_the_names_of_the_specification() -> None:
    model = nn.CustomLinear(3, 2)
    made = optim.CustomAdam(model.parameters(), lr=0.01)
    assert (made.lr, made.m, made.v, len(made.parameters)) == (0.01, {}, {}, 2)
    model(CustomTensor([[1.0, 2.0, 3.0]])).sum().backward()
    made.step()
    assert set(made.m) == set(made.v) == {0, 1}
    assert made.m[1].tolist() == pytest.approx([0.1, 0.1])
    made.lr = 0.5
    assert made.param_groups[0]["lr"] == 0.5


def test_a_learned_tensor_used_before_the_step_is_noticed() -> None:
    parameter = nn.Parameter([3.0])
    loss = (parameter * parameter).sum()
    parameter.grad = CustomTensor([1.0])
    optim.SGD([parameter]).step()
    with pytest.raises(Misuse, match="was changed in place"):
        loss.backward()


# ---- errors


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (
            lambda: optim.SGD(nn.Parameter([1.0])),
            "SGD was given float32[1]\n  expected: several parameters\n"
            "  try: module.parameters(), or [tensor]",
        ),
        (lambda: optim.Adam([]), "Adam was given no parameters\n  expected: at least one"),
        (
            lambda: optim.Adam([3.0]),
            "Adam cannot change this parameter: a float is not a tensor\n"
            "  expected: parameters of a module, each once",
        ),
        (
            lambda: optim.Adam([nn.Parameter([1.0]) * 2]),
            "Adam cannot change this parameter: float32[1] is the result of a computation\n"
            "  expected: parameters of a module, each once",
        ),
        (
            lambda: optim.SGD([CustomTensor([1], dtype="int64")]),
            "SGD cannot change this parameter: int64[1] is not floating point\n"
            "  expected: parameters of a module, each once",
        ),
        (
            lambda: optim.AdamW([nn.Parameter([1.0])], lr=-1),
            "AdamW cannot have lr=-1\n  expected: at least 0",
        ),
        (
            lambda: optim.Adam([nn.Parameter([1.0])], betas=(0.9, 1.0)),
            "Adam cannot have betas=(0.9, 1.0)\n  expected: at least 0 and below 1",
        ),
        (
            lambda: optim.SGD([nn.Parameter([1.0])], nesterov=True),
            "SGD cannot look ahead (nesterov) with momentum=0 and dampening=0\n"
            "  expected: a momentum above 0, and no dampening",
        ),
        (
            lambda: optim.SGD([nn.Parameter([1.0])]).load_state_dict(
                optim.SGD([nn.Parameter([1.0]), nn.Parameter([2.0])]).state_dict()
            ),
            "the state is for groups of [2] parameters, not [1]\n"
            "  expected: the state of an optimizer with the same groups",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(make: Any, text: str) -> None:
    with pytest.raises(BadInput) as caught:
        make()
    assert str(caught.value) == text


def test_a_parameter_twice_is_refused() -> None:
    parameter = nn.Parameter([1.0])
    with pytest.raises(BadInput) as caught:
        optim.SGD([{"params": [parameter]}, {"params": [parameter]}])
    assert str(caught.value) == (
        "SGD cannot change this parameter: float32[1] is there twice\n"
        "  expected: parameters of a module, each once"
    )


def test_a_state_of_another_shape_is_refused() -> None:
    small, large = nn.Parameter([1.0]), nn.Parameter([1.0, 2.0])
    of = optim.Adam([large])
    large.grad = CustomTensor([1.0, 1.0])
    of.step()
    with pytest.raises(BadInput) as caught:
        optim.Adam([small]).load_state_dict(of.state_dict())
    assert str(caught.value) == (
        "'exp_avg' of the state is float32[2], its parameter float32[1]\n  expected: equal shapes"
    )


# ---- schedulers

_SCHEDULERS = [
    ("StepLR", {"step_size": 3, "gamma": 0.5}),
    ("MultiStepLR", {"milestones": [2, 5, 5, 9], "gamma": 0.3}),
    ("ExponentialLR", {"gamma": 0.9}),
    ("CosineAnnealingLR", {"T_max": 5, "eta_min": 0.01}),
    ("LambdaLR", {"lr_lambda": lambda epoch: 1 / (1 + epoch)}),
    ("LinearLR", {}),
    ("LinearLR", {"start_factor": 1.0, "end_factor": 0.0, "total_iters": 4}),
    ("ConstantLR", {"factor": 0.25, "total_iters": 4}),
    ("OneCycleLR", {"max_lr": 0.4, "total_steps": 25}),
    ("OneCycleLR", {"max_lr": [0.4, 0.1], "epochs": 5, "steps_per_epoch": 5,
                    "anneal_strategy": "linear", "three_phase": True}),
]  # fmt: skip


def _two(optimizer: str) -> tuple[Any, Any]:
    made = []
    for library, parameter in ((torch.optim, torch.nn.Parameter), (optim, nn.Parameter)):
        two = [parameter(torch.ones(1)) if library is torch.optim else parameter([1.0])
               for _ in range(2)]  # fmt: skip
        options = {"momentum": 0.9} if optimizer == "SGD" else {}
        groups = [{"params": [two[0]]}, {"params": [two[1]], "lr": 0.05}]
        made.append(getattr(library, optimizer)(groups, lr=0.2, **options))
    return made[0], made[1]


def _rates(optimizer: Any) -> list[Any]:
    return [
        [g["lr"], g.get("momentum", 0), g.get("betas", (0,))[0]] for g in optimizer.param_groups
    ]


@pytest.mark.parametrize("optimizer", ["SGD", "Adam"])
@pytest.mark.parametrize(("name", "options"), _SCHEDULERS, ids=lambda v: None)
def test_rates_follow_torchs(name: str, options: dict[str, Any], optimizer: str) -> None:
    theirs, ours = _two(optimizer)
    one = getattr(torch.optim.lr_scheduler, name)(theirs, **options)
    other = getattr(lr_scheduler, name)(ours, **options)
    for _ in range(24):
        assert numpy.allclose(_rates(ours), _rates(theirs), rtol=1e-12, atol=1e-15)
        assert other.get_last_lr() == pytest.approx(one.get_last_lr(), abs=1e-15)
        theirs.step()
        ours.step()
        one.step()
        other.step()


@pytest.mark.parametrize(
    "options",
    [
        {"patience": 2},
        {"patience": 1, "mode": "max", "factor": 0.5, "cooldown": 2},
        {"patience": 0, "threshold": 0.1, "threshold_mode": "abs", "min_lr": [0.01, 0.02]},
    ],
)
def test_a_plateau_is_noticed_when_torch_notices_it(options: dict[str, Any]) -> None:
    theirs, ours = _two("SGD")
    one = torch.optim.lr_scheduler.ReduceLROnPlateau(theirs, **options)
    other = lr_scheduler.ReduceLROnPlateau(ours, **options)
    rng = numpy.random.default_rng(0)
    for step in range(40):
        loss = float(1 / (1 + step // 4) + 0.05 * rng.standard_normal())
        one.step(loss)
        other.step(CustomTensor(loss))
        assert numpy.allclose(_rates(ours), _rates(theirs), rtol=1e-12)


@pytest.mark.parametrize("optimizer", ["SGD", "Adam"])
def test_schedulers_one_after_the_other_and_at_once_follow_torchs(optimizer: str) -> None:
    theirs, ours = _two(optimizer)
    made = []
    for of, library in ((theirs, torch.optim.lr_scheduler), (ours, lr_scheduler)):
        parts = [
            library.LinearLR(of, 0.1, total_iters=4),
            library.CosineAnnealingLR(of, 8),
            library.ExponentialLR(of, 0.9),
        ]
        made.append(library.SequentialLR(of, parts, [4, 10]))
        made.append(library.StepLR(of, 5, 0.5))
    for _ in range(20):
        assert numpy.allclose(_rates(ours), _rates(theirs), rtol=1e-10)
        theirs.step()
        ours.step()
        for scheduler in made:
            scheduler.step()


def test_a_scheduler_goes_on_where_its_state_was() -> None:
    parameter = nn.Parameter([1.0])
    of = optim.SGD([parameter], lr=1.0)
    first = lr_scheduler.CosineAnnealingLR(of, 10)
    for _ in range(4):
        first.step()
    states = copy.deepcopy((of.state_dict(), first.state_dict()))
    first.step()
    fresh = optim.SGD([parameter], lr=1.0)
    second = lr_scheduler.CosineAnnealingLR(fresh, 10)
    fresh.load_state_dict(states[0])
    second.load_state_dict(states[1])
    second.step()
    assert second.get_last_lr() == first.get_last_lr()
    assert fresh.param_groups[0]["lr"] == of.param_groups[0]["lr"]


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (
            lambda of: lr_scheduler.LinearLR(of, 0.0),
            "LinearLR cannot go from 0.0 to 1.0\n"
            "  expected: a start above 0 and up to 1, an end from 0 to 1",
        ),
        (
            lambda of: lr_scheduler.OneCycleLR(of, 1.0),
            "OneCycleLR was given total_steps=None, epochs=None, steps_per_epoch=None, "
            "anneal_strategy='cos'\n"
            "  expected: a number of steps, or epochs and steps for each; cos or linear",
        ),
        (
            lambda of: lr_scheduler.LambdaLR(of, []),
            "LambdaLR was given 0 functions for 1 groups\n  expected: one, or one for each group",
        ),
        (
            lambda of: lr_scheduler.SequentialLR(of, [lr_scheduler.StepLR(of, 1)], [3]),
            "SequentialLR was given 1 schedulers and 1 milestones\n"
            "  expected: one milestone between each two schedulers",
        ),
        (
            lambda of: lr_scheduler.StepLR(None, 1),
            "StepLR was given a NoneType\n  expected: an optimizer",
        ),
    ],
)
def test_schedules_that_make_no_sense_are_refused(make: Any, text: str) -> None:
    with pytest.raises(BadInput) as caught:
        make(optim.SGD([nn.Parameter([1.0])]))
    assert str(caught.value) == text


# ---- what newcomers try


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (
            lambda p: optim.Adam(nn.Linear(1, 1)),
            "Adam was given a Linear\n  expected: parameters, or groups of them\n"
            "  try: module.parameters()",
        ),
        (lambda p: optim.Adam([p], lr="x"), "Adam cannot have lr='x'\n  expected: at least 0"),
        (
            lambda p: optim.Adam([p], betas=(0.9,)),
            "Adam cannot have betas=(0.9,)\n  expected: two numbers",
        ),
        (
            lambda p: optim.SGD([{"lr": 1.0}]),
            "SGD was given a dict for a group\n"
            '  expected: groups like {"params": module.parameters(), "lr": 0.1}',
        ),
        (
            lambda p: optim.SGD([{"params": [p], "lr": -1}]),
            "SGD cannot have lr=-1\n  expected: at least 0",
        ),
        (
            lambda p: optim.SGD([p]).load_state_dict({}),
            "this dict is no state of an optimizer\n"
            '  expected: what state_dict() gives: "state" and "param_groups" with their "params"',
        ),
        (
            lambda p: optim.SGD([p]).load_state_dict(
                {"state": {5: {}}, "param_groups": [{"params": [0]}]}
            ),
            "the state has a parameter 5 that no group has\n"
            "  expected: the state of an optimizer with the same groups",
        ),
    ],
    ids=lambda v: "",
)
def test_optimizers_that_make_no_sense_are_refused(make: Any, text: str) -> None:
    with pytest.raises(BadInput) as caught:
        make(nn.Parameter([1.0]))
    assert str(caught.value) == text


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (
            lambda of: lr_scheduler.StepLR(of, 0),
            "StepLR cannot have step_size=0\n  expected: at least 1",
        ),
        (
            lambda of: lr_scheduler.CosineAnnealingLR(of, 0),
            "CosineAnnealingLR cannot have T_max=0\n  expected: at least 1",
        ),
        (
            lambda of: lr_scheduler.LinearLR(of, total_iters=0),
            "LinearLR cannot have total_iters=0\n  expected: at least 1",
        ),
        (
            lambda of: lr_scheduler.ExponentialLR(of, None),
            "ExponentialLR cannot have gamma=None\n  expected: a number",
        ),
        (
            lambda of: lr_scheduler.LambdaLR(of, lambda epoch: None),
            "LambdaLR cannot have factor=None\n  expected: a number",
        ),
        (
            lambda of: lr_scheduler.MultiStepLR(of, 3),
            "MultiStepLR cannot have milestones=3\n  expected: a list of epochs",
        ),
        (
            lambda of: lr_scheduler.OneCycleLR(of, [0.1, 0.2], total_steps=5),
            "max_lr has 2 values for 1 groups\n  expected: one, or one for each group",
        ),
        (
            lambda of: lr_scheduler.OneCycleLR(of, 0.1, total_steps=5, pct_start=2),
            "OneCycleLR cannot have pct_start=2\n  expected: 0 to 1",
        ),
        (
            lambda of: lr_scheduler.ReduceLROnPlateau(None),
            "ReduceLROnPlateau was given a NoneType\n  expected: an optimizer",
        ),
        (
            lambda of: lr_scheduler.ReduceLROnPlateau(of).step(None),
            "ReduceLROnPlateau cannot look at a NoneType\n"
            "  expected: a number, such as the loss of an epoch\n  try: scheduler.step(loss)",
        ),
        (
            lambda of: lr_scheduler.StepLR(of, 1).load_state_dict(None),
            "a NoneType is no state of StepLR\n  expected: what state_dict() gives",
        ),
    ],
    ids=lambda v: "",
)
def test_schedules_that_cannot_be_are_refused(make: Any, text: str) -> None:
    with pytest.raises(BadInput) as caught:
        make(optim.SGD([nn.Parameter([1.0])]))
    assert str(caught.value) == text


def test_a_cycle_without_a_way_up_begins_at_the_top() -> None:
    of = optim.SGD([nn.Parameter([1.0])])
    schedule = lr_scheduler.OneCycleLR(of, (1.0,), total_steps=10, pct_start=0.1)
    assert schedule.get_last_lr() == [1.0]


def test_a_rate_may_be_a_tensor() -> None:
    assert optim.SGD([nn.Parameter([1.0])], lr=CustomTensor(0.5)).param_groups[0]["lr"] == 0.5


@pytest.mark.parametrize(
    ("gradient", "reason"),
    [
        (CustomTensor([1.0]), "its gradient is float32[1]"),
        (CustomTensor([1.0] * 5), "its gradient is float32[5]"),
        (CustomTensor([[1.0] * 3] * 3), "its gradient is float32[3, 3]"),
        (CustomTensor([1] * 3, dtype="int64"), "its gradient is int64[3]"),
        (CustomTensor([1] * 3, dtype="complex64"), "its gradient is complex64[3]"),
        (numpy.ones(3), "its gradient is a ndarray"),
    ],
    ids=lambda v: "",
)
def test_a_gradient_of_something_else_changes_nothing(gradient: Any, reason: str) -> None:
    first, second = nn.Parameter([1.0]), nn.Parameter([1.0] * 3)
    first.grad, second.grad = CustomTensor([1.0]), gradient
    with pytest.raises(BadInput, match="SGD cannot change the parameter") as caught:
        optim.SGD([first, second], lr=1.0).step()
    assert reason in caught.value.what
    assert (first.tolist(), second.tolist()) == ([1.0], [1.0] * 3)


def test_a_parameter_in_memory_that_must_not_change_is_refused() -> None:
    parameter = nn.Parameter(CustomTensor(1.0).expand(3))
    parameter.grad = CustomTensor([1.0] * 3)
    with pytest.raises(BadInput, match="its memory must not be changed"):
        optim.SGD([parameter]).step()

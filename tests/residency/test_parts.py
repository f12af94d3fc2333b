"""Splitting a model into parts, and choosing which stay on a device."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from holdfast.residency.model_management.models.parts import (
    Cost,
    choose,
    costly_first,
    split,
)


def described(model: nn.Module, **options):
    parts = split(model, **options)
    return [(p.name, [s.key for s in p.slots], p.size_bytes, p.fixed, p.shares) for p in parts]


def test_leaf_modules_are_the_parts():
    model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.BatchNorm1d(3))
    statistics = ["running_mean", "running_var", "num_batches_tracked"]
    assert described(model) == [
        ("0", ["0.weight", "0.bias"], 36, False, False),
        ("2", ["2.weight", "2.bias", *(f"2.{name}" for name in statistics)], 56, False, False),
    ]


def test_a_model_that_is_one_leaf_is_one_part():
    assert described(nn.Linear(2, 3)) == [("", ["weight", "bias"], 36, False, False)]


def test_tensors_beside_children_are_fixed():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.position = nn.Parameter(torch.zeros(4))
            self.linear = nn.Linear(2, 3, bias=False)

    assert described(Model()) == [
        ("", ["position"], 16, True, False),
        ("linear", ["linear.weight"], 24, False, False),
    ]


def test_tensors_beside_children_without_tensors_make_a_leaf():
    class Experts(nn.Module):
        def __init__(self):
            super().__init__()
            self.weights = nn.Parameter(torch.zeros(4))
            self.activation = nn.GELU()

    assert described(Experts()) == [("", ["weights"], 16, False, False)]


def test_parameter_lists_belong_to_the_module_that_has_them():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.rows = nn.ParameterList([torch.zeros(2), torch.zeros(3)])
            self.named = nn.ParameterDict({"a": torch.zeros(1)})

    keys = ["rows.0", "rows.1", "named.a"]
    assert described(Model()) == [("", keys, 24, False, False)]


def test_attention_is_one_part_as_it_does_not_call_its_child():
    keys = ["in_proj_weight", "in_proj_bias", "out_proj.weight", "out_proj.bias"]
    assert described(nn.MultiheadAttention(4, 1)) == [("", keys, 320, False, False)]


def test_other_modules_can_be_named_as_whole():
    class Reads(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(2, 2, bias=False)

    model = nn.Sequential(Reads())
    assert described(model)[0][0] == "0.linear"
    assert described(model, whole=(Reads,)) == [("0", ["0.linear.weight"], 16, False, False)]


def test_tied_weights_are_counted_once_and_both_parts_know():
    model = nn.Sequential(nn.Embedding(4, 2), nn.Linear(2, 4))
    model[1].weight = model[0].weight
    assert described(model) == [
        ("0", ["0.weight"], 32, False, False),
        ("1", ["1.bias"], 16, False, True),
    ]


def test_a_module_used_twice_is_one_part():
    shared = nn.Linear(2, 2, bias=False)
    model = nn.Sequential(nn.Sequential(shared), nn.Sequential(shared))
    assert described(model) == [("0.0", ["0.0.weight"], 16, False, False)]


def test_a_slot_puts_data_everywhere_and_a_parameter_stays_itself():
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    model[1].weight = model[0].weight
    weight = model[0].weight
    (slot,) = split(model)[0].slots
    slot.put(torch.full((2, 2), 7.0))
    assert model[0].weight is model[1].weight is weight
    assert weight.tolist() == [[7, 7], [7, 7]]


def test_a_slot_replaces_the_parameter_where_torch_cannot_change_it():
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    model[1].weight = model[0].weight
    model[0].weight.requires_grad_(False).label = "mine"
    (slot,) = split(model)[0].slots
    slot.put(torch.zeros(2, 2, device="meta"))
    assert model[0].weight is model[1].weight is slot.get()
    assert isinstance(slot.get(), nn.Parameter)
    assert slot.get().device.type == "meta"
    assert not slot.get().requires_grad
    assert slot.get().label == "mine"


def test_parts_keep_no_module_alive():
    model = nn.Sequential(nn.Linear(2, 2))
    alive = weakref.ref(model[0])
    parts = split(model)
    del model
    gc.collect()
    assert alive() is None
    assert parts[0].module() is None


COSTS = [Cost("a", 50, 50), Cost("b", 30, 30), Cost("c", 20, 90), Cost("d", 10, 10)]


def test_the_costliest_to_bring_again_come_first():
    equal = [Cost("x", 5, 10), Cost("y", 10, 10), Cost("z", 10, 10)]
    assert [cost.name for cost in costly_first(COSTS)] == ["c", "a", "b", "d"]
    assert [cost.name for cost in costly_first(equal)] == ["z", "y", "x"]


@pytest.mark.parametrize(
    ("budget_bytes", "kept", "buffer_bytes"),
    [
        (110, ["c", "a", "b", "d"], 0),  # all, and nothing comes and goes
        (109, ["c", "a"], 30),  # 20 + 50 and 30 for b; b would need 10 more
        (100, ["c", "a"], 30),
        (99, ["c", "d"], 50),  # a comes and goes in 50: no room for 20 + 30 beside it
        (80, ["c", "d"], 50),
        (79, ["c"], 50),
        (70, ["c"], 50),
        (69, [], 90),  # c does not fit beside what a takes
        (0, [], 90),
    ],
)
def test_what_is_kept_leaves_room_for_what_comes_and_goes(budget_bytes, kept, buffer_bytes):
    choice = choose(COSTS, budget_bytes)
    assert list(choice.kept) == kept
    assert choice.buffer_bytes == buffer_bytes
    assert choice.kept_bytes == sum(c.size_bytes for c in COSTS if c.name in kept)


def test_fixed_parts_are_kept_first_whatever_the_budget():
    costs = [Cost("leaf", 50, 50), Cost("own", 5, 5, fixed=True)]
    assert choose(costs, 0).kept == ("own",)
    assert choose(costs, 1000).kept == ("own", "leaf")


def test_what_is_there_stays_there():
    assert choose(COSTS, 0, there={"d", "b"}).kept == ("b", "d")


costs_of_parts = st.lists(
    st.tuples(st.integers(0, 50), st.integers(0, 50), st.booleans()), max_size=12
).map(lambda rows: [Cost(str(i), s, s + e, f) for i, (s, e, f) in enumerate(rows)])


@given(costs_of_parts, st.integers(0, 700))
def test_a_choice_never_exceeds_its_budget(costs, budget_bytes):
    choice = choose(costs, budget_bytes)
    fixed = {cost.name for cost in costs if cost.fixed}
    assert fixed <= set(choice.kept)
    assert choice.kept_bytes == sum(c.size_bytes for c in costs if c.name in choice.kept)
    more = [c for c in costs if c.name in choice.kept and not c.fixed and c.size_bytes]
    if more:
        assert choice.kept_bytes + choice.buffer_bytes <= budget_bytes


@given(costs_of_parts, st.integers(0, 700))
def test_a_choice_only_grows_from_what_is_there(costs, budget_bytes):
    first = choose(costs, budget_bytes)
    again = choose(costs, budget_bytes, first.kept)
    assert set(first.kept) <= set(again.kept)
    assert set(choose(costs, budget_bytes + 100, first.kept).kept) >= set(first.kept)

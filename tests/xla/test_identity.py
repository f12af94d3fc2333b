"""What the programs of a module are called by."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import nn

from holdfast.xla import tiny
from holdfast.xla.module.identity import identity


def linear(**fields: Any) -> nn.Module:
    module = nn.Linear(4, 4)
    vars(module).update(fields)
    return module


def test_weights_have_no_part_in_it() -> None:
    assert identity(linear()) == identity(linear()) is not None


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (torch.relu, torch.sigmoid),
        (torch.zeros(2), torch.ones(2)),
        ({"scale": 1}, {"scale": 2}),
        ([(1, 2), (3, 4)], [(1, 2), (3, 5)]),
        (functools.partial(torch.add, alpha=1), functools.partial(torch.add, alpha=2)),
    ],
)
def test_everything_that_is_traced_has(one: Any, other: Any) -> None:
    assert identity(linear(field=one)) == identity(linear(field=one))
    assert identity(linear(field=one)) != identity(linear(field=other))


class Helper:
    pass


class Own(nn.Linear):
    pass


@pytest.mark.parametrize(
    "module",
    [Own(4, 4), nn.Sequential(Own(4, 4)), linear(f=lambda x: x), linear(processors=[Helper()])],
    ids=["class", "part", "function", "helper"],
)
def test_code_without_a_version_has_no_name(module: nn.Module) -> None:
    assert identity(module) is None


def test_a_replaced_method_or_operator_is_such_code(monkeypatch: pytest.MonkeyPatch) -> None:
    assert identity(linear(), (torch.add,)) is not None
    assert identity(linear(), (lambda x: x,)) is None
    module = tiny.make("diffusers:FluxTransformer2DModel").module
    assert identity(module) is not None
    monkeypatch.setattr(type(module), "forward", lambda self, x: x)
    assert identity(module) is None


def test_a_table_that_holds_itself_is_no_problem() -> None:
    table: dict[str, Any] = {}
    table["again"] = table
    assert identity(linear(field=table)) is not None

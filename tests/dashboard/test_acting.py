"""What others may have this process do while its models run."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from holdfast import memory, residency
from holdfast.base.errors import BadInput, NotFound, Unsupported
from holdfast.dashboard.ipc import actions
from holdfast.dashboard.ipc.client import Attached
from holdfast.dashboard.snapshot import sources
from holdfast.dashboard.snapshot.snapshot import ModelUse
from holdfast.residency.carriers.simulated import Simulated
from holdfast.residency.managed.managed import Managed
from holdfast.residency.model_management.models.patcher import Patcher

pytestmark = pytest.mark.slow

HERE = os.getpid()
INPUT = torch.linspace(-1, 1, 256).reshape(2, 128)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(128, 128) for _ in range(24))).eval()


def run(module: nn.Module, times: int = 1) -> torch.Tensor:
    with torch.no_grad():
        for _ in range(times - 1):
            module(INPUT)
        return module(INPUT)


@pytest.fixture(params=["simulated", "cpu"])
def managed(request: pytest.FixtureRequest) -> Iterator[Managed]:
    """A module that was planned for, on the simulated device and on the host."""
    device: Any = Simulated(capacity_bytes=1 << 30) if request.param == "simulated" else "cpu"
    module = network()
    made = residency.manage(module, budget=1_000_000, device=device)
    run(module, 4)
    sources.failures.clear()
    yield made
    residency.unmanage(module)
    assert list(sources.failures) == []


def told(attached: Attached) -> ModelUse:
    return next(one for one in attached.process().models if one.adjustable)


def test_budgets_that_change_fifty_times_while_it_runs_change_no_bit(
    offered: Path, managed: Managed
) -> None:
    expected, over = run(network()), threading.Event()
    different: list[int] = []
    passes = managed.passes

    def loop() -> None:
        while not over.is_set():
            if not torch.equal(run(managed.module), expected):
                different.append(managed.passes)

    running = threading.Thread(target=loop)
    running.start()
    budgets = random.Random(5).choices([None, 400_000, 700_000, 1_200_000, 3_000_000], k=50)
    try:
        with Attached(HERE) as attached:
            name = told(attached).id
            for number, budget in enumerate(budgets):
                assert attached.set_budget(name, budget).budget_bytes == budget
                if number % 10 == 0:
                    attached.free(models=True)
    finally:
        over.set()
        running.join()
    assert different == []
    assert managed.passes > passes
    assert torch.equal(run(managed.module), expected)


def test_a_smaller_budget_holds_at_once_where_nothing_runs(offered: Path, managed: Managed) -> None:
    held = managed.held_bytes
    with Attached(HERE) as attached:
        after = attached.set_budget(told(attached).id, 500_000)
        assert (after.budget_bytes, after.resident_bytes) == (500_000, 0)
        run(managed.module)
        now = told(attached)
    assert 0 < now.resident_bytes <= 500_000 < held
    assert now.streamed_bytes > 0


def test_a_budget_that_is_too_small_is_refused_with_the_smallest(
    offered: Path, managed: Managed
) -> None:
    with Attached(HERE) as attached:
        model = told(attached)
        least = model.smallest_bytes
        assert least is not None
        for budget in (0, least - 1):
            with pytest.raises(BadInput) as caught:
                attached.set_budget(model.id, budget)
        assert str(caught.value) == (
            f"Sequential cannot run inside of {least / 1000:.1f} KB\n"
            f"  expected: a budget of at least {least} bytes ({least / 1000:.1f} KB)"
        )
        assert managed.group.budget_bytes == 1_000_000
        attached.set_budget(model.id, least)
        run(managed.module, 3)


def test_before_a_module_ran_a_budget_has_to_hold_its_largest_weight(offered: Path) -> None:
    module = network()
    largest = max(weight.numel() * weight.element_size() for weight in module.parameters())
    made = residency.manage(module, budget=1_000_000, device=Simulated(capacity_bytes=1 << 30))
    with Attached(HERE) as attached:
        model = told(attached)
        assert model.smallest_bytes is None
        with pytest.raises(BadInput) as caught:
            attached.set_budget(model.id, largest - 1)
    assert str(caught.value) == (
        f"Sequential cannot run inside of {(largest - 1) / 1000:.1f} KB\n"
        f"  expected: a budget of at least {largest} bytes ({largest / 1000:.1f} KB)"
    )
    assert made.group.budget_bytes == 1_000_000
    residency.unmanage(module)


@pytest.mark.parametrize("budget", [-1, 1.5, "2GB", True])
def test_a_budget_that_is_no_number_of_bytes_is_refused(
    offered: Path, managed: Managed, budget: Any
) -> None:
    with Attached(HERE) as attached, pytest.raises(BadInput) as caught:
        attached.set_budget(told(attached).id, budget)
    assert str(caught.value) == (
        f"cannot use budget_bytes={budget!r}\n  expected: an integer from 0 to {1 << 62}"
    )


def test_a_model_that_is_not_there_is_not_found(managed: Managed) -> None:
    (name,) = (one.id for one in actions.models.models() if one.adjustable)
    with pytest.raises(NotFound) as caught:
        actions.set_budget("nobody", 5)
    assert str(caught.value) == f"process {HERE} has no model 'nobody'\n  expected: one of {name}"


def test_a_model_without_a_budget_has_none_to_change() -> None:
    patcher = Patcher(nn.Linear(8, 8), torch.device("cpu"), torch.device("cpu"))
    residency.load_models_gpu([patcher])
    try:
        (name,) = (one.id for one in actions.models.models() if one.keeper == "manager")
        with pytest.raises(Unsupported) as caught:
            actions.set_budget(name, 5)
        assert str(caught.value) == (
            "the budget of Linear cannot be changed\n"
            "  expected: a model that was loaded with a budget\n"
            "  try: residency.manage(module, budget=…), or holdfast run --budget"
        )
    finally:
        residency.unload_all_models()


def test_freeing_models_has_them_leave_the_device_until_their_next_run(managed: Managed) -> None:
    expected = run(managed.module)
    assert managed.held_bytes > 0
    freed = actions.free(models=True)
    assert managed.held_bytes == 0
    assert freed.models == 1
    assert "1 model unloaded" in freed.text
    assert torch.equal(run(managed.module), expected)
    assert managed.held_bytes > 0


def test_of_the_manager_those_stay_that_the_last_load_asked_for() -> None:
    patchers = [Patcher(nn.Linear(8, 8), "cpu", "cpu") for _ in range(2)]
    try:
        for one in patchers:
            residency.load_models_gpu([one])
        listed = list(residency.current_loaded_models)
        assert actions.free(models=True).models == 0
        listed[1].currently_used = False
        assert actions.free(models=True).models == 1
        assert list(residency.current_loaded_models) == listed[:1]
    finally:
        residency.unload_all_models()


def test_a_model_that_runs_stays(managed: Managed) -> None:
    inside: list[int] = []
    layer = list(managed.module.children())[12]
    handle = layer.register_forward_hook(
        lambda *_: inside.append(actions.free(models=True, garbage=False).models)
    )
    run(managed.module)
    handle.remove()
    assert inside == [0]


@pytest.mark.slow
def test_tensors_are_holders_also_after_a_pool_was_under_torch() -> None:
    memory.install_torch_pool()
    try:
        in_pool = nn.Linear(1500, 1500)
        found = [one for one in actions.holders(1000) if "a module Linear" in one.location]
        assert found == []  # it is a block of the pool
    finally:
        memory.uninstall_torch_pool()
    del in_pool
    kept = nn.Linear(1500, 1500)
    found = [one for one in actions.holders(1000) if "a module Linear" in one.location]
    assert found[0].nbytes >= kept.weight.numel() * 4


def test_the_largest_holders_name_the_modules_of_tensors() -> None:
    kept = nn.Linear(1500, 1500)
    found = [one for one in actions.holders(1000) if "a module Linear" in one.location]
    assert found
    assert found[0].nbytes >= kept.weight.numel() * 4
    assert found[0].device == "cpu"

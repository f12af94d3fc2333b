"""Locking host memory: with a driver that checks every range, and with CUDA where there is one."""

from __future__ import annotations

import gc
import threading

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from holdfast.residency.model_management.models import pinned
from holdfast.residency.model_management.models.pinned import CudaDriver, PinnedBudget
from holdfast.residency.model_management.rules import current
from holdfast.residency.model_management.rules.machine import Machine
from holdfast.residency.model_management.rules.options import Options

HERE = torch.cuda.is_available()
KIB, GIB = 2**10, 2**30


class Driver:
    """Locks nothing, and fails the test on what a real one would choke on."""

    def __init__(self) -> None:
        self.ranges: dict[int, int] = {}
        self.refuses = False
        self.calls: list[str] = []

    def register(self, address: int, nbytes: int) -> bool:
        self.calls.append("register")
        assert nbytes > 0
        for start, size in self.ranges.items():
            assert address + nbytes <= start or start + size <= address, "locked twice"
        if not self.refuses:
            self.ranges[address] = nbytes
        return not self.refuses

    def unregister(self, address: int) -> bool:
        self.calls.append("unregister")
        assert address in self.ranges, "unlocked what was not locked"
        if self.refuses:
            return False
        del self.ranges[address]
        return True


@pytest.fixture
def driver() -> Driver:
    return Driver()


@pytest.fixture
def budget(driver: Driver) -> PinnedBudget:
    return PinnedBudget(driver, 64 * KIB)


def test_memory_is_locked_counted_and_unlocked(budget, driver):
    tensor = torch.zeros(1024)
    assert budget.pin(tensor)
    assert driver.ranges == {tensor.data_ptr(): 4096}
    assert budget.total_pinned_bytes == 4096
    assert budget.unpin(tensor)
    assert driver.ranges == {}
    assert budget.total_pinned_bytes == 0


def test_what_is_locked_is_not_locked_again(budget):
    tensor = torch.zeros(1024)
    assert budget.pin(tensor)
    assert not budget.pin(tensor)
    assert not budget.pin(tensor.view(32, 32))
    assert not budget.pin(torch.nn.Parameter(tensor))
    assert budget.total_pinned_bytes == 4096


def test_views_that_overlap_are_refused_and_others_are_not(budget, driver):
    tensor = torch.zeros(1024)
    assert budget.pin(tensor[:256])
    assert not budget.pin(tensor)
    assert not budget.pin(tensor[255:300])
    assert budget.pin(tensor[256:300])
    assert budget.total_pinned_bytes == 300 * 4
    assert not budget.unpin(tensor)  # begins where a range does, and is longer
    assert budget.unpin(tensor[:256])
    assert driver.ranges == {tensor[256:].data_ptr(): 44 * 4}


@pytest.mark.parametrize(
    "tensor",
    [
        torch.zeros(0),
        torch.zeros(32, 32).t(),
        torch.zeros(4, device="meta"),
        torch.zeros(4, 4).to_sparse(),
        torch.zeros(1).expand(16),
    ],
    ids=["empty", "transposed", "on a device", "sparse", "expanded"],
)
def test_what_is_no_dense_piece_of_host_memory_is_refused(budget, driver, tensor):
    assert not budget.pin(tensor)
    assert not budget.unpin(tensor)
    assert driver.calls == []


def test_the_budget_is_kept_to_the_byte(budget):
    assert budget.pin(first := torch.zeros(16 * KIB - 1))
    assert not budget.pin(torch.zeros(2))
    assert budget.pin(last := torch.zeros(1))
    assert budget.total_pinned_bytes == budget.limit_bytes
    assert budget.unpin(first)
    assert budget.unpin(last)


def test_a_tensor_that_dies_is_unlocked_before_its_memory_goes(driver):
    log = driver.calls

    class Memory(bytearray):
        def __del__(self):
            log.append("given back")

    budget = PinnedBudget(driver, 64 * KIB)
    for drop in ("tensor", "view", "graph", "data", "storage"):
        log.clear()
        tensor = torch.frombuffer(Memory(4096), dtype=torch.float32)
        assert budget.pin(tensor)
        kept = None
        if drop == "view":
            kept = tensor[8:]
        elif drop == "graph":
            kept = (torch.ones(1024, requires_grad=True) * tensor).sum()
        elif drop == "data":
            kept = torch.nn.Parameter(tensor)
        elif drop == "storage":
            kept = tensor.untyped_storage()
        del tensor
        gc.collect()
        if kept is not None:
            assert log == ["register"], drop
            if drop == "data":
                kept.data = torch.zeros(1)
        del kept
        assert log == ["register", "unregister", "given back"], drop
        assert budget.total_pinned_bytes == 0


def test_a_driver_that_refuses_changes_nothing(budget, driver):
    tensor = torch.zeros(1024)
    driver.refuses = True
    assert not budget.pin(tensor)
    assert budget.total_pinned_bytes == 0
    driver.refuses = False
    assert budget.pin(tensor)
    driver.refuses = True
    assert not budget.unpin(tensor)
    assert budget.total_pinned_bytes == 4096
    del tensor  # the count goes with the memory, whatever the driver says
    assert budget.total_pinned_bytes == 0


def test_a_storage_with_several_ranges_frees_them_all(budget, driver):
    tensor = torch.zeros(1024)
    assert all(budget.pin(tensor[at : at + 64]) for at in range(0, 1024, 64))
    assert len(driver.ranges) == 16
    del tensor
    assert driver.ranges == {}
    assert budget.total_pinned_bytes == 0


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 200), st.integers(1, 60)), max_size=30))
def test_any_order_of_locking_views_leaves_exact_counts(steps):
    driver = Driver()
    budget = PinnedBudget(driver, 600)
    tensor = torch.zeros(256)
    for pin, start, length in steps:
        view = tensor[start : start + length]
        done = (budget.pin if pin else budget.unpin)(view)
        assert (driver.ranges.get(view.data_ptr()) == view.nbytes) >= (done and pin)
        assert budget.total_pinned_bytes == sum(driver.ranges.values()) <= 600
    del tensor, steps
    view = None
    assert driver.ranges == {}


def test_threads_share_one_budget(driver):
    budget = PinnedBudget(driver, 2**30)

    def work():
        for _ in range(200):
            tensor = torch.zeros(64)
            assert budget.pin(tensor)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert budget.total_pinned_bytes == 0
    assert driver.ranges == {}


@pytest.mark.parametrize(
    ("machine", "options", "limit_bytes"),
    [
        ({"kind": "cuda", "device": "cuda:0"}, {}, int(32 * GIB * 0.95)),
        ({"kind": "cuda", "device": "cuda:0", "windows": True}, {}, int(32 * GIB * 0.45)),
        ({"kind": "cuda", "device": "cuda:0"}, {"disable_pinned_memory": True}, 0),
        ({"kind": "cpu", "device": "cpu"}, {}, 0),
    ],
    ids=["linux", "windows", "disabled", "no CUDA"],
)
def test_the_budget_of_the_process_follows_machine_and_options(machine, options, limit_bytes):
    machine = Machine(total_bytes=8 * GIB, ram_total_bytes=32 * GIB, **machine)
    with current.running_as(machine, Options(**options)):
        assert pinned.process_budget().limit_bytes == limit_bytes


@pytest.mark.skipif(HERE, reason="there is CUDA here")
def test_without_cuda_nothing_is_locked():
    tensor = torch.zeros(1024)
    machine = Machine(kind="cuda", device="cuda:0", total_bytes=8 * GIB, ram_total_bytes=32 * GIB)
    with current.running_as(machine):
        assert not pinned.pin_memory(tensor)  # not even if somebody says there is
    assert not pinned.pin_memory(tensor)
    assert not pinned.unpin_memory(tensor)
    assert pinned.total_pinned_bytes() == 0


@pytest.mark.gpu
@pytest.mark.skipif(not HERE, reason="torch sees no CUDA device here")
def test_cuda_locks_in_place_and_a_refusal_harms_nobody():
    tensor = torch.arange(4096.0)
    budget = PinnedBudget(CudaDriver(), GIB)
    assert budget.pin(tensor)
    assert tensor.is_pinned()
    assert tensor.to("cuda", non_blocking=True).sum().item() == tensor.sum().item()
    assert not CudaDriver().register(tensor.data_ptr(), tensor.nbytes)  # locked already
    assert (torch.ones(8, device="cuda") + 1).sum().item() == 16  # and no kernel gets the blame
    assert not CudaDriver().unregister(torch.zeros(8).data_ptr())
    assert (torch.ones(8, device="cuda") + 1).sum().item() == 16
    assert budget.unpin(tensor)
    assert not tensor.is_pinned()
    assert budget.pin(tensor)
    del tensor
    assert budget.total_pinned_bytes == 0


@pytest.mark.gpu
@pytest.mark.skipif(not HERE, reason="torch sees no CUDA device here")
def test_cuda_may_refuse_small_tensors_that_share_a_page_and_nobody_is_harmed():
    budget = PinnedBudget(CudaDriver(), GIB)
    slab = torch.zeros(4096)
    views = [slab[at : at + 16] for at in range(0, 4096, 16)]
    locked = [budget.pin(view) for view in views]
    assert locked[0]
    assert budget.total_pinned_bytes == sum(
        v.nbytes for v, is_locked in zip(views, locked, strict=True) if is_locked
    )
    assert all(view.to("cuda", non_blocking=True).sum().item() == 0 for view in views)
    del slab, views
    assert budget.total_pinned_bytes == 0
    assert (torch.ones(8, device="cuda") + 1).sum().item() == 16

"""Tensors of the device in other processes and threads."""

from __future__ import annotations

import contextlib
import os
import pickle
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from multiprocessing import resource_sharer
from multiprocessing.reduction import ForkingPickler
from typing import Any

import pytest
import torch
import torch.multiprocessing as mp
from torch.utils.data import DataLoader

import holdfast.torch
from holdfast.compute.torch_device.storage import pinning
from tests.compute.torch_device import workers

assert holdfast.torch
DEVICE = "holdfast"


@pytest.fixture(autouse=True, scope="module")
def no_threads_stay() -> Iterator[None]:
    """What multiprocessing starts to send file descriptors, and would keep for good."""
    yield
    resource_sharer.stop(timeout=5)


def numbers(count: int) -> torch.Tensor:
    return torch.arange(float(count)).to(DEVICE)


# ---- sending


@contextlib.contextmanager
def another_process(method: str) -> Iterator[tuple[Callable[[Any], Any], Callable[[], Any]]]:
    """(send and hear what came, end it and hear its last words) of a process."""
    context = mp.get_context(method)
    inbox, outbox = context.Queue(), context.Queue()
    process = context.Process(target=workers.answer, args=(inbox, outbox), daemon=True)
    process.start()

    def send(value: Any) -> Any:
        inbox.put(value)
        return outbox.get(timeout=300)

    def end() -> Any:
        last = send(None)
        inbox.put("received")
        process.join(60)
        return last

    try:
        yield send, end
    finally:
        process.terminate()
        process.join(10)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_tensors_are_sent_and_then_shared(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
    conjugate = torch.tensor([1 + 2j]).to(DEVICE).conj()
    there = f"{DEVICE}:0"
    with another_process(method) as (send, end):
        assert send(numbers(6).view(2, 3).t()[1:]) == ("Tensor", there, False, [[1, 4], [2, 5]])
        assert send(numbers(2).bfloat16()) == ("Tensor", there, False, [0, 1])
        assert send(torch.tensor(5, device=DEVICE)) == ("Tensor", there, False, 5)
        assert send(numbers(0)) == ("Tensor", there, False, [])
        assert send(conjugate) == ("Tensor", there, False, [1 - 2j])
        assert send(torch.nn.Parameter(numbers(2))) == ("Parameter", there, True, [0, 1])
        base = numbers(4)
        assert send([base, base[2:]]) == [[1, 2, 3, 4], [3, 4]]
        assert base.tolist() == [1, 2, 3, 4]
        assert end().tolist() == [2, 2, 2]


@pytest.mark.slow
def test_a_spawned_process_trains_a_module_in_shared_memory() -> None:
    model = torch.nn.Linear(2, 2).to(DEVICE)
    with torch.no_grad():
        model.weight.zero_()
    model.share_memory()
    mp.spawn(workers.add_rank, args=(model,), nprocs=1)
    assert model.weight.tolist() == [[1, 1], [1, 1]]


def test_shared_memory_keeps_the_numbers_and_says_so() -> None:
    base = numbers(4)
    view = base[1:]
    assert not base.is_shared()
    base.share_memory_()
    base.share_memory_()
    assert base.is_shared()
    base.add_(1)
    assert view.tolist() == [2, 3, 4]
    assert not base.clone().is_shared()


def test_memory_goes_back_to_the_pool_when_it_is_shared_or_given_up() -> None:
    before = torch.holdfast.memory_allocated()
    tensor = torch.ones(1 << 16, device=DEVICE)
    assert torch.holdfast.memory_allocated() - before >= tensor.nbytes
    tensor.share_memory_()
    assert torch.holdfast.memory_allocated() == before
    other = torch.ones(1 << 16, device=DEVICE)
    other.untyped_storage().resize_(0)
    assert torch.holdfast.memory_allocated() == before


def test_a_tensor_within_a_graph_is_not_sent() -> None:
    inner = numbers(2).requires_grad_() * 2
    with pytest.raises(RuntimeError, match="Cowardly refusing to serialize non-leaf tensor"):
        ForkingPickler.dumps(inner)


# ---- forking


def in_a_fork(work: Callable[[], Any]) -> Any:
    """What a function finds in a forked process. Fails when that takes more than 30 s."""
    read, write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if not child:
        try:
            out = work()
        except Exception as exc:  # noqa: BLE001  (it is the finding)
            out = str(exc)
        os.write(write, pickle.dumps(out))
        os._exit(0)
    os.close(write)
    timer = threading.Timer(30, os.kill, (child, 9))
    timer.start()
    with os.fdopen(read, "rb") as file:
        found = file.read()
    os.waitpid(child, 0)
    timer.cancel()
    return pickle.loads(found)


def test_a_forked_process_computes_with_what_it_inherits_and_writes_for_itself() -> None:
    large = torch.rand(300, 300, device=DEVICE)
    expected = (large @ large).sum().item()
    own, shared = numbers(3), numbers(3).share_memory_()

    def work() -> Any:
        own.zero_()
        shared.zero_()
        return (large @ large).sum().item(), own.tolist()

    assert in_a_fork(work) == (expected, [0, 0, 0])
    assert own.tolist() == [0, 1, 2]
    assert shared.tolist() == [0, 0, 0]


def test_a_fork_while_threads_compute_does_not_hang() -> None:
    a = torch.rand(64, 64, device=DEVICE)
    expected, over = (a @ a).sum().item(), threading.Event()

    def busy() -> None:
        while not over.is_set():
            torch.rand(64, 64, device=DEVICE).add_(a)

    threads = [threading.Thread(target=busy) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(5):
            assert in_a_fork(lambda: (a @ a).sum().item()) == expected
    finally:
        over.set()
        for thread in threads:
            thread.join()


MIDWAY = """
import os, threading, torch, holdfast.torch
from holdfast.compute.torch_device import registration

held, over = threading.Event(), threading.Event()

def arming():
    with registration._lock:
        held.set()
        over.wait()

threading.Thread(target=arming).start()
held.wait()
child = os.fork()
if not child:
    try:
        torch.ones(2, device="holdfast")
    except RuntimeError as exc:
        print(exc, flush=True)
    os._exit(0)
os.waitpid(child, 0)
over.set()
print(torch.ones(2, device="holdfast").tolist())
"""


@pytest.mark.slow
def test_a_fork_while_the_device_is_made_ready_is_refused() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", MIDWAY],
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    assert done.stdout == (
        "cannot use 'holdfast' in this process: it was forked while another thread of its parent "
        "made the first tensor there\n"
        "  expected: a process forked before the device is used, or when it is ready\n"
        "  try: make a tensor on the device before forking, or start processes by spawn\n"
        "[1.0, 1.0]\n"
    )


# ---- loading data


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "place"), [("fork", "cpu"), ("fork", DEVICE), ("spawn", DEVICE)]
)
def test_workers_load_data_for_the_device(method: str, place: str) -> None:
    loader = DataLoader(
        workers.Rows(place),
        batch_size=3,
        num_workers=1,
        multiprocessing_context=method,
        persistent_workers=True,
    )
    for _ in range(2):
        batches = [batch.to(DEVICE) for batch in loader]
        assert [b[:, 0].tolist() for b in batches] == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.usefixtures("python_device")
def test_a_stream_of_data_is_pinned_by_an_ordinary_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pinning, "_warned", [])
    loader = DataLoader(workers.Stream(), batch_size=4, pin_memory=True)
    with pytest.warns(UserWarning, match="ordinary copy") as told:
        batches = [batch.to(DEVICE, non_blocking=True) for batch in loader]
    assert [b.flatten().tolist() for b in batches] == [[0, 1, 2, 3], [4, 5]]
    assert [str(one.message) for one in told] == [
        "pin_memory() has made an ordinary copy: 'holdfast' computes in the host's memory, and "
        "gains nothing from pinned memory"
    ]


def test_a_tensor_on_the_device_is_not_pinned() -> None:
    with pytest.raises(RuntimeError) as caught:
        numbers(2).pin_memory()
    assert str(caught.value) == (
        "only tensors on the CPU can be pinned\n"
        "  expected: pin_memory=False for a tensor on the device"
    )


# ---- threads


def trained(seed: int) -> torch.Tensor:
    start = torch.Generator().manual_seed(seed)
    weight = torch.rand(32, 32, generator=start).to(DEVICE).requires_grad_()
    x = torch.rand(8, 32, generator=start).to(DEVICE)
    for _ in range(8):
        torch.nn.functional.mse_loss(torch.tanh(x @ weight) @ weight, x).backward()
        with torch.no_grad():
            assert weight.grad is not None
            weight -= 0.1 * weight.grad
            weight.grad = None
    return weight.detach().cpu()


def test_four_threads_train_as_one_after_the_other() -> None:
    found: dict[int, torch.Tensor] = {}
    threads = [
        threading.Thread(target=lambda seed=seed: found.update({seed: trained(seed)}))
        for seed in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for seed in range(4):
        assert torch.equal(found[seed], trained(seed))

"""Calls in step: one passage of the weights for all of them."""

from __future__ import annotations

import threading

import pytest
import torch

from holdfast.base.errors import InUse
from holdfast.residency import (
    InterruptProcessingException,
    interrupt_current_processing,
    manage,
    together,
    unmanage,
)
from tests.residency.models import device, some_input, stack, weight_bytes


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("count", [2, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "eager",
    [pytest.param(0.0, marks=pytest.mark.slow), 0.5, pytest.param(1.0, marks=pytest.mark.slow)],
)
def test_results_are_those_of_single_calls_for_one_passage(dtype, count, eager):
    module = stack(dtype=dtype)
    inputs = [some_input(seed, dtype) for seed in range(count)]
    wanted = [module(x) for x in inputs]
    budget = weight_bytes(module) // 2 + 120_000
    managed = manage(module, budget=budget, device=device(eager=eager, seed=count))
    with torch.inference_mode():
        for _ in range(6):
            before = managed.carrier.copied_bytes
            results = together(module, [((x,), {}) for x in inputs])
            assert all(torch.equal(a, b) for a, b in zip(results, wanted, strict=True))
    raw = sum(stretch.payload_bytes for stretch in managed.weights.stretches)
    assert 0 < managed.carrier.copied_bytes - before <= raw
    assert managed.carrier.peak_bytes <= budget
    for x, result in zip(inputs, wanted, strict=True):
        assert torch.equal(module(x), result)
    unmanage(module)
    assert managed.carrier.held_bytes == 0


@pytest.mark.slow
def test_threads_that_wait_for_work_end_by_themselves(monkeypatch):
    from holdfast.residency.managed import lockstep

    workers = lockstep._Workers(patience_s=0.05)
    monkeypatch.setattr(lockstep, "_WORKERS", workers)
    module = stack()
    inputs = [some_input(seed) for seed in range(3)]
    manage(module, budget=weight_bytes(module) // 2 + 120_000, device=device())
    for _ in range(6):
        together(module, [((x,), {}) for x in inputs])
    unmanage(module)
    mine = [t for t in threading.enumerate() if t.name == "holdfast-in-step"]
    for thread in mine:
        thread.join(timeout=300)
    assert not any(thread.is_alive() for thread in mine)


def test_a_module_that_is_not_managed_is_called_one_by_one():
    module, x = stack(), some_input()
    assert torch.equal(together(module, [((x,), {}), ((), {"x": x})])[1], module(x))


@pytest.mark.parametrize("at", [0, 1])
def test_an_error_in_one_call_ends_all_and_the_next_works(at):
    module = stack()
    inputs = [some_input(seed) for seed in range(2)]
    wanted = [module(x) for x in inputs]
    managed = manage(module, budget=weight_bytes(module) // 2 + 120_000, device=device())
    for _ in range(5):
        together(module, [((x,), {}) for x in inputs])
    seen: list[int] = []

    def fail(*_):
        seen.append(1)
        if len(seen) == at + 1:
            raise ValueError("broken")

    hook = module.blocks[5].register_forward_hook(fail)
    with pytest.raises(ValueError, match="broken"):
        together(module, [((x,), {}) for x in inputs])
    hook.remove()
    for _ in range(2):
        results = together(module, [((x,), {}) for x in inputs])
        assert all(torch.equal(a, b) for a, b in zip(results, wanted, strict=True))
    unmanage(module)
    assert managed.carrier.held_bytes == 0


def test_an_interrupt_ends_all_calls():
    module = stack()
    inputs = [some_input(seed) for seed in range(2)]
    wanted = [module(x) for x in inputs]
    manage(module, budget=weight_bytes(module) // 2 + 120_000, device=device())
    for _ in range(5):
        together(module, [((x,), {}) for x in inputs])
    hook = module.blocks[5].register_forward_hook(lambda *_: interrupt_current_processing())
    with pytest.raises(InterruptProcessingException):
        together(module, [((x,), {}) for x in inputs])
    hook.remove()
    interrupt_current_processing(False)
    results = together(module, [((x,), {}) for x in inputs])
    assert all(torch.equal(a, b) for a, b in zip(results, wanted, strict=True))
    unmanage(module)


def test_calls_that_are_too_large_together_run_one_by_one():
    module = stack()
    inputs = [some_input(seed).repeat(16, 1, 1) for seed in range(4)]
    wanted = [module(x) for x in inputs]
    carrier = device()
    manage(module, budget=weight_bytes(module) // 2 + 1_100_000, device=carrier)
    for _ in range(4):
        for x, result in zip(inputs, wanted, strict=True):
            assert torch.equal(module(x), result)
    results = together(module, [((x,), {}) for x in inputs])
    assert all(torch.equal(a, b) for a, b in zip(results, wanted, strict=True))
    unmanage(module)


def test_a_call_from_another_thread_is_refused_and_disturbs_nobody():
    module = stack()
    inputs = [some_input(seed) for seed in range(2)]
    wanted = [module(x) for x in inputs]
    managed = manage(module, budget=weight_bytes(module) // 2 + 120_000, device=device())
    for _ in range(5):
        together(module, [((x,), {}) for x in inputs])
    seen: list[object] = []

    def intrude() -> None:
        try:
            managed.run_together("forward", [((x,), {}) for x in inputs])
        except InUse as exc:
            seen.append(exc)
        seen.append(managed.running)

    def start(*_: object) -> None:
        thread = threading.Thread(target=intrude)
        thread.start()
        thread.join()

    hook = module.blocks[3].register_forward_hook(start)
    assert torch.equal(module(inputs[0]), wanted[0])
    hook.remove()
    assert isinstance(seen[0], InUse)
    assert seen[1] is True
    unmanage(module)


def test_a_forward_that_somebody_replaced_is_the_one_that_runs():
    module = stack()
    plain = module.forward
    module.forward = lambda x: plain(x) * 2
    inputs = [some_input(seed) for seed in range(2)]
    wanted = [module(x) for x in inputs]
    manage(module, budget=weight_bytes(module) // 2 + 120_000, device=device())
    for _ in range(6):
        results = together(module, [((x,), {}) for x in inputs])
        assert all(torch.equal(a, b) for a, b in zip(results, wanted, strict=True))
    unmanage(module)

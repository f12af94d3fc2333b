"""What is checked with the C++ shim loaded: in a process of its own, all in one go.

    python -m tests.compute.torch_device.shim_checks    # prints {name: error or null} as JSON

The shim has to be there before torch is told of the device, and a process has one device.
"""

from __future__ import annotations

import copy
import faulthandler
import gc
import json
import os
import pickle
import threading
import traceback
import weakref
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch

import holdfast.torch  # noqa: F401  (registers the device)
from holdfast.base.errors import Unsupported
from holdfast.base.units import format_bytes
from holdfast.compute import engine
from holdfast.compute.torch_device.errors import Refused
from holdfast.compute.torch_device.shim import build
from holdfast.compute.torch_device.storage.tensor_bridge import as_array, as_tensor

DEVICE = "holdfast"
CHECKS: dict[str, Callable[[], None]] = {}


def check(function: Callable[[], None]) -> Callable[[], None]:
    CHECKS[function.__name__] = function
    return function


def same(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    assert ours.device.type == DEVICE, ours.device
    assert ours.untyped_storage().device.type == DEVICE
    torch.testing.assert_close(ours.cpu(), theirs, rtol=0, atol=0, check_stride=True)


def ramp(*shape: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The same numbers on the device and on the CPU."""
    made = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    return made.to(DEVICE), made


# ---- computing


@check
def results_are_those_of_the_cpu_bit_by_bit() -> None:
    (x, a), (y, b) = ramp(8, 8), ramp(8, 8)
    for one in (
        lambda p, q: p @ q + 1.5,
        lambda p, q: torch.softmax(p, 1) * q.sigmoid(),
        lambda p, q: torch.cat([p, q.t()], 1).sum(0),
        lambda p, q: torch.linalg.svd(p).S,
        lambda p, q: torch.where(p > q, p, 2 * q).to(torch.bfloat16),
        lambda p, q: p[:, 1:5:2].unsqueeze(0).expand(3, 8, 2).contiguous(),
        lambda p, q: torch.nn.functional.conv2d(p[None, None], q[None, None, :3, :3]),
    ):
        same(one(x, y), one(a, b))


@check
def the_handlers_in_python_were_not_asked() -> None:
    engine.fallbacks.clear()
    x, _ = ramp(4, 4)
    torch.linalg.matrix_exp(x)
    assert build.is_loaded()
    assert not engine.fallbacks


@check
def gradients_are_those_of_the_cpu() -> None:
    def trained(device: str) -> list[torch.Tensor]:
        torch.manual_seed(0)
        layers = [torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.GELU()]
        net = torch.nn.Sequential(
            *layers, torch.nn.ConvTranspose2d(8, 4, 3, groups=2), torch.nn.Flatten()
        )
        net = net.to(device)
        optimizer = torch.optim.AdamW(net.parameters())
        torch.manual_seed(1)
        for _ in range(3):
            x = torch.randn(2, 3, 6, 6, device=device)
            optimizer.zero_grad()
            torch.nn.functional.dropout(net(x), 0.0).square().mean().backward()
            optimizer.step()
        return [p.detach().cpu() for p in net.parameters()]

    for ours, theirs in zip(trained(DEVICE), trained("cpu"), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-7)


@check
def recurrent_cells_that_only_python_has_mix_with_it() -> None:
    torch.manual_seed(0)
    cell = torch.nn.LSTM(3, 4)
    x = torch.randn(5, 2, 3)
    expected = cell(x)[0]
    found = cell.to(DEVICE)(x.to(DEVICE))[0]
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-5, atol=1e-6)


@check
def attention_that_torchs_kernel_has_not_is_the_engines() -> None:
    def attended(device: str, heads: int, width: int, masked: bool) -> list[torch.Tensor]:
        torch.manual_seed(0)
        shapes = ((2, 4, 5, 8), (2, heads, 6, 8), (2, heads, 6, width))
        leaves = [torch.randn(s).to(device).requires_grad_() for s in shapes]
        mask = (torch.arange(6) < 4).expand(5, 6).to(device) if masked else None
        attention = torch.nn.functional.scaled_dot_product_attention
        out = attention(*leaves, attn_mask=mask, enable_gqa=heads != 4)
        out.square().sum().backward()
        return [t.detach().cpu() for leaf in leaves for t in (out, leaf.grad) if t is not None]

    for case in ((4, 8, False), (4, 8, True), (2, 8, False), (4, 3, True)):
        for ours, theirs in zip(attended(DEVICE, *case), attended("cpu", *case), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


@check
def a_conjugate_and_a_minus_are_seen() -> None:
    z = torch.randn(4, dtype=torch.complex64, generator=torch.Generator().manual_seed(0))
    w = z.to(DEVICE)
    same(w.conj() * 2, z.conj() * 2)
    same(w.conj().imag.clone(), z.conj().imag.clone())
    assert torch.equal(w.conj().imag.cpu(), z.conj().imag)
    w.conj().imag.add_(1)
    z.conj().imag.add_(1)
    same(w, z)


@check
def tensors_on_two_devices_are_refused_in_the_words_of_the_twin() -> None:
    x, a = ramp(3)
    with pytest.raises(Refused, match="Expected all tensors to be on the same device"):
        x + a
    same(x[torch.tensor([0, 2])], a[torch.tensor([0, 2])])
    same(x * torch.tensor(2.0), a * 2)


# ---- memory


@check
def a_view_follows_a_storage_that_grows() -> None:
    x = torch.arange(4.0, device=DEVICE)
    view = x[1:3]
    x.resize_(100_000).fill_(7)
    assert view.tolist() == [7, 7]


@check
def a_tensor_over_an_array_grows_into_memory_of_its_own() -> None:
    array = numpy.arange(4, dtype=numpy.float32)
    x = as_tensor(array)
    view = x[1:3]
    x.resize_(100)
    x.fill_(9)
    assert view.tolist() == [1, 2]
    assert array.tolist() == [0, 1, 2, 3]
    assert as_array(x).shape == (100,)
    assert float(as_array(x)[3]) == 9


@check
def an_out_tensor_gets_the_shape_of_the_result() -> None:
    x, a = ramp(5000)
    target = torch.empty(0, device=DEVICE)
    assert torch.add(x, 1, out=target) is target
    same(target, a + 1)
    values, places = torch.empty(0, device=DEVICE), torch.empty(0, dtype=torch.long, device=DEVICE)
    torch.max(x.view(50, 100), 1, out=(values, places))
    same(values, a.view(50, 100).max(1).values)
    same(places, a.view(50, 100).max(1).indices)


@check
def overlapping_memory_is_seen() -> None:
    x = torch.arange(6.0, device=DEVICE)
    with pytest.raises(RuntimeError, match="refer to a single memory location"):
        x[1:].add_(x[:-1])


@check
def an_array_is_a_view_of_a_tensor_and_lets_it_go() -> None:
    x = torch.arange(6.0, device=DEVICE) + 0
    array = as_array(x[1:].view(5, 1))
    array[0, 0] = 42
    assert x.tolist() == [0, 42, 2, 3, 4, 5]
    gone = weakref.ref(x.untyped_storage())
    del x, array
    gc.collect()
    assert gone() is None


@check
def large_tensors_lie_in_the_pool_and_leave_it() -> None:
    from holdfast.memory.pools.manager import memory_manager

    pool = memory_manager.pool("cpu").pool
    gc.collect()
    before = pool.core.counters()["allocated"]
    x = torch.ones(1 << 20, device=DEVICE)
    y = x + 1
    assert pool.core.counters()["allocated"] - before >= 8 << 20
    del x, y
    assert pool.core.counters()["allocated"] == before


@check
def a_device_that_is_not_there_is_refused_in_the_words_of_the_twin() -> None:
    x, a = ramp(3)
    for make in (
        lambda device: torch.empty(3, device=device),
        lambda device: torch.full((3,), 1.0, device=device),
        lambda device: torch.arange(3, device=device),
        lambda device: torch.randn(3, device=device),
        lambda device: torch.Generator(device=device),
        lambda device: x.new_zeros(3, device=device),
        x.to,
        a.to,
    ):
        with pytest.raises(Refused) as caught:
            make(f"{DEVICE}:1")
        assert str(caught.value) == (
            "there is no device 'holdfast:1' here\n  expected: 'holdfast', 'holdfast:0' or 0"
        )


@check
def a_hard_limit_of_the_pool_is_torchs_own_error() -> None:
    from holdfast.memory.pools.manager import memory_manager

    pool = memory_manager.pool("cpu")
    pool.set_limit(pool.pool.core.counters()["reserved"] + (1 << 20), hard=True)
    try:
        with pytest.raises(torch.OutOfMemoryError) as caught:
            torch.empty(1 << 28, device=DEVICE)
        used = format_bytes(pool.pool.allocated_bytes)
        limit = format_bytes(pool.pool.core.limit)
        assert str(caught.value) == (
            f"cannot make a tensor of 1.1 GB: no memory for it; {used} of the limit of {limit} are "
            "in use\n  expected: tensors that fit into the limit together\n"
            "  try: del tensors that are done with, or "
            "torch.holdfast.set_per_process_memory_fraction(1.0), which takes the limit away"
        )
    finally:
        pool.set_limit(None)
    assert torch.ones(1 << 20, device=DEVICE).sum().item() == 1 << 20


@check
def storages_are_made_copied_and_pickled() -> None:
    x, a = ramp(5)
    same(pickle.loads(pickle.dumps(x)), a)
    same(copy.deepcopy(x), a)
    part = torch.empty(0, device=DEVICE).set_(x.untyped_storage(), 1, (2,), (2,))
    assert part.tolist() == [a[1].item(), a[3].item()]
    assert x.set_().numel() == 0
    assert x.untyped_storage().device.type == DEVICE
    storage = torch.UntypedStorage(8, device=DEVICE)
    storage.resize_(100_000)
    assert (storage.nbytes(), storage.device.type) == (100_000, DEVICE)


@check
def pinned_memory_is_pinned() -> None:
    plain = torch.arange(3.0)
    pinned = plain.pin_memory()
    assert (plain.is_pinned(), pinned.is_pinned(), pinned[1:].is_pinned()) == (False, True, True)
    assert pinned.device.type == "cpu"
    assert torch.equal(pinned, plain)
    data = torch.utils.data.TensorDataset(torch.arange(6.0))
    loader = torch.utils.data.DataLoader(data, batch_size=2, pin_memory=True)
    batches = [batch for (batch,) in loader]
    assert all(batch.is_pinned() for batch in batches)
    assert torch.cat(batches).tolist() == [0, 1, 2, 3, 4, 5]


# ---- random numbers


@check
def a_generator_of_the_device_draws_what_one_of_the_cpu_draws() -> None:
    ours = torch.Generator(device=DEVICE).manual_seed(5)
    theirs = torch.Generator().manual_seed(5)
    assert ours.device.type == DEVICE
    for draw in (torch.rand, torch.randn):
        same(draw(40, generator=ours, device=DEVICE), draw(40, generator=theirs))
    kept = ours.get_state()
    first = torch.rand(3, generator=ours, device=DEVICE)
    ours.set_state(kept)
    same(first, torch.rand(3, generator=ours, device=DEVICE).cpu())
    assert ours.initial_seed() == 5
    torch.rand(3, generator=theirs)
    same(torch.randperm(9, generator=ours, device=DEVICE), torch.randperm(9, generator=theirs))


@check
def numbers_in_python_and_in_cpp_are_one_stream() -> None:
    def drawn(device: str) -> list[torch.Tensor]:
        torch.manual_seed(1)
        made = [torch.rand(3, device=device), torch.randn(3, device=device)]
        with engine.strict():
            made += [torch.rand(3, device=device), torch.randn(5, device=device)]
        return [*made, torch.randn(4, device=device), torch.rand(20, device=device)]

    for ours, theirs in zip(drawn(DEVICE), drawn("cpu"), strict=True):
        torch.testing.assert_close(ours.cpu(), theirs, rtol=1e-6, atol=1e-7)


@check
def dropout_draws_from_the_device_and_leaves_the_cpu_alone() -> None:
    torch.manual_seed(0)
    state = torch.get_rng_state()
    first = torch.nn.functional.dropout(torch.ones(100, device=DEVICE))
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(0)
    same(torch.nn.functional.dropout(torch.ones(100, device=DEVICE)), first.cpu())


# ---- the twin


@check
def strict_mode_computes_with_the_engine_in_gradients_too() -> None:
    x, a = ramp(4, 4)
    x.requires_grad_()
    asked: list[bool] = []
    with engine.strict():
        y = (x @ x).sum()
        x.register_hook(lambda g: asked.append(engine.is_strict()))
        y.backward()
        with pytest.raises(Unsupported, match="falling back is forbidden"):
            torch.poisson(x.detach().abs())
    assert asked == [True]
    assert not engine.is_strict()
    torch.poisson(x.detach().abs())
    ones = torch.ones(4, 4)
    torch.testing.assert_close(x.grad.cpu(), ones @ a.t() + a.t() @ ones)


@check
def while_memory_is_recorded_every_tensor_is_seen() -> None:
    from holdfast.memory import memory_profiler

    x = torch.ones(8, device=DEVICE)
    with memory_profiler.record() as recorded:
        y = x + 1
    assert y.tolist() == [2] * 8
    recording = recorded.recording
    names = {
        frame.function
        for life in recording.lifetimes()
        for frame in recording.stacks_table[life.stack]
    }
    assert "while_memory_is_recorded_every_tensor_is_seen" in names, names


@check
def a_tensor_that_grows_while_memory_is_recorded_is_freed_like_any_other() -> None:
    from holdfast.memory import memory_profiler

    kept = [torch.ones(30_000, device=DEVICE) for _ in range(20)]
    for _ in range(3):
        with memory_profiler.record():
            made = [x + 1 for x in kept]
            made[1].resize_(90_000).fill_(5)
            kept[2].resize_(90_000)
        assert made[1].sum().item() == 450_000
        kept = [x[:30_000] + 1 for x in made]
        del made
    assert kept[0].sum().item() == 7 * 30_000


# ---- processes and threads


@check
def threads_compute_at_once() -> None:
    expected = torch.arange(20_000.0).mul(2).sin().sum().item()
    wrong: list[Any] = []

    def work() -> None:
        for _ in range(20):
            x = torch.arange(20_000.0, device=DEVICE, requires_grad=True)
            y = x.mul(2).sin().sum()
            y.backward()
            if y.item() != expected or x.grad is None:
                wrong.append(y.item())

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@check
def the_child_of_a_fork_computes_with_what_it_inherits() -> None:
    x = torch.arange(20_000.0, device=DEVICE)
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        x.add_(1)
        os.write(writer, repr((x + 1).sum().item()).encode())
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert float(os.read(reader, 100)) == torch.arange(20_000.0).add(2).sum().item()
    assert x[0].item() == 0


def main() -> None:
    faulthandler.enable()
    found: dict[str, str | None] = {}
    for name, run in CHECKS.items():
        try:
            run()
            found[name] = None
        except Exception:  # noqa: BLE001
            found[name] = traceback.format_exc()
    print(json.dumps(found))


if __name__ == "__main__":
    main()

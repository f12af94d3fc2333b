"""The device with an engine whose memory the host does not see: a stand-in, and OpenCL."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import numpy
import pytest
import torch

import holdfast.torch
from holdfast.base.errors import Unsupported
from holdfast.compute import engine as engines
from holdfast.compute.torch_device.dispatch import fallback

DEVICE = "holdfast"
there: Any = torch.get_device_module(DEVICE)


def held(tensor: torch.Tensor) -> Any:
    """What a tensor's storage holds."""
    storage: Any = tensor.untyped_storage()
    return storage.held


def numbers(*shape: int) -> torch.Tensor:
    return torch.arange(float(numpy.prod(shape))).reshape(shape)


# ---- tensors


def test_a_tensor_is_an_array_of_the_engine(engine: str) -> None:
    x = numbers(2, 3).to(DEVICE)
    assert engines.engine_of(held(x)).name == engine == holdfast.torch.engine()
    assert (x.device, x.shape, x.stride()) == (torch.device(DEVICE, 0), (2, 3), (3, 1))
    assert x.tolist() == [[0, 1, 2], [3, 4, 5]]


def test_ops_compute_on_the_engine(engine: str) -> None:
    x, y = numbers(2, 3), numbers(2, 3) + 1
    found = x.to(DEVICE) + y.to(DEVICE)
    assert engines.engine_of(held(found)).name == engine
    assert found.cpu().equal(x + y)


def test_views_look_at_the_same_memory(engine: str) -> None:
    x = numbers(3, 4).to(DEVICE)
    x[1].mul_(2)
    x.t()[0].add_(100)
    x.view(-1)[5:7].zero_()
    assert x.tolist() == [[100, 1, 2, 3], [108, 0, 0, 14], [108, 9, 10, 11]]


@pytest.mark.parametrize(
    "name", ["bool", "uint8", "int64", "float16", "bfloat16", "float64", "complex64"]
)
def test_every_format_goes_there_and_back(engine: str, name: str) -> None:
    x = torch.tensor([[0.0, 1, 2], [3, 4, 5]]).to(getattr(torch, name))
    there = x.to(DEVICE)
    assert there.dtype is x.dtype
    assert there.t().cpu().equal(x.t())


def test_a_tensor_is_printed_from_a_copy(engine: str) -> None:
    x = numbers(3).to(DEVICE).requires_grad_()
    assert str(x) == "tensor([0., 1., 2.], device='holdfast:0', requires_grad=True)"
    assert holdfast.torch.fallbacks() == {}


def test_empty_tensors_and_odd_strides_are_made(engine: str) -> None:
    assert torch.empty(0, 3, device=DEVICE).add(1).tolist() == []
    wide = torch.empty(1, 2, 3, 3, device=DEVICE, memory_format=torch.channels_last)
    assert wide.stride() == (18, 1, 6, 2)
    assert torch.empty_strided((2, 2), (1, 3), device=DEVICE).fill_(2).sum().item() == 8


def test_a_storage_that_is_too_small_is_an_error(engine: str) -> None:
    x = torch.ones(4, device=DEVICE)
    x.untyped_storage().resize_(8)
    with pytest.raises(RuntimeError) as caught:
        x.add(1)
    assert str(caught.value) == (
        "cannot compute with a torch.float32 tensor of (4,): its storage has 8 bytes\n"
        "  expected: a storage that holds every element\n"
        "  try: storage.resize_() back to its size"
    )


# ---- copies


@pytest.mark.parametrize("kind", [torch.float32, torch.int32])
def test_numbers_are_copied_into_a_view_of_another_format(engine: str, kind: torch.dtype) -> None:
    target = torch.zeros(3, 2, dtype=kind, device=DEVICE)
    target.t()[1].copy_(torch.tensor([1.0, 2, 3]))
    assert target.tolist() == [[0, 1], [0, 2], [0, 3]]
    host = torch.zeros(2, 3, dtype=torch.int64)
    host[0].copy_(target[:, 1])
    assert host.tolist() == [[1, 2, 3], [0, 0, 0]]


def test_copies_broadcast_or_are_refused(engine: str) -> None:
    x = torch.zeros(2, 3, device=DEVICE)
    assert x.copy_(torch.tensor([1.0, 2, 3])).tolist() == [[1, 2, 3], [1, 2, 3]]
    with pytest.raises(RuntimeError) as caught:
        x.copy_(torch.ones(4))
    assert str(caught.value) == (
        "cannot copy [4] into [2, 3]\n  expected: a shape that broadcasts to the target's"
    )


def test_places_that_are_assigned_to_may_be_on_the_cpu(engine: str) -> None:
    x = torch.zeros(4, 2, device=DEVICE)
    x[torch.tensor([0, 2])] = torch.ones(2, 2, device=DEVICE)
    x[torch.tensor([False, True, False, False])] = 9
    assert x.tolist() == [[1, 1], [9, 9], [1, 1], [0, 0]]


def test_conjugates_and_minus_signs_are_computed_by_copies(engine: str) -> None:
    x = torch.tensor([1 + 2j, 3 - 4j])
    there = x.to(DEVICE)
    assert there.conj().cpu().resolve_conj().equal(x.conj().resolve_conj())
    assert there.conj().imag.clone().tolist() == [-2, 4]


def test_resizing_keeps_what_fits(engine: str) -> None:
    x = numbers(4).to(DEVICE)
    assert x.clone().resize_(6)[:4].tolist() == [0, 1, 2, 3]
    x.untyped_storage().resize_(64)
    assert x.tolist() == [0, 1, 2, 3]
    assert engines.engine_of(held(x)).name == engine


def test_tensors_are_saved_pickled_and_copied_with_their_views(engine: str) -> None:
    x = numbers(2, 3).to(DEVICE)
    file = io.BytesIO()
    torch.save({"all": x, "row": x[1]}, file)
    file.seek(0)
    loaded = torch.load(file)
    loaded["all"][1, 0] = 9
    assert loaded["row"].tolist() == [9, 4, 5]
    file.seek(0)
    assert torch.load(file, map_location="cpu")["all"].equal(x.cpu())
    for again in (copy.deepcopy(x), pickle.loads(pickle.dumps(x))):
        assert again.device == x.device
        assert again.tolist() == x.tolist()
        assert engines.engine_of(held(again)).name == engine


def test_memory_is_not_shared_with_other_processes(engine: str) -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.ones(2, device=DEVICE).share_memory_()
    assert str(caught.value) == (
        "the memory of holdfast:0 is its own: processes cannot share it\n"
        "  expected: a tensor on the CPU, or the engine 'numpy'\n"
        "  try: tensor.cpu() before it is sent or shared"
    )


# ---- what the host computes


def test_a_fallback_is_counted_under_the_name_of_the_engine(engine: str) -> None:
    x = torch.tensor([1.0, 2, 3], device=DEVICE)
    assert torch.poisson(torch.zeros_like(x)).tolist() == [0, 0, 0]
    assert engines.fallbacks[engine, "poisson"] == 1
    with holdfast.torch.strict(), pytest.raises(Unsupported) as caught:
        torch.poisson(x)
    assert str(caught.value) == (
        f"engine {engine!r} has no kernel for poisson, and falling back is forbidden\n"
        "  expected: a native kernel, or a decomposition into ops that have one\n"
        "  try: with strict(False): ..."
    )


def test_a_fallback_writes_back_what_it_changes(engine: str) -> None:
    by_torch, aten = fallback.compute_by_torch, torch.ops.aten
    x, y = torch.ones(2, 3, device=DEVICE), torch.ones(2, device=DEVICE)
    returned = by_torch(aten.mul_.Scalar, (x.t()[1:], 5), {})
    assert x.tolist() == [[1, 5, 5], [1, 5, 5]]
    assert returned.untyped_storage()._cdata == x.untyped_storage()._cdata
    by_torch(aten._foreach_add_.Scalar, ([x[0], y], 1), {})
    assert (x.tolist(), y.tolist()) == ([[2, 6, 6], [1, 5, 5]], [2, 2])
    by_torch(aten.add.out, (y, y), {"out": x[:, 0]})
    assert x.tolist() == [[4, 6, 6], [4, 5, 5]]


def test_a_fallback_keeps_the_order_of_memory(engine: str) -> None:
    x = torch.ones(1, 2, 3, 3).to(DEVICE, memory_format=torch.channels_last)
    found = fallback.compute_by_torch(torch.ops.aten.sin.default, (x,), {})
    assert found.stride() == x.stride() == (18, 1, 6, 2)


def test_sparse_tensors_have_their_parts_on_the_engine(engine: str) -> None:
    x = torch.eye(3).to(DEVICE).to_sparse()
    assert engines.engine_of(held(x._values())).name == engine
    assert torch.sparse.mm(x, numbers(3, 2).to(DEVICE)).cpu().equal(numbers(3, 2))


# ---- random numbers


def test_random_numbers_are_those_of_the_cpu(engine: str) -> None:
    for make in (torch.rand, torch.randn):
        torch.manual_seed(3)
        ours = make(40, device=DEVICE)
        torch.manual_seed(3)
        assert ours.cpu().equal(make(40))
    own = [torch.Generator().manual_seed(1) for _ in range(2)]
    ours = torch.rand(3, generator=own[0], device=DEVICE)
    assert ours.cpu().equal(torch.rand(3, generator=own[1]))


# ---- engines side by side


def test_tensors_made_before_go_on_working(engine: str) -> None:
    holdfast.torch.use("numpy")
    before = numbers(3).to(DEVICE)
    assert isinstance(held(before), numpy.ndarray)
    holdfast.torch.use(engine)
    after = numbers(3).to(DEVICE)
    assert isinstance(held(before + 1), numpy.ndarray)
    assert engines.engine_of(held(before + after)).name == engine
    before.add_(after)
    assert isinstance(held(before), numpy.ndarray)
    assert before.tolist() == [0, 2, 4]
    after.copy_(before)
    assert after.tolist() == [0, 2, 4]


def test_running_statistics_of_numpy_are_changed_by_another_engine(engine: str) -> None:
    holdfast.torch.use("numpy")
    ours: Any = torch.nn.BatchNorm1d(3).to(DEVICE)
    holdfast.torch.use(engine)
    ours(numbers(2, 3).to(DEVICE))
    theirs: Any = torch.nn.BatchNorm1d(3)
    theirs(numbers(2, 3))
    assert torch.allclose(ours.running_mean.cpu(), theirs.running_mean)


def test_a_training_step_follows_the_cpu(engine: str) -> None:
    torch.manual_seed(0)
    theirs = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Linear(8, 2))
    ours = copy.deepcopy(theirs).to(DEVICE)
    x = torch.randn(5, 4)
    for model, given in ((theirs, x), (ours, x.to(DEVICE))):
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            model(given).pow(2).mean().backward()
            optimizer.step()
    for one, other in zip(theirs.parameters(), ours.parameters(), strict=True):
        assert torch.allclose(one, other.cpu(), atol=1e-5)


def test_a_compiled_graph_runs_step_by_step(engine: str) -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.dropout((x @ w).relu() * 2 + 1, 0.5).t().reshape(-1)[1:]

    x = numbers(3, 4).to(DEVICE).requires_grad_()
    w = numbers(4, 5).to(DEVICE)
    compiled = torch.compile(function, backend="holdfast")
    found = []
    for call in (function, compiled):
        there.manual_seed(1)
        out = call(x, w)
        (grad,) = torch.autograd.grad(out.sum(), x)
        found.append((out.detach().cpu(), grad.cpu()))
    assert torch.allclose(found[0][0], found[1][0])
    assert torch.allclose(found[0][1], found[1][1])

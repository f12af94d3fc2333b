"""Giving torch's cache back on each platform."""

from __future__ import annotations

import gc
from types import SimpleNamespace

import pytest
import torch

from holdfast.residency.model_management.models.cache import (
    empty_cache_of,
    soft_empty_cache,
)
from holdfast.residency.model_management.rules import current
from holdfast.residency.model_management.rules.machine import Machine
from holdfast.residency.model_management.rules.options import Options


def made_up_torch(calls: list[str], initialized: bool = True) -> SimpleNamespace:
    def part(name: str) -> SimpleNamespace:
        return SimpleNamespace(
            empty_cache=lambda: calls.append(f"{name}.empty_cache"),
            ipc_collect=lambda: calls.append(f"{name}.ipc_collect"),
            is_initialized=lambda: initialized,
        )

    return SimpleNamespace(**{name: part(name) for name in ("cuda", "xpu", "npu", "mlu", "mps")})


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("cuda", ["cuda.empty_cache", "cuda.ipc_collect"]),
        ("rocm", ["cuda.empty_cache", "cuda.ipc_collect"]),
        ("xpu", ["xpu.empty_cache"]),
        ("npu", ["npu.empty_cache"]),
        ("mlu", ["mlu.empty_cache"]),
        ("mps", ["mps.empty_cache"]),
        ("directml", []),
        ("cpu", []),
    ],
)
def test_each_platform_has_its_own_call(kind, expected):
    calls: list[str] = []
    empty_cache_of(kind, made_up_torch(calls))
    assert calls == expected


def test_a_card_nobody_used_is_left_alone():
    calls: list[str] = []
    empty_cache_of("cuda", made_up_torch(calls, initialized=False))
    assert calls == []


def test_the_platform_is_that_of_the_process(monkeypatch):
    calls: list[str] = []
    monkeypatch.setattr(torch.mps, "empty_cache", lambda: calls.append("mps"))
    mac = Machine(kind="mps", device="mps", total_bytes=2**34, ram_total_bytes=2**34)
    with current.running_as(mac):
        soft_empty_cache()
        assert calls == ["mps"]
    with current.running_as(mac, Options(cpu=True)):
        soft_empty_cache()
    assert calls == ["mps"]


def test_force_collects_garbage_first(monkeypatch):
    calls: list[int] = []
    monkeypatch.setattr(gc, "collect", lambda *_: calls.append(1))
    host = Machine(kind="cpu", device="cpu", total_bytes=2**34, ram_total_bytes=2**34)
    with current.running_as(host):
        soft_empty_cache()
        assert calls == []
        soft_empty_cache(force=True)
    assert calls == [1]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device here")
def test_cuda_gives_its_cache_back():
    block = torch.zeros(1 << 26, device="cuda")
    del block
    before = torch.cuda.memory_reserved()
    soft_empty_cache()
    assert torch.cuda.memory_reserved() <= before - (1 << 28)

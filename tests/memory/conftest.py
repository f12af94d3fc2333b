"""What the tests of the pools share: both cores, an audit of their books, a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from holdfast.memory.core import native_build, tags
from holdfast.memory.core import pool_core as python_core
from holdfast.memory.pools.memory_pool import MemoryPool
from holdfast.memory.pools.pool import Pool

CORES = ("compiled", "python")
ROOT = Path(__file__).parents[2]


def core_named(name: str) -> ModuleType:
    """One of the two cores."""
    return native_build.load_core() if name == "compiled" else python_core


@pytest.fixture(params=CORES)
def core(request: pytest.FixtureRequest) -> ModuleType:
    """Each test that asks for it runs over both cores."""
    return core_named(request.param)


@pytest.fixture
def pool(core: ModuleType) -> Pool:
    """A pool over pages of the host."""
    return Pool(name="the pool", core=core)


@pytest.fixture
def people(pool: Pool) -> MemoryPool:
    """The same with blocks for people."""
    return MemoryPool(resource=pool)


@pytest.fixture
def chosen(core: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The core that everything in this process uses, with tags that no test used before."""
    monkeypatch.setattr(native_build, "core", lambda: core)
    taken = len(tags._names) + _fresh.pop()
    _fresh.append(taken + 64)
    monkeypatch.setattr(tags, "_names", ["", *(f"taken {n}" for n in range(1, taken))])
    monkeypatch.setattr(tags, "_numbers", {"": 0})
    yield core
    core.set_tag(0)


_fresh = [0]


def audit(core: Any) -> dict[int, int]:
    """Check that a core's books add up; returns the blocks in use, address -> requested size."""
    chunks, counters = core.chunks(), core.counters()
    used: dict[int, int] = {}
    covered = 0
    for base, length, reserved, arena, _ in core.segments():
        assert 0 <= length <= reserved
        at, before = base, None
        for segment, of_arena, address, size, wanted, state, _, _ in chunks:
            if segment != base:
                continue
            assert (address, of_arena) == (at, arena), "a gap, or two chunks that overlap"
            assert size > 0
            assert size % 512 == 0 or state == python_core.FREE
            assert not (state == before == python_core.FREE), "free neighbours are not joined"
            if state == python_core.USED:
                assert wanted <= size < wanted + 512 or (wanted, size) == (0, 512)
                used[address] = wanted
            else:
                assert wanted == 0
            at, before, covered = at + size, state, covered + 1
        assert at == base + length, "chunks do not cover the segment"
    assert covered == len(chunks)
    c = counters
    assert c["allocated"] == sum(used.values())
    assert c["active"] == sum(chunk[3] for chunk in chunks if chunk[5] == python_core.USED)
    assert c["active"] <= c["reserved"] <= sum(segment[1] for segment in core.segments())
    assert c["live"] == len(used) == c["allocs"] - c["frees"]
    assert c["hits"] + c["misses"] == c["allocs"]
    assert 0 <= c["hits"] <= c["allocs"]
    assert c["cumulative"] >= c["peak_allocated"] >= c["allocated"]
    assert c["peak_active"] >= c["active"]
    assert c["peak_reserved"] >= c["reserved"]
    assert c["allocs"] >= c["peak_live"] >= c["live"]
    return used


@pytest.fixture
def script(tmp_path: Path) -> Callable[..., str]:
    """Run a program in a process of its own; returns what it printed."""

    def run(text: str, *arguments: str, timeout_s: float = 500) -> str:
        path = tmp_path / "script.py"
        path.write_text(text)
        command = [sys.executable, "-X", "faulthandler", "-W", "error", str(path), *arguments]
        environ = os.environ | {"PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "src")))}
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=timeout_s, env=environ, cwd=tmp_path
        )
        assert done.returncode == 0, f"exit status {done.returncode}\n{done.stdout}{done.stderr}"
        assert not done.stderr, done.stderr
        return done.stdout

    return run

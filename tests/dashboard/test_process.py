"""This process as others see it."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import threading
import time
import types
from collections.abc import Iterator
from typing import Any

import pytest

from holdfast.dashboard.snapshot import process, process_names, sources
from holdfast.dashboard.snapshot.snapshot import DeviceUse, PoolUse
from holdfast.memory import MemoryPool, tag
from holdfast.memory.debug import debugging


@pytest.fixture(autouse=True)
def nothing_fails() -> Iterator[None]:
    sources.failures.clear()
    yield
    assert list(sources.failures) == []


def look(name: str) -> PoolUse:
    return next(one for one in process.take().pools if one.name == name)


def test_a_pool_is_told_with_all_its_figures() -> None:
    pool = MemoryPool("cpu", name="told")
    first, second = pool.allocate(4096), pool.allocate(4096)
    del second
    third = pool.allocate(4096)
    stats = pool.stats()
    assert look("told") == PoolUse(
        name="told",
        device="cpu",
        allocated_bytes=stats.allocated_bytes,
        reserved_bytes=stats.reserved_bytes,
        cached_bytes=stats.cached_bytes,
        peak_bytes=stats.peak_allocated,
        blocks=2,
        requests=3,
        hits=stats.cache_hits,
    )
    assert stats.allocated_bytes == first.size + third.size


def test_a_pool_that_is_gone_is_told_while_a_block_of_it_lives() -> None:
    pool = MemoryPool("cpu", name="left behind")
    block = pool.allocate(100)
    del pool
    gc.collect()
    assert look("left behind").blocks == 1
    del block
    gc.collect()
    assert "left behind" not in [one.name for one in process.take().pools]


def test_tags_are_told_the_most_first() -> None:
    pool = MemoryPool("cpu")
    with tag("large for the dashboard"):
        large = pool.allocate("2MB")
    with tag("small for the dashboard"):
        small = pool.allocate("1MB")
    found = {one.tag: one.current_bytes for one in process.take().tags}
    assert found["large for the dashboard"] == large.size
    assert found["small for the dashboard"] == small.size
    order = list(found)
    assert order.index("large for the dashboard") < order.index("small for the dashboard")


def test_the_process_itself_is_told() -> None:
    before = time.time()
    found = process.take()
    assert found.pid == os.getpid()
    assert found.rss_bytes > 10**6
    assert found.began_s < before
    assert found.run is None
    assert found.look_us > 0


def test_looking_never_fails_while_other_threads_make_and_drop_pools() -> None:
    over = threading.Event()

    def work() -> None:
        while not over.is_set():
            pools = [MemoryPool("cpu", name="coming and going") for _ in range(5)]
            blocks = [pool.allocate(5000) for pool in pools]
            del pools[::2], blocks[1::2]

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(200):
            assert process.take().pools is not None
    finally:
        over.set()
        for thread in threads:
            thread.join()


def test_what_is_known_of_leaks_says_whether_blocks_are_recorded() -> None:
    assert process.take().leaks.debugging is False
    debugging.enable_memory_debugging(True)
    try:
        assert process.take().leaks.debugging is True
    finally:
        debugging.enable_memory_debugging(False)


def test_one_part_that_fails_leaves_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    from holdfast.memory.pools import pool

    def fail() -> list[Any]:
        raise RuntimeError("in the middle of something")

    with monkeypatch.context() as patch:
        patch.setattr(pool, "live_pools", fail)
        found = process.take()
    assert found.pools == ()
    assert found.rss_bytes > 0
    assert list(sources.failures) == ["_live_pools: RuntimeError('in the middle of something')"]
    sources.failures.clear()


# ---- nothing is imported, no device is woken


def test_looking_imports_nothing_that_the_process_has_not() -> None:
    program = (
        "import json, sys\n"
        "from holdfast.memory import MemoryPool\n"
        "pool = MemoryPool('cpu')\n"
        "from holdfast.dashboard.ipc import answers\n"
        "before = set(sys.modules)\n"
        "found = answers.answer({'ask': 'process'})\n"
        "print(json.dumps([sorted(set(sys.modules) - before), len(found['ok']['pools']),\n"
        "    [m for m in ('torch', 'numpy', 'psutil', 'pynvml') if m in sys.modules]]))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert json.loads(done.stdout) == [[], 1, []]


class Cuda(types.SimpleNamespace):
    """As much of `torch.cuda` as is asked: two devices, of which one was used."""

    def __init__(self, initialized: bool) -> None:
        super().__init__(asked=[])
        self.initialized = initialized

    def is_initialized(self) -> bool:
        return self.initialized

    def device_count(self) -> int:
        self.asked.append("count")
        return 2

    def memory_stats_as_nested_dict(self, number: int) -> dict[str, Any]:
        if number == 0:
            return {"reserved_bytes": {"all": {"current": 0, "peak": 0, "allocated": 0}}}
        reserved = {"current": 300, "peak": 400, "allocated": 500}
        return {
            "reserved_bytes": {"all": reserved},
            "allocated_bytes": {"all": {"current": 200, "peak": 250}},
        }

    def mem_get_info(self, number: int) -> tuple[int, int]:
        self.asked.append(f"memory of {number}")
        return 600, 1000


def test_a_device_that_torch_has_not_used_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = Cuda(initialized=True)
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(cuda=cuda))
    (used,) = (one for one in process.devices() if one.name.startswith("cuda"))
    assert used == DeviceUse("cuda:1", 1000, 400, 200, 300)
    assert cuda.asked == ["count", "memory of 1"]


def test_where_torch_has_no_context_none_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = Cuda(initialized=False)
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(cuda=cuda))
    assert [one for one in process.devices() if one.name.startswith("cuda")] == []
    assert cuda.asked == []


# ---- names


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (["/usr/bin/python3", "/home/me/train.py", "--steps", "20"], "train.py --steps 20"),
        (["python", "-X", "dev", "-m", "holdfast.cli", "run"], "holdfast.cli run"),
        (["/venv/bin/python", "/venv/bin/holdfast", "run", "tiny-flux"], "holdfast run tiny-flux"),
        (["python3.11", "-c", "import x; very long"], "python -c"),
        (["python"], "python"),
        (["C:\\ComfyUI\\main.exe", "--cpu"], "main.exe --cpu"),
        (["python", "-c", "from x", "--multiprocessing-fork"], "python (multiprocessing)"),
        ([], ""),
    ],
)
def test_a_command_line_in_a_few_words(command: list[str], name: str) -> None:
    assert process_names.shorten_command(command) == name


def test_a_long_command_line_is_cut() -> None:
    name = process_names.shorten_command(["tool", "x" * 200])
    assert len(name) == process_names.MOST
    assert name.endswith("…")


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (["python", "/home/me/ComfyUI/main.py", "--port", "8188"], "ComfyUI --port 8188"),
        (["python", "main.py"], "ComfyUI"),
        (["python", "server.py", "--port", "1"], "server.py --port 1"),
    ],
)
def test_comfyui_is_called_so(
    command: list[str], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "orig_argv", command)
    monkeypatch.setitem(sys.modules, "comfy.model_management", types.ModuleType("comfy"))
    assert process_names.own_name() == name


def test_a_process_is_named_alike_by_itself_and_by_others() -> None:
    assert process_names.name_of(os.getpid()) == process_names.own_name()
    assert process_names.name_of(2**22 + 1) == ""
    assert process_names.began_s(2**22 + 1) is None


# ---- models


def test_a_module_under_a_budget_is_told_with_its_plan() -> None:
    torch = pytest.importorskip("torch")
    from holdfast import residency
    from holdfast.residency.carriers.simulated import Simulated

    module = torch.nn.Sequential(*(torch.nn.Linear(128, 128) for _ in range(8)))
    carrier = Simulated(capacity_bytes=1 << 30)
    managed = residency.manage(module, budget=300_000, device=carrier)
    with torch.no_grad():
        for _ in range(5):
            module(torch.zeros(2, 128))
    found = next(one for one in process.take().models if one.budget_bytes == 300_000)
    assert managed.plan is not None
    assert (found.name, found.keeper, found.device) == ("Sequential", "residency", "simulated")
    assert found.weight_bytes == 8 * (128 * 128 + 128) * 4
    assert found.resident_bytes == managed.held_bytes > 0
    assert 0 < found.link_bytes == managed.plan.streamed_bytes
    assert found.streamed_bytes == found.link_bytes  # it is not packed
    assert found.smallest_bytes is not None
    assert found.smallest_bytes < 300_000
    assert (found.passes, found.running, found.adjustable) == (5, False, True)
    assert found.id == next(m.id for m in process.take().models if m.budget_bytes == 300_000)
    link = next(one for one in process.take().links if one.device == "simulated")
    assert link.copied_bytes >= carrier.copied_bytes > 0
    device = next(one for one in process.take().devices if one.name == "simulated")
    assert device.allocated_bytes >= managed.held_bytes
    residency.unmanage(module)
    assert not [one for one in process.take().models if one.budget_bytes == 300_000]


def test_the_managers_models_are_told() -> None:
    torch = pytest.importorskip("torch")
    from holdfast import residency
    from holdfast.residency.model_management.models.patcher import Patcher

    module = torch.nn.Linear(64, 64)
    patcher = Patcher(module, torch.device("cpu"), torch.device("cpu"))
    residency.load_models_gpu([patcher])
    found = [one for one in process.take().models if one.keeper == "manager"]
    assert [(one.name, one.weight_bytes) for one in found] == [("Linear", (64 * 64 + 64) * 4)]
    residency.unload_all_models()
    assert not [one for one in process.take().models if one.keeper == "manager"]

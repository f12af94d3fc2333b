"""The numa provider on this machine, which has one node or more."""

from __future__ import annotations

import ctypes
import gc
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from holdfast.base.config import Config
from holdfast.base.errors import OutOfMemory, Unsupported
from holdfast.memory import svm
from holdfast.memory.svm.providers import numa as numa_provider
from holdfast.memory.svm.providers.numa import NumaProvider
from holdfast.topology import numa
from tests.needs import needs

pytestmark = needs(None if numa.is_supported() else "the numa provider needs Linux")
MIB = 1 << 20


@pytest.fixture
def provider() -> NumaProvider:
    return NumaProvider()


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_every_page_is_touched_and_looked_up(provider: NumaProvider) -> None:
    with provider.alloc(5 * MIB + 1) as memory:
        where = memory.where()
        assert sum(where.pages.values()) == 5 * 256 + 1
        assert (where.untouched, where.unknown) == (0, {})
        assert where.verified
        assert where.method == "move_pages, page by page"
        assert not where.simulated


def test_numpy_and_torch_look_at_the_same_bytes(provider: NumaProvider) -> None:
    with provider.alloc(4096) as memory:
        array = memory.array("int32", (32, 32))
        tensor = memory.tensor(torch.int32, (32, 32))
        tensor.fill_(7)
        array[3, 4] = 9
        assert tensor[3, 4] == 9
        assert array.sum() == 7 * 1023 + 9
        assert array.__array_interface__["data"][0] == tensor.data_ptr() == int(memory)
        assert np.shares_memory(array, np.from_dlpack(memory))
        assert bytes(memory)[:4] == (7).to_bytes(4, "little")
        del array, tensor


def test_memory_is_page_aligned_and_zero(provider: NumaProvider) -> None:
    with provider.alloc(10_000) as memory:
        assert memory.address % os.sysconf("SC_PAGE_SIZE") == 0
        assert not memory.array().any()
        assert len(memory) == 10_000


def test_memory_goes_back_when_it_is_freed(provider: NumaProvider) -> None:
    before = resident_bytes()
    memory = provider.alloc(256 * MIB)
    assert resident_bytes() - before > 250 * MIB
    memory.free()
    assert resident_bytes() - before < 50 * MIB


def test_memory_goes_back_with_the_last_view(provider: NumaProvider) -> None:
    before = resident_bytes()
    array = provider.alloc(256 * MIB).array("float32")
    gc.collect()
    array[:] = 1  # the handle is gone, the array holds the memory
    assert provider.statistics().current_bytes == 256 * MIB
    del array
    assert provider.statistics().current_bytes == 0
    assert resident_bytes() - before < 50 * MIB


def test_a_handle_that_is_dropped_gives_its_memory_back_at_once(provider: NumaProvider) -> None:
    memory = provider.alloc(MIB)
    del memory
    assert provider.ledger.counter().current_bytes == 0


def test_the_only_node_gets_everything(provider: NumaProvider) -> None:
    nodes = [d.id for d in provider.discover().domains]
    with provider.alloc(MIB, mode="interleave") as memory:
        assert set(memory.where().pages) <= set(nodes)
        assert memory.placement.mode == "interleave"
    with provider.alloc(MIB, domain=nodes[0], mode="preferred") as memory:
        assert memory.placement == svm.Placement(
            domains=(nodes[0],),
            mode="preferred",
            reason=f"node:{nodes[0]} was asked for",
            cpus=memory.placement.cpus,
            pinned=True,
        )


def test_pages_that_came_to_lie_elsewhere_are_refused(
    provider: NumaProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a control group (cpuset) takes the node away in between."""
    monkeypatch.setattr(numa, "nodes_of", lambda address, length, *, pid=0: [5] * (length // 4096))
    with pytest.raises(OutOfMemory) as caught:
        provider.alloc(MIB, domain=0)
    assert str(caught.value) == (
        "256 of 256 pages of 1.0 MB are outside of node 0\n"
        "  expected: free memory on the requested nodes"
    )
    assert provider.statistics().current_count == 0
    assert provider.statistics().refused_count == 1


def test_a_page_that_cannot_be_moved_is_counted_with_its_reason(
    provider: NumaProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    with provider.alloc(16 * 4096) as memory:
        told = [*([-16] * 3), *([-13] * 2), *([0] * 11)]
        monkeypatch.setattr(numa, "move", lambda pages, node, *, pid=0: told)
        chunk = numa_provider.move_range(memory.address, memory.size, 0, 0)
        assert chunk.moved == 16  # where they are counts, not what was told
        chunk = numa_provider.move_range(memory.address, memory.size, 0, 3)
        assert chunk.not_moved == {
            "in use by the kernel at the moment": 3,
            "shared with another process": 2,
            "the kernel left it where it was": 11,
        }


def test_pages_that_were_never_touched_are_nowhere() -> None:
    with numa.Region(8 * 4096) as region:
        ctypes.memset(region.address, 1, 4096)
        where = numa_provider.where_is(region.address, region.length)
        assert where.untouched == 7
        assert sum(where.pages.values()) == 1
        assert where.total == 8


def test_a_simulated_machine_has_no_real_nodes() -> None:
    with pytest.raises(Unsupported) as caught:
        NumaProvider(Config.load(simulate="2x16GB"))
    assert str(caught.value) == (
        "NUMA calls need a real Linux machine\n"
        "  expected: Linux, and no simulated machine in the settings\n"
        "  try: the provider 'simulated'"
    )


def test_the_limit_of_a_control_group_is_known(
    provider: NumaProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(numa_provider, "memory_left", lambda: 165 * MIB)
    with pytest.raises(OutOfMemory) as caught:
        provider.alloc(120 * MIB)
    assert str(caught.value) == (
        "cannot allocate 126 MB: this process may take 173 MB more\n"
        "  expected: less than the limit on its memory (control group) leaves, with 67.1 MB to "
        "spare\n"
        "  try: a smaller size, freeing something first, or a higher limit"
    )
    provider.alloc(MIB).free()


def test_nodes_this_process_may_not_use_are_no_domains(
    provider: NumaProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = provider.discover().topology
    assert machine is not None
    more = machine.replace(nodes=(*machine.nodes, replace(machine.nodes[0], id=8)))
    monkeypatch.setattr(numa_provider, "discover", lambda refresh, *, config: more)
    assert [d.id for d in provider.discover().domains] == [n.id for n in machine.nodes]
    monkeypatch.setattr(numa_provider, "read_table", lambda path: {"Mems_allowed_list": "8"})
    assert [d.id for d in provider.discover().domains] == [8]

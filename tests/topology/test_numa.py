"""NUMA calls on this machine; several nodes are in test_guest.py."""

from __future__ import annotations

import contextlib
import os

import pytest

from holdfast.base.errors import Unsupported
from holdfast.topology import numa

pytestmark = pytest.mark.skipif(not numa.is_supported(), reason="Linux on a known processor only")


def test_pages_are_bound_and_found() -> None:
    with numa.Region(8 * numa.PAGE_BYTES) as region:
        assert numa.nodes_of(region.address, region.length) == [-2] * 8  # never touched
        numa.bind(region.address, region.length, [0])
        region.buffer[: 4 * numa.PAGE_BYTES] = bytes(4 * numa.PAGE_BYTES)
        assert numa.nodes_of(region.address, region.length) == [0] * 4 + [-2] * 4


def test_a_node_number_out_of_range_is_refused() -> None:
    with numa.Region(numa.PAGE_BYTES) as region, pytest.raises(Unsupported) as caught:
        numa.bind(region.address, region.length, [5000])
    assert str(caught.value) == ("there is no NUMA node 5000\n  expected: a node that is online")


def test_affinity_is_restored_also_after_an_error() -> None:
    before = os.sched_getaffinity(0)
    with contextlib.suppress(KeyError), numa.running_on([min(before)]):
        assert os.sched_getaffinity(0) == {min(before)}
        raise KeyError
    assert os.sched_getaffinity(0) == before


def test_cpus_that_are_not_there_are_refused() -> None:
    before = os.sched_getaffinity(0)
    with pytest.raises(Unsupported) as caught, numa.running_on([4095]):
        pass
    assert str(caught.value) == (
        "cannot run on CPUs [4095]: Invalid argument\n"
        f"  expected: some of the CPUs this process may use: {sorted(before)}"
    )
    assert os.sched_getaffinity(0) == before


def test_a_region_is_not_closed_while_a_view_exists() -> None:
    region = numa.Region(numa.PAGE_BYTES)
    view = region.buffer[:10]
    with pytest.raises(BufferError):
        region.close()
    view.release()
    region.close()


def test_another_system_is_refused(monkeypatch) -> None:
    monkeypatch.setattr(numa.platform, "machine", lambda: "sparc")
    with pytest.raises(Unsupported) as caught:
        numa.bind(0, 4096, [0])
    assert str(caught.value).startswith("mbind is not available on Linux sparc\n")

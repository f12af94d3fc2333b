"""The same code in a machine with three NUMA nodes, which QEMU makes up."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import holdfast
from holdfast.topology import Performance, Topology
from tests.guest.initramfs import build_initramfs
from tests.guest.machine import THREE_NODES, missing, run
from tests.needs import needs

pytestmark = [pytest.mark.numa, needs(missing())]

SCRIPT = """
import json
from holdfast.base.config import Config
from holdfast.topology import discover, measure, numa
from holdfast.topology.speed import host

host.SMALLEST_BYTES = 32 * 2**20       # this proves places, not speeds: keep it short
host.LARGEST_BYTES = 32 * 2**20
machine = measure(discover(), time_limit_s=300, config=Config.load(cache_dir="/tmp/cache"))

placed = {}
for node in machine.nodes:
    with numa.Region(64 * 4096) as region:
        numa.bind(region.address, region.length, [node.id])
        region.buffer[:] = bytes(region.length)
        placed[f"bound to {node.id}"] = sorted(set(numa.nodes_of(region.address, region.length)))
with numa.allocating_on([0, 1, 2], numa.INTERLEAVE), numa.Region(63 * 4096) as region:
    region.buffer[:] = bytes(region.length)
    pages = numa.nodes_of(region.address, region.length)
    placed["interleaved"] = [pages.count(n) for n in (0, 1, 2)]
with numa.Region(64 * 4096) as region:
    region.buffer[:] = bytes(region.length)
    placed["after"] = sorted(set(numa.nodes_of(region.address, region.length)))
refused = None
try:
    with numa.Region(4096) as region:
        numa.bind(region.address, region.length, [7])
except Exception as exc:
    refused = f"{type(exc).__name__}: {exc}"
print(json.dumps({"machine": machine.to_json(), "placed": placed, "refused": refused}))
"""


@pytest.fixture(scope="module")
def guest(tmp_path_factory: pytest.TempPathFactory) -> dict:
    disk = tmp_path_factory.mktemp("guest") / "initramfs.cpio"
    build_initramfs(disk, packages=[Path(holdfast.__file__).parent], script=SCRIPT)
    result = run(THREE_NODES, disk, timeout_s=240)
    assert result.rc == 0, result.output
    answer = json.loads(result.output.splitlines()[-1])
    answer["machine"] = Topology.from_json(answer["machine"])
    return answer


def test_exactly_the_three_nodes_are_found(guest: dict) -> None:
    nodes = guest["machine"].nodes
    assert [node.id for node in nodes] == [0, 1, 2]
    assert [node.cpus for node in nodes] == [(0, 1), (2, 3), ()]
    assert [node.memory_only for node in nodes] == [False, False, True]
    assert [node.distances for node in nodes] == list(THREE_NODES.distances)
    for node, made in zip(nodes, THREE_NODES.nodes, strict=True):
        assert 0.75 * made.memory_mib <= node.total_bytes / 2**20 <= made.memory_mib


def test_the_firmware_figures_are_found(guest: dict) -> None:
    for node in guest["machine"].nodes:
        near = THREE_NODES.nearest_initiator(node.id)
        latency = THREE_NODES.latency_ns[near][node.id]
        bandwidth = THREE_NODES.bandwidth_mib_s[near][node.id]
        assert node.hmat == Performance(
            initiators=(near,),
            read_latency_ns=latency,
            write_latency_ns=latency,
            read_bandwidth_mb_s=bandwidth,
            write_bandwidth_mb_s=bandwidth,
        )


def test_packages_cores_and_links_are_found(guest: dict) -> None:
    machine = guest["machine"]
    assert {p: [c.id for c in cpus] for p, cpus in machine.packages.items()} == {
        0: [0, 1],
        1: [2, 3],
    }
    assert len(machine.cores) == 4
    ends = {(link.source, link.target): link for link in machine.links}
    assert ends["node:0", "node:1"].distance == 21
    assert ends["node:0", "node:2"].latency_ns == 250
    assert ends["node:1", "node:2"].latency_ns is None  # the firmware's figure is not for that pair


def test_the_made_up_gpu_is_on_node_1(guest: dict) -> None:
    [gpu] = guest["machine"].gpus
    assert (gpu.vendor, gpu.kind, gpu.numa_node) == ("QEMU", "virtual", 1)
    assert (gpu.link.speed_gt_s, gpu.link.width) == (2.5, 1)


def test_every_pair_of_nodes_is_measured(guest: dict) -> None:
    machine = guest["machine"]
    assert machine.probe("measure").reason is None
    reads = {(m.source, m.target): m for m in machine.measurements if m.mode == "read"}
    assert set(reads) == {(f"node:{m}", f"node:{c}") for m in (0, 1, 2) for c in (0, 1)}
    assert all(m.bandwidth_gb_s > 0 and m.latency_ns > 0 for m in reads.values())


def test_pages_lie_where_they_were_bound(guest: dict) -> None:
    placed = guest["placed"]
    assert [placed[f"bound to {n}"] for n in (0, 1, 2)] == [[0], [1], [2]]
    assert placed["interleaved"] == [21, 21, 21]
    assert len(placed["after"]) == 1  # the policy did not outlive its block


def test_a_node_that_is_not_there_is_refused(guest: dict) -> None:
    assert guest["refused"] == (
        "Unsupported: the kernel refused mbind: Invalid argument "
        "(a node that is not online, or has no memory, was named)\n"
        "  expected: nodes that holdfast topo lists, and a process allowed to use them"
    )


def test_discovery_reports_missing_drivers(guest: dict) -> None:
    reports = {p.name: p.status for p in guest["machine"].probes}
    assert reports["linux"] == reports["pci"] == "ok"
    assert [reports[n] for n in ("nvml", "opencl", "torch")] == ["absent"] * 3

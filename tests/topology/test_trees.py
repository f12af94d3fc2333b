"""Hand-made sysfs trees of machines we do not have are discovered right.

The same trees were read by lscpu, hwloc and lspci, which agree with the figures below.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.base.config import Config
from holdfast.topology import (
    Cache,
    Cpu,
    Gpu,
    HugePages,
    Link,
    Node,
    PcieLink,
    Performance,
    Topology,
    discover,
)
from tests.topology import trees


@pytest.fixture(scope="module")
def machine(machine_root: Callable[[str], Path]):
    """A function from the name of a machine to what is discovered of it."""

    @functools.cache
    def found(name: str) -> Topology:
        return discover(config=Config.load({}, root=machine_root(name)))

    return found


@pytest.fixture(scope="module")
def server_to_damage(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tree that is written once, for tests that take a part away and put it back."""
    return trees.two_socket_server(tmp_path_factory.mktemp("to_damage") / "root")


def test_two_socket_server(machine) -> None:
    server = machine("two_socket_server")
    assert server.cpu_model == "Intel(R) Xeon(R) Gold 6334 CPU @ 3.60GHz"
    assert server.nodes == (
        Node(
            id=0,
            total_bytes=270049120256,
            free_bytes=247073804288,
            cpus=(*range(8), *range(16, 24)),
            distances=(10, 21),
            memory_kind="dram",
            hugepages=(
                HugePages(page_bytes=2**21, total=1024, free=1000),
                HugePages(page_bytes=2**30, total=4, free=4),
            ),
        ),
        Node(
            id=1,
            total_bytes=270537818112,
            free_bytes=256339873792,
            cpus=(*range(8, 16), *range(24, 32)),
            distances=(21, 10),
            memory_kind="dram",
            hugepages=(
                HugePages(page_bytes=2**21, total=512, free=512),
                HugePages(page_bytes=2**30, total=2, free=1),
            ),
        ),
    )
    assert server.memory_bytes == 270049120256 + 270537818112
    assert len(server.cpus) == 32
    assert len(server.cores) == 16
    assert server.threads_per_core == 2
    assert list(server.packages) == [0, 1]
    assert server.cpus[24] == Cpu(id=24, core=0, die=0, package=1, node=1)
    assert server.cores[0] == (server.cpus[0], server.cpus[16])
    third = [c for c in server.caches if c.level == 3]
    assert third == [
        Cache(level=3, kind="unified", size_bytes=18432 * 1024, line_bytes=64, cpus=node.cpus)
        for node in server.nodes
    ]
    assert len([c for c in server.caches if c.level == 2 and c.size_bytes == 1280 * 1024]) == 16


def test_server_gpus_and_their_links(machine) -> None:
    server = machine("two_socket_server")
    first, second, management = server.gpus
    assert first == Gpu(
        id=0,
        pci_address="0000:17:00.0",
        vendor="NVIDIA",
        name="NVIDIA A100-SXM4-40GB",
        kind="discrete",
        pci_id="10de:20b0",
        driver="nvidia",
        numa_node=0,
        link=PcieLink(speed_gt_s=2.5, width=16, max_speed_gt_s=16.0, max_width=16),
    )
    # The card could do 16 GT/s, the slot above it only 8.
    assert second.link == PcieLink(speed_gt_s=8.0, width=16, max_speed_gt_s=8.0, max_width=16)
    assert (second.numa_node, second.link.bandwidth_gb_s) == (1, 15.75)
    assert (management.vendor, management.kind, management.link) == ("ASPEED", "display", None)
    assert server.links == (
        Link(source="node:0", target="node:1", kind="numa", distance=21),
        Link(source="node:0", target="gpu:0", kind="pcie", lanes=16, bandwidth_gb_s=31.51),
        Link(source="node:1", target="gpu:1", kind="pcie", lanes=16, bandwidth_gb_s=15.75),
        Link(source="gpu:0", target="gpu:1", kind="pcie", via="system"),
    )


def test_laptop_with_two_kinds_of_core(machine) -> None:
    laptop = machine("laptop")
    assert [c.kind for c in laptop.cpus] == ["performance"] * 8 + ["efficiency"] * 8
    assert len(laptop.cores) == 12
    shared = [c.cpus for c in laptop.caches if c.level == 2 and c.size_bytes == 2**21]
    assert shared == [(8, 9, 10, 11), (12, 13, 14, 15)]
    [node] = laptop.nodes
    assert (node.total_bytes, node.free_bytes) == (16491225088, 4309336064)
    [gpu] = laptop.gpus
    assert (gpu.vendor, gpu.kind, gpu.link, gpu.driver) == ("Intel", "integrated", None, "i915")
    # The kernel says -1; on a machine with one node there is no doubt.
    assert gpu.numa_node == 0
    assert laptop.links == (Link(source="node:0", target="gpu:0", kind="fabric"),)


def test_grace_hopper_has_its_gpu_memory_as_a_node(machine) -> None:
    grace = machine("grace_hopper")
    assert [node.id for node in grace.nodes] == [0, 1]  # not the seven empty ones
    cpu_node, gpu_node = grace.nodes
    assert (cpu_node.memory_kind, cpu_node.memory_only) == ("dram", False)
    assert (gpu_node.memory_kind, gpu_node.memory_only) == ("gpu", True)
    assert (cpu_node.distances, gpu_node.distances) == ((10, 80), (80, 10))
    assert gpu_node.total_bytes == 102005473280
    assert len(grace.cores) == len(grace.cpus) == 72
    assert grace.cpu_model is None
    [gpu] = grace.gpus
    assert (gpu.name, gpu.numa_node, gpu.memory_node) == ("NVIDIA GH200 480GB", 0, 1)
    assert gpu.memory_bytes == gpu_node.total_bytes
    assert Link(source="node:0", target="gpu:0", kind="c2c") in grace.links


def test_cxl_memory_is_distinguished_from_dram(machine) -> None:
    cxl = machine("cxl_machine")
    near, far = cxl.nodes
    assert (near.memory_kind, far.memory_kind, far.memory_only) == ("dram", "cxl", True)
    assert far.total_bytes == 137438953472
    assert far.hmat == Performance(
        initiators=(0,),
        read_latency_ns=250,
        write_latency_ns=275,
        read_bandwidth_mb_s=51200,
        write_bandwidth_mb_s=40960,
    )
    assert cxl.links == (
        Link(
            source="node:0",
            target="node:1",
            kind="numa",
            distance=14,
            bandwidth_gb_s=51.2,
            latency_ns=250,
        ),
    )
    assert cxl.gpus == ()


def test_amd_cards_with_their_memory_and_xgmi(machine) -> None:
    amd = machine("amd_instinct")
    assert [gpu.memory_bytes for gpu in amd.gpus] == [68702699520, 68702699520]
    assert [gpu.free_bytes for gpu in amd.gpus] == [
        68702699520 - 10960896,
        68702699520 - 21484142592,
    ]
    assert [gpu.numa_node for gpu in amd.gpus] == [0, 1]
    peer = Link(source="gpu:0", target="gpu:1", kind="xgmi", bandwidth_gb_s=200.0)
    assert [link for link in amd.links if link.source.startswith("gpu")] == [peer]
    assert len([c for c in amd.caches if c.level == 3]) == 4


def test_a_kernel_without_numa_is_one_node(machine) -> None:
    plain = machine("no_numa")
    assert plain.nodes == (
        Node(
            id=0,
            total_bytes=8342474752,
            free_bytes=6464212992,
            cpus=(0, 1, 2, 3),
            distances=(10,),
            memory_kind="dram",
        ),
    )
    assert {cpu.node for cpu in plain.cpus} == {0}
    assert plain.probe("pci").status == "absent"
    assert plain.memory_limit_bytes is None


def test_a_container_knows_its_limit(machine) -> None:
    container = machine("container")
    assert container.memory_bytes == 33578557440
    assert container.memory_limit_bytes == 2147483648


@pytest.mark.parametrize("name", trees.MACHINES)
def test_every_machine_survives_json_and_a_recorded_tree_asks_no_driver(machine, name: str) -> None:
    found = machine(name)
    assert Topology.from_json(found.to_json()) == found
    statuses = {report.name: report.status for report in found.probes}
    assert [statuses[n] for n in ("nvml", "opencl", "torch", "psutil")] == ["skipped"] * 4


@pytest.mark.parametrize(
    "gone",
    [
        "sys/devices/system/node/node0/meminfo",
        "sys/devices/system/node/node1/distance",
        "sys/devices/system/node/online",
        "sys/devices/system/cpu/online",
        "sys/devices/system/cpu/cpu3/topology",
        "sys/devices/system/cpu/cpu3/cache",
        "sys/bus/pci/devices/0000:17:00.0/numa_node",
        "sys/bus/pci/devices/0000:98:00.0/vendor",
        "sys/bus/pci",
        "proc",
    ],
)
def test_missing_files_leave_facts_unknown_and_break_nothing(
    server_to_damage: Path, tmp_path: Path, gone: str
) -> None:
    path, aside = server_to_damage / gone, tmp_path / "aside"
    path.rename(aside)
    try:
        found = discover(refresh=True, config=Config.load({}, root=server_to_damage))
    finally:
        aside.rename(path)
    assert [node.id for node in found.nodes] == [0, 1]
    assert len(found.cpus) == 32
    assert found.probe("linux").status == "ok"
    assert Topology.from_json(found.to_json()) == found


def test_garbage_in_files_leaves_facts_unknown(tmp_path: Path) -> None:
    root = trees.two_socket_server(tmp_path / "root")
    node = root / "sys/devices/system/node/node0"
    (node / "meminfo").write_bytes(b"\xff\xfe nonsense")
    (node / "distance").write_text("near far")
    (root / "sys/devices/system/cpu/cpu0/topology/core_id").write_text("-1")
    found = discover(config=Config.load({}, root=root))
    assert found.nodes[0].total_bytes is None
    assert found.distance(0, 1) is None
    assert found.cpus[0].core is None
    assert len(found.cores) == 17  # CPU 0 and CPU 16 are no longer known to share one


def test_a_folder_that_is_no_machine_is_refused(tmp_path: Path) -> None:
    found = discover(config=Config.load({}, root=tmp_path))
    assert found.nodes == ()
    report = found.probe("linux")
    assert (report.status, report.reason) == (
        "absent",
        f"there is no {tmp_path}/sys/devices/system/cpu",
    )

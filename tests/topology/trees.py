"""Hand-made `/sys` and `/proc` trees of whole machines, one function `NAME(root) -> root` each.

Covers: a server, a laptop, Grace Hopper, CXL, AMD Instinct, a kernel without NUMA, a container.
Leaves to others: file formats (tree_writer).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.topology.tree_writer import (
    GIB_KB,
    INTEGRATED,
    CpuModel,
    Link,
    Node,
    Tree,
    by_core,
    by_package,
    ranges,
)


def two_socket_server(root: Path) -> Path:
    """Two Xeon Gold 6334 with two A100: one idle, one in a slot that only offers 8 GT/s."""
    tree = Tree(root, x86=CpuModel("Intel(R) Xeon(R) Gold 6334 CPU @ 3.60GHz"))
    for package in (0, 1):
        for core in range(8):
            first = 8 * package + core
            apic = 64 * package + 2 * core
            tree.add_core(first, first + 16, core=core, package=package, node=package, apic=apic)
    tree.add_cache(1, "Data", 48, 12, shared=by_core)
    tree.add_cache(1, "Instruction", 32, 8, shared=by_core)
    tree.add_cache(2, "Unified", 1280, 20, shared=by_core)
    tree.add_cache(3, "Unified", 18432, 12, shared=by_package, shift=6)
    huge = ({2048: (1024, 1000), 1048576: (4, 4)}, {2048: (512, 512), 1048576: (2, 1)})
    tree.add_node(Node(0, 263719844, 241283012, (10, 21), huge[0]))
    tree.add_node(Node(1, 264197088, 250331908, (21, 10), huge[1]))

    idle = Link(2.5, 16, 16.0, 16)
    tree.add_bridge("0000:16:02.0", "8086:347a", bus=0x17, link=idle, node=0)
    a100 = {"ids": "10de:20b0", "subsystem": "10de:134f", "cls": 0x030200, "driver": "nvidia"}
    tree.add_pci("0000:17:00.0", under="0000:16:02.0", node=0, link=idle, **a100)
    slot = Link(8.0, 16, 8.0, 16)
    tree.add_bridge("0000:97:02.0", "8086:347a", bus=0x98, link=slot, node=1)
    card = Link(8.0, 16, 16.0, 16)
    tree.add_pci("0000:98:00.0", under="0000:97:02.0", node=1, link=card, **a100)
    tree.add_nvidia(
        "0000:17:00.0",
        "NVIDIA A100-SXM4-40GB",
        minor=0,
        uuid="GPU-5d1f2c3e-8a47-4be6-9f02-6c1b7a90d3e4",
        bios="92.00.45.00.03",
        firmware="535.129.03",
    )
    # The driver has no better answers until the GPU is opened for the first time.
    tree.add_nvidia(
        "0000:98:00.0",
        "NVIDIA A100-SXM4-40GB",
        minor=1,
        uuid="GPU-????????-????-????-????-????????????",
        bios="??.??.??.??.??",
        firmware="N/A",
    )

    bmc = Link(5.0, 1, 5.0, 1)
    tree.add_bridge("0000:00:1c.0", "8086:a190", bus=2, last=3, link=bmc, node=0)
    tree.add_bridge(
        "0000:02:00.0", "1a03:1150", bus=3, link=bmc, node=0, under="0000:00:1c.0", port=7
    )
    tree.add_pci(
        "0000:03:00.0",
        "1a03:2000",
        subsystem="1a03:2000",
        cls=0x030000,
        under="0000:02:00.0",
        node=0,
        driver="ast",
    )
    tree.add_memory_tier(4, (0, 1))
    return tree.finish()


def laptop(root: Path) -> Path:
    """A Core i7-1260P: four cores of two threads, eight of one, one node, integrated graphics."""
    name = "12th Gen Intel(R) Core(TM) i7-1260P"
    tree = Tree(root, x86=CpuModel(name, model=154, stepping=3, mhz=2496.0))
    performance, efficient = range(8), range(8, 16)
    for core in range(4):
        tree.add_core(2 * core, 2 * core + 1, core=4 * core, apic=8 * core)
    for core in range(8):
        tree.add_core(8 + core, core=16 + core, apic=32 + 2 * core)
    tree.add_cache(1, "Data", 48, 12, shared=by_core, only=performance)
    tree.add_cache(1, "Instruction", 32, 8, shared=by_core, only=performance)
    tree.add_cache(2, "Unified", 1280, 10, shared=by_core, shift=3, only=performance)
    tree.add_cache(1, "Data", 32, 8, shared=by_core, only=efficient)
    tree.add_cache(1, "Instruction", 64, 8, shared=by_core, only=efficient)
    tree.add_cache(2, "Unified", 2048, 16, shared=lambda c: c.apic >> 3, shift=3, only=efficient)
    tree.add_cache(3, "Unified", 18432, 12, shared=by_package, shift=6)
    tree.put("sys/devices/cpu_core/cpus", ranges(performance))
    tree.put("sys/devices/cpu_atom/cpus", ranges(efficient))
    tree.add_node(Node(0, 16104712, 4208336, (10,)))

    tree.add_pci("0000:00:00.0", "8086:4621", subsystem="17aa:22e7", cls=0x060000)
    tree.add_pci(
        "0000:00:02.0",
        "8086:46a6",
        subsystem="17aa:22e7",
        cls=0x030000,
        link=INTEGRATED,
        driver="i915",
        port=9,
    )
    disk = Link(16.0, 4, 16.0, 4)
    tree.add_bridge("0000:00:06.0", "8086:464d", bus=4, link=disk)
    tree.add_pci(
        "0000:04:00.0",
        "144d:a80a",
        subsystem="144d:a801",
        cls=0x010802,
        under="0000:00:06.0",
        link=disk,
        driver="nvme",
    )
    tree.add_memory_tier(4, (0,))
    return tree.finish()


def grace_hopper(root: Path) -> Path:
    """A GH200 with 64 kB pages: 72 cores on node 0, the GPU's memory as node 1, nodes 2-8 empty.

    The GPU's PCIe link is a single lane; its data goes over NVLink-C2C, which sysfs does not show.
    """
    tree = Tree(root, page_kb=64)
    for core in range(72):
        tree.add_core(core, core=core)
    tree.add_cache(1, "Data", 64, 4, shared=by_core)
    tree.add_cache(1, "Instruction", 64, 4, shared=by_core)
    tree.add_cache(2, "Unified", 1024, 8, shared=by_core)
    tree.add_cache(3, "Unified", 116736, 12, shared=by_package)
    huge = {2048: (0, 0), 524288: (0, 0), 16777216: (0, 0)}
    near = (10, *[80] * 8)
    tree.add_node(Node(0, 502078464, 480221184, near, huge))
    for node in range(1, 9):
        row = [80, *[255] * 8]
        row[node] = 10
        total, free = (99614720, 99090432) if node == 1 else (0, 0)
        gpu = {"movable": True, "generic_initiator": True}
        tree.add_node(Node(node, total, free, tuple(row), huge, **gpu))

    address = "0009:01:00.0"
    lane = Link(16.0, 1, 16.0, 1)
    tree.add_bridge("0009:00:00.0", "10de:22b8", bus=1, link=lane, node=0)
    tree.add_pci(
        address,
        "10de:2342",
        subsystem="10de:16eb",
        cls=0x030200,
        under="0009:00:00.0",
        node=0,
        link=lane,
        driver="nvidia",
    )
    tree.add_nvidia(
        address,
        "NVIDIA GH200 480GB",
        minor=0,
        uuid="GPU-0e7c41b5-2d6a-9f38-c410-7be2a5d8f361",
        bios="96.00.A5.00.01",
        firmware="550.54.15",
    )
    tree.text(
        f"proc/driver/nvidia/gpus/{address}/numa_status",
        "Node:      1\nStatus:    online\nAddress:   420000000000\nSize:      17c0000000\n",
    )
    tree.add_memory_tier(4, (0, 1))
    return tree.finish()


def cxl_machine(root: Path) -> Path:
    """A Xeon Gold 6434 with 64 GiB of DRAM and 128 GiB of CXL memory as the CPU-less node 1."""
    name = "Intel(R) Xeon(R) Gold 6434"
    tree = Tree(root, x86=CpuModel(name, model=143, stepping=8, mhz=3700.0, cache_kb=23040))
    for core in range(8):
        tree.add_core(core, core + 8, core=core, apic=2 * core)
    tree.add_cache(1, "Data", 48, 12, shared=by_core)
    tree.add_cache(1, "Instruction", 32, 8, shared=by_core)
    tree.add_cache(2, "Unified", 2048, 16, shared=by_core)
    tree.add_cache(3, "Unified", 23040, 15, shared=by_package, shift=7)
    tree.add_node(Node(0, 65757616, 58114240, (10, 14)))
    capacity_kb = 128 * GIB_KB
    tree.add_node(Node(1, capacity_kb, 133955584, (14, 10), movable=True))
    tree.add_hmat(0, 0, read=(90, 204800), write=(95, 163840))
    tree.add_hmat(1, 0, read=(250, 51200), write=(275, 40960))
    # The kernel's abstract distance: 576 * (250 + 275) / (90 + 95) * 368640 / 92160 = 6536,
    # and 6536 >> 7 is 51.
    tree.add_memory_tier(4, (0,))
    tree.add_memory_tier(51, (1,))

    link = Link(32.0, 8, 32.0, 8)
    tree.add_bridge("0000:37:01.0", "8086:352a", bus=0x38, link=link, node=0)
    expander = tree.add_pci(
        "0000:38:00.0",
        "1b00:c001",
        subsystem="1b00:c001",
        cls=0x050210,
        under="0000:37:01.0",
        node=0,
        link=link,
        driver="cxl_pci",
    )
    size = f"{capacity_kb * 1024:#x}"
    memory = f"{expander}/mem0"
    tree.put(f"{memory}/ram/size", size)
    tree.put(f"{memory}/pmem/size", "0")
    tree.puts(memory, serial="0xc1b0000a1", firmware_version="1.2.0", numa_node=0)
    tree.link("sys/bus/cxl/devices/mem0", memory)
    region = "sys/devices/platform/ACPI0017:00/root0/decoder0.0/region0"
    tree.puts(region, size=size, resource="0x1080000000", mode="ram", interleave_ways=1)
    tree.link("sys/bus/cxl/devices/region0", region)
    dax = f"{region}/dax_region0/dax0.0"
    tree.puts(dax, size=capacity_kb * 1024, align=2097152, modalias="dax:t0")
    tree.puts(dax, target_node=1, numa_node=0, resource="0x1080000000")
    tree.link("sys/bus/dax/devices/dax0.0", dax)
    tree.link(f"{dax}/driver", "sys/bus/dax/drivers/kmem")
    tree.link("sys/bus/dax/drivers/kmem/dax0.0", dax)
    return tree.finish()


def amd_instinct(root: Path) -> Path:
    """An EPYC 7313 as two nodes (NPS2) with the two halves of an MI250X joined by xGMI."""
    model = CpuModel(
        "AMD EPYC 7313 16-Core Processor",
        vendor="AuthenticAMD",
        family=25,
        model=1,
        stepping=1,
        mhz=3000.0,
        cache_kb=512,
        tlb="2560 4K pages",
    )
    tree = Tree(root, x86=model)
    for number in range(16):
        chiplet, place = divmod(number, 4)
        core = 8 * chiplet + place
        tree.add_core(number, number + 16, core=core, node=chiplet // 2, apic=2 * core)
    tree.add_cache(1, "Data", 32, 8, shared=by_core)
    tree.add_cache(1, "Instruction", 32, 8, shared=by_core)
    tree.add_cache(2, "Unified", 512, 8, shared=by_core)
    tree.add_cache(3, "Unified", 32768, 16, shared=lambda cpu: cpu.apic >> 4, shift=4)
    sizes_kb = (131683812, 132091904)
    tree.add_node(Node(0, sizes_kb[0], 120512340, (10, 12)))
    tree.add_node(Node(1, sizes_kb[1], 127004908, (12, 10)))
    tree.add_memory_tier(4, (0, 1))

    vram = 68702699520
    link = Link(16.0, 16, 16.0, 16)
    gpus = (("0000:40:01.1", 0x41, 10960896), ("0000:c0:01.1", 0xC1, 21484142592))
    for node, (port, bus, used) in enumerate(gpus):
        tree.add_bridge(port, "1022:1483", bus=bus, link=link, node=node)
        folder = tree.add_pci(
            f"0000:{bus:02x}:00.0",
            "1002:7408",
            subsystem="1002:0b0c",
            cls=0x038000,
            under=port,
            node=node,
            link=link,
            driver="amdgpu",
        )
        tree.puts(folder, mem_info_vram_total=vram, mem_info_vram_used=used)
        tree.puts(folder, mem_info_vis_vram_total=vram, mem_info_gtt_total=135142342656)

    tree.link("sys/class/kfd/kfd", "sys/devices/virtual/kfd/kfd")
    tree.put("sys/devices/virtual/kfd/kfd/topology/generation_id", 2)
    hive = 9034655720432782706
    for node in (0, 1):
        cpu, gpu, bus = node, node + 2, gpus[node][1]
        size = sizes_kb[node] * 1024
        cores = {"cpu_cores_count": 16, "cpu_core_id_base": 32 * node}
        tree.add_kfd_node(cpu, "", gpu_id=0, heap=0, size=size, io_links=2, p2p_links=0, **cores)
        place = {"location_id": bus << 8, "drm_render_minor": 128 + node, "hive_id": hive}
        number = (36057, 11743)[node]
        links = {"io_links": 2, "p2p_links": 1}
        tree.add_kfd_node(gpu, "aldebaran", gpu_id=number, heap=1, size=vram, **links, **place)
        pcie = {"weight": 20, "min_bandwidth": 312, "max_bandwidth": 32000}
        xgmi = {"weight": 15, "min_bandwidth": 50000, "max_bandwidth": 200000}
        tree.add_kfd_link(1, (cpu, 1 - cpu), "io_links/0", weight=12)
        tree.add_kfd_link(2, (cpu, gpu), "io_links/1", **pcie)
        tree.add_kfd_link(2, (gpu, cpu), "io_links/0", **pcie)
        tree.add_kfd_link(11, (gpu, 5 - gpu), "io_links/1", **xgmi)
        tree.add_kfd_link(2, (gpu, 1 - cpu), "p2p_links/0", weight=32)
    return tree.finish()


def _small_guest(root: Path) -> Tree:
    name = "Intel(R) Xeon(R) Platinum 8272CL CPU @ 2.60GHz"
    tree = Tree(root, x86=CpuModel(name, model=85, stepping=7, mhz=2600.0, cache_kb=36608))
    for core in range(4):
        tree.add_core(core, core=core, apic=core)
    tree.add_cache(1, "Data", 32, 8, shared=by_core, shift=0)
    tree.add_cache(1, "Instruction", 32, 8, shared=by_core, shift=0)
    tree.add_cache(2, "Unified", 1024, 16, shared=by_core, shift=0)
    tree.add_cache(3, "Unified", 36608, 11, shared=by_package, shift=2)
    return tree


def no_numa(root: Path) -> Path:
    """A guest of four CPUs whose kernel has neither NUMA nor PCI: no node folder, no PCI bus."""
    return _small_guest(root).finish(total_kb=8146948, free_kb=6312708)


def container(root: Path) -> Path:
    """A container with 2 GiB (cgroup v2) on a machine of 31 GiB, four CPUs and one node."""
    tree = _small_guest(root)
    tree.add_node(Node(0, 32791560, 20118244, (10,)))
    tree.add_memory_tier(4, (0,))
    group = "sys/fs/cgroup"
    tree.put(f"{group}/cgroup.controllers", "cpuset cpu io memory hugetlb pids rdma misc")
    tree.put(f"{group}/memory.max", 2147483648)
    tree.put(f"{group}/memory.current", 314572800)
    tree.put(f"{group}/memory.high", "max")
    tree.put(f"{group}/memory.swap.max", 0)
    tree.put(f"{group}/cpu.max", "max 100000")
    tree.put(f"{group}/cpuset.cpus.effective", "0-3")
    tree.put(f"{group}/cpuset.mems.effective", 0)
    tree.text("proc/self/cgroup", "0::/\n")
    return tree.finish()


MACHINES: dict[str, Callable[[Path], Path]] = {
    build.__name__: build
    for build in (
        two_socket_server,
        laptop,
        grace_hopper,
        cxl_machine,
        amd_instinct,
        no_numa,
        container,
    )
}

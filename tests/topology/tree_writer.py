"""A writer of Linux `/sys` and `/proc` trees, part by part.

Covers: CPUs, caches, NUMA nodes, huge pages, HMAT, memory tiers, CXL and DAX memory, PCI devices
with their links, KFD, NVIDIA's procfs, cgroup limits.  Leaves to others: reading them.
Promise: file formats are the kernel's (names, units, column widths, hex, symbolic links, trailing
newline); a file that the real machine does not have is not written.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

GIB_KB = 1024 * 1024


@dataclass
class Cpu:
    """One hardware thread. `apic` gives x86 cache and cluster ids, as in the kernel."""

    id: int
    core: int
    package: int
    node: int
    apic: int
    caches: int = 0


@dataclass(frozen=True)
class CpuModel:
    """What `/proc/cpuinfo` says of every CPU of an x86 machine."""

    name: str
    vendor: str = "GenuineIntel"
    family: int = 6
    model: int = 106
    stepping: int = 6
    mhz: float = 3600.0
    cache_kb: int = 18432
    flags: str = "fpu vme de pse tsc msr pae mce cx8 apic sse sse2 ht syscall nx lm avx avx2"
    tlb: str | None = None


@dataclass(frozen=True)
class Node:
    """One NUMA node; its CPUs are those of the cores added with its id.

    `distances` is its row of the matrix. `huge` maps a page size in kB to (allocated, free).
    `movable`: all its memory is in ZONE_MOVABLE, as hot-plugged GPU and CXL memory is, so that the
    node has no "normal" memory.
    """

    id: int
    total_kb: int
    free_kb: int
    distances: tuple[int, ...]
    huge: dict[int, tuple[int, int]] = field(
        default_factory=lambda: {2048: (0, 0), 1048576: (0, 0)}
    )
    movable: bool = False
    generic_initiator: bool = False


@dataclass(frozen=True)
class Link:
    """A PCIe link as one end of it reports it: GT/s and lanes, now and at most."""

    speed: float
    width: int
    max_speed: float
    max_width: int


#: A root complex integrated endpoint has the PCIe capability but no link registers.
INTEGRATED = Link(0.0, 0, 0.0, 255)


#: The lines of a node's meminfo, in the kernel's order; three huge page counts follow.
NODE_MEMINFO = """
MemTotal MemFree MemUsed SwapCached Active Inactive Active(anon) Inactive(anon) Active(file)
Inactive(file) Unevictable Mlocked Dirty Writeback FilePages Mapped AnonPages Shmem KernelStack
PageTables SecPageTables NFS_Unstable Bounce WritebackTmp KReclaimable Slab SReclaimable SUnreclaim
AnonHugePages ShmemHugePages ShmemPmdMapped FileHugePages FilePmdMapped
"""

#: The lines of /proc/meminfo, in the kernel's order.
PROC_MEMINFO = """
MemTotal MemFree MemAvailable Buffers Cached SwapCached Active Inactive Active(anon) Inactive(anon)
Active(file) Inactive(file) Unevictable Mlocked SwapTotal SwapFree Zswap Zswapped Dirty Writeback
AnonPages Mapped Shmem KReclaimable Slab SReclaimable SUnreclaim KernelStack PageTables
SecPageTables NFS_Unstable Bounce WritebackTmp CommitLimit Committed_AS VmallocTotal VmallocUsed
VmallocChunk Percpu AnonHugePages ShmemHugePages ShmemPmdMapped FileHugePages FilePmdMapped
HugePages_Total HugePages_Free HugePages_Rsvd HugePages_Surp Hugepagesize Hugetlb
"""


def ranges(ids: Iterable[int]) -> str:
    """The kernel's list format: `0-7,16-23`; empty for no ids."""
    runs = []
    for _, run in groupby(enumerate(sorted(ids)), key=lambda pair: pair[1] - pair[0]):
        members = [number for _, number in run]
        runs.append(f"{members[0]}" if len(members) == 1 else f"{members[0]}-{members[-1]}")
    return ",".join(runs)


def mask(ids: Iterable[int], bits: int) -> str:
    """The kernel's bitmap format: hexadecimal words of 32 bits, the first one as wide as needed."""
    value = sum(1 << number for number in ids)
    words = []
    for low in range(0, bits, 32):
        digits = (min(32, bits - low) + 3) // 4
        words.append(f"{value >> low & 0xFFFFFFFF:0{digits}x}")
    return ",".join(reversed(words))


def by_core(cpu: Cpu) -> Hashable:
    """Cache sharing: the threads of one core."""
    return cpu.package, cpu.core


def by_package(cpu: Cpu) -> Hashable:
    """Cache sharing: all CPUs of one package."""
    return cpu.package


class Tree:
    """A machine under construction. Nothing global is known before `finish()`, which writes it."""

    def __init__(self, root: Path, *, x86: CpuModel | None = None, page_kb: int = 4) -> None:
        """`x86=None` makes an aarch64 machine: no die ids, no cache ids, ARM-style cpuinfo."""
        self.root = root
        self.x86 = x86
        self.page_kb = page_kb
        self.cpus: list[Cpu] = []
        self.nodes: list[Node] = []
        self.pci: dict[str, str] = {}

    # -- files --

    def put(self, path: str, value: object) -> None:
        """Write one sysfs attribute: the value and a newline."""
        self.text(path, f"{value}\n")

    def text(self, path: str, content: str) -> None:
        """Write a file exactly as given."""
        self.binary(path, content.encode())

    def binary(self, path: str, content: bytes) -> None:
        """Write a file of bytes."""
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)

    def puts(self, folder: str, **values: object) -> None:
        """Write several attributes of one folder."""
        for name, value in values.items():
            self.put(f"{folder}/{name}", value)

    def link(self, path: str, target: str) -> None:
        """Make `path` a relative symbolic link to `target`; both are paths from the root.

        It climbs to a folder above the target even when it starts inside it, as sysfs links do.
        """
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        up = os.path.relpath(Path(target).parent, Path(path).parent)
        file.symlink_to(Path(up, Path(target).name))

    # -- CPUs and caches --

    def add_core(
        self, *threads: int, core: int, package: int = 0, node: int = 0, apic: int = 0
    ) -> None:
        """Add a core whose threads have these CPU numbers and consecutive APIC ids from `apic`."""
        for offset, thread in enumerate(threads):
            self.cpus.append(Cpu(thread, core, package, node, apic + offset))

    def add_cache(
        self,
        level: int,
        kind: str,
        size_kb: int,
        ways: int,
        *,
        shared: Callable[[Cpu], Hashable],
        shift: int = 1,
        only: Iterable[int] | None = None,
    ) -> None:
        """Add one cache to every CPU (or to `only` some), one instance per value of `shared`.

        On x86 its id is the APIC id without its lowest `shift` bits, and level 2 is the cluster.
        """
        chosen = [cpu for cpu in self.cpus if only is None or cpu.id in set(only)]
        for cpu in chosen:
            sharers = [other.id for other in chosen if shared(other) == shared(cpu)]
            folder = f"sys/devices/system/cpu/cpu{cpu.id}/cache/index{cpu.caches}"
            cpu.caches += 1
            self.puts(
                folder,
                level=level,
                type=kind,
                size=f"{size_kb}K",
                coherency_line_size=64,
                number_of_sets=size_kb * 1024 // (64 * ways),
                physical_line_partition=1,
                ways_of_associativity=ways,
                shared_cpu_list=ranges(sharers),
                shared_cpu_map=mask(sharers, self._bits()),
            )
            if self.x86:
                self.put(f"{folder}/id", cpu.apic >> shift)
                if level == 2:
                    self._put_siblings(cpu, "cluster_cpus", sharers)
                    self.put(f"{self._topology(cpu)}/cluster_id", cpu.apic >> shift << shift)

    def _bits(self) -> int:
        return max(cpu.id for cpu in self.cpus) + 1

    def _topology(self, cpu: Cpu) -> str:
        return f"sys/devices/system/cpu/cpu{cpu.id}/topology"

    def _put_siblings(self, cpu: Cpu, name: str, siblings: list[int]) -> None:
        self.put(f"{self._topology(cpu)}/{name}", mask(siblings, self._bits()))
        self.put(f"{self._topology(cpu)}/{name}_list", ranges(siblings))

    def _write_cpus(self) -> None:
        everyone = ranges(cpu.id for cpu in self.cpus)
        cores = {by_core(cpu) for cpu in self.cpus}
        smt = len(cores) < len(self.cpus)
        base = "sys/devices/system/cpu"
        self.puts(base, online=everyone, present=everyone, possible=everyone, offline="")
        self.puts(base, isolated="", kernel_max=8191)
        self.puts(f"{base}/smt", active=int(smt), control="on" if smt else "notsupported")
        for cpu in self.cpus:
            core = [other.id for other in self.cpus if by_core(other) == by_core(cpu)]
            package = [other.id for other in self.cpus if other.package == cpu.package]
            self.puts(self._topology(cpu), core_id=cpu.core, physical_package_id=cpu.package)
            for name in ("thread_siblings", "core_cpus"):
                self._put_siblings(cpu, name, core)
            for name in ("core_siblings", "package_cpus"):
                self._put_siblings(cpu, name, package)
            if self.x86:
                self.put(f"{self._topology(cpu)}/die_id", 0)
                self._put_siblings(cpu, "die_cpus", package)

    # -- memory --

    def add_node(self, node: Node) -> None:
        """Add a NUMA node. Its cores must have been added before."""
        self.nodes.append(node)
        folder = f"sys/devices/system/node/node{node.id}"
        cpus = [cpu.id for cpu in self.cpus if cpu.node == node.id]
        self.puts(folder, cpulist=ranges(cpus), cpumap=mask(cpus, self._bits()))
        self.put(f"{folder}/distance", " ".join(map(str, node.distances)))
        self.text(f"{folder}/meminfo", self._node_meminfo(node))
        for size_kb, (allocated, free) in node.huge.items():
            pages = f"{folder}/hugepages/hugepages-{size_kb}kB"
            self.puts(pages, nr_hugepages=allocated, free_hugepages=free, surplus_hugepages=0)
        for cpu in cpus:
            self.link(f"{folder}/cpu{cpu}", f"sys/devices/system/cpu/cpu{cpu}")
            self.link(f"sys/devices/system/cpu/cpu{cpu}/node{node.id}", folder)

    def add_hmat(
        self, target: int, initiator: int, *, read: tuple[int, int], write: tuple[int, int]
    ) -> None:
        """Give a node's (latency in ns, bandwidth in MB/s) seen from its best initiator node.

        The same values go to access0 (any initiator) and access1 (CPUs only).
        """
        base = "sys/devices/system/node"
        for access in ("access0", "access1"):
            folder = f"{base}/node{target}/{access}/initiators"
            self.puts(folder, read_latency=read[0], read_bandwidth=read[1])
            self.puts(folder, write_latency=write[0], write_bandwidth=write[1])
            self.link(f"{folder}/node{initiator}", f"{base}/node{initiator}")
            (self.root / f"{base}/node{target}/{access}/targets").mkdir(exist_ok=True)
            self.link(
                f"{base}/node{initiator}/{access}/targets/node{target}", f"{base}/node{target}"
            )

    def add_memory_tier(self, tier: int, nodes: Iterable[int]) -> None:
        """Add a memory tier; DRAM is always tier 4, a larger number is slower memory."""
        folder = f"sys/devices/virtual/memory_tiering/memory_tier{tier}"
        self.put(f"{folder}/nodelist", ranges(nodes))
        self.link(f"sys/bus/memory_tiering/devices/memory_tier{tier}", folder)

    def _usage(self, total_kb: int, free_kb: int) -> dict[str, int]:
        """Plausible values in kB for the lines of meminfo; lines that are not here are zero."""
        used = total_kb - free_kb
        usage = {"MemTotal": total_kb, "MemFree": free_kb, "MemUsed": used}
        parts = {"Active(anon)": 8, "Inactive(anon)": 8, "Active(file)": 6, "Inactive(file)": 6}
        parts |= {"Dirty": 4096, "Mapped": 40, "Shmem": 500, "KernelStack": 900, "PageTables": 200}
        parts |= {"SReclaimable": 30, "SUnreclaim": 60}
        for name, divisor in parts.items():
            usage[name] = used // divisor // self.page_kb * self.page_kb
        for kind in ("Active", "Inactive"):
            usage[kind] = usage[f"{kind}(anon)"] + usage[f"{kind}(file)"]
        usage["AnonPages"] = usage["Active(anon)"] + usage["Inactive(anon)"]
        usage["FilePages"] = usage["Cached"] = usage["Active(file)"] + usage["Inactive(file)"]
        usage["KReclaimable"] = usage["SReclaimable"]
        usage["Slab"] = usage["SReclaimable"] + usage["SUnreclaim"]
        return usage

    def _node_meminfo(self, node: Node) -> str:
        usage = self._usage(node.total_kb, node.free_kb)
        allocated, free = node.huge.get(self._default_huge_kb(), (0, 0))
        counts = {"HugePages_Total": allocated, "HugePages_Free": free, "HugePages_Surp": 0}
        lines = [f"{name + ':':<16}{usage.get(name, 0):>8} kB" for name in NODE_MEMINFO.split()]
        lines += [f"{name + ':':<17}{value:>5}" for name, value in counts.items()]
        return "".join(f"Node {node.id} {line}\n" for line in lines)

    def _default_huge_kb(self) -> int:
        return 2048 if self.page_kb == 4 else 524288

    def _write_node_lists(self) -> None:
        def listed(keep: Callable[[Node], bool]) -> str:
            return ranges(node.id for node in self.nodes if keep(node))

        self.puts(
            "sys/devices/system/node",
            online=listed(lambda node: True),
            possible=listed(lambda node: True),
            has_cpu=ranges({cpu.node for cpu in self.cpus}),
            has_memory=listed(lambda node: node.total_kb > 0),
            has_normal_memory=listed(lambda node: node.total_kb > 0 and not node.movable),
            has_generic_initiator=listed(lambda node: node.generic_initiator),
        )

    def _write_meminfo(self, total_kb: int, free_kb: int, huge: dict[int, tuple[int, int]]) -> None:
        usage = self._usage(total_kb, free_kb)
        usage["MemAvailable"] = free_kb + usage["Inactive(file)"]
        usage |= {"CommitLimit": total_kb // 2, "Committed_AS": usage["AnonPages"]}
        usage["VmallocTotal"] = 34359738367 if self.x86 else 133141626880
        usage["Hugepagesize"] = self._default_huge_kb()
        usage["Hugetlb"] = sum(size_kb * pages for size_kb, (pages, _) in huge.items())
        allocated, free = huge.get(self._default_huge_kb(), (0, 0))
        usage |= {"HugePages_Total": allocated, "HugePages_Free": free}
        lines = []
        for name in PROC_MEMINFO.split():
            unit = "" if name.startswith("HugePages_") else " kB"
            lines.append(f"{name + ':':<16}{usage.get(name, 0):>8}{unit}\n")
        self.text("proc/meminfo", "".join(lines))
        for size_kb, (allocated, free) in huge.items():
            folder = f"sys/kernel/mm/hugepages/hugepages-{size_kb}kB"
            self.puts(folder, nr_hugepages=allocated, free_hugepages=free, resv_hugepages=0)
            self.puts(folder, surplus_hugepages=0, nr_overcommit_hugepages=0)

    # -- PCI --

    def add_pci(
        self,
        address: str,
        ids: str,
        *,
        cls: int,
        under: str | None = None,
        subsystem: str = "0000:0000",
        node: int = -1,
        link: Link | None = None,
        driver: str | None = None,
        leads_to: tuple[int, int] | None = None,
        port: int = 0,
    ) -> str:
        """Add a PCI function and return its folder.

        `under` is the address of the bridge above it. `link=None` is conventional PCI: no link
        files. A bridge has `leads_to`, its secondary and subordinate bus. `port` is the PCIe
        device type: 0 endpoint, 4 root port, 7 PCIe-to-PCI bridge, 9 integrated endpoint.
        """
        above = self.pci[under] if under else f"sys/devices/pci{address[:7]}"
        folder = self.pci[address] = f"{above}/{address}"
        numbers = [int(part, 16) for part in f"{ids}:{subsystem}".split(":")]
        names = ("vendor", "device", "subsystem_vendor", "subsystem_device")
        for name, number in zip(names, numbers, strict=True):
            self.put(f"{folder}/{name}", f"0x{number:04x}")
        self.put(f"{folder}/class", f"0x{cls:06x}")
        self.put(f"{folder}/revision", "0xa1" if numbers[0] == 0x10DE else "0x00")
        self.puts(folder, irq=0, enable=1, numa_node=node)
        local = [cpu.id for cpu in self.cpus if node in (-1, cpu.node)]
        self.puts(folder, local_cpulist=ranges(local), local_cpus=mask(local, self._bits()))
        nothing = " ".join(["0x" + 16 * "0"] * 3)
        self.text(f"{folder}/resource", f"{nothing}\n" * 7)
        buses = leads_to and (int(address[5:7], 16), *leads_to)
        self.binary(f"{folder}/config", _config_space(numbers, cls, link, buses, port))
        if link is not None:
            self._put_link(folder, link)
        if leads_to is not None:
            self.puts(folder, secondary_bus_number=leads_to[0], subordinate_bus_number=leads_to[1])
        self.link(f"{folder}/subsystem", "sys/bus/pci")
        self.link(f"sys/bus/pci/devices/{address}", folder)
        if driver is not None:
            self.link(f"{folder}/driver", f"sys/bus/pci/drivers/{driver}")
            self.link(f"sys/bus/pci/drivers/{driver}/{address}", folder)
        return folder

    def add_bridge(
        self,
        address: str,
        ids: str,
        *,
        bus: int,
        last: int | None = None,
        link: Link | None,
        under: str | None = None,
        node: int = -1,
        port: int = 4,
    ) -> str:
        """Add a PCIe root port (or other bridge) above bus `bus` (up to `last`)."""
        return self.add_pci(
            address,
            ids,
            cls=0x060400,
            under=under,
            node=node,
            link=link,
            driver="pcieport" if port == 4 else None,
            leads_to=(bus, last or bus),
            port=port,
        )

    def _put_link(self, folder: str, link: Link) -> None:
        for name, speed in (("current", link.speed), ("max", link.max_speed)):
            text = f"{speed:.1f} GT/s PCIe" if speed else "Unknown"
            self.put(f"{folder}/{name}_link_speed", text)
        self.puts(folder, current_link_width=link.width, max_link_width=link.max_width)

    def add_nvidia(
        self, address: str, model: str, *, minor: int, uuid: str, bios: str, firmware: str
    ) -> None:
        """Add `/proc/driver/nvidia/gpus/ADDRESS/information` as the driver prints it."""
        lines = [
            f"Model: \t\t {model}",
            "IRQ:   \t\t 98",
            f"GPU UUID: \t {uuid}",
            f"Video BIOS: \t {bios}",
            "Bus Type: \t PCIe",
            "DMA Size: \t 47 bits",
            "DMA Mask: \t 0x7fffffffffff",
            f"Bus Location: \t {address}",
            f"Device Minor: \t {minor}",
            f"GPU Firmware: \t {firmware}",
            "GPU Excluded:\t No",
        ]
        folder = f"proc/driver/nvidia/gpus/{address}"
        self.text(f"{folder}/information", "".join(f"{line}\n" for line in lines))

    # -- AMD's KFD --

    def add_kfd_node(
        self, id: int, name: str, *, gpu_id: int, heap: int, size: int, **properties: int
    ) -> None:
        """Add one KFD topology node with one memory bank of `size` bytes."""
        folder = f"sys/devices/virtual/kfd/kfd/topology/nodes/{id}"
        self.puts(folder, name=name, gpu_id=gpu_id)
        bank = {"heap_type": heap, "size_in_bytes": size, "flags": 0}
        bank |= {"width": 4096, "mem_clk_max": 1600} if heap else {"width": 0, "mem_clk_max": 0}
        self._put_properties(f"{folder}/mem_banks/0", bank)
        links = properties.pop("io_links"), properties.pop("p2p_links")
        values = _kfd_properties(bool(gpu_id))
        values |= {"io_links_count": links[0], "p2p_links_count": links[1]} | properties
        self._put_properties(folder, values)

    def add_kfd_link(
        self,
        kind: int,
        ends: tuple[int, int],
        place: str,
        *,
        weight: int,
        min_bandwidth: int = 0,
        max_bandwidth: int = 0,
    ) -> None:
        """Add a link from node `ends[0]` to `ends[1]`, bandwidth in MB/s.

        `kind`: 1 HyperTransport, 2 PCIe, 11 xGMI. `place`: `io_links/N` for a direct link,
        `p2p_links/N` for one that goes through another node.
        """
        values = {"type": kind, "version_major": 0, "version_minor": 0}
        values |= {"node_from": ends[0], "node_to": ends[1], "weight": weight}
        values |= {"min_latency": 0, "max_latency": 0}
        values |= {"min_bandwidth": min_bandwidth, "max_bandwidth": max_bandwidth}
        values |= {"recommended_transfer_size": 0, "recommended_sdma_engine_id_mask": 0, "flags": 1}
        nodes = "sys/devices/virtual/kfd/kfd/topology/nodes"
        self._put_properties(f"{nodes}/{ends[0]}/{place}", values)

    def _put_properties(self, folder: str, values: dict[str, int]) -> None:
        lines = (f"{name} {value}\n" for name, value in values.items())
        self.text(f"{folder}/properties", "".join(lines))

    # -- the end --

    def finish(self, *, total_kb: int | None = None, free_kb: int | None = None) -> Path:
        """Write what depends on the whole machine; sizes are needed only without NUMA nodes."""
        self.cpus.sort(key=lambda cpu: cpu.id)
        self._write_cpus()
        self.text("proc/cpuinfo", self._cpuinfo())
        huge: dict[int, tuple[int, int]] = {} if self.nodes else {2048: (0, 0)}
        for node in self.nodes:
            for size_kb, (allocated, free) in node.huge.items():
                before = huge.get(size_kb, (0, 0))
                huge[size_kb] = (before[0] + allocated, before[1] + free)
        total = total_kb or sum(node.total_kb for node in self.nodes)
        unused = free_kb or sum(node.free_kb for node in self.nodes)
        self._write_meminfo(total, unused, huge)
        if self.nodes:
            self._write_node_lists()
        return self.root

    def _cpuinfo(self) -> str:
        if self.x86 is None:
            return "".join(_arm_cpuinfo(cpu.id) for cpu in self.cpus)
        texts = []
        for cpu in self.cpus:
            package = [other for other in self.cpus if other.package == cpu.package]
            cores = len({other.core for other in package})
            texts.append(_x86_cpuinfo(self.x86, cpu, siblings=len(package), cores=cores))
        return "".join(texts)


def _x86_cpuinfo(model: CpuModel, cpu: Cpu, *, siblings: int, cores: int) -> str:
    rows: list[tuple[str, object]] = [
        ("processor\t", cpu.id),
        ("vendor_id\t", model.vendor),
        ("cpu family\t", model.family),
        ("model\t\t", model.model),
        ("model name\t", model.name),
        ("stepping\t", model.stepping),
        ("microcode\t", "0xd0003a5"),
        ("cpu MHz\t\t", f"{model.mhz:.3f}"),
        ("cache size\t", f"{model.cache_kb} KB"),
        ("physical id\t", cpu.package),
        ("siblings\t", siblings),
        ("core id\t\t", cpu.core),
        ("cpu cores\t", cores),
        ("apicid\t\t", cpu.apic),
        ("initial apicid\t", cpu.apic),
        ("fpu\t\t", "yes"),
        ("fpu_exception\t", "yes"),
        ("cpuid level\t", 27),
        ("wp\t\t", "yes"),
        ("flags\t\t", model.flags),
        ("bugs\t\t", "spectre_v1 spectre_v2 spec_store_bypass swapgs"),
        ("bogomips\t", f"{2 * model.mhz:.2f}"),
    ]
    if model.tlb is not None:
        rows.append(("TLB size\t", model.tlb))
    rows += [("clflush size\t", 64), ("cache_alignment\t", 64)]
    rows.append(("address sizes\t", "46 bits physical, 57 bits virtual"))
    return "".join(f"{name}: {value}\n" for name, value in rows) + "power management:\n\n"


def _arm_cpuinfo(cpu: int) -> str:
    return (
        f"processor\t: {cpu}\n"
        "BogoMIPS\t: 2000.00\n"
        "Features\t: fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid sve\n"
        "CPU implementer\t: 0x41\n"
        "CPU architecture: 8\n"
        "CPU variant\t: 0x0\n"
        "CPU part\t: 0xd4f\n"
        "CPU revision\t: 0\n\n"
    )


def _config_space(
    ids: list[int], cls: int, link: Link | None, buses: tuple[int, ...] | None, port: int
) -> bytes:
    """The 256 bytes of configuration space: ids, class, bus numbers and the PCIe capability."""
    space = bytearray(256)
    status = 0x0010 if link is not None else 0
    struct.pack_into("<HHHH", space, 0x00, ids[0], ids[1], 0x0006, status)
    struct.pack_into("<I", space, 0x08, cls << 8 | (0xA1 if ids[0] == 0x10DE else 0x00))
    if buses is not None:
        space[0x0E] = 1
        space[0x18:0x1B] = bytes(buses)
    else:
        struct.pack_into("<HH", space, 0x2C, ids[2], ids[3])
    if link is None:
        return bytes(space)
    code = {0.0: 0, 2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5}
    top = code[link.max_speed]
    space[0x34] = 0x40
    struct.pack_into("<BBH", space, 0x40, 0x10, 0, port << 4 | 2)
    if link is not INTEGRATED:
        struct.pack_into("<I", space, 0x4C, top | link.max_width << 4)
        struct.pack_into("<H", space, 0x52, code[link.speed] | link.width << 4)
        struct.pack_into("<I", space, 0x6C, (1 << top + 1) - 2)
    return bytes(space)


def _kfd_properties(gpu: bool) -> dict[str, int]:
    """The names of a KFD node's properties in the driver's order, with the values of an MI250X."""
    common = """cpu_cores_count simd_count mem_banks_count caches_count io_links_count
        p2p_links_count cpu_core_id_base simd_id_base max_waves_per_simd lds_size_in_kb
        gds_size_in_kb num_gws wave_front_size array_count simd_arrays_per_engine
        cu_per_simd_array simd_per_cu max_slots_scratch_cu gfx_target_version vendor_id
        device_id location_id domain drm_render_minor hive_id num_sdma_engines
        num_sdma_xgmi_engines num_sdma_queues_per_engine num_cp_queues"""
    values = dict.fromkeys(common.split(), 0) | {"mem_banks_count": 1}
    if gpu:
        values |= {"simd_count": 440, "simd_id_base": 2147487744, "max_waves_per_simd": 8}
        values |= {"lds_size_in_kb": 64, "num_gws": 64, "wave_front_size": 64, "array_count": 8}
        values |= {"simd_arrays_per_engine": 1, "cu_per_simd_array": 14, "simd_per_cu": 4}
        values |= {"max_slots_scratch_cu": 32, "gfx_target_version": 90010, "vendor_id": 4098}
        values |= {"device_id": 0x7408, "num_sdma_engines": 2, "num_sdma_xgmi_engines": 3}
        values |= {"num_sdma_queues_per_engine": 8, "num_cp_queues": 24}
        values |= {"max_engine_clk_fcompute": 1700, "local_mem_size": 0, "fw_version": 83}
        values |= {"capability": 746758784, "debug_prop": 1495, "sdma_fw_version": 8}
        values |= {"unique_id": 0, "num_xcc": 1}
    return values | {"max_engine_clk_ccompute": 3700}

"""The description of a machine as frozen dataclasses: nodes, CPUs, caches, GPUs, links.

Unknown is None, never 0. The descriptions of classes and fields are those of `schema.json`.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from holdfast.base.codec import about, decode, encode, json_schema
from holdfast.base.errors import BadInput

SCHEMA_VERSION = 1

MemoryKind = Literal["dram", "gpu", "cxl", "pmem"]
CoreKind = Literal["performance", "efficiency"]
CacheKind = Literal["data", "instruction", "unified"]
OpenclKind = Literal["cpu", "gpu", "accelerator", "custom"]
GpuKind = Literal["discrete", "integrated", "accelerator", "display", "virtual"]
LinkKind = Literal["numa", "pcie", "nvlink", "xgmi", "c2c", "fabric"]
ProbeStatus = Literal["ok", "absent", "failed", "skipped"]


@dataclass(frozen=True, slots=True, kw_only=True)
class HugePages:
    """A pool of huge pages of one size on one node."""

    page_bytes: int = about("size of one page")
    total: int = about("pages reserved")
    free: int | None = about("reserved pages not in use", default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Performance:
    """Speed of a node from its nearest initiators, from the firmware's HMAT table."""

    initiators: tuple[int, ...] = about("nodes that access the memory", default=())
    read_latency_ns: int | None = about("latency of a read", default=None)
    write_latency_ns: int | None = about("latency of a write", default=None)
    read_bandwidth_mb_s: int | None = about("bandwidth of reads", default=None)
    write_bandwidth_mb_s: int | None = about("bandwidth of writes", default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A NUMA node: memory, usually with CPUs beside it."""

    id: int = about("the kernel's number")
    total_bytes: int | None = about("memory of the node", default=None)
    free_bytes: int | None = about("memory that is free now", default=None)
    cpus: tuple[int, ...] = about("CPUs of the node; none on a memory-only node", default=())
    distances: tuple[int | None, ...] = about(
        "the kernel's relative distance to each node, in the order of the nodes (10 is local)",
        default=(),
    )
    memory_kind: MemoryKind | None = about("kind of memory", default=None)
    hugepages: tuple[HugePages, ...] = about("huge page pools", default=())
    hmat: Performance | None = about("speed, from the firmware", default=None)

    @property
    def memory_only(self) -> bool:
        """Whether the node has no CPUs: CXL, GPU memory, persistent memory."""
        return not self.cpus


@dataclass(frozen=True, slots=True, kw_only=True)
class Cpu:
    """A logical CPU: one hardware thread."""

    id: int = about("the kernel's number")
    core: int | None = about("core number, unique within the die", default=None)
    die: int | None = about("die within the package", default=None)
    package: int | None = about("socket", default=None)
    node: int | None = about("NUMA node", default=None)
    kind: CoreKind | None = about("kind of core on a hybrid CPU", default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cache:
    """One cache and the CPUs that share it."""

    level: int = about("1 is nearest to the core")
    kind: CacheKind = about("what it holds")
    size_bytes: int | None = about("size", default=None)
    line_bytes: int | None = about("size of a line", default=None)
    cpus: tuple[int, ...] = about("CPUs that share it", default=())


@dataclass(frozen=True, slots=True, kw_only=True)
class PcieLink:
    """A PCI Express link: its speed now and its highest speed."""

    speed_gt_s: float | None = about("speed now; idle GPUs clock it down", default=None)
    width: int | None = about("lanes now", default=None)
    max_speed_gt_s: float | None = about("speed both ends can do", default=None)
    max_width: int | None = about("lanes both ends can do", default=None)

    @property
    def bandwidth_gb_s(self) -> float | None:
        """Payload rate of one direction in GB/s when awake: lanes in use at the highest speed."""
        speed, width = self.max_speed_gt_s or self.speed_gt_s, self.width or self.max_width
        if not speed or not width:
            return None
        encoding = 8 / 10 if speed <= 5 else 128 / 130 if speed < 64 else 242 / 256
        return round(speed * encoding * width / 8, 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """A GPU or accelerator card of any vendor."""

    id: int = about("Holdfast's number: by PCI address, display-only devices last")
    pci_address: str | None = about("domain:bus:device.function", default=None)
    vendor: str | None = about("manufacturer", default=None)
    name: str | None = about("model name", default=None)
    kind: GpuKind | None = about("kind of device", default=None)
    pci_id: str | None = about("vendor:device in hexadecimal", default=None)
    uuid: str | None = about("the vendor's unique id of this card", default=None)
    driver: str | None = about("kernel driver", default=None)
    memory_bytes: int | None = about("device memory", default=None)
    free_bytes: int | None = about("device memory that is free now", default=None)
    numa_node: int | None = about("nearest node", default=None)
    memory_node: int | None = about(
        "node that is this GPU's own memory, where CPU and GPU share an address space", default=None
    )
    link: PcieLink | None = about("connection to the host", default=None)
    opencl: str | None = about("id of the same card among the OpenCL devices", default=None)
    torch: str | None = about("name of the same card among the torch devices", default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenclDevice:
    """A device that an OpenCL runtime offers; it may be the CPU."""

    id: str = about("platform and device position: opencl:0:0")
    platform: str = about("name of the runtime")
    name: str = about("name of the device")
    kind: OpenclKind | None = about("kind of device", default=None)
    version: str | None = about("OpenCL version of the device", default=None)
    compute_units: int | None = about("compute units", default=None)
    memory_bytes: int | None = about("global memory", default=None)
    max_allocation_bytes: int | None = about("largest single buffer", default=None)
    svm: tuple[str, ...] = about(
        "shared virtual memory: coarse_buffer, fine_buffer, fine_system, atomics", default=()
    )
    pci_address: str | None = about("domain:bus:device.function", default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchDevice:
    """A device that PyTorch can use on this machine."""

    id: str = about("name as torch.device takes it: cuda:0")
    backend: str = about("cuda, rocm, xpu, mps, npu, mlu, directml or cpu")
    name: str | None = about("name of the device", default=None)
    memory_bytes: int | None = about("device memory", default=None)
    capability: str | None = about("compute capability or architecture", default=None)
    pci_address: str | None = about("domain:bus:device.function", default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A link between two endpoints ("node:0", "gpu:1"), as the machine describes it."""

    source: str = about("endpoint the link starts from")
    target: str = about("place it leads to")
    kind: LinkKind = about("what it is made of")
    via: str | None = about(
        "nearest common bridge of two PCIe devices: switch, host-bridge, node or system",
        default=None,
    )
    distance: int | None = about("the kernel's relative distance, 10 is local", default=None)
    lanes: int | None = about("parallel links or lanes in use", default=None)
    bandwidth_gb_s: float | None = about("rate of one direction on paper", default=None)
    latency_ns: float | None = about("latency on paper", default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """A measured bandwidth or latency, from the source of the data to its target."""

    source: str = about("endpoint the data comes from")
    target: str = about("endpoint the data goes to")
    mode: Literal["read", "write", "pinned", "pageable"] = about(
        "read, write: CPUs of a node on a node's memory; pinned, pageable: host to GPU and back"
    )
    bandwidth_gb_s: float | None = about("bandwidth", default=None)
    latency_ns: float | None = about("time of one dependent access", default=None)
    method: str = about("how it was measured", default="")
    measured_at: str = about("date and time, ISO 8601, UTC", default="")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeReport:
    """The result of one probe."""

    name: str = about("name of the probe")
    status: ProbeStatus = about("ok, absent (no package or no such hardware), failed, skipped")
    reason: str | None = about("reason when not ok; or remarks", default=None)
    elapsed_ms: float | None = about("time it took", default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """A machine and its memory at one moment."""

    schema_version: int = about("version of this document's schema", default=SCHEMA_VERSION)
    simulated: bool = about("whether the machine is simulated", default=False)
    machine_id: str | None = about("hash that stays the same on one machine", default=None)
    hostname: str | None = about("network name", default=None)
    system: str | None = about("operating system", default=None)
    kernel: str | None = about("kernel release", default=None)
    architecture: str | None = about("instruction set", default=None)
    cpu_model: str | None = about("name of the CPU", default=None)
    page_bytes: int | None = about("size of a memory page", default=None)
    memory_bytes: int | None = about(
        "memory of the machine as the system counts it; virtual machines that get memory on "
        "demand count all of it here, but in a node only what they have got",
        default=None,
    )
    available_bytes: int | None = about(
        "memory that programs can still get, caches included", default=None
    )
    memory_limit_bytes: int | None = about(
        "limit of this process's control group; null without a limit", default=None
    )
    usable_cpus: tuple[int, ...] | None = about("CPUs this process may run on", default=None)
    discovered_at: str | None = about("date and time, ISO 8601, UTC", default=None)
    nodes: tuple[Node, ...] = about("NUMA nodes", default=())
    cpus: tuple[Cpu, ...] = about("logical CPUs that are online", default=())
    caches: tuple[Cache, ...] = about("caches", default=())
    gpus: tuple[Gpu, ...] = about("GPUs and accelerators", default=())
    opencl: tuple[OpenclDevice, ...] = about("OpenCL devices", default=())
    torch: tuple[TorchDevice, ...] = about("torch devices", default=())
    links: tuple[Link, ...] = about("links between nodes and GPUs", default=())
    measurements: tuple[Measurement, ...] = about("measured bandwidths and latencies", default=())
    probes: tuple[ProbeReport, ...] = about("result of each probe", default=())

    @property
    def packages(self) -> dict[int | None, tuple[Cpu, ...]]:
        """CPUs by package, in order."""
        ids = sorted({cpu.package for cpu in self.cpus}, key=lambda p: (p is None, p))
        return {p: tuple(c for c in self.cpus if c.package == p) for p in ids}

    @property
    def cores(self) -> tuple[tuple[Cpu, ...], ...]:
        """CPUs by core: each inner tuple holds the hardware threads of one core."""
        groups: dict[tuple[int | None, int | None, int], list[Cpu]] = {}
        for cpu in self.cpus:
            # A CPU with an unknown core counts as a core.
            core = cpu.core if cpu.core is not None else -1 - cpu.id
            groups.setdefault((cpu.package, cpu.die, core), []).append(cpu)
        return tuple(tuple(group) for group in groups.values())

    @property
    def threads_per_core(self) -> int:
        """Most hardware threads found on one core."""
        return max((len(core) for core in self.cores), default=1)

    def node(self, node_id: int) -> Node | None:
        return next((n for n in self.nodes if n.id == node_id), None)

    def distance(self, source: int, target: int) -> int | None:
        """The kernel's distance between two nodes."""
        return distance_between(self.nodes, source, target)

    def probe(self, name: str) -> ProbeReport | None:
        return next((p for p in self.probes if p.name == name), None)

    def replace(self, **changes: Any) -> Topology:
        return dataclasses.replace(self, **changes)

    def to_json(self, indent: int | None = 2) -> str:
        """This description as JSON, in the form that `schema()` describes."""
        return json.dumps(encode(self), indent=indent, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Topology:
        """The description in `text`; raises BadInput with the path of a bad value."""
        hint = "write the file again with: holdfast topo --json"
        try:
            data = json.loads(text)
        except ValueError as exc:
            raise BadInput(
                f"this is not JSON: {exc}", expected="a topology document", hint=hint
            ) from exc
        version = data.get("schema_version") if isinstance(data, dict) else None
        if version != SCHEMA_VERSION:
            raise BadInput(
                f"this is not a topology document of version {SCHEMA_VERSION}: "
                f"its schema_version is {version!r}",
                expected=f"schema_version {SCHEMA_VERSION}",
                hint=hint,
            )
        return decode(cls, data)


def distance_between(nodes: Sequence[Any], source: int, target: int) -> int | None:
    """The distance in `nodes` (with an `id`, and `distances` in their order); None if unknown."""
    order = [node.id for node in nodes]
    if source not in order or target not in order:
        return None
    distances = nodes[order.index(source)].distances
    return distances[order.index(target)] if len(distances) == len(order) else None


def schema() -> dict[str, Any]:
    """JSON schema of a topology document; shipped as `topology/schema.json`."""
    return json_schema(Topology, "Holdfast topology", f"holdfast:topology:{SCHEMA_VERSION}")

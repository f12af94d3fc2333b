"""Memory and xGMI links of AMD GPUs from the kernel's compute driver, without ROCm."""

from __future__ import annotations

from pathlib import Path

from holdfast.base.config import Config
from holdfast.base.errors import Absent
from holdfast.topology.model import Gpu, Link, Topology
from holdfast.topology.sysfs import children, read

_XGMI = 11  # a type of link
_LOCAL_MEMORY = (1, 2)  # heap types: public and private frame buffer


def probe(config: Config) -> Topology:
    """AMD GPUs; raises Absent if the driver is not loaded."""
    folder = config.root / "sys/class/kfd/kfd/topology/nodes"
    if not folder.is_dir():
        raise Absent(f"there is no {folder}", expected="AMD's kernel driver with an AMD GPU")
    nodes = dict(children(folder, r"(\d+)"))
    addresses = {number: address for number, path in nodes.items() if (address := _address(path))}
    gpus = (
        Gpu(id=-1, pci_address=address, vendor="AMD", memory_bytes=_memory_bytes(nodes[number]))
        for number, address in addresses.items()
    )
    return Topology(
        gpus=tuple(gpus),
        links=tuple(
            link
            for number in addresses
            for _, path in children(nodes[number] / "io_links", r"(\d+)")
            if (link := _link(_properties(path / "properties"), addresses)) is not None
        ),
    )


def _address(node: Path) -> str | None:
    """The PCI address of a GPU node; CPU nodes have no SIMD units."""
    properties = _properties(node / "properties")
    location = properties.get("location_id", 0)
    if not properties.get("simd_count") or not location:
        return None
    bus, device, function = location >> 8 & 0xFF, location >> 3 & 0x1F, location & 0x7
    return f"{properties.get('domain', 0):04x}:{bus:02x}:{device:02x}.{function}"


def _memory_bytes(node: Path) -> int | None:
    banks = [_properties(path / "properties") for _, path in children(node / "mem_banks", r"(\d+)")]
    sizes = [b.get("size_in_bytes", 0) for b in banks if b.get("heap_type") in _LOCAL_MEMORY]
    return sum(sizes) or None


def _link(properties: dict[str, int], addresses: dict[int, str]) -> Link | None:
    source, target = properties.get("node_from", -1), properties.get("node_to", -1)
    # Each pair is listed from both ends; the PCI probe has the links to the CPU.
    known = source in addresses and target in addresses
    if properties.get("type") != _XGMI or not known or source > target:
        return None
    bandwidth = properties.get("max_bandwidth")
    return Link(
        source=f"pci:{addresses[source]}",
        target=f"pci:{addresses[target]}",
        kind="xgmi",
        bandwidth_gb_s=bandwidth / 1000 if bandwidth else None,
    )


def _properties(path: Path) -> dict[str, int]:
    """ "name number" lines."""
    pairs = (line.split() for line in (read(path) or "").splitlines())
    return {p[0]: int(p[1]) for p in pairs if len(p) == 2 and p[1].isdecimal()}

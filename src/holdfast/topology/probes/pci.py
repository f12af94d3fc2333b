"""GPUs and accelerators of any vendor from the PCI bus in sysfs, without vendor libraries."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

from holdfast.base.config import Config
from holdfast.base.errors import Absent
from holdfast.topology.model import Gpu, GpuKind, Link, PcieLink, Topology
from holdfast.topology.probes.linux import gpu_memory_node
from holdfast.topology.sysfs import read, read_int, read_natural, read_table

VENDORS = {
    0x1002: "AMD",
    0x10DE: "NVIDIA",
    0x8086: "Intel",
    0x106B: "Apple",
    0x19E5: "Huawei",
    0xCABC: "Cambricon",
    0x1ED5: "Moore Threads",
    0x1DA3: "Habana",
    0x1AE0: "Google",
    0x1A03: "ASPEED",
    0x102B: "Matrox",
    0x1234: "QEMU",
    0x1AF4: "Red Hat",
    0x15AD: "VMware",
    0x1414: "Microsoft",
}
# Display only: the management chip of a server, the screen of a virtual machine.
_DISPLAY_ONLY = {0x1A03, 0x102B}
_VIRTUAL = {0x1234, 0x1AF4, 0x15AD, 0x1414}
_ADDRESS = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_PCI_NAMES = ("usr/share/misc/pci.ids", "usr/share/hwdata/pci.ids")


def probe(config: Config) -> Topology:
    """Every display controller and accelerator; raises Absent without a PCI bus."""
    bus = config.root / "sys/bus/pci/devices"
    if not bus.is_dir():
        raise Absent(f"there is no {bus}", expected="a machine with a PCI bus")
    # Class 03 is a display controller, 12 a processing accelerator.
    classes = {path: read_int(path / "class", 16) or 0 for path in sorted(bus.iterdir())}
    paths = {path.name: path for path, code in classes.items() if code >> 16 in (0x03, 0x12)}
    seen = (_gpu(config.root, address, path) for address, path in paths.items())
    gpus = [gpu for gpu in seen if gpu is not None]
    computing = [gpu for gpu in gpus if gpu.kind not in ("display", "virtual")]
    links = [_peer_link(a, b, paths) for a, b in itertools.combinations(computing, 2)]
    return Topology(gpus=tuple(gpus), links=tuple(links))


def normalize_address(text: str) -> str | None:
    """A PCI address as sysfs writes it; vendors differ in case and in digits of the domain."""
    match = re.fullmatch(r"([0-9a-f]+):([0-9a-f]{2}):([0-9a-f]{2})\.([0-7])", text.strip().lower())
    return f"{int(match[1], 16):04x}:{match[2]}:{match[3]}.{match[4]}" if match else None


def _gpu(root: Path, address: str, path: Path) -> Gpu | None:
    vendor, device = read_int(path / "vendor", 16), read_int(path / "device", 16)
    if vendor is None:
        return None  # a half-removed device
    nvidia, driver = root / "proc/driver/nvidia/gpus" / address, path / "driver"
    total, used = (read_natural(path / f"mem_info_vram_{name}") for name in ("total", "used"))
    return Gpu(
        id=-1,
        pci_address=address,
        vendor=VENDORS.get(vendor),
        name=read_table(nvidia / "information").get("Model") or _pci_name(root, vendor, device),
        kind=_kind(path, vendor),
        pci_id=f"{vendor:04x}:{device:04x}" if device is not None else None,
        driver=driver.resolve().name if driver.exists() else None,
        memory_bytes=total,
        free_bytes=None if total is None or used is None else total - used,
        numa_node=read_natural(path / "numa_node"),
        memory_node=gpu_memory_node(nvidia),
        link=_link(path),
    )


def _kind(path: Path, vendor: int) -> GpuKind:
    code = read_int(path / "class", 16) or 0
    if vendor in _DISPLAY_ONLY:
        return "display"
    if vendor in _VIRTUAL:
        return "virtual"
    if code >> 16 == 0x12:
        return "accelerator"
    # A card is behind a bridge and has a link. In a virtual machine it may be on the root bus, like
    # an integrated GPU, but it keeps its link.
    behind_bridge = _ADDRESS.fullmatch(path.resolve().parent.name) is not None
    return "discrete" if behind_bridge or _link(path) else "integrated"


def _link(path: Path) -> PcieLink | None:
    """The link of a card; its maximum is the smaller one of card and slot."""
    if not (path / "max_link_speed").exists():
        return None  # conventional PCI, even behind a PCIe bridge
    slot = path.resolve().parent
    ends = [path, slot] if (slot / "max_link_speed").exists() else [path]
    speeds = [s for s in (_speed(end / "max_link_speed") for end in ends) if s]
    widths = [w for w in (_width(end / "max_link_width") for end in ends) if w]
    link = PcieLink(
        speed_gt_s=_speed(path / "current_link_speed"),
        width=_width(path / "current_link_width"),
        max_speed_gt_s=min(speeds, default=None),
        max_width=min(widths, default=None),
    )
    return link if link != PcieLink() else None


def _speed(path: Path) -> float | None:
    match = re.match(r"([\d.]+) GT/s", read(path) or "")
    return float(match[1]) if match else None


def _width(path: Path) -> int | None:
    # 0 and 255 mean "no link": integrated devices.
    width = read_natural(path)
    return width if width not in (None, 0, 255) else None


def _peer_link(a: Gpu, b: Gpu, paths: dict[str, Path]) -> Link:
    """The PCIe link between two GPUs; a nearer common bridge makes peer copies faster."""
    routes = [_bridges(paths[gpu.pci_address or ""]) for gpu in (a, b)]
    shared = [x for x, y in zip(*routes, strict=False) if x == y]
    if any(_ADDRESS.fullmatch(part) for part in shared):
        via = "switch"
    elif shared and shared[-1].startswith("pci"):
        via = "host-bridge"
    else:
        same = a.numa_node is not None and a.numa_node == b.numa_node
        via = "node" if same else "system"
    return Link(source=f"pci:{a.pci_address}", target=f"pci:{b.pci_address}", kind="pcie", via=via)


def _bridges(path: Path) -> list[str]:
    """The host bridge and bridges above a device, from the root of the bus down."""
    parts = path.resolve().parts
    start = next((i for i, part in enumerate(parts) if re.fullmatch(r"pci\w+:\w+", part)), 0)
    return list(parts[start:-1])


def _pci_name(root: Path, vendor: int, device: int | None) -> str | None:
    path = next((root / name for name in _PCI_NAMES if (root / name).exists()), None)
    if path is None or device is None:
        return None
    section = re.search(
        rf"^{vendor:04x}  .*\n((?:[\t#].*\n)*)", path.read_text(errors="replace"), re.MULTILINE
    )
    line = re.search(rf"^\t{device:04x}  (.*)$", section[1], re.MULTILINE) if section else None
    return line[1] if line else None

"""Merges the answers of several probes into one machine. For each fact the first answer wins.

GPUs of several probes are joined by PCI address.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from holdfast.topology.model import (
    Gpu,
    Link,
    LinkKind,
    Node,
    OpenclDevice,
    Performance,
    Topology,
    TorchDevice,
)

D = TypeVar("D", OpenclDevice, TorchDevice)
_LISTS = ("nodes", "cpus", "caches", "opencl", "torch", "measurements", "probes")


def merge(answers: Sequence[Topology]) -> Topology:
    """One machine from partial descriptions, most trusted first."""
    gpus = _gpus(answers)
    facts = _facts(Topology, answers)
    for name in ("gpus", "links", "schema_version", "simulated"):
        del facts[name]
    facts |= {name: facts[name] or () for name in _LISTS}
    machine = Topology(**facts, simulated=any(answer.simulated for answer in answers))
    machine = machine.replace(gpus=tuple(_with_unified_gpu(gpus, machine)))
    completed = (_complete(gpu, machine) for gpu in machine.gpus)
    numbered = tuple(dataclasses.replace(gpu, id=i) for i, gpu in enumerate(completed))
    machine = machine.replace(gpus=numbered)
    peers = [link for answer in answers for link in answer.links]
    return machine.replace(links=tuple(_links(machine, peers)))


def _facts(kind: type, answers: Sequence[object]) -> dict[str, Any]:
    """For each field the first value that is known."""
    names = [field.name for field in dataclasses.fields(kind)]
    values = {name: [getattr(answer, name) for answer in answers] for name in names}
    return {
        name: next((value for value in found if value is not None and value != ()), None)
        for name, found in values.items()
    }


def _gpus(answers: Sequence[Topology]) -> list[Gpu]:
    """One GPU for each PCI address, in order of the address; display-only devices last."""
    groups: dict[str, list[Gpu]] = {}
    unplaced: list[Gpu] = []
    for gpu in (gpu for answer in answers for gpu in answer.gpus):
        same = unplaced if gpu.pci_address is None else groups.setdefault(gpu.pci_address, [])
        same.append(gpu)
    placed = [Gpu(**_facts(Gpu, group)) for _, group in sorted(groups.items())]
    return sorted(placed + unplaced, key=lambda gpu: gpu.kind in ("display", "virtual"))


def _with_unified_gpu(gpus: list[Gpu], machine: Topology) -> list[Gpu]:
    device = next((device for device in machine.torch if device.backend == "mps"), None)
    if device is None or gpus:
        return gpus
    return [
        Gpu(
            id=0,
            vendor="Apple",
            name=device.name,
            kind="integrated",
            memory_bytes=device.memory_bytes,
            torch=device.id,
        )
    ]


def _complete(gpu: Gpu, machine: Topology) -> Gpu:
    """Fill in the nearest node if there is only one, and facts of the OpenCL and torch devices."""
    homes = [node.id for node in machine.nodes if node.cpus]
    only = homes[0] if len(homes) == 1 else None
    opencl = _same_card(gpu, [d for d in machine.opencl if d.kind != "cpu"], machine)
    torch = _same_card(gpu, [d for d in machine.torch if d.backend != "cpu"], machine)
    memory = machine.node(gpu.memory_node) if gpu.memory_node is not None else None
    return dataclasses.replace(
        gpu,
        numa_node=only if gpu.numa_node is None else gpu.numa_node,
        name=gpu.name or (torch.name if torch else opencl.name if opencl else None),
        memory_bytes=gpu.memory_bytes
        or (memory.total_bytes if memory else torch.memory_bytes if torch else None),
        free_bytes=gpu.free_bytes or (memory.free_bytes if memory else None),
        opencl=opencl.id if opencl else gpu.opencl,
        torch=torch.id if torch else gpu.torch,
    )


def _same_card(gpu: Gpu, devices: list[D], machine: Topology) -> D | None:
    """The device with the GPU's PCI address, else the only one without an address that fits."""
    exact = [d for d in devices if d.pci_address and d.pci_address == gpu.pci_address]
    if exact:
        return exact[0]
    unplaced = [d for d in devices if d.pci_address is None and _vendor_fits(gpu, d)]
    rivals = [g for g in machine.gpus if g.vendor == gpu.vendor]
    return unplaced[0] if len(unplaced) == 1 and len(rivals) <= 1 else None


def _vendor_fits(gpu: Gpu, device: OpenclDevice | TorchDevice) -> bool:
    backends = {"xpu": "Intel", "npu": "Huawei", "mlu": "Cambricon", "mps": "Apple"}
    if isinstance(device, TorchDevice) and device.backend in backends:
        return backends[device.backend] == gpu.vendor
    names = f"{device.name} {getattr(device, 'platform', '')}".lower()
    return gpu.vendor is not None and gpu.vendor.lower() in names


def _links(machine: Topology, peers: Iterable[Link]) -> list[Link]:
    endpoints = {f"pci:{gpu.pci_address}": f"gpu:{gpu.id}" for gpu in machine.gpus}
    renamed = [
        dataclasses.replace(
            link,
            source=endpoints.get(link.source, link.source),
            target=endpoints.get(link.target, link.target),
        )
        for link in peers
    ]
    return [*_node_links(machine), *_host_links(machine), *_best_of_each_pair(renamed)]


def _node_links(machine: Topology) -> list[Link]:
    links = []
    for a, b in itertools.combinations(machine.nodes, 2):
        hmat = _hmat_between(a, b) or _hmat_between(b, a)
        bandwidth = hmat.read_bandwidth_mb_s if hmat else None
        links.append(
            Link(
                source=f"node:{a.id}",
                target=f"node:{b.id}",
                kind="numa",
                distance=machine.distance(a.id, b.id),
                bandwidth_gb_s=bandwidth / 1000 if bandwidth else None,
                latency_ns=hmat.read_latency_ns if hmat else None,
            )
        )
    return links


def _hmat_between(initiator: Node, target: Node) -> Performance | None:
    return target.hmat if target.hmat and initiator.id in target.hmat.initiators else None


def _host_links(machine: Topology) -> list[Link]:
    links = []
    for gpu in machine.gpus:
        display_only = gpu.kind in ("display", "virtual") and gpu.link is None
        if gpu.numa_node is None or display_only:
            continue
        kind: LinkKind = "c2c" if gpu.memory_node is not None else "pcie"
        if gpu.kind == "integrated" and gpu.link is None:
            kind = "fabric"
        links.append(
            Link(
                source=f"node:{gpu.numa_node}",
                target=f"gpu:{gpu.id}",
                kind=kind,
                lanes=gpu.link.width if gpu.link and kind == "pcie" else None,
                bandwidth_gb_s=gpu.link.bandwidth_gb_s if gpu.link and kind == "pcie" else None,
            )
        )
    return links


def _best_of_each_pair(links: list[Link]) -> list[Link]:
    pairs: dict[frozenset[str], Link] = {}
    for link in links:
        pair = frozenset((link.source, link.target))
        if pair not in pairs or pairs[pair].kind == "pcie":
            pairs[pair] = link
    return list(pairs.values())

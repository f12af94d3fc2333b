"""NVIDIA GPUs through NVML: memory, affinity, NVLink. Creates no CUDA context."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, TypeVar

import pynvml

from holdfast.base.config import Config
from holdfast.base.errors import Absent
from holdfast.topology.model import Gpu, Link, PcieLink, Topology
from holdfast.topology.probes.pci import normalize_address

T = TypeVar("T")
_NODE_WORDS = 16  # 64-bit words of a node mask: up to 1024 nodes
_GT_S = {1: 2.5, 2: 5.0, 3: 8.0, 4: 16.0, 5: 32.0, 6: 64.0}


def probe(config: Config) -> Topology:
    """Every NVIDIA GPU; raises Absent where there is no driver."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as exc:
        raise Absent(f"no NVIDIA driver answers: {exc}", expected="an NVIDIA driver") from exc
    try:
        count = pynvml.nvmlDeviceGetCount()
        handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(count)]
        gpus = tuple(_gpu(handle) for handle in handles)
        return Topology(gpus=gpus, links=tuple(_links(handles, gpus)))
    finally:
        pynvml.nvmlShutdown()


def _ask(question: Callable[..., T], *arguments: Any) -> T | None:
    """The answer, or None: old cards, virtual machines and MIG do not support every call."""
    try:
        return question(*arguments)
    except (pynvml.NVMLError, AttributeError):
        return None


def _text(value: Any) -> str | None:
    return value.decode() if isinstance(value, bytes) else value


def _gpu(handle: Any) -> Gpu:
    memory = _ask(pynvml.nvmlDeviceGetMemoryInfo, handle)
    return Gpu(
        id=-1,
        pci_address=normalize_address(_text(pynvml.nvmlDeviceGetPciInfo(handle).busId) or ""),
        vendor="NVIDIA",
        name=_text(_ask(pynvml.nvmlDeviceGetName, handle)),
        kind="discrete",
        uuid=_text(_ask(pynvml.nvmlDeviceGetUUID, handle)),
        driver="nvidia",
        memory_bytes=int(memory.total) if memory else None,
        free_bytes=int(memory.free) if memory else None,
        numa_node=_near_node(handle),
        # Works only where the GPU's memory is a NUMA node, as on Grace Hopper.
        memory_node=_ask(pynvml.nvmlDeviceGetNumaNodeId, handle),
        link=_pcie(handle),
    )


def _near_node(handle: Any) -> int | None:
    """The nearest node; None if there are several."""
    scope = getattr(pynvml, "NVML_AFFINITY_SCOPE_NODE", 0)
    words = _ask(pynvml.nvmlDeviceGetMemoryAffinity, handle, _NODE_WORDS, scope)
    mask = sum(int(word) << (64 * i) for i, word in enumerate(words or ()))
    return mask.bit_length() - 1 if mask and mask & (mask - 1) == 0 else None


def _pcie(handle: Any) -> PcieLink | None:
    speed = _ask(pynvml.nvmlDeviceGetCurrPcieLinkGeneration, handle)
    top = _ask(pynvml.nvmlDeviceGetMaxPcieLinkGeneration, handle)
    link = PcieLink(
        speed_gt_s=_GT_S.get(speed or 0),
        width=_ask(pynvml.nvmlDeviceGetCurrPcieLinkWidth, handle) or None,
        max_speed_gt_s=_GT_S.get(top or 0),
        max_width=_ask(pynvml.nvmlDeviceGetMaxPcieLinkWidth, handle) or None,
    )
    return link if link != PcieLink() else None


def _links(handles: list[Any], gpus: tuple[Gpu, ...]) -> list[Link]:
    """A link for each pair of GPUs connected by NVLink, directly or through an NVSwitch."""
    active = [_active_links(handle) for handle in handles]
    links = []
    for i, j in itertools.combinations(range(len(gpus)), 2):
        direct = active[i].count(gpus[j].pci_address)
        switched = min(active[i].count("switch"), active[j].count("switch"))
        lanes = direct or switched
        if lanes:
            speed = _lane_gb_s(handles[i])
            links.append(
                Link(
                    source=f"pci:{gpus[i].pci_address}",
                    target=f"pci:{gpus[j].pci_address}",
                    kind="nvlink",
                    via=None if direct else "switch",
                    lanes=lanes,
                    bandwidth_gb_s=round(lanes * speed, 1) if speed else None,
                )
            )
    return links


def _active_links(handle: Any) -> list[str | None]:
    """The other end of each active NVLink of a GPU: a PCI address or "switch"."""
    found: list[str | None] = []
    for number in range(getattr(pynvml, "NVML_NVLINK_MAX_LINKS", 18)):
        if not _ask(pynvml.nvmlDeviceGetNvLinkState, handle, number):
            continue
        remote = _ask(pynvml.nvmlDeviceGetNvLinkRemoteDeviceType, handle, number)
        if remote == getattr(pynvml, "NVML_NVLINK_DEVICE_TYPE_SWITCH", 2):
            found.append("switch")
        else:
            info = _ask(pynvml.nvmlDeviceGetNvLinkRemotePciInfo, handle, number)
            found.append(normalize_address(_text(info.busId) or "") if info else None)
    return found


def _lane_gb_s(handle: Any) -> float | None:
    field = getattr(pynvml, "NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON", None)
    values = _ask(pynvml.nvmlDeviceGetFieldValues, handle, [field]) if field else None
    if not values or values[0].nvmlReturn != pynvml.NVML_SUCCESS:
        return None
    return values[0].value.uiVal / 1000 or None

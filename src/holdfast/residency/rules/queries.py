"""How much memory a device has, and how much of it is free, asked of each platform's own API.

Covers: CUDA and ROCm, XPU, NPU, MLU, DirectML, and the host (CPU and MPS, which share it).
Promise: torch comes in as an argument, so that a made-up one answers for devices not at hand.
Free means free on the device, and what torch's cache holds and no tensor uses.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import psutil

from holdfast.base.errors import Unsupported

_DIRECTML_BYTES = 2**30  # DirectML tells nobody what there is
_ON_HOST = ("cpu", "mps")
_WITH_STATISTICS = ("cuda", "xpu", "npu", "mlu")


@dataclass(frozen=True, slots=True)
class Bytes:
    """An amount for a device as a whole, and the part of it that is torch's own."""

    device: int
    torch: int


def total(torch: Any, device: Any) -> Bytes:
    """Memory of `device`, and what torch has taken of it. Raises Unsupported for other devices."""
    kind = _kind(device)
    if kind in _ON_HOST:
        amount = psutil.virtual_memory().total
        return Bytes(amount, amount)
    if kind == "privateuseone":
        return Bytes(_DIRECTML_BYTES, _DIRECTML_BYTES)
    api = getattr(torch, kind)
    reserved = _statistics(api, device)[1]
    if kind == "xpu":
        return Bytes(api.get_device_properties(device).total_memory, reserved)
    return Bytes(api.mem_get_info(device)[1], reserved)


def free(torch: Any, device: Any) -> Bytes:
    """What could be taken on `device`, and the part that torch holds already and does not use."""
    kind = _kind(device)
    if kind in _ON_HOST:
        amount = psutil.virtual_memory().available
        return Bytes(amount, amount)
    if kind == "privateuseone":
        return Bytes(_DIRECTML_BYTES, _DIRECTML_BYTES)
    api = getattr(torch, kind)
    active, reserved = _statistics(api, device)
    unused = reserved - active
    return Bytes(_free_on_device(api, kind, device, reserved) + unused, unused)


def _free_on_device(api: Any, kind: str, device: Any, reserved: int) -> int:
    if kind != "xpu":
        return api.mem_get_info(device)[0]
    try:
        return api.mem_get_info(device)[0]
    except (AttributeError, RuntimeError):  # older torch, or a driver that does not tell
        return api.get_device_properties(device).total_memory - reserved


def _statistics(api: Any, device: Any) -> tuple[int, int]:
    """Bytes that torch's cache has in use, and in all; there are none before the first tensor."""
    found = api.memory_stats(device)
    return found.get("active_bytes.all.current", 0), found.get("reserved_bytes.all.current", 0)


def _kind(device: Any) -> str:
    kind = str(device.type)
    if kind in (*_ON_HOST, *_WITH_STATISTICS, "privateuseone"):
        return kind
    raise Unsupported(
        f"cannot tell the memory of device '{device}': nobody counts it",
        expected=f"a device of kind {', '.join((*_ON_HOST, *_WITH_STATISTICS))} or DirectML",
    )

"""Total and free memory of a device, by each platform's API.

Free memory includes what torch's cache holds unused. torch is an argument, so that tests can fake
devices.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import psutil

from holdfast.base.errors import Unsupported

_DIRECTML_BYTES = 2**30  # assumed, as DirectML does not report it
_ON_HOST = ("cpu", "mps")
_WITH_STATISTICS = ("cuda", "xpu", "npu", "mlu")


@dataclass(frozen=True, slots=True)
class Bytes:
    """Bytes of a device, and the part of them that torch holds."""

    device: int
    torch: int


def total(torch: Any, device: Any) -> Bytes:
    """Total memory of `device`, and what torch reserved. Raises Unsupported for other devices."""
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
    """Free memory of `device`, and the part of it in torch's unused cache."""
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
    except (AttributeError, RuntimeError):  # older torch, or a driver that does not report it
        return api.get_device_properties(device).total_memory - reserved


def _statistics(api: Any, device: Any) -> tuple[int, int]:
    """Bytes that torch uses and reserves; 0 before the first tensor."""
    found = api.memory_stats(device)
    return found.get("active_bytes.all.current", 0), found.get("reserved_bytes.all.current", 0)


def _kind(device: Any) -> str:
    kind = str(device.type)
    if kind in (*_ON_HOST, *_WITH_STATISTICS, "privateuseone"):
        return kind
    raise Unsupported(
        f"cannot tell the memory of device '{device}': its memory is not counted",
        expected=f"a device of kind {', '.join((*_ON_HOST, *_WITH_STATISTICS))} or DirectML",
    )

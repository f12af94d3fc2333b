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
    if (known := _without_api(device, "total")) is not None:
        return known
    api, _, reserved = _statistics(torch, device)
    if device.type == "xpu":
        return Bytes(api.get_device_properties(device).total_memory, reserved)
    return Bytes(api.mem_get_info(device)[1], reserved)


def free(torch: Any, device: Any) -> Bytes:
    """Free memory of `device`, and the part of it in torch's unused cache."""
    if (known := _without_api(device, "available")) is not None:
        return known
    api, active, reserved = _statistics(torch, device)
    try:
        on_device = api.mem_get_info(device)[0]
    except (AttributeError, RuntimeError):  # older torch, or a driver that does not report it
        if device.type != "xpu":
            raise
        on_device = api.get_device_properties(device).total_memory - reserved
    return Bytes(on_device + reserved - active, reserved - active)


def _without_api(device: Any, of_host: str) -> Bytes | None:
    """The answer for the host and DirectML; None for devices that torch has an API for."""
    kind = str(device.type)
    if kind in _WITH_STATISTICS:
        return None
    if kind not in (*_ON_HOST, "privateuseone"):
        raise Unsupported(
            f"cannot tell the memory of device '{device}': its memory is not counted",
            expected=f"a device of kind {', '.join((*_ON_HOST, *_WITH_STATISTICS))} or DirectML",
        )
    amount = getattr(psutil.virtual_memory(), of_host) if kind in _ON_HOST else _DIRECTML_BYTES
    return Bytes(amount, amount)


def _statistics(torch: Any, device: Any) -> tuple[Any, int, int]:
    """torch's module for the device; bytes that torch uses and reserves, 0 before a tensor."""
    api = getattr(torch, device.type)
    found = api.memory_stats(device)
    active = found.get("active_bytes.all.current", 0)
    return api, active, found.get("reserved_bytes.all.current", 0)

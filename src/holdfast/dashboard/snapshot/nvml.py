"""Memory and load of NVIDIA GPUs, from NVML. Makes no CUDA context; unknown is None."""

from __future__ import annotations

from typing import Any

import pynvml

from holdfast.base.errors import Absent
from holdfast.topology.probes.pci import normalize_address


class Cards:
    """The GPUs of this machine, by PCI address. Raises Absent without a driver."""

    def __init__(self) -> None:
        try:
            pynvml.nvmlInit()
            count = pynvml.nvmlDeviceGetCount()
            found = [pynvml.nvmlDeviceGetHandleByIndex(number) for number in range(count)]
            self._handles: dict[str | None, Any] = {_address(handle): handle for handle in found}
        except pynvml.NVMLError as exc:
            raise Absent(f"no NVIDIA driver answers: {exc}", expected="an NVIDIA driver") from exc

    def memory(self, pci_address: str) -> tuple[int, int] | None:
        """(used, total) bytes of a card."""
        handle = self._handles.get(pci_address)
        if handle is None:
            return None
        try:
            found = pynvml.nvmlDeviceGetMemoryInfo(handle)
        except pynvml.NVMLError:
            return None
        return int(found.used), int(found.total)

    def busy(self, pci_address: str) -> float | None:
        """Recent utilization, from 0 to 1."""
        handle = self._handles.get(pci_address)
        if handle is None:
            return None
        try:
            return float(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu) / 100
        except pynvml.NVMLError:
            return None


def _address(handle: Any) -> str | None:
    text = pynvml.nvmlDeviceGetPciInfo(handle).busId
    return normalize_address(text.decode() if isinstance(text, bytes) else text)

"""Memory and load of NVIDIA GPUs, from NVML. Makes no CUDA context; unknown is None."""

from __future__ import annotations

from collections.abc import Callable
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
        found = self._ask(pynvml.nvmlDeviceGetMemoryInfo, pci_address)
        return None if found is None else (int(found.used), int(found.total))

    def busy(self, pci_address: str) -> float | None:
        """Recent utilization, from 0 to 1."""
        found = self._ask(pynvml.nvmlDeviceGetUtilizationRates, pci_address)
        return None if found is None else float(found.gpu) / 100

    def _ask(self, question: Callable[[Any], Any], pci_address: str) -> Any:
        handle = self._handles.get(pci_address)
        try:
            return None if handle is None else question(handle)
        except pynvml.NVMLError:
            return None


def _address(handle: Any) -> str | None:
    text = pynvml.nvmlDeviceGetPciInfo(handle).busId
    return normalize_address(text.decode() if isinstance(text, bytes) else text)

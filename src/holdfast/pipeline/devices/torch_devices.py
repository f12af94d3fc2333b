"""Devices of torch itself: CPU, CUDA and ROCm, Intel XPU, Apple MPS."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import psutil
import torch

from holdfast.base.errors import Unsupported
from holdfast.base.units import format_bytes
from holdfast.residency.carriers import carrier_for
from holdfast.residency.carriers.carrier import Carrier
from holdfast.residency.files.holding import trim
from holdfast.topology.amx import disable_broken_amx

PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}

_limited: set[str] = set()  # names of devices that we have limited


class TorchDevice:
    """Common base of the torch devices."""

    kind = ""
    automatic = "fp32"
    streams = "no"
    preparation: str | None = None

    def __init__(self, index: int | None = None) -> None:
        self.index = index
        self._torch = torch.device(self.kind if index is None else f"{self.kind}:{index}")

    @property
    def name(self) -> str:
        return str(self._torch)

    def carrier(self) -> Carrier:
        raise Unsupported(
            f"cannot stream weights to {self.name}", expected="a device with memory of its own"
        )

    def precision(self, wanted: str) -> torch.dtype:
        return PRECISIONS[self.automatic if wanted == "auto" else wanted]

    def place(self, module: torch.nn.Module) -> torch.nn.Module:
        return module.to(self._torch)

    def adapt_denoise(self, denoise: Any) -> Any:
        return denoise

    def put(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(self._torch)

    def fetch(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to("cpu")


class Cpu(TorchDevice):
    """Torch on the CPU."""

    kind = "cpu"

    def __init__(self, index: int | None = None) -> None:
        super().__init__(index)
        disable_broken_amx()

    def unusable(self) -> str | None:
        return None if self.index in (None, 0) else "there is one CPU device"

    def free_bytes(self) -> int | None:
        return psutil.virtual_memory().available

    def limit(self, budget_bytes: int | None) -> None:
        """Raise Unsupported: torch's CPU allocator has no limit."""
        if budget_bytes is None:
            return
        raise Unsupported(
            f"cannot keep a run on the CPU under {format_bytes(budget_bytes)}: nothing limits "
            "what torch takes from the host",
            expected="a budget for a GPU",
            hint="leave the budget out, or limit the whole process with systemd-run or ulimit -v",
        )

    def synchronize(self) -> None:
        """Nothing to wait for: torch computes synchronously on the CPU."""

    def used_bytes(self) -> int | None:
        """Resident memory of this process."""
        return psutil.Process().memory_info().rss

    def reset_peak(self) -> None:
        """Resets the peak on Linux; elsewhere it stays that of the process since its start."""
        if sys.platform == "linux":
            try:
                Path("/proc/self/clear_refs").write_text("5")
            except OSError:
                return  # a container may forbid it: the peak stays an upper bound

    def peak_bytes(self) -> int | None:
        """Peak resident memory of this process."""
        if sys.platform == "linux":
            for line in Path("/proc/self/status").read_text().splitlines():
                if line.startswith("VmHWM:"):
                    return int(line.split()[1]) * 1024
        memory: Any = psutil.Process().memory_info()
        return getattr(memory, "peak_wset", memory.rss)

    def tidy(self) -> None:
        trim()


class Accelerator(TorchDevice):
    """A device that torch reaches through a module of its own: `torch.cuda`, `torch.xpu`."""

    missing = ""
    streams = "yes"

    def __init__(self, index: int | None = None) -> None:
        super().__init__(index)
        self._carrier: Carrier | None = None

    def carrier(self) -> Carrier:
        """A new carrier. It resets torch's peak for every layer and keeps one of its own."""
        self._carrier = carrier_for(self.name)
        return self._carrier

    @property
    def _api(self) -> Any:
        return getattr(torch, self.kind)

    def unusable(self) -> str | None:
        if not self._api.is_available():
            return f"torch {torch.__version__} {self.missing}"
        count = self._api.device_count()
        if self.index is not None and self.index >= count:
            return f"torch sees {count} of its kind, numbered from 0"
        return None

    def free_bytes(self) -> int | None:
        """Free memory of the driver, plus what torch's cache holds unused."""
        free, _ = self._api.mem_get_info(self._torch)
        cached = self._api.memory_reserved(self._torch) - self._api.memory_allocated(self._torch)
        return free + cached

    def limit(self, budget_bytes: int | None) -> None:
        if budget_bytes is not None:
            _, total = self._api.mem_get_info(self._torch)
            self._set_fraction(min(1.0, budget_bytes / total))
            _limited.add(self.name)
        elif self.name in _limited:
            self._set_fraction(1.0)
            _limited.discard(self.name)

    def _set_fraction(self, fraction: float) -> None:
        index = self._api.current_device() if self.index is None else self.index
        self._api.set_per_process_memory_fraction(fraction, index)

    def synchronize(self) -> None:
        self._api.synchronize(self._torch)

    def used_bytes(self) -> int | None:
        return self._api.memory_allocated(self._torch)

    def reset_peak(self) -> None:
        self._api.reset_peak_memory_stats(self._torch)
        if self._carrier is not None:
            self._carrier.peak_bytes = 0

    def peak_bytes(self) -> int | None:
        seen = 0 if self._carrier is None else self._carrier.peak_bytes
        return max(seen, self._api.max_memory_allocated(self._torch))

    def tidy(self) -> None:
        self._api.empty_cache()
        trim()


class Cuda(Accelerator):
    """NVIDIA through CUDA, AMD through ROCm."""

    kind = "cuda"
    missing = "finds no CUDA or ROCm device"

    def precision(self, wanted: str) -> torch.dtype:
        """For "auto": bf16 where the card has it natively, else fp16."""
        if wanted != "auto":
            return super().precision(wanted)
        with torch.cuda.device(self._torch):
            native = torch.cuda.is_bf16_supported(including_emulation=False)
        return super().precision("bf16" if native else "fp16")


class Xpu(Accelerator):
    """Intel GPUs."""

    kind = "xpu"
    missing = "finds no Intel XPU"
    automatic = "bf16"


class Mps(Accelerator):
    """Apple silicon: memory is shared with the host, and torch does not track the peak."""

    kind = "mps"
    missing = "finds no Apple GPU"
    automatic = "fp16"

    def __init__(self, index: int | None = None) -> None:
        super().__init__(index)
        self._peak = 0

    @property
    def _api(self) -> Any:
        return torch.mps

    def unusable(self) -> str | None:
        if not torch.backends.mps.is_available():
            return f"torch {torch.__version__} {self.missing}"
        return None if self.index in (None, 0) else "there is one MPS device"

    def free_bytes(self) -> int | None:
        """Metal's recommended maximum, less what is allocated."""
        return self._api.recommended_max_memory() - self._api.driver_allocated_memory()

    def limit(self, budget_bytes: int | None) -> None:
        """Sets torch's limit, a fraction of Metal's recommended maximum; its default is 1.7."""
        if budget_bytes is not None:
            fraction = budget_bytes / self._api.recommended_max_memory()
            self._api.set_per_process_memory_fraction(min(1.7, fraction))
            _limited.add(self.name)
        elif self.name in _limited:
            self._api.set_per_process_memory_fraction(1.7)
            _limited.discard(self.name)

    def synchronize(self) -> None:
        """Also samples the memory for `peak_bytes`."""
        self._api.synchronize()
        self._peak = max(self._peak, self._api.current_allocated_memory())

    def used_bytes(self) -> int | None:
        return self._api.current_allocated_memory()

    def reset_peak(self) -> None:
        self._peak = self._api.current_allocated_memory()

    def peak_bytes(self) -> int | None:
        """The maximum at the ends of steps: shorter peaks are missed."""
        return self._peak

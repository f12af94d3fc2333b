"""Devices of torch itself: CPU, CUDA and ROCm, Intel XPU, Apple MPS."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import psutil
import torch

from holdfast.base.errors import Unsupported
from holdfast.base.units import format_bytes
from holdfast.pipeline.devices.denoise_loop import StepDone, denoise
from holdfast.residency.carriers import carrier_for, simulated
from holdfast.residency.carriers.carrier import Carrier
from holdfast.residency.files.freeing import trim
from holdfast.topology.amx import disable_broken_amx
from holdfast.xla.denoising import Denoising

PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}

_limited: set[str] = set()  # names of devices that we have limited


class Device(ABC):
    """A device that runs stages. Stages take and return torch tensors on the CPU."""

    kind = ""
    automatic = "fp32"
    streams = "no"  # weights can be streamed: "no", "yes" (if they do not fit) or "always"
    preparation: str | None = None  # what may delay the first result of a stage

    def __init__(self, index: int | None = None) -> None:
        self.index = index
        self._torch = torch.device(self.kind if index is None else f"{self.kind}:{index}")

    @property
    def name(self) -> str:
        """The name as the user writes it: "cuda:0"."""
        return str(self._torch)

    def carrier(self) -> Carrier:
        """The carrier that moves weights here; raises Unsupported without streaming."""
        raise Unsupported(
            f"cannot stream weights to {self.name}", expected="a device with memory of its own"
        )

    @abstractmethod
    def unusable(self) -> str | None:
        """Why the device cannot be used, or None. Never raises."""

    @abstractmethod
    def free_bytes(self) -> int | None:
        """Memory that a model could take; None if unknown."""

    def precision(self, wanted: str) -> torch.dtype:
        """The dtype for "auto", "fp32", "bf16" or "fp16"; raises Unsupported."""
        return PRECISIONS[self.automatic if wanted == "auto" else wanted]

    @abstractmethod
    def limit(self, budget_bytes: int | None) -> None:
        """Limit the memory taken from now on; None removes an earlier limit of ours.

        Raises Unsupported where a limit cannot be enforced.
        """

    def place(self, module: torch.nn.Module) -> torch.nn.Module:
        """Move a module to the device."""
        return module.to(self._torch)

    def put(self, tensor: torch.Tensor) -> torch.Tensor:
        """Move a tensor to the device."""
        return tensor.to(self._torch)

    def fetch(self, tensor: torch.Tensor) -> torch.Tensor:
        """Move a tensor to the CPU."""
        return tensor.to("cpu")

    def denoise(
        self, network: Any, work: Denoising, generator: torch.Generator, step_done: StepDone
    ) -> torch.Tensor:
        """Run all steps of `work`; returns the latents on the CPU."""
        return denoise(self, network, work, generator, step_done)

    def synchronize(self) -> None:
        """Wait until all queued work is done."""
        return

    @abstractmethod
    def used_bytes(self) -> int | None:
        """Memory this process uses on the device."""

    @abstractmethod
    def reset_peak(self) -> None:
        """Begin a new measurement for `peak_bytes`."""

    @abstractmethod
    def peak_bytes(self) -> int | None:
        """Maximum memory in use since `reset_peak`."""

    def tidy(self) -> None:
        """Return cached, unused memory to the system."""
        trim()


class Cpu(Device):
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


class Simulated(Cpu):
    """The CPU computes, with a carrier that counts memory and refuses more, as a card would.

    Pictures equal those of the CPU bit for bit. A budget is enforced to the byte for weights and
    activations; predicted and measured times are those of the simulated clock.
    """

    streams = "always"

    @property
    def name(self) -> str:
        return "simulated"

    def __init__(self, index: int | None = None) -> None:
        super().__init__(index)
        self._carrier = simulated.Simulated()

    def carrier(self) -> Carrier:
        return self._carrier

    def unusable(self) -> str | None:
        return None if self.index in (None, 0) else "there is one simulated device"

    def free_bytes(self) -> int | None:
        """Unknown: the capacity is unlimited without a budget."""
        return None

    def limit(self, budget_bytes: int | None) -> None:
        self._carrier.limit(budget_bytes)

    def used_bytes(self) -> int | None:
        return self._carrier.held_bytes + self._carrier.computed_bytes

    def reset_peak(self) -> None:
        self._carrier.peak_bytes = self.used_bytes() or 0

    def peak_bytes(self) -> int | None:
        return self._carrier.peak_bytes


class Accelerator(Device):
    """A device that torch reaches through a module of its own: `torch.cuda`, `torch.xpu`."""

    missing = ""
    streams = "yes"
    no_limit = 1.0

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
        """Sets torch's limit, a fraction of all memory; `no_limit` is its default."""
        if budget_bytes is not None:
            self._set_fraction(min(self.no_limit, budget_bytes / self._total_bytes()))
            _limited.add(self.name)
        elif self.name in _limited:
            self._set_fraction(self.no_limit)
            _limited.discard(self.name)

    def _total_bytes(self) -> int:
        return self._api.mem_get_info(self._torch)[1]

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
        super().tidy()


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
    no_limit = 1.7  # of Metal's recommended maximum

    def __init__(self, index: int | None = None) -> None:
        super().__init__(index)
        self._peak = 0

    def unusable(self) -> str | None:
        if not torch.backends.mps.is_available():
            return f"torch {torch.__version__} {self.missing}"
        return None if self.index in (None, 0) else "there is one MPS device"

    def free_bytes(self) -> int | None:
        """Metal's recommended maximum, less what is allocated."""
        return self._total_bytes() - self._api.driver_allocated_memory()

    def _total_bytes(self) -> int:
        return self._api.recommended_max_memory()

    def _set_fraction(self, fraction: float) -> None:
        self._api.set_per_process_memory_fraction(fraction)

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

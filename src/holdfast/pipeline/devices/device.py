"""The Device protocol, device names, and the choice of a device for "auto".

A device kind is imported when one is opened.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from holdfast.base.errors import BadInput, NotFound, OutOfMemory, Unsupported
from holdfast.base.registry import Entry, Registry
from holdfast.base.units import format_bytes
from holdfast.topology import Topology

if TYPE_CHECKING:
    import torch

    from holdfast.residency.carriers.carrier import Carrier


class Device(Protocol):
    """A device that runs stages. Stages take and return torch tensors on the CPU."""

    @property
    def name(self) -> str:
        """The name as the user writes it: "cuda:0"."""
        ...

    @property
    def streams(self) -> str:
        """Whether weights can be streamed: "no", "yes" (if they do not fit) or "always"."""
        ...

    @property
    def preparation(self) -> str | None:
        """What may delay the first result of a stage, such as compiling; else None."""
        ...

    def carrier(self) -> Carrier:
        """The carrier that moves weights here; raises Unsupported without streaming."""
        ...

    def unusable(self) -> str | None:
        """Why the device cannot be used, or None. Never raises."""
        ...

    def free_bytes(self) -> int | None:
        """Memory that a model could take; None if unknown."""
        ...

    def precision(self, wanted: str) -> torch.dtype:
        """The dtype for "auto", "fp32", "bf16" or "fp16"; raises Unsupported."""
        ...

    def limit(self, budget_bytes: int | None) -> None:
        """Limit the memory taken from now on; None removes an earlier limit of ours.

        Raises Unsupported where a limit cannot be enforced.
        """
        ...

    def place(self, module: torch.nn.Module) -> torch.nn.Module:
        """Move a module to the device."""
        ...

    def adapt_denoise(self, denoise: Any) -> Any:
        """A family's DenoiseStage, or one that wraps it with a sampling loop of the device."""
        ...

    def put(self, tensor: torch.Tensor) -> torch.Tensor:
        """Move a tensor to the device."""
        ...

    def fetch(self, tensor: torch.Tensor) -> torch.Tensor:
        """Move a tensor to the CPU."""
        ...

    def synchronize(self) -> None:
        """Wait until all queued work is done."""
        ...

    def used_bytes(self) -> int | None:
        """Memory this process uses on the device."""
        ...

    def reset_peak(self) -> None:
        """Begin a new measurement for `peak_bytes`."""
        ...

    def peak_bytes(self) -> int | None:
        """Maximum memory in use since `reset_peak`."""
        ...

    def tidy(self) -> None:
        """Return cached, unused memory to the system."""
        ...


# A device kind is called with the index after the colon, or None.
DEVICES: Registry[Callable[[int | None], Device]] = Registry(
    "device",
    {
        "cpu": Entry("holdfast.pipeline.devices.torch_devices:Cpu", "torch on the CPU", "run"),
        "cuda": Entry(
            "holdfast.pipeline.devices.torch_devices:Cuda", "torch on NVIDIA or AMD", "run"
        ),
        "xpu": Entry("holdfast.pipeline.devices.torch_devices:Xpu", "torch on Intel GPUs", "run"),
        "mps": Entry(
            "holdfast.pipeline.devices.torch_devices:Mps", "torch on Apple silicon", "run"
        ),
        "holdfast": Entry(
            "holdfast.pipeline.devices.holdfast_device:Holdfast",
            "Holdfast's own torch device: no driver, NumPy computes",
            "compute",
        ),
        "opencl": Entry(
            "holdfast.pipeline.devices.opencl_device:OpenCL",
            "GPUs of any vendor, and CPUs, through OpenCL",
            "compute,opencl",
        ),
        "xla": Entry(
            "holdfast.pipeline.devices.xla_device:Xla",
            "TPUs, GPUs and CPUs through JAX, weights split over all of them",
            "xla",
        ),
        "simulated": Entry(
            "holdfast.pipeline.devices.simulated_device:Simulated",
            "torch on the CPU, with simulated memory and link",
            "run",
        ),
    },
)

# Tried in this order, then the CPU.
_AUTOMATIC = ("cuda", "xpu", "mps")
_HEADROOM = 1.1
# The driver, the largest layer and activations need about this much on any card.
_LEAST_BYTES = 10**9


@dataclass(frozen=True, slots=True)
class Choice:
    """A device, and the reason for choosing it in one line."""

    device: Device
    why: str


@dataclass(frozen=True, slots=True)
class DeviceBudget:
    """Memory that the networks of a device share, activations included; None is no limit."""

    budget_bytes: int | None
    why: str | None = None  # in one line


def parse(name: str) -> tuple[str, int | None]:
    """Split "cuda:1" into kind and index. Raises NotFound or BadInput; imports nothing."""
    kind, colon, number = name.partition(":")
    if kind not in DEVICES:
        close = difflib.get_close_matches(kind, DEVICES, n=1, cutoff=0.7)
        raise NotFound(
            f"unknown device {name!r}",
            expected=f"auto, or one of {', '.join(DEVICES)}",
            hint=close[0] if close else "auto",
        )
    if colon and not number.isdecimal():
        raise BadInput(f"cannot read device {name!r}", expected='a name such as "cuda" or "cuda:1"')
    return kind, int(number) if colon else None


def open_device(name: str) -> Device:
    """Open the device called `name`; raises NotFound, BadInput, or Unsupported with the reason."""
    kind, index = parse(name)
    device = DEVICES[kind](index)
    reason = device.unusable()
    if reason is not None:
        raise Unsupported(
            f"cannot use device {name!r}: {reason}",
            expected="a device that torch can use here",
            hint="--device auto, or `holdfast doctor` for what is missing",
        )
    return device


def cards(kind: str) -> list[Device]:
    """The usable devices of a kind, in index order."""
    found: list[Device] = []
    while (device := DEVICES[kind](len(found))).unusable() is None:
        found.append(device)
    return found


def choose(
    elements: int, precision: str, topology: Topology, budget_bytes: int | None = None
) -> Choice:
    """Choose the first device whose free memory holds `elements` with headroom, or the budget.

    Else the card with the most free memory, with weights streamed through it; else, if that is
    too little, the CPU. Raises OutOfMemory if the host memory is too small as well.
    """
    reasons: list[str] = []
    small: list[tuple[int, Device, int]] = []  # cards that are too small: free, device, need
    for kind in _AUTOMATIC:
        found = cards(kind)
        if not found and _has_card(kind, topology):
            reasons.append(DEVICES[kind](None).unusable() or f"{kind} cannot be used")
        for device in found:
            need = elements * device.precision(precision).itemsize
            room = _free_or_reason(device)
            if isinstance(room, str):
                reasons.append(f"{device.name} {room}")
            elif room is None or room >= _required_bytes(device, need, budget_bytes):
                free = "" if room is None else f", {format_bytes(room)} free"
                return Choice(device, f"{device.name}{free} for {format_bytes(need)} of weights")
            else:
                reasons.append(_describe_shortage(device, room, need))
                small += [(room, device, need)] if device.streams != "no" else []
    room, device, need = max(small, key=lambda card: card[0], default=(0, None, 0))
    if device is not None and room >= _LEAST_BYTES:
        _refuse_if_too_large(need, topology)  # streamed weights stay in host memory
        return Choice(device, _describe_budget(device, room, "free", need))
    cpu = DEVICES["cpu"](None)
    _refuse_if_too_large(elements * cpu.precision(precision).itemsize, topology)
    return Choice(cpu, f"cpu: {'; '.join(reasons) or 'no GPU that torch can use was found'}")


def decide_budget(device: Device, need_bytes: int, budget_bytes: int | None) -> DeviceBudget | None:
    """The budget for weights of that size: the given one, or the free memory if that is less.

    None where weights are simply placed: they fit and no budget was given, or the device does not
    stream.
    """
    if device.streams == "no":
        return None
    room = _free_or_reason(device)
    wanted = need_bytes * _HEADROOM if budget_bytes is None else budget_bytes
    if isinstance(room, int) and room < wanted:
        return DeviceBudget(room, _describe_budget(device, room, "free", need_bytes))
    if budget_bytes is not None:
        return DeviceBudget(
            budget_bytes, _describe_budget(device, budget_bytes, "budget", need_bytes)
        )
    return DeviceBudget(None) if device.streams == "always" else None


def _required_bytes(device: Device, need_bytes: int, budget_bytes: int | None) -> float:
    """Bytes that must be free: the weights with headroom, or the budget if that is less."""
    wanted = need_bytes * _HEADROOM
    return wanted if budget_bytes is None or device.streams == "no" else min(wanted, budget_bytes)


def _describe_budget(device: Device, room: int, what: str, need: int) -> str:
    line = f"{device.name}: {format_bytes(room)} {what} for {format_bytes(need)} of weights"
    # Weights that take nearly all free memory leave too little for activations.
    least = need if what == "budget" else need * _HEADROOM
    return f"{line}, streamed" if least > room else line


def _describe_shortage(device: Device, room: int, need: int) -> str:
    return f"{device.name} has {format_bytes(room)} free for {format_bytes(need)} of weights"


def _free_or_reason(device: Device) -> int | str | None:
    """Free memory, or why it is unknown: the card may be busy or locked."""
    try:
        return device.free_bytes()
    except RuntimeError as exc:
        return f"does not answer ({str(exc).partition(chr(10))[0]})"


def _has_card(kind: str, topology: Topology) -> bool:
    vendors = {"cuda": ("nvidia", "amd"), "xpu": ("intel",), "mps": ("apple",)}[kind]
    names = [(gpu.vendor or "").lower() for gpu in topology.gpus if gpu.kind != "display"]
    return any(vendor in name for vendor in vendors for name in names)


def _refuse_if_too_large(need_bytes: int, topology: Topology) -> None:
    total = topology.memory_bytes
    if total is not None and need_bytes > total:
        raise OutOfMemory(
            f"cannot load {format_bytes(need_bytes)} of weights: this machine has "
            f"{format_bytes(total)} of memory",
            expected="a machine that holds the weights",
            hint="--precision bf16 halves fp32 weights",
        )

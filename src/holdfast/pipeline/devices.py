"""Where a stage runs: names of devices, and the choice when the user leaves it open.

Covers: the registry, "cuda:1" to an object, `auto` and its reason, what weights get on a device.
Leaves to others: what a device does (torch_devices, and the layers that register more).
Promise: nothing is imported until a device is asked for; `choose` only looks.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from holdfast.base.errors import BadInput, NotFound, OutOfMemory, Unsupported
from holdfast.base.registry import Entry, Registry
from holdfast.base.units import format_bytes
from holdfast.topology import Topology

if TYPE_CHECKING:
    import torch

    from holdfast.pipeline.stages import DenoiseStage
    from holdfast.residency.carriers.carrier import Carrier


class Device(Protocol):
    """A place that computes. Tensors come to it and leave it as torch tensors on the CPU."""

    @property
    def name(self) -> str:
        """As the user writes it: "cuda:0"."""
        ...

    @property
    def streams(self) -> str:
        """Whether weights can pass through: "no", "yes" where they are too large, or "always"."""
        ...

    @property
    def preparation(self) -> str | None:
        """What may take long before a stage's first answer, such as compiling; else None."""
        ...

    def carrier(self) -> Carrier:
        """What moves weights here; raises Unsupported where nothing can."""
        ...

    def unusable(self) -> str | None:
        """Why nothing can run here; None when it can. Never raises."""
        ...

    def free_bytes(self) -> int | None:
        """Memory that a model could take."""
        ...

    def precision(self, wanted: str) -> torch.dtype:
        """The number format for "auto", "fp32", "bf16" or "fp16"; raises Unsupported."""
        ...

    def limit(self, budget_bytes: int | None) -> None:
        """Never take more than that from now on; None takes an earlier limit of ours away.

        Raises Unsupported where nobody can promise it.
        """
        ...

    def place(self, module: torch.nn.Module) -> torch.nn.Module:
        """Bring a module here."""
        ...

    def sampled(self, denoise: DenoiseStage) -> DenoiseStage:
        """The denoise stage of a family, with a loop of the device's own where it has one."""
        ...

    def put(self, tensor: torch.Tensor) -> torch.Tensor:
        """Bring a tensor here."""
        ...

    def fetch(self, tensor: torch.Tensor) -> torch.Tensor:
        """Bring a tensor back to the CPU."""
        ...

    def synchronize(self) -> None:
        """Wait until everything that was asked for is done."""
        ...

    def used_bytes(self) -> int | None:
        """Memory in use by this process."""
        ...

    def reset_peak(self) -> None:
        """Begin a new measurement for `peak_bytes`."""
        ...

    def peak_bytes(self) -> int | None:
        """The most that was in use since `reset_peak`."""
        ...

    def tidy(self) -> None:
        """Give memory that nothing uses back to the system."""
        ...


# A device kind is called with the index after the colon, or None.
DEVICES: Registry[Callable[[int | None], Device]] = Registry(
    "device",
    {
        "cpu": Entry("holdfast.pipeline.torch_devices:Cpu", "torch on the CPU", "run"),
        "cuda": Entry("holdfast.pipeline.torch_devices:Cuda", "torch on NVIDIA or AMD", "run"),
        "xpu": Entry("holdfast.pipeline.torch_devices:Xpu", "torch on Intel GPUs", "run"),
        "mps": Entry("holdfast.pipeline.torch_devices:Mps", "torch on Apple silicon", "run"),
        "holdfast": Entry(
            "holdfast.pipeline.holdfast_device:Holdfast",
            "Holdfast's own torch device: no driver, NumPy computes",
            "compute",
        ),
        "opencl": Entry(
            "holdfast.pipeline.opencl_device:OpenCL",
            "GPUs of any vendor, and CPUs, through OpenCL",
            "compute,opencl",
        ),
        "xla": Entry(
            "holdfast.pipeline.xla_device:Xla",
            "TPUs, GPUs and CPUs through JAX, weights split over all of them",
            "xla",
        ),
        "simulated": Entry(
            "holdfast.pipeline.simulated_device:Simulated",
            "torch on the CPU, with memory and a link that are made up",
            "run",
        ),
    },
)

# Tried in this order; the CPU takes what is left.
_AUTOMATIC = ("cuda", "xpu", "mps")
_HEADROOM = 1.1
# A driver, the largest layer and what is computed take about that much of any card.
_LEAST_BYTES = 10**9


@dataclass(frozen=True, slots=True)
class Choice:
    """A device, and why it was taken in one line."""

    device: Device
    why: str


@dataclass(frozen=True, slots=True)
class Share:
    """What the networks of a device have together, activations included; None is no limit."""

    budget_bytes: int | None
    why: str | None = None  # in one line, where somebody decided it


def parse(name: str) -> tuple[str, int | None]:
    """ "cuda:1" as a kind and a number. Raises NotFound or BadInput; imports nothing."""
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
    """The device called `name`; raises NotFound, BadInput, or Unsupported with the reason."""
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
    """The devices of a kind that can be used, by number."""
    found: list[Device] = []
    while (device := DEVICES[kind](len(found))).unusable() is None:
        found.append(device)
    return found


def choose(
    elements: int, precision: str, topology: Topology, budget_bytes: int | None = None
) -> Choice:
    """The first device whose free memory holds that many numbers with some headroom, or the budget.

    Where there is none, the card with most free memory, through which the weights are streamed;
    and the CPU where that would be too little. Raises OutOfMemory if not even the host can.
    """
    reasons: list[str] = []
    small: list[tuple[int, Device, int]] = []  # cards that do not hold them: room, device, need
    for kind in _AUTOMATIC:
        found = cards(kind)
        if not found and _has_card(kind, topology):
            reasons.append(DEVICES[kind](None).unusable() or f"{kind} cannot be used")
        for device in found:
            need = elements * device.precision(precision).itemsize
            room = _room(device)
            if isinstance(room, str):
                reasons.append(f"{device.name} {room}")
            elif room is None or room >= _wanted(device, need, budget_bytes):
                free = "" if room is None else f", {format_bytes(room)} free"
                return Choice(device, f"{device.name}{free} for {format_bytes(need)} of weights")
            else:
                reasons.append(_too_small(device, room, need))
                small += [(room, device, need)] if device.streams != "no" else []
    room, device, need = max(small, key=lambda card: card[0], default=(0, None, 0))
    if device is not None and room >= _LEAST_BYTES:
        _refuse_if_too_large(need, topology)  # all weights lie in the memory of the host
        return Choice(device, _streamed(device, room, "free", need))
    cpu = DEVICES["cpu"](None)
    _refuse_if_too_large(elements * cpu.precision(precision).itemsize, topology)
    return Choice(cpu, f"cpu: {'; '.join(reasons) or 'no GPU that torch can use was found'}")


def share(device: Device, need_bytes: int, budget_bytes: int | None) -> Share | None:
    """What weights of that size get on a device: the budget, or what is free where that is less.

    None where they simply lie there: no budget was given and they fit, or nothing can be streamed.
    """
    if device.streams == "no":
        return None
    room = _room(device)
    wanted = need_bytes * _HEADROOM if budget_bytes is None else budget_bytes
    if isinstance(room, int) and room < wanted:
        return Share(room, _streamed(device, room, "free", need_bytes))
    if budget_bytes is not None:
        return Share(budget_bytes, _streamed(device, budget_bytes, "budget", need_bytes))
    return Share(None) if device.streams == "always" else None


def _wanted(device: Device, need_bytes: int, budget_bytes: int | None) -> float:
    """What has to be free: the weights with some headroom, or the budget they stream through."""
    wanted = need_bytes * _HEADROOM
    return wanted if budget_bytes is None or device.streams == "no" else min(wanted, budget_bytes)


def _streamed(device: Device, room: int, what: str, need: int) -> str:
    line = f"{device.name}: {format_bytes(room)} {what} for {format_bytes(need)} of weights"
    # Weights that take nearly all that is free leave too little for what is computed.
    least = need if what == "budget" else need * _HEADROOM
    return f"{line}, streamed" if least > room else line


def _too_small(device: Device, room: int, need: int) -> str:
    return f"{device.name} has {format_bytes(room)} free for {format_bytes(need)} of weights"


def _room(device: Device) -> int | str | None:
    """Free memory, or why nobody can tell: a card may be there and busy or locked."""
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

"""Where a stage runs: names of devices, and the choice when the user leaves it open.

Covers: the registry, "cuda:1" to an object, `auto` and its reason.
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


class Device(Protocol):
    """A place that computes. Tensors come to it and leave it as torch tensors on the CPU."""

    @property
    def name(self) -> str:
        """As the user writes it: "cuda:0"."""
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


# A device kind is called with the index after the colon, or None.
DEVICES: Registry[Callable[[int | None], Device]] = Registry(
    "device",
    {
        "cpu": Entry("holdfast.pipeline.torch_devices:Cpu", "torch on the CPU", "run"),
        "cuda": Entry("holdfast.pipeline.torch_devices:Cuda", "torch on NVIDIA or AMD", "run"),
        "xpu": Entry("holdfast.pipeline.torch_devices:Xpu", "torch on Intel GPUs", "run"),
        "mps": Entry("holdfast.pipeline.torch_devices:Mps", "torch on Apple silicon", "run"),
    },
)

# Tried in this order; the CPU takes what is left.
_AUTOMATIC = ("cuda", "xpu", "mps")
_HEADROOM = 1.1


@dataclass(frozen=True, slots=True)
class Choice:
    """A device, and why it was taken in one line."""

    device: Device
    why: str


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


def choose(elements: int, precision: str, topology: Topology) -> Choice:
    """The first device whose free memory holds that many numbers with some headroom.

    Raises OutOfMemory if not even the host can.
    """
    reasons: list[str] = []
    for kind in _AUTOMATIC:
        found = cards(kind)
        if not found and _has_card(kind, topology):
            reasons.append(DEVICES[kind](None).unusable() or f"{kind} cannot be used")
        for device in found:
            need = elements * device.precision(precision).itemsize
            room = _room(device)
            if isinstance(room, str):
                reasons.append(f"{device.name} {room}")
            elif room is None or room >= need * _HEADROOM:
                free = "" if room is None else f", {format_bytes(room)} free"
                return Choice(device, f"{device.name}{free} for {format_bytes(need)} of weights")
            else:
                reasons.append(
                    f"{device.name} has {format_bytes(room)} free for {format_bytes(need)} "
                    "of weights"
                )
    cpu = DEVICES["cpu"](None)
    _refuse_if_too_large(elements * cpu.precision(precision).itemsize, topology)
    return Choice(cpu, f"cpu: {'; '.join(reasons) or 'no GPU that torch can use was found'}")


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

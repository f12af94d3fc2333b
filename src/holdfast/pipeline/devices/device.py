"""Device names, and the choice of a device for "auto".

A device kind is imported when one is opened.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.base.errors import BadInput, NotFound, OutOfMemory, Unsupported
from holdfast.base.registry import Entry, Registry
from holdfast.base.units import format_bytes
from holdfast.topology import Topology

if TYPE_CHECKING:
    from holdfast.pipeline.devices.torch_devices import Device


# A device kind is called with the index after the colon, or None.
_DEVICES = {
    "cpu": ("torch_devices:Cpu", "torch on the CPU", "run"),
    "cuda": ("torch_devices:Cuda", "torch on NVIDIA or AMD", "run"),
    "xpu": ("torch_devices:Xpu", "torch on Intel GPUs", "run"),
    "mps": ("torch_devices:Mps", "torch on Apple silicon", "run"),
    "holdfast": (
        "holdfast_device:Holdfast",
        "Holdfast's own torch device: no driver, NumPy computes",
        "compute",
    ),
    "opencl": (
        "opencl_device:OpenCL",
        "GPUs of any vendor, and CPUs, through OpenCL",
        "compute,opencl",
    ),
    "xla": (
        "xla_device:Xla",
        "TPUs, GPUs and CPUs through JAX, weights split over all of them",
        "xla",
    ),
    "simulated": (
        "torch_devices:Simulated",
        "torch on the CPU, with simulated memory and link",
        "run",
    ),
}
DEVICES: Registry[Callable[[int | None], Device]] = Registry(
    "device",
    {
        name: Entry(f"holdfast.pipeline.devices.{where}", what, extra)
        for name, (where, what, extra) in _DEVICES.items()
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
            enough = need * _HEADROOM
            if budget_bytes is not None and device.streams != "no":
                enough = min(enough, budget_bytes)
            room = _free_or_reason(device)
            if isinstance(room, str):
                reasons.append(f"{device.name} {room}")
            elif room is None or room >= enough:
                free = "" if room is None else f", {format_bytes(room)} free"
                return Choice(device, f"{device.name}{free} for {format_bytes(need)} of weights")
            else:
                sizes = f"{format_bytes(room)} free for {format_bytes(need)} of weights"
                reasons.append(f"{device.name} has {sizes}")
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


def _describe_budget(device: Device, room: int, what: str, need: int) -> str:
    line = f"{device.name}: {format_bytes(room)} {what} for {format_bytes(need)} of weights"
    # Weights that take nearly all free memory leave too little for activations.
    least = need if what == "budget" else need * _HEADROOM
    return f"{line}, streamed" if least > room else line


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

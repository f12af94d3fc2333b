"""Carriers copy weights between the host and a device, behind one small interface.

`carrier_for("cuda:0")` returns a carrier with streams and events where torch has them, else one
with plain copies; "simulated" is a simulated device with its own clock.

    carrier    the interface; bytes copied to each device so far
    streams    CUDA, ROCm, XPU, NPU, MLU: torch's streams and events
    plain      devices without streams
    simulated  a simulated device: host memory, chosen rates, its own clock
    driver     copies by CUDA's driver call
    measure    how fast a device takes bytes
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.base.errors import NotFound
from holdfast.base.registry import Entry, Registry

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.residency.carriers.carrier import Carrier

# A carrier is created for a full device name, such as "cuda:1".
CARRIERS: Registry[Callable[[str], Carrier]] = Registry(
    "carrier",
    {
        "cuda": Entry("holdfast.residency.carriers.streams:Streams", "NVIDIA, AMD", "run"),
        "xpu": Entry("holdfast.residency.carriers.streams:Streams", "Intel GPUs", "run"),
        "npu": Entry("holdfast.residency.carriers.streams:Streams", "Ascend", "run"),
        "mlu": Entry("holdfast.residency.carriers.streams:Streams", "Cambricon", "run"),
        "mps": Entry("holdfast.residency.carriers.plain:Plain", "Apple silicon", "run"),
        "cpu": Entry("holdfast.residency.carriers.plain:Plain", "the host itself", "run"),
        "simulated": Entry(
            "holdfast.residency.carriers.simulated:Simulated", "host memory, its own clock", "run"
        ),
    },
)


def carrier_for(device: object) -> Carrier:
    """The carrier of a name such as "cuda:0", a torch.device, or a carrier. Raises NotFound."""
    if hasattr(device, "copy") and hasattr(device, "settle"):
        return device  # pyright: ignore[reportReturnType]  it is one already
    name = str(device)
    kind = name.partition(":")[0]
    if kind not in CARRIERS:
        raise NotFound(
            f"cannot move weights to device {name!r}", expected=f"one of {', '.join(CARRIERS)}"
        )
    return CARRIERS[kind](name)

"""Which engine computes on the device, chosen by name or by HOLDFAST_ENGINE.

A name that cannot be used changes nothing. Tensors keep the engine that made them, so older ones
go on working. HOLDFAST_ENGINE loads its engine with the first tensor.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy

from holdfast.base.config import Config
from holdfast.base.errors import Unsupported
from holdfast.compute.torch_device.errors import Refused

HOST = "numpy"
# Engines whose arrays can be tensors of the device: see `storage`.
ABLE = (HOST, "opencl")


class _Choice:
    name = HOST
    elsewhere = False  # whether there may be arrays other than NumPy's
    is_shim_armed = False  # the C++ kernels are registered: from the first tensor on, for good


choice = _Choice()


def engine() -> str:
    """The name of the engine that computes on the device."""
    return choice.name


def use(name: str) -> None:
    """Compute on the device with an engine from now on.

    Raises Unsupported, or what the engine raises where it finds no device.
    """
    _choose(name, needs_devices=name != HOST)


def use_setting() -> None:
    """Use the engine that HOLDFAST_ENGINE names. Raises Unsupported."""
    _choose(Config.load().engine, needs_devices=False)


def _choose(name: str, needs_devices: bool) -> None:
    if name not in ABLE:
        raise Unsupported(
            f"the device cannot compute with the engine {name!r}",
            expected=f"one of {', '.join(ABLE)}",
            hint=f"holdfast.torch.use({HOST!r}), or HOLDFAST_ENGINE={HOST}",
        )
    if name != HOST and choice.is_shim_armed:
        raise Unsupported(
            f"the device cannot compute with the engine {name!r}: the C++ shim has begun to "
            "compute, and its kernels read the host's memory",
            expected="an engine that is chosen before the first tensor is made",
            hint=f"HOLDFAST_ENGINE={name}, or HOLDFAST_TORCH_SHIM=off",
        )
    if needs_devices:
        from holdfast.compute.engine import ENGINES

        found: Any = ENGINES[name]
        if not found.count():
            raise Unsupported(
                f"the engine {name!r} has no device here",
                expected="one device or more",
                hint=f"holdfast.torch.use({HOST!r})",
            )
    choice.name = name
    choice.elsewhere = choice.elsewhere or name != HOST


def engine_on(index: int = 0) -> Any:
    """The engine for new tensors on a device."""
    from holdfast.compute.engine import ENGINES

    return ENGINES[choice.name].on(index)


def engine_of_arrays(values: Iterable[Any]) -> tuple[Any, bool]:
    """The engine of the arrays among `values`, and whether some are NumPy's.

    The engine is None without arrays, or where all are NumPy's. Raises Refused for two devices.
    """
    found, mixed = None, False
    for value in values:
        if isinstance(value, numpy.ndarray):
            mixed = True
            continue
        if type(value) is list or type(value) is tuple:
            here, some = engine_of_arrays(value)
            mixed = mixed or some
        else:
            here = getattr(value, "engine", None)
        if here is not None and here is not found:
            if found is not None:
                raise two_devices(found, here)
            found = here
    return found, mixed


def two_devices(one: Any, other: Any) -> Refused:
    """The error of a call with tensors on two devices."""
    names = [f"holdfast:{engine.index}" for engine in (one, other)]
    return Refused(
        "Expected all tensors to be on the same device, but found at least two devices, "
        f"{names[0]} and {names[1]}",
        expected="every tensor on one device; numbers and indices may be on the CPU",
        hint=f"tensor.to({names[0]!r})",
    )

"""`CustomDevice`: where tensors are, and which engine computes there.

Two devices match if they have the same engine and index, whatever their names: "custom",
"custom_gpu" and "cpu" are all this machine's memory under NumPy.
"""

from __future__ import annotations

import functools
from typing import Any

from holdfast.base.config import Config
from holdfast.base.errors import BadInput
from holdfast.compute.engine import ENGINES, Engine
from holdfast.memory.pools.manager import memory_manager


class CustomDevice:
    """`device_type` is the name of an engine, or any other name for the default engine."""

    __slots__ = ("device_type", "engine", "index")

    def __init__(self, device_type: str = "custom", index: int | None = None) -> None:
        if not isinstance(device_type, str) or not device_type:
            raise BadInput(
                f"{device_type!r} is no device", expected='a name such as "custom" or "numpy:0"'
            )
        kind, _, number = device_type.partition(":")
        if number and not number.isdigit():
            raise BadInput(
                f"{device_type!r} is no device",
                expected='a name with a number behind the colon, such as "numpy:0"',
            )
        if kind == "cuda":  # the CPU, with one warning, if there is no such device
            kind, _, number = memory_manager.place(device_type).partition(":")
        self.device_type = kind
        self.index = int(number) if index is None and number else index or 0
        self.engine = _engine(kind, self.index)

    @classmethod
    def of(cls, engine: Engine) -> CustomDevice:
        """The device of an engine."""
        made = object.__new__(cls)
        made.device_type, made.index = engine.name, getattr(engine, "index", 0)
        made.engine = engine
        return made

    def matches(self, other: CustomDevice) -> bool:
        """Whether one op can use tensors of both devices."""
        return self.engine is other.engine and self.index == other.index

    def __eq__(self, other: object) -> bool:
        if isinstance(other, str):
            other = CustomDevice(other)
        if not isinstance(other, CustomDevice):
            return NotImplemented
        return (self.device_type, self.index) == (other.device_type, other.index)

    def __hash__(self) -> int:
        return hash((self.device_type, self.index))

    def __str__(self) -> str:
        return f"{self.device_type}:{self.index}"

    def __repr__(self) -> str:
        return f"CustomDevice({str(self)!r})"


@functools.lru_cache(64)  # any string can be a name
def _engine(kind: str, index: int) -> Engine:
    name = {"cuda": "torch", "cpu": "numpy"}.get(kind, kind)
    return (ENGINES[name] if name in ENGINES else default_engine()).on(index)


@functools.cache
def default_engine() -> Engine:
    """The engine of devices that name none: HOLDFAST_ENGINE, else NumPy."""
    return ENGINES[Config.load().engine]


@functools.cache
def default_device() -> CustomDevice:
    """The device of tensors that are created without one."""
    return CustomDevice()


def device(of: Any) -> CustomDevice:
    """A device from a device, its name, or None."""
    if of is None:
        return default_device()
    return of if isinstance(of, CustomDevice) else CustomDevice(str(of))

"""`torch.device("holdfast")`: importing this registers it.

    import holdfast.torch
    x = torch.randn(3, device="holdfast")

HOLDFAST_ENGINE names the engine; HOLDFAST_STRICT=1 forbids falling back to torch's CPU kernels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.compute.torch_device.api.engine_choice import engine, use
from holdfast.compute.torch_device.registration import register

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.compute.engine import strict
    from holdfast.compute.torch_device.dispatch.coverage import Row

__all__ = [
    "build_shim",
    "clear_fallbacks",
    "coverage",
    "engine",
    "fallbacks",
    "shim_loaded",
    "strict",
    "use",
]


def build_shim() -> Path:
    """Compile the C++ shim, which makes small ops three times as fast; see `torch_device.shim`.

    Programs that start later use it. Takes about a minute. Raises Unsupported without a compiler.
    """
    from holdfast.compute.torch_device.shim import build

    return build.build()


def shim_loaded() -> bool:
    """Whether this process uses the C++ shim; then torch's own CPU kernels compute."""
    from holdfast.compute.torch_device.shim import build

    return build.is_loaded()


def coverage(engine: str | None = None) -> list[Row]:
    """How each overload of torch is computed on the device; see `dispatch.coverage`."""
    from holdfast.compute.torch_device.dispatch import coverage as table

    return table.coverage(engine)


def fallbacks() -> dict[str, int]:
    """Overload or op -> how often the host computed it for the engine in this process."""
    from holdfast.compute.engine import fallbacks

    current = engine()
    return {op: count for (name, op), count in fallbacks.items() if name == current}


def clear_fallbacks() -> None:
    """Reset the counts of `fallbacks` for the engine."""
    from holdfast.compute.engine import fallbacks

    for key in [key for key in fallbacks if key[0] == engine()]:
        del fallbacks[key]


def __getattr__(name: str) -> object:
    if name == "strict":  # a context manager in which a fallback raises
        from holdfast.compute.engine import strict

        return strict
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


register()

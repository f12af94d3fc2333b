"""Holdfast: run diffusion models on the hardware people actually have.

Importing this package is cheap: sub-packages load on first use, and none of
numpy, torch, jax or pyopencl is imported until something needs it.
"""

from __future__ import annotations

import importlib

__version__ = "0.1.0"

_SUBPACKAGES = ("base", "topology", "pipeline")


def __getattr__(name: str) -> object:
    if name in _SUBPACKAGES:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_SUBPACKAGES])

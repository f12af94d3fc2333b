"""Which engine computes on the device.

Covers: choosing by name or by HOLDFAST_ENGINE, and refusing engines that cannot.
Promise: a name that cannot be used changes nothing.
"""

from __future__ import annotations

from holdfast.base.config import Config
from holdfast.base.errors import Unsupported

# Tensors of the device are NumPy arrays; an engine has to compute on those.
ABLE = ("numpy",)
_chosen = "numpy"


def engine() -> str:
    """The name of the engine that computes on the device."""
    return _chosen


def use(name: str) -> None:
    """Compute on the device with an engine from now on. Raises Unsupported."""
    global _chosen
    if name not in ABLE:
        raise Unsupported(
            f"the device cannot compute with the engine {name!r}",
            expected=f"one of {', '.join(ABLE)}",
            hint=f"holdfast.torch.use({ABLE[0]!r}), or HOLDFAST_ENGINE={ABLE[0]}",
        )
    _chosen = name


def use_setting() -> None:
    """The engine that HOLDFAST_ENGINE names. Raises Unsupported."""
    use(Config.load().engine)

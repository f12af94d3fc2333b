"""What the nodes use of ComfyUI: its progress bar and its interrupt.

The only file that knows comfy. Nothing is imported: what ComfyUI has loaded into this process is
used, and where there is no ComfyUI every function here does nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any


def check() -> None:
    """Raise ComfyUI's own exception if somebody pressed its button to stop."""
    management = sys.modules.get("comfy.model_management")
    throw = getattr(management, "throw_exception_if_processing_interrupted", None)
    if throw is not None:
        throw()


def progress() -> Callable[[int, int], None]:
    """To be called with (done, total): moves the bar of the node, then asks for an interrupt."""
    bar: Any = None

    def show(done: int, total: int) -> None:
        nonlocal bar
        make = getattr(sys.modules.get("comfy.utils"), "ProgressBar", None)
        if bar is None and make is not None:
            bar = make(total)
        if bar is not None:
            bar.update_absolute(done, total)
        check()

    return show

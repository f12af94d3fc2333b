"""What becomes of tensors on the device outside of computing: files, pickles, modules, processes.

Covers: having the parts installed when torch is told of the device.
Leaves to others: storages (`storages`), modules that move (`moving`), `pin_memory()` (`pinning`),
other processes (`processes`), text (`printing`).
Promise: torch's own formats are kept: a file that was saved on the device has the location
"holdfast:0" in it, and loads with map_location="cpu" where Holdfast is not installed.

torch saves and pickles whatever storages it can make and copy, so that nothing of its files is
written here.
"""

from __future__ import annotations

from holdfast.compute.torch_device import moving, pinning, printing, processes, storages


def install() -> None:
    """Have torch save, move and send what is on the device. Once is enough."""
    storages.install()
    moving.install()
    pinning.install()
    printing.install()
    processes.install()

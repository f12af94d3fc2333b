"""Install what lets torch save, pickle, move, print and send tensors of the device.

torch's own file format is kept, since torch saves whatever storages it can make and copy: a file
saved on the device has the location "holdfast:0", and loads with map_location="cpu" where Holdfast
is not installed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast.compute.torch_device.persist import module_moves, processes
from holdfast.compute.torch_device.storage import pinning, printing, untyped_storage


def install(receive: Callable[[Any], Any]) -> None:
    """Have torch save, move and send what is on the device. Once is enough.

    `receive` makes a storage of what another process has sent.
    """
    untyped_storage.install()
    module_moves.install()
    pinning.install()
    printing.install()
    processes.install(receive)

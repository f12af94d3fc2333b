"""Host memory for weights: large, page-locked, near the device, and really given back.

Covers: pages of the system as torch tensors, huge pages, NUMA nodes, pinning in place.
Leaves to others: what lies in them (weights), how much may be pinned (pinned).
Promise: the pages go back to the system when the last tensor over them is gone.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
import weakref
from collections.abc import Iterator

import torch

from holdfast.base.errors import Unsupported
from holdfast.memory.resource import Host, Numa
from holdfast.residency.models.pinned import pin_memory

_hosts: dict[int | None, Host] = {}


def slab(nbytes: int, *, pinned: bool = False, node: int | None = None) -> torch.Tensor:
    """`nbytes` of host memory as a uint8 tensor; on a NUMA node, where there is such a node.

    Raises OutOfMemory. Pinning here is `pin` before anything is in it.
    """
    if nbytes == 0:
        return torch.empty(0, dtype=torch.uint8)
    if sys.platform == "win32":
        with torch.inference_mode(False):
            return torch.empty(nbytes, dtype=torch.uint8)
    host = _host(node)
    address = host.allocate(nbytes)
    memory = (ctypes.c_char * nbytes).from_address(address)
    weakref.finalize(memory, host.free, address).atexit = False
    with torch.inference_mode(False):  # it outlives the mode it may be made in
        tensor = torch.frombuffer(memory, dtype=torch.uint8)
    if pinned:
        pin(tensor)
    return tensor


def pin(tensor: torch.Tensor) -> bool:
    """Lock the pages of a slab for fast copies, within the budget of this process.

    False where the budget or the driver does not allow it: copies work all the same, slower. Best
    after it was filled: many threads then bring the pages in, not the driver one by one.
    """
    return pin_memory(tensor)


def _host(node: int | None) -> Host:
    if node not in _hosts:
        try:
            _hosts[node] = Host(huge=True) if node is None else Numa(node, huge=True)
        except Unsupported:
            _hosts[node] = _host(None)
    return _hosts[node]


@contextlib.contextmanager
def unwatched() -> Iterator[None]:
    """What is done with host memory inside is nobody's computing, whoever counts that."""
    with torch._C._DisableTorchDispatch():
        yield

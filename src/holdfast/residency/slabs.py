"""Host memory for weights: large, page-locked, near the device, and really given back.

Covers: pages of the system as torch tensors, huge pages, NUMA nodes, pinning in place.
Leaves to others: what lies in them (weights), how much may be pinned (pinned).
Promise: the pages go back to the system when the last tensor over them is gone.
"""

from __future__ import annotations

import contextlib
import ctypes
import weakref

import torch

from holdfast.base.errors import Unsupported
from holdfast.memory import system
from holdfast.memory.resource import Host, Numa

_hosts: dict[int | None, Host] = {}


def slab(nbytes: int, *, pinned: bool = False, node: int | None = None) -> torch.Tensor:
    """`nbytes` of host memory as a uint8 tensor; on a NUMA node, where there is such a node.

    Raises OutOfMemory. Pinning here is `pin` before anything is in it.
    """
    if nbytes == 0:
        return torch.empty(0, dtype=torch.uint8)
    host = _host(node)
    address = host.allocate(nbytes)
    memory = (ctypes.c_char * nbytes).from_address(address)
    weakref.finalize(memory, _give_back, host, address).atexit = False
    tensor = torch.frombuffer(memory, dtype=torch.uint8)
    if pinned:
        pin(tensor)
    return tensor


_registered: set[int] = set()  # addresses that the driver knows


def pin(tensor: torch.Tensor) -> bool:
    """Lock the pages of a slab for fast copies; False where the driver does not.

    Best after it was filled: many threads then bring the pages in, not the driver one by one.
    """
    address = tensor.data_ptr()
    if address in _registered:
        return True
    if not system.register_with_cuda(address, tensor.numel()):
        return False
    _registered.add(address)
    return True


def _host(node: int | None) -> Host:
    if node not in _hosts:
        try:
            _hosts[node] = Host(huge=True) if node is None else Numa(node, huge=True)
        except Unsupported:
            _hosts[node] = _host(None)
    return _hosts[node]


def _give_back(host: Host, address: int) -> None:
    if address in _registered:
        _registered.discard(address)
        with contextlib.suppress(RuntimeError):  # a driver that is gone has forgotten it
            system.unregister_from_cuda(address)
    host.free(address)

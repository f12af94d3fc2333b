"""Slabs: large host buffers for weights as uint8 tensors, with huge pages, NUMA nodes and pinning.

The pages return to the system when the last tensor over them is freed.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
import weakref
from collections.abc import Iterator

import torch

from holdfast.base.errors import Unsupported
from holdfast.memory.resources.resource import Host, Numa
from holdfast.residency.model_management.models.pinned import pin_memory

_hosts: dict[int | None, Host] = {}


def slab(nbytes: int, *, pinned: bool = False, node: int | None = None) -> torch.Tensor:
    """Host memory as a uint8 tensor, on NUMA node `node` if that exists. Raises OutOfMemory."""
    if nbytes == 0:
        return torch.empty(0, dtype=torch.uint8)
    if sys.platform == "win32":
        with torch.inference_mode(False):
            return torch.empty(nbytes, dtype=torch.uint8)
    host = _host(node)
    address = host.allocate(nbytes)
    memory = (ctypes.c_char * nbytes).from_address(address)
    weakref.finalize(memory, host.free, address).atexit = False
    with torch.inference_mode(False):  # the tensor may outlive the caller's inference mode
        tensor = torch.frombuffer(memory, dtype=torch.uint8)
    if pinned:
        pin_memory(tensor)
    return tensor


def _host(node: int | None) -> Host:
    if node not in _hosts:
        try:
            _hosts[node] = Host(huge=True) if node is None else Numa(node, huge=True)
        except Unsupported:
            _hosts[node] = _host(None)
    return _hosts[node]


@contextlib.contextmanager
def unwatched() -> Iterator[None]:
    """Hide operations in the block from dispatch modes that count memory or time."""
    with torch._C._DisableTorchDispatch():
        yield

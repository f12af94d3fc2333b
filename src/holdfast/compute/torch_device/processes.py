"""Tensors of the device in other processes.

Covers: sending them through queues and pipes, and to workers.
Leaves to others: memory that processes share (`storages`), pickles for files (torch).
Promise: as on the CPU, a tensor that is sent moves into memory that both processes share, and each
sees what the other writes; a forked process has a copy of everything that was not shared. Tensors
of an engine with memory of its own are refused.
"""

from __future__ import annotations

from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
from torch.multiprocessing import reductions

from holdfast.compute.torch_device import storages
from holdfast.compute.torch_device.storage import DEVICE

Tensor = torch.Tensor


def install() -> None:
    """Teach Python's multiprocessing to send what is on the device. Once is enough."""
    ForkingPickler.register(torch.UntypedStorage, reduce_storage)
    for kind in (Tensor, torch.nn.Parameter):
        ForkingPickler.register(kind, reduce_tensor)


def reduce_storage(storage: Any) -> Any:
    """How a storage travels: as the shared memory that it has, or now gets."""
    if storage.device.type != DEVICE:
        return reductions.reduce_storage(storage)
    if not storage.nbytes():
        return _arrived, (None,)
    return _arrived, (storages.share(storage).common,)


def reduce_tensor(tensor: Tensor) -> Any:
    """How a tensor travels: torch's way, which forgets that a view is a conjugate or negative."""
    if tensor.device.type == DEVICE and (tensor.is_conj() or tensor.is_neg()):
        plain = tensor.detach().resolve_conj().resolve_neg()
        tensor = plain.requires_grad_(tensor.requires_grad and tensor.is_leaf)
    return reductions.reduce_tensor(tensor)


def _arrived(common: Any) -> Any:
    """A storage on the device over shared memory that another process has sent."""
    from holdfast.compute.torch_device.registering import register

    register()
    return storages.made(0) if common is None else storages.on_shared(common)

"""Send tensors of the device to other processes, through queues and pipes and to workers.

As on the CPU, a tensor that is sent moves into shared memory, and each process sees what the other
writes; a forked process has a copy of everything that was not shared. Tensors of an engine with its
own memory are refused.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
from torch.multiprocessing import reductions

from holdfast.compute.torch_device.storage import untyped_storage
from holdfast.compute.torch_device.storage.tensor_bridge import DEVICE

Tensor = torch.Tensor


def install(receive: Callable[[Any], Any]) -> None:
    """Teach Python's multiprocessing to send what is on the device. Once is enough.

    `receive` makes a storage of what was sent; the other process calls it by its name.
    """
    ForkingPickler.register(torch.UntypedStorage, functools.partial(_reduce_storage, receive))
    for kind in (Tensor, torch.nn.Parameter):
        ForkingPickler.register(kind, _reduce_tensor)


def _reduce_storage(receive: Callable[[Any], Any], storage: Any) -> Any:
    """Send a storage as shared memory: move it there if it is not."""
    if storage.device.type != DEVICE:
        return reductions.reduce_storage(storage)
    if not storage.nbytes():
        return receive, (None,)
    return receive, (untyped_storage.share(storage).common,)


def _reduce_tensor(tensor: Tensor) -> Any:
    """Send a tensor as torch does, which loses the conjugate and negative bits: resolve them."""
    if tensor.device.type == DEVICE and (tensor.is_conj() or tensor.is_neg()):
        plain = tensor.detach().resolve_conj().resolve_neg()
        tensor = plain.requires_grad_(tensor.requires_grad and tensor.is_leaf)
    return reductions.reduce_tensor(tensor)

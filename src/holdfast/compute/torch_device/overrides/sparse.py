"""Sparse tensors (COO, CSR, CSC, BSR, BSC): torch's CPU kernels compute with them.

Indices and values are strided tensors of the device, and not copied where the host can read them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from holdfast.compute.torch_device.api import current_device as places
from holdfast.compute.torch_device.api import engine_choice
from holdfast.compute.torch_device.dispatch import fallback
from holdfast.compute.torch_device.dispatch.resolve import name_of
from holdfast.compute.torch_device.storage import tensor_bridge

Tensor = torch.Tensor
KEYS = {"SparsePrivateUse1": "SparseCPU", "SparseCsrPrivateUse1": "SparseCsrCPU"}

# torch's own kernels for these handle indices and values as a whole, and read no elements.
_PARTS = frozenset(
    (
        *("_sparse_coo_tensor_with_dims", "_sparse_coo_tensor_with_dims_and_tensors"),
        *("_indices", "_values", "indices", "values", "_nnz", "sparse_dim", "dense_dim"),
        *("_dimI", "_dimV", "is_coalesced", "_coalesced_", "copy_sparse_to_sparse_"),
        *("crow_indices", "col_indices", "ccol_indices", "row_indices"),
        *("sparse_resize_", "sparse_resize_and_clear_", "resize_as_sparse_", "empty_like"),
        *("empty.memory_format", "copy_", "clone", "resize_"),
    )
)


def handle(key: str, overload: Any, args: Any, kwargs: Any) -> Any:
    """Called for every overload with a sparse tensor of the device."""
    name = name_of(overload)
    with places.device(_index(args, kwargs)):
        own = _cpu_kernel(f"aten::{name}", KEYS[key]) if name in _PARTS else None
        if own is None:
            return fallback.on_host(overload, args, kwargs)
        return own(torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key)), *args, **kwargs)


def _index(args: Any, kwargs: Any) -> int:
    """The device of a call: torch makes empty sparse tensors on the current one."""
    if not engine_choice.choice.elsewhere:
        return -1
    found = [t.device for t in (*args, *kwargs.values()) if isinstance(t, Tensor)]
    found += [d for d in (kwargs.get("device"),) if d is not None]
    return next((d.index or 0 for d in found if d.type == tensor_bridge.DEVICE), -1)


def list_shadowed() -> list[tuple[str, str]]:
    """(overload, key) where torch would call a kernel for all layouts before `handle`."""
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    return [
        (name, key)
        for name in torch._C._dispatch_get_all_op_names()
        for key, theirs in KEYS.items()
        if name.startswith("aten::")
        and has(name, theirs)
        and any(has(name, alias) for alias in _FOR_ALL)
    ]


_FOR_ALL = ("CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional")


@functools.cache
def _cpu_kernel(name: str, key: str) -> Callable[..., Any] | None:
    if not torch._C._dispatch_has_kernel_for_dispatch_key(name, key):
        return None
    kernel: Any = torch.library.get_kernel(name, key)
    return kernel.call_boxed

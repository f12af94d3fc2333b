"""Sparse tensors: their parts are on the device, torch's CPU kernels compute with them.

Covers: the layouts COO, CSR, CSC, BSR and BSC; the way to the CPU and back.
Leaves to others: strided tensors (`handlers`), counting and refusing (`fallback`).
Promise: nothing but indices and values is held, and neither is copied on the way where the host
sees them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from holdfast.compute.torch_device import fallback, places, selecting, storage
from holdfast.compute.torch_device.resolve import name_of

Tensor = torch.Tensor
KEYS = {"SparsePrivateUse1": "SparseCPU", "SparseCsrPrivateUse1": "SparseCsrCPU"}

# torch's own kernels, which put parts together and hand them out, never look at the numbers.
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
_BY_ROWS = (torch.sparse_csr, torch.sparse_bsr)


def handle(key: str, overload: Any, args: Any, kwargs: Any) -> Any:
    """What torch calls for every overload with a sparse tensor of the device."""
    with places.device(_index(args, kwargs)):
        return _handled(key, overload, args, kwargs)


def _index(args: Any, kwargs: Any) -> int:
    """The device of a call: torch makes the parts of an empty sparse tensor on the current one."""
    if not selecting.choice.elsewhere:
        return -1
    found = [t.device for t in (*args, *kwargs.values()) if isinstance(t, Tensor)]
    found += [d for d in (kwargs.get("device"),) if d is not None]
    return next((d.index or 0 for d in found if d.type == storage.DEVICE), -1)


def _handled(key: str, overload: Any, args: Any, kwargs: Any) -> Any:
    name = name_of(overload)
    if name in _PARTS:
        own = _torchs_own(f"aten::{name}", KEYS[key])
        if own is not None:
            return own(torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key)), *args, **kwargs)
    return fallback.on_host(overload, args, kwargs)


def shadowed() -> list[tuple[str, str]]:
    """(overload, key) where torch would call a kernel for all layouts before it asked `handle`."""
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
def _torchs_own(name: str, key: str) -> Callable[..., Any] | None:
    if not torch._C._dispatch_has_kernel_for_dispatch_key(name, key):
        return None
    kernel: Any = torch.library.get_kernel(name, key)
    return kernel.call_boxed


def lowered(value: Tensor) -> Tensor:
    """A sparse tensor of the device on the CPU, with the same indices and values."""
    # torch's kernels ask whether a gradient will follow: what it needs they keep only then.
    return _rebuilt(value, fallback.lowered).requires_grad_(value.requires_grad)


def raised(value: Tensor, engine: Any) -> Tensor:
    """A sparse tensor of the CPU on the device, with the same indices and values."""
    with places.device(getattr(engine, "index", -1)):
        return _rebuilt(value, lambda part: fallback.raised(part, engine))


def _rebuilt(value: Tensor, through: Callable[[Tensor], Tensor]) -> Tensor:
    if value.layout is torch.sparse_coo:
        indices, values = through(value._indices()), through(value._values())
        whole = value.is_coalesced()
        made = torch.ops.aten._sparse_coo_tensor_unsafe
        return made(indices, values, value.shape, is_coalesced=whole, device=values.device)
    rows = value.layout in _BY_ROWS
    ends = value.crow_indices() if rows else value.ccol_indices()
    places = value.col_indices() if rows else value.row_indices()
    make: Any = torch.ops.aten._sparse_compressed_tensor_unsafe
    parts = through(ends), through(places), through(value.values())
    return make(*parts, value.shape, dtype=value.dtype, layout=value.layout, device=parts[2].device)

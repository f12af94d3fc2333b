"""What the device needs of torch beyond its documented interface: each private name, and its use.

A torch that lacks one of them is refused, by name, before anything is registered.
"""

from __future__ import annotations

import functools
import importlib
from typing import Any

import torch

from holdfast.base.errors import Unsupported

RECOMMENDED = "2.13.0"  # what the tests run with
WORKS = "torch 2.13 to 2.15"  # 2.12 lacks `_remove_obj_from_tls`

# Where torch keeps it -> what the device does with it.
PRIVATE = {
    "torch.utils.backend_registration._setup_privateuseone_for_python_backend": (
        "registers a device that is written in Python"
    ),
    "torch._C._acc.DeviceGuard": "tells torch which device is current",
    "torch._C._acc.PrivateUse1Hooks": "tells torch that the device is there",
    "torch._C._acc.register_python_privateuseone_device_guard": "registers the guard",
    "torch._C._acc.register_python_privateuseone_hook": "registers the hooks",
    "torch._C._autograd.DeviceType.PrivateUse1": "is the kind of the device",
    "torch._C._from_dlpack": "makes a tensor over an array's memory",
    "torch._C._to_dlpack": "gives the memory of a tensor that torch made",
    "torch.library.get_kernel": "runs torch's own kernels for sizes and strides",
    "torch.library.fallthrough_kernel": "lets a dispatch key pass an overload on",
    "torch._C._dispatch_get_all_op_names": "lists the overloads that need a handler",
    "torch._C._dispatch_has_kernel_for_dispatch_key": "tells which overloads need a handler",
    "torch._C.DispatchKeySet": "names the keys for torch's own kernels",
    "torch._C._ImperativeEngine": "carries exceptions out of backward passes",
    "torch._C._accelerator_getAccelerator": "keeps the device from programs that never ask for it",
    "torch._C._get_accelerator": "keeps the device from programs that never ask for it",
    "torch._C._accelerator_getDeviceStats": "has torch.accelerator show memory figures",
    "torch._C._accelerator_synchronizeDevice": "has torch.accelerator wait for the device",
    "torch._C._stash_obj_in_tls": "tells threads of backward passes how strict to be",
    "torch._C._is_key_in_tls": "tells threads of backward passes how strict to be",
    "torch._C._remove_obj_from_tls": "tells threads of backward passes how strict to be",
    "torch._decomp.decomposition_table": "takes overloads apart that the op table lacks",
    "torch.UntypedStorage._swap_data_ptr_": "gives a storage another size, or shared memory",
    "torch.storage._load_from_bytes": "reads pickled storages",
    "torch.UntypedStorage._write_file": "writes files in torch's old format",
    "torch.UntypedStorage._set_from_file": "reads files in torch's old format",
    "torch._tensor_str._tensor_str": "prints tensors that the host cannot read",
    "torch.nn.Module._apply": "keeps parameters tied when a module moves",
    "torch._C._get_privateuse1_backend_name": "tells whether another device has the place",
}


def found(name: str) -> Any:
    """What is there under a dotted name, or None."""
    parts = name.split(".")
    for split in range(len(parts) - 1, 0, -1):
        try:
            module: Any = importlib.import_module(".".join(parts[:split]))
        except ImportError:
            continue
        try:
            return functools.reduce(getattr, parts[split:], module)
        except AttributeError:
            return None
    return None


def check() -> None:
    """Raises Unsupported where this torch lacks what registering needs."""
    for name, why in PRIVATE.items():
        if name.startswith("torch._decomp"):  # slow to import, and needed by few overloads
            continue
        if found(name) is None:
            raise Unsupported(
                f"torch {torch.__version__} has no {name}, which {why}",
                expected=WORKS,
                hint=f"pip install 'torch=={RECOMMENDED}'",
            )
    taken = torch._C._get_privateuse1_backend_name()
    if taken not in ("privateuseone", "holdfast"):
        raise Unsupported(
            f"torch has room for one device from outside, and {taken!r} is it in this process",
            expected="a process in which no other package has registered a device",
            hint="TORCH_DEVICE_BACKEND_AUTOLOAD=0, and import holdfast.torch alone",
        )

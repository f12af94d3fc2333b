"""Telling torch of the device.

Covers: the name, the guard, the hooks; one handler for each overload, at the first use.
Promise: registering takes milliseconds and computes nothing; the handlers (a third of a second)
come when the first tensor does.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import threading
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.utils import backend_registration

from holdfast.base.errors import Unsupported
from holdfast.base.offering import offer_once
from holdfast.compute.torch_device.storage import DEVICE

_KEY = "PrivateUse1"
_libraries: list[Any] = []  # what torch forgets when its library is collected
_lock = threading.RLock()
_armed = False
_twin_armed = False
_torn = False  # forked while another thread was arming


_C: Any = torch._C  # what its stubs do not mention


class _Hooks(_C._acc.PrivateUse1Hooks):
    def is_available(self) -> bool:
        return True

    def has_primary_context(self, dev_id: int) -> bool:
        return True

    def is_built(self) -> bool:
        return True


def register(asked: bool = True) -> None:
    """Make `torch.device("holdfast")` and `torch.holdfast` known. Once is enough.

    `asked`: torch names it as its accelerator from now on, else from the first tensor on.
    Raises Unsupported, and changes nothing, for a torch that lacks what the device needs.
    """
    with _lock:
        is_new = not _libraries
        if is_new:
            _register()
        from holdfast.compute.torch_device import accelerator

        if asked:
            accelerator.show()
            _install_loading()
        elif is_new:
            accelerator.hide()


def _install_loading() -> None:
    """Have safetensors know the device, where there is safetensors."""
    if importlib.util.find_spec("safetensors") is not None:
        from holdfast.compute.torch_device import safetensors_loading

        safetensors_loading.install()


def _register() -> None:
    from holdfast.compute.torch_device import needs, selecting

    needs.check()
    selecting.use_setting()
    from holdfast.compute.torch_device import (
        accelerator,
        autocast,
        backward_errors,
        module,
        saving,
        shim,
    )

    shimmed = shim.load(_arm_twin)  # may refuse: before anything is registered
    rest = torch.library.Library("_", "IMPL")
    rest.fallback(_first_use, _KEY)
    _libraries.append(rest)
    if shimmed:
        shim.introduce(DEVICE, module, backward_errors.Guard())
    else:
        backend_registration._setup_privateuseone_for_python_backend(
            DEVICE, backend_module=module, hook=_Hooks(), device_guard=backward_errors.Guard()
        )
    backward_errors.install()
    accelerator.install()
    autocast.install()
    saving.install()


def _first_use(overload: Any, *args: Any, **kwargs: Any) -> Any:
    """What torch calls for overloads without a handler: all of them, at first."""
    if _torn:
        raise _unfinished()
    # Another thread may have armed the device while this one waited for it.
    if _arm() or torch._C._dispatch_has_kernel_for_dispatch_key(overload.name(), _KEY):
        return overload(*args, **kwargs)
    from holdfast.compute.torch_device import fallback

    return fallback.on_host(overload, args, kwargs)


def _after_fork() -> None:
    """Have a lock that is free; the thread that held it is not here to finish."""
    global _lock, _torn
    if _lock.acquire(blocking=False):
        _lock.release()
    else:
        _lock, _torn = threading.RLock(), True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def _unfinished() -> Unsupported:
    return Unsupported(
        f"cannot use {DEVICE!r} in this process: it was forked while another thread of its parent "
        "made the first tensor there",
        expected="a process forked before the device is used, or when it is ready",
        hint="make a tensor on the device before forking, or start processes by spawn",
    )


def _sparse_use(key: str, overload: Any, *args: Any, **kwargs: Any) -> Any:
    from holdfast.compute.torch_device import sparse

    _arm()
    return sparse.handle(key, overload, args, kwargs)


def _arm() -> bool:
    """Register a handler for each overload; whether this call did it."""
    global _armed
    with _lock:  # importing too: a fork in the midst of it is one that `_after_fork` sees
        if _armed:
            return False
        _armed = True
        offer_once()
        try:
            _arm_all()
        except BaseException:  # Ctrl-C, or a package that does not import: the next use tries again
            _armed = False
            while len(_libraries) > 1:
                _libraries.pop()._destroy()
            raise
    return True


def _arm_all() -> None:
    from holdfast.compute.torch_device import (
        accelerator,
        attention,
        autocast,
        conjugates,
        shim,
        sparse,
        strictness,
    )

    strictness.install()
    rest = torch.library.Library("_", "IMPL")
    aten = torch.library.Library("aten", "IMPL")
    _libraries.extend((rest, aten))
    for key in ("SparsePrivateUse1", "SparseCsrPrivateUse1"):  # 4 ms each
        rest.fallback(functools.partial(_sparse_use, key), key)
    shim.arm()
    for name, function, keys in handlers(shim.left_out(overload_names())):
        aten.impl(name, function, _KEY, with_keyset=keys)
    conjugates.let_copies_through(aten)
    attention.register(aten)
    autocast.register(aten, rest)
    for name, key in sparse.shadowed():
        overload = overload_of(name.removeprefix("aten::"))
        aten.impl(name, functools.partial(_sparse_use, key, overload), key)
    accelerator.show()


def _arm_twin() -> None:
    """Register the handlers that the C++ shim stands before, under a key of their own. Once."""
    global _twin_armed
    from holdfast.compute.torch_device import shim

    with _lock:
        if _twin_armed:
            return
        names = set(overload_names())
        aten = torch.library.Library("aten", "IMPL")
        _libraries.append(aten)
        for name, function, keys in handlers(sorted(names - set(shim.left_out(names)))):
            aten.impl(name, function, shim.TWIN, with_keyset=keys)
        _twin_armed = True


def handlers(names: Iterable[str] | None = None) -> list[tuple[str, Callable[..., Any], bool]]:
    """(overload, function, whether it wants the dispatch keys): of all, or of those in `names`."""
    from holdfast.compute.torch_device import handlers as ways

    special = specials()
    found = []
    for name in overload_names() if names is None else names:
        if name in special:
            found.append((name, special[name], False))
            continue
        overload = overload_of(name)
        if overload is None:
            continue
        if about_sizes(overload):
            found.append((name, _torchs_own(name), True))
        else:
            found.append((name, _with_notes(name, ways.handler(overload)), False))
    return found


def _with_notes(name: str, handler: Callable[..., Any]) -> Callable[..., Any]:
    from holdfast.compute.torch_device import conjugates

    if name not in conjugates.PRODUCTS:
        return handler
    if name.endswith("_"):
        return conjugates.resolving_in_place(handler)
    return conjugates.resolving(handler)


# Modules whose decorators fill the table of specials.
_WITH_SPECIALS = (
    *("attention", "composed", "drawing", "layers", "optimizing", "recurrent", "specials"),
)


def specials() -> dict[str, Callable[..., Any]]:
    """Overloads with a function of their own."""
    for name in _WITH_SPECIALS:
        importlib.import_module(f"holdfast.compute.torch_device.{name}")
    from holdfast.compute.torch_device.specials import SPECIALS

    return SPECIALS


def overload_names() -> list[str]:
    """Every overload of ATen that a device can have a kernel for, without "aten::"."""
    from holdfast.compute.ops import OPS

    has = torch._C._dispatch_has_kernel_for_dispatch_key
    found = set(specials())
    for full in torch._C._dispatch_get_all_op_names():
        if not full.startswith("aten::"):
            continue
        name = full.removeprefix("aten::")
        explicit = name in OPS and has(full, "CompositeExplicitAutogradNonFunctional")
        if has(full, "CPU") or (explicit and not OPS[name].schema.view):
            found.add(name)
    return sorted(found)


def overload_of(name: str) -> Any:
    """ATen's overload of a name such as "add.Tensor", or None."""
    base, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, base, None), overload or "default", None)


# Sizes, strides and storages: torch's own kernels for the CPU never look at the numbers.
_SIZES = ("set_", "as_strided_", "_reshape_alias", "is_set_to")


def about_sizes(overload: Any) -> bool:
    """Whether an overload changes only sizes, strides or which storage there is."""
    schema = overload._schema
    if schema.name.removeprefix("aten::") in _SIZES:
        return True
    viewed = [a.alias_info is not None and not a.alias_info.is_write for a in schema.returns]
    return bool(viewed) and all(viewed)


def _torchs_own(name: str) -> Callable[..., Any]:
    kernel: Any = torch.library.get_kernel(f"aten::{name}", "CPU").call_boxed

    def metadata(keys: Any, *args: Any, **kwargs: Any) -> Any:
        return kernel(keys, *args, **kwargs)

    return metadata

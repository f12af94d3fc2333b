"""Register the device with torch: its name, guard, hooks and a handler for each overload.

Registering takes milliseconds and computes nothing; the handlers (a third of a second) come with
the first tensor. Imports are inside functions for that, and because a torch that is too old must be
refused before modules that need a newer one are imported.
"""

from __future__ import annotations

import functools
import importlib.util
import threading
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.utils import backend_registration

from holdfast.base.announce import offer_once
from holdfast.base.errors import Unsupported
from holdfast.base.threads import register_at_fork
from holdfast.compute.torch_device.storage.tensor_bridge import DEVICE

_KEY = "PrivateUse1"
_libraries: list[Any] = []  # torch unregisters what is collected
_lock = threading.RLock()
_armed = False
_twin_armed = False
_torn = False  # forked while another thread was arming


_C: Any = torch._C  # untyped: the stubs lack these names


class _Hooks(_C._acc.PrivateUse1Hooks):
    def is_available(self, *_: int) -> bool:
        return True

    is_built = has_primary_context = is_available


def register(asked: bool = True) -> None:
    """Make `torch.device("holdfast")` and `torch.holdfast` known. Once is enough.

    With `asked` torch names it as its accelerator from now on, else from the first tensor on.
    Raises Unsupported, and changes nothing, for a torch that lacks what the device needs.
    """
    with _lock:
        is_new = not _libraries
        if is_new:
            _register()
        from holdfast.compute.torch_device.api import accelerator

        if asked:
            accelerator.show()
            if importlib.util.find_spec("safetensors") is not None:
                from holdfast.compute.torch_device.persist import safetensors

                safetensors.install()
        elif is_new:
            accelerator.hide()


def _register() -> None:
    from holdfast.compute.torch_device import torch_requirements
    from holdfast.compute.torch_device.api import engine_choice

    torch_requirements.check()
    engine_choice.use_setting()
    from holdfast.compute.torch_device.api import accelerator, module
    from holdfast.compute.torch_device.dispatch import autocast, backward_errors
    from holdfast.compute.torch_device.persist import module_moves, processes
    from holdfast.compute.torch_device.shim import build
    from holdfast.compute.torch_device.storage import pinning, printing, untyped_storage

    shimmed = build.load(_arm_twin)  # may raise: before anything is registered
    rest = torch.library.Library("_", "IMPL")
    rest.fallback(_first_use, _KEY)
    _libraries.append(rest)
    if shimmed:
        build.register_device(DEVICE, module, backward_errors.Guard())
    else:
        backend_registration._setup_privateuseone_for_python_backend(
            DEVICE, backend_module=module, hook=_Hooks(), device_guard=backward_errors.Guard()
        )
    for part in (backward_errors, accelerator, autocast, untyped_storage, module_moves):
        part.install()
    pinning.install()
    printing.install()
    processes.install(receive_storage)


def receive_storage(common: Any) -> Any:
    """Make a storage of the shared memory that another process has sent; None is an empty one."""
    register()
    from holdfast.compute.torch_device.storage import untyped_storage

    if common is None:
        return untyped_storage.make_storage(0)
    return untyped_storage.wrap_shared(common)


def _first_use(overload: Any, *args: Any, **kwargs: Any) -> Any:
    """Called for overloads without a handler: all of them, at first."""
    if _torn:
        raise Unsupported(
            f"cannot use {DEVICE!r} in this process: it was forked while another thread of its "
            "parent made the first tensor there",
            expected="a process forked before the device is used, or when it is ready",
            hint="make a tensor on the device before forking, or start processes by spawn",
        )
    # Another thread may have armed the device while this one waited for it.
    if _arm() or torch._C._dispatch_has_kernel_for_dispatch_key(overload.name(), _KEY):
        return overload(*args, **kwargs)
    from holdfast.compute.torch_device.dispatch import fallback

    return fallback.on_host(overload, args, kwargs)


def _after_fork() -> None:
    """Replace a lock that a thread of the parent held: nobody here would release it."""
    global _lock, _torn
    if _lock.acquire(blocking=False):
        _lock.release()
    else:
        _lock, _torn = threading.RLock(), True


register_at_fork(after_in_child=_after_fork)


def _sparse_use(key: str, overload: Any, *args: Any, **kwargs: Any) -> Any:
    from holdfast.compute.torch_device.overrides import sparse

    _arm()
    return sparse.handle(key, overload, args, kwargs)


def _arm() -> bool:
    """Register a handler for each overload; return whether this call did it."""
    global _armed
    with _lock:  # held while importing too, so that `_after_fork` notices a fork
        if _armed:
            return False
        _armed = True
        offer_once()
        try:
            _arm_all()
        except BaseException:  # Ctrl-C, or a failed import: the next use tries again
            _armed = False
            while len(_libraries) > 1:
                _libraries.pop()._destroy()
            raise
    return True


def _arm_all() -> None:
    from holdfast.compute.torch_device.api import accelerator
    from holdfast.compute.torch_device.dispatch import autocast, strictness
    from holdfast.compute.torch_device.overrides import attention, conjugates, sparse
    from holdfast.compute.torch_device.shim import build

    strictness.install()
    rest = torch.library.Library("_", "IMPL")
    aten = torch.library.Library("aten", "IMPL")
    _libraries.extend((rest, aten))
    for key in ("SparsePrivateUse1", "SparseCsrPrivateUse1"):  # 4 ms each
        rest.fallback(functools.partial(_sparse_use, key), key)
    build.arm()
    for name, function, keys in handlers(build.without_kernel(overload_names())):
        aten.impl(name, function, _KEY, with_keyset=keys)
    conjugates.let_copies_through(aten)
    attention.register(aten)
    autocast.register(aten, rest)
    for name, key in sparse.list_shadowed():
        overload = overload_of(name.removeprefix("aten::"))
        aten.impl(name, functools.partial(_sparse_use, key, overload), key)
    accelerator.show()


def _arm_twin() -> None:
    """Register the handlers that the C++ shim overrides under a key of their own. Once."""
    global _twin_armed
    from holdfast.compute.torch_device.shim import build

    with _lock:
        if _twin_armed:
            return
        names = set(overload_names())
        aten = torch.library.Library("aten", "IMPL")
        _libraries.append(aten)
        for name, function, keys in handlers(sorted(names - set(build.without_kernel(names)))):
            aten.impl(name, function, build.TWIN, with_keyset=keys)
        _twin_armed = True


def handlers(names: Iterable[str] | None = None) -> list[tuple[str, Callable[..., Any], bool]]:
    """(overload, function, whether it takes the dispatch keys), of all or of those in `names`."""
    from holdfast.compute.torch_device.dispatch import handlers as ways
    from holdfast.compute.torch_device.overrides import conjugates

    special = specials()
    found = []
    for name in overload_names() if names is None else names:
        overload = overload_of(name)
        if name in special:
            found.append((name, special[name], False))
        elif overload is not None and is_metadata_only(overload):
            found.append((name, _cpu_metadata_kernel(name), True))
        elif overload is not None:
            found.append((name, conjugates.resolve_for(name, ways.handler(overload)), False))
    return found


# Modules whose decorators fill `SPECIALS`.
_WITH_SPECIALS = (
    *("attention", "composites", "fused_layers", "fused_optimizers", "normal_draws", "recurrent"),
    "tensor_overloads",
)


def specials() -> dict[str, Callable[..., Any]]:
    """Overloads that have an override, and their functions."""
    for name in _WITH_SPECIALS:
        importlib.import_module(f"holdfast.compute.torch_device.overrides.{name}")
    from holdfast.compute.torch_device.overrides.tensor_overloads import SPECIALS

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


# Sizes, strides and storages: torch's CPU kernels for these never read elements.
_SIZES = ("set_", "as_strided_", "_reshape_alias", "is_set_to")


def is_metadata_only(overload: Any) -> bool:
    """Whether an overload changes only sizes, strides or the storage."""
    schema = overload._schema
    if schema.name.removeprefix("aten::") in _SIZES:
        return True
    viewed = [a.alias_info is not None and not a.alias_info.is_write for a in schema.returns]
    return bool(viewed) and all(viewed)


def _cpu_metadata_kernel(name: str) -> Callable[..., Any]:
    kernel: Any = torch.library.get_kernel(f"aten::{name}", "CPU").call_boxed

    def metadata(keys: Any, *args: Any, **kwargs: Any) -> Any:
        return kernel(keys, *args, **kwargs)

    return metadata

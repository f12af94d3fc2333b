"""The C++ shim: less time for each op, `torch.Generator(device="holdfast")`, pinned memory.

Everything works without it. It is compiled only by `build`; a library for this torch and this
Python is loaded when the device is registered, and one that cannot be loaded warns once. It is for
the NumPy engine alone.

With the shim torch's own CPU kernels compute over the device's memory, and nothing is counted in
`engine.fallbacks`. The Python handlers and the engine's kernels compute instead under
`engine.strict` or HOLDFAST_STRICT, and while memory is recorded: then each tensor is recorded with
the line that made it.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import sys
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch.utils import backend_registration

from holdfast.base.config import Config
from holdfast.base.errors import BadInput, HoldfastError, Misuse, OutOfMemory, Unsupported
from holdfast.base.units import format_bytes
from holdfast.compute.torch_device.api import engine_choice
from holdfast.memory.core import native_build

SOURCE = Path(__file__).parent / "native" / "device.cpp"
CHOICES = ("auto", "on", "off")
TWIN = "PrivateUse2"  # the dispatch key of the Python handlers where the shim has PrivateUse1
_BUILD = "holdfast device build, or holdfast.torch.build_shim()"


class _Loaded:
    library: Any = None
    callback: Any = None  # C++ has its bare address: keep it alive
    passed: bool = False  # the Python handlers were registered instead

    def __init__(self) -> None:
        self.kept: list[Any] = []  # torch unregisters what is collected


_loaded = _Loaded()


# ---- building


def path() -> Path:
    """The path of the library for this torch and this Python, built or not."""
    digest = hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:12]
    version = f"torch{torch.__version__}-{sys.implementation.cache_tag}"
    return native_build.folder() / f"torch_device-{version}-{digest}.so"


def build(progress: Callable[[str], object] | None = None) -> Path:
    """Compile the shim unless it exists; programs that start later use it.

    Takes about a minute. Raises Unsupported without a C++ compiler or torch's headers.
    """
    target = path()
    if target.exists():
        return target
    flags = _flags()
    if progress is not None:
        progress(f"compiling {SOURCE.name} for torch {torch.__version__}: about a minute")
    try:
        return native_build.library(str(SOURCE), flags, "c++", target)
    except Unsupported as exc:
        raise Unsupported(
            f"the C++ shim cannot be built: {exc.what}",
            expected=exc.expected,
            hint="apt-get install g++, or leave it: the Python device works without",
        ) from exc


def _flags() -> list[str]:
    if os.name != "posix":
        raise Unsupported(
            f"the C++ shim cannot be built on {sys.platform}", expected="Linux or macOS"
        )
    folder = Path(torch.__file__).parent
    header = folder / "include/ATen/detail/PrivateUse1HooksInterface.h"
    if not header.exists():
        raise Unsupported(
            "this torch came without its C++ headers",
            expected=str(header),
            hint="a torch from pip has them",
        )
    linked = ["-lc10", "-ltorch_cpu"]
    return [
        "-std=c++20",
        f"-I{folder}/include",
        f"-I{folder}/include/torch/csrc/api/include",
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
        f"-L{folder}/lib",
        *(linked if sys.platform == "darwin" else ["-Wl,--no-as-needed", *linked]),
    ]


# ---- loading


def is_loaded() -> bool:
    """Whether torch's CPU kernels compute for the device in this process."""
    return _loaded.library is not None and not _loaded.passed


def load(arm_twin: Callable[[], object]) -> bool:
    """Load the shim if it was built and is wanted; return whether it is loaded.

    Call it before the device is registered. `arm_twin` registers the Python handlers under `TWIN`.
    Raises Unsupported where HOLDFAST_TORCH_SHIM=on and it cannot be loaded.
    """
    chosen = Config.load().torch_shim
    if chosen not in CHOICES:
        raise BadInput(
            f"cannot use HOLDFAST_TORCH_SHIM={chosen!r}", expected=f"one of {', '.join(CHOICES)}"
        )
    if chosen == "off" or (chosen == "auto" and engine_choice.engine() != engine_choice.HOST):
        return False
    try:
        if engine_choice.engine() != engine_choice.HOST:
            raise Unsupported(
                f"the C++ shim cannot be used with the engine {engine_choice.engine()!r}: its "
                "kernels read the host's memory",
                expected=f"HOLDFAST_ENGINE={engine_choice.HOST}, or HOLDFAST_TORCH_SHIM=off",
            )
        _load(arm_twin)
    except HoldfastError as exc:
        if chosen == "on":
            raise
        if exc.__cause__ is not None:  # it exists, and does not fit
            warnings.warn(f"{exc.what}; the Python device is used", RuntimeWarning, stacklevel=3)
    return is_loaded()


def _load(arm_twin: Callable[[], object]) -> None:
    place = path()
    if not place.exists():
        raise Unsupported(
            f"there is no C++ shim for torch {torch.__version__} and this Python",
            expected=str(place),
            hint=_BUILD,
        )
    try:
        library = ctypes.CDLL(str(place))
        library.hf_device_arm.restype = ctypes.c_char_p
        address = ctypes.c_void_p
        library.hf_device_pool.argtypes = [address, address, address, ctypes.c_size_t]
        library.hf_device_twin_ready.restype = None

        def arm_and_report() -> None:  # saves a call for each op, which takes microseconds
            arm_twin()
            library.hf_device_twin_ready()

        _loaded.callback = ctypes.CFUNCTYPE(None)(arm_and_report)
        library.hf_device_begin(_loaded.callback)
    except (OSError, AttributeError) as exc:
        raise Unsupported(
            f"cannot load the C++ shim: {exc}",
            expected="a library that was built for this torch",
            hint=f"remove it, then {_BUILD}",
        ) from exc
    _loaded.library = library


def register_device(name: str, module: Any, guard: Any) -> None:
    """Register the device as torch's own set-up does, but with the shim's hooks."""
    inside: Any = torch._C
    backend_registration.rename_privateuse1_backend(name)
    backend_registration.generate_methods_for_privateuse1_backend()
    torch._register_device_module(name, module)
    inside._acc.register_python_privateuseone_device_guard(guard)


def arm() -> None:
    """Register the shim's kernels if it is loaded; called for the first tensor.

    With an engine other than NumPy the Python handlers are registered instead, for good.
    """
    library = _loaded.library
    if library is None or engine_choice.choice.is_shim_armed:
        return
    if engine_choice.engine() != engine_choice.HOST:
        _loaded.passed = True
        return
    from holdfast.compute.torch_device.dispatch import strictness
    from holdfast.compute.torch_device.shim import generator
    from holdfast.memory.hooks import import_hooks

    engine_choice.choice.is_shim_armed = True
    ours = torch.library.Library("holdfast", "FRAGMENT")
    ours.define("make_room(int size) -> ()")  # C++ calls it when the pool is full
    ours.impl("make_room", _make_room, TWIN)
    _loaded.kept.append(ours)
    _share_pool(library)
    generator.install(library)
    wrong = library.hf_device_arm()
    if wrong is not None:
        raise Misuse(
            f"the C++ shim could not register its kernels: {wrong.decode(errors='replace')}",
            expected="a process in which nobody else has kernels for PrivateUse1",
            hint="HOLDFAST_TORCH_SHIM=off",
        )
    strictness.on_use(library.hf_device_strict)
    import_hooks.at_watch(_choose)
    _choose()


def _make_room(size: int) -> None:
    """Collect garbage until `size` bytes can be allocated. Raises NoMemory."""
    import numpy

    from holdfast.compute.engine import ENGINES
    from holdfast.compute.torch_device.error_translation import to_torch_error

    try:
        ENGINES["numpy"].alloc((size,), numpy.dtype(numpy.uint8))
    except (HoldfastError, MemoryError, ValueError) as exc:
        raise to_torch_error(
            OutOfMemory(
                f"cannot make a tensor of {format_bytes(size)}: no memory for it",
                expected="a tensor that fits into the memory of this machine",
            )
        ) from exc


def _share_pool(library: Any) -> None:
    """Have C++ allocate tensors from the pool of the NumPy engine's arrays."""
    from holdfast.memory.hooks.import_hooks import keep_forever
    from holdfast.memory.hooks.torch_cpu import LEAST_BYTES
    from holdfast.memory.pools.manager import memory_manager

    pool = memory_manager.pool("cpu").pool
    try:
        native_build.require_compiled(pool.core, "the C++ shim")
    except HoldfastError:
        return  # tensors come from malloc
    functions = pool.core.functions()
    keep_forever(pool)  # torch has bare addresses of it
    library.hf_device_pool(
        functions["malloc"], functions["free"], functions["context"], LEAST_BYTES
    )


def _choose() -> None:
    """Choose who computes in threads that have not set strictness."""
    from holdfast.memory.pools.memory_pool import is_watched

    _loaded.library.hf_device_twin(int(Config.load().strict or is_watched()))


def without_kernel(names: Iterable[str]) -> list[str]:
    """Those of these overloads that the shim has no kernel for."""
    if not engine_choice.choice.is_shim_armed:
        return list(names)
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    return [name for name in names if not has(f"aten::{name}", "PrivateUse1")]

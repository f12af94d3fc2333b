"""torch's CPU allocator: a pool under it, or a log of its blocks (a C++ library, compiled once).

Results are the same bit for bit. A tensor is freed by the allocator that made it, also after
uninstalling. Blocks under LEAST_BYTES stay with malloc.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import os
import sys
import threading
from pathlib import Path
from typing import Any

from holdfast.base.errors import MissingDependency, Misuse, Unsupported
from holdfast.memory.core import native_build
from holdfast.memory.hooks.import_hooks import keep_forever
from holdfast.memory.pools.memory_pool import MemoryPool
from holdfast.memory.pools.pool import Pool
from holdfast.memory.resources.resource import Host

# malloc serves smaller blocks from its own caches, without page faults.
LEAST_BYTES = 16 << 10


class TorchPool:
    """A pool under torch; as a context manager it is uninstalled at the end."""

    def __init__(self, pool: Pool, slot: int) -> None:
        self.pool = pool
        self._slot = slot

    def __repr__(self) -> str:
        return f"TorchPool({self.pool!r}{', installed' if self.installed else ''})"

    @property
    def installed(self) -> bool:
        """Whether new tensors use it."""
        return _use.pool is self

    def uninstall(self) -> None:
        """Use torch's own allocator again for new tensors; a no-op if that is the case already."""
        with _lock:
            if self.installed:
                _use.pool = None
                _apply()

    def __enter__(self) -> TorchPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.uninstall()


class _InUse:
    pool: TorchPool | None = None
    watched: bool = False


_lock = threading.RLock()
_use = _InUse()
_slots: list[TorchPool] = []  # every pool that was ever under torch: its tensors may be alive


def install_torch_pool(pool: Pool | MemoryPool | None = None) -> TorchPool:
    """Make torch allocate new CPU tensors from `pool`, by default a pool made for that.

    Installing it again is a no-op. Raises Misuse if another pool is installed, Unsupported
    without a compiler or the compiled core, MissingDependency without torch.
    """
    asked: Any = getattr(pool, "pool", pool)
    with _lock:
        if _use.pool is not None:
            if asked is None or asked is _use.pool.pool:
                return _use.pool
            raise Misuse(
                f"{_use.pool.pool.name} is under torch already",
                expected="one pool at a time",
                hint="uninstall_torch_pool() first",
            )
        library = _library()
        chosen = _default_pool() if asked is None else asked
        made = _slot_of(library, chosen)
        _use.pool = made
        _apply()
        return made


def uninstall_torch_pool() -> None:
    """Use torch's own allocator again for new tensors; tensors of a pool stay valid."""
    with _lock:
        if _use.pool is not None:
            _use.pool.uninstall()


def is_installed() -> bool:
    """Whether torch allocates new CPU tensors from one of our pools."""
    return _use.pool is not None


def watch(log: Any, place: int, least: int = 0) -> None:
    """Log torch's CPU blocks of at least `least` bytes, with their Python stacks.

    If a pool is installed, its own events are logged instead, with the same stacks. Raises as
    `install_torch_pool` does.
    """
    with _lock:
        library = _library()
        functions = log.functions(place, least)
        library.hf_torch_note(functions["event"], functions["context"])
        library.hf_torch_want_stacks(1)
        _use.watched = True
        _apply()


def unwatch() -> None:
    with _lock:
        if _use.watched:
            forget_watch()
            _use.watched = False
            _apply()


def forget_watch() -> None:
    """The same without taking a lock: for the child after a fork, which may lack the thread that
    held it.
    """
    if _use.watched:
        _library().hf_torch_note(None, None)
        _library().hf_torch_want_stacks(0)


def _apply() -> None:
    library = _library()
    if _use.pool is not None:
        done = library.hf_torch_use_pool(_use.pool._slot)
    elif _use.watched:
        done = library.hf_torch_use_watched()
    else:
        done = library.hf_torch_use_own()
    if not done:
        _use.pool, _use.watched = None, False
        raise Unsupported(
            "torch has another CPU allocator of a higher priority",
            expected="torch's own, or one registered with priority 0",
        )


def _slot_of(library: Any, pool: Pool) -> TorchPool:
    """The slot of a pool that was installed before, or a new one."""
    for made in _slots:
        if made.pool is pool:
            return made
    slot = len(_slots)
    if slot == library.hf_torch_slots():
        raise Misuse(
            f"{slot} pools were under torch in this process, and their tensors may be alive",
            expected=f"at most {slot}",
            hint="install one of them again",
        )
    native_build.require_compiled(pool.core, "a pool under torch")
    f = pool.core.functions()
    library.hf_torch_set_pool(slot, f["malloc"], f["free"], f["context"], LEAST_BYTES)
    keep_forever(pool)  # torch has bare addresses of it
    _slots.append(TorchPool(pool, slot))
    return _slots[-1]


@functools.cache
def _default_pool() -> Pool:
    return Pool(Host(huge=True), name="torch")


@functools.cache
def _library() -> Any:
    """The library between torch and the pools. Raises Unsupported if it does not compile."""
    if os.name != "posix":
        raise Unsupported(
            f"torch's CPU allocator cannot be replaced on {sys.platform}", expected="Linux or macOS"
        )
    library = ctypes.CDLL(str(_build()))
    address, number = ctypes.c_void_p, ctypes.c_int
    library.hf_torch_set_pool.argtypes = [number, address, address, address, ctypes.c_size_t]
    library.hf_torch_note.argtypes = [address, address]
    if not library.hf_torch_begin():
        raise Unsupported(
            "torch's present CPU allocator has no plain free function",
            expected="torch's own allocator",
        )
    return library


def _build() -> Path:
    torch = _import_torch()
    folder = Path(torch.__file__).parent
    if not (folder / "include/c10/core/CPUAllocator.h").exists():
        raise Unsupported(
            "this torch came without its C++ headers",
            expected=f"{folder}/include/c10/core/CPUAllocator.h",
            hint="a torch from pip has them",
        )
    flags = [
        "-std=c++20",
        f"-I{folder}/include",
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
        f'-DHOLDFAST_TORCH="{torch.__version__}"',  # for the name: the headers have no other
        f"-L{folder}/lib",
    ]
    if sys.platform != "darwin":
        flags += ["-Wl,--no-as-needed", "-lc10"]
    try:
        return native_build.library("torch_allocator.cpp", flags, "c++")
    except Unsupported as exc:
        raise Unsupported(
            f"torch's CPU allocator cannot be replaced: {exc.what}",
            expected=exc.expected,
            hint="apt-get install g++ (or another C++ compiler, named by $CXX)",
        ) from exc


def _import_torch() -> Any:
    if importlib.util.find_spec("torch") is None:
        raise MissingDependency(
            "a pool under torch needs torch, which is not installed",
            hint="pip install holdfast[torch]",
        )
    import torch

    return torch

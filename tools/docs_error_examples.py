"""Examples of each error for docs/errors.md: a few lines that raise it, and what to do then.

`docs_errors` runs them and shows their source. None needs a device or a network.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable

# What to do, in addition to the error's own hint.
TO_DO = {
    "BadInput": "Change the value. `expected` says which ones are accepted.",
    "NotFound": "Choose one of the names in `expected`; the hint is the closest one.",
    "AlreadyRegistered": "Choose another name: a registry never replaces an entry.",
    "MissingDependency": "Install the extra in the hint; `holdfast doctor` lists all of them.",
    "Unsupported": "The call is right, but this machine or this version cannot do it.",
    "Absent": "Where several sources are asked, this one is skipped and its reason recorded.",
    "OutOfTime": "Raise the limit if it is an argument, or check the other side.",
    "OutOfMemory": "Free one of the listed blocks, raise the limit, or stream: "
    "[models larger than the device](residency.md).",
    "Misuse": "Change the program: going on would give wrong results or corrupt memory.",
    "DoubleFree": "Free a block once, or let the last reference free it.",
    "ForeignPointer": "Free memory in the pool that allocated it, by the block it returned.",
    "InUse": "Delete the arrays and tensors that view the block, then free it.",
    "Overrun": "Check the lines in the text; `check_memory()` between steps finds the one.",
    "UseAfterFree": "Keep a reference while the memory is used.",
}


# ---- one example for each class


def bad_input() -> None:
    from holdfast import memory

    memory.MemoryPool("cpu", limit="2 gigs")


def not_found() -> None:
    from holdfast.memory import svm

    svm.provider("cuda")


def already_registered() -> None:
    from holdfast.base.registry import Entry
    from holdfast.memory import svm

    svm.PROVIDERS.register("numa", Entry("mine.numa"))


def missing_dependency() -> None:
    from holdfast.memory import svm

    svm.provider("opencl")  # where pyopencl is not installed


def unsupported() -> None:
    from holdfast import topology
    from holdfast.base.config import Config

    topology.measure(config=Config.load(simulate="2x16GB"))


def absent() -> None:
    from holdfast.memory import svm

    svm.provider("retryix")


def out_of_time() -> None:
    from holdfast.xla.cluster import hosts

    hosts.join("127.0.0.1:9,1/2", timeout_s=0.2)


def out_of_memory() -> None:
    from holdfast import memory

    pool = memory.MemoryPool("cpu", limit="1MB")
    pool.allocate("2MB")


def misuse() -> None:
    from holdfast.compute import CustomTensor

    x = CustomTensor([1, 2, 3], requires_grad=True)
    loss = (x * x).sum()
    loss.backward()
    loss.backward()


def double_free() -> None:
    from holdfast import memory

    pool = memory.MemoryPool("cpu")
    block = pool.allocate(4096)
    pool.deallocate(block)
    pool.deallocate(block)


def foreign_pointer() -> None:
    from holdfast import memory

    memory.MemoryPool("cpu").deallocate(0x1000)


def in_use() -> None:
    from holdfast import memory

    pool = memory.MemoryPool("cpu")
    block = pool.allocate(4096)
    array = block.array("uint8")
    pool.deallocate(block)
    del array


def overrun() -> None:
    from holdfast import memory

    memory.enable_memory_debugging(True)
    pool = memory.MemoryPool("cpu")
    block = pool.allocate(1000)
    ctypes.memset(block.ptr, 0xFF, 1001)
    pool.deallocate(block)


def use_after_free() -> None:
    from holdfast.memory import svm

    memory = svm.alloc("1MiB", provider="simulated")
    memory.free()
    memory.array("uint8")


EXAMPLES: dict[str, Callable[[], None]] = {
    "BadInput": bad_input,
    "NotFound": not_found,
    "AlreadyRegistered": already_registered,
    "MissingDependency": missing_dependency,
    "Unsupported": unsupported,
    "Absent": absent,
    "OutOfTime": out_of_time,
    "OutOfMemory": out_of_memory,
    "Misuse": misuse,
    "DoubleFree": double_free,
    "ForeignPointer": foreign_pointer,
    "InUse": in_use,
    "Overrun": overrun,
    "UseAfterFree": use_after_free,
}

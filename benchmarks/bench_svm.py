"""What shared virtual memory costs: allocation, round trips to a kernel and back, migration.

Ours beside raw numpy.empty and mmap, pyopencl's own allocations and pools, and plain buffer copies,
all in one run. Migration needs several NUMA nodes: where this machine has one, it is timed in the
QEMU guest of the tests, ours beside a bare move_pages, mbind and a copy. The guest is emulated, so
its ratios count and its rates do not.
"""

from __future__ import annotations

import ctypes
import functools
import json
import mmap
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyopencl as cl
import pyopencl.tools as cl_tools
from report import Row, arguments, best_us, median_ms, publish

import holdfast
from holdfast.memory import MemoryPool, svm
from holdfast.memory.svm.providers.opencl import OpenclProvider
from holdfast.topology import discover

ROOT = Path(__file__).parents[1]
MIB = 1 << 20
SIZES = {"4 KiB": 4096, "1 MiB": MIB, "64 MiB": 64 * MIB}
TIERS = ("fine_buffer", "coarse", "host_pointer", "copy")
KERNEL = "__kernel void add(__global float *x) { x[get_global_id(0)] += 1.0f; }"


# ---- allocation


def allocation(providers: dict[str, svm.Provider], opencl: OpenclProvider) -> list[Row]:
    """Getting memory from the system with every page in place, and giving it back."""
    rows = []
    for name, size in SIZES.items():
        subject = f"allocate and free {name}, every page touched"
        count = 3 if size > MIB else 100
        work = {f"holdfast {p}": _alloc(provider, size) for p, provider in providers.items()}
        for system, call in (work | _raw(opencl, size)).items():
            rows.append(Row(subject, system, best_us(call, count, 5, time.perf_counter), "µs"))
    return rows


def _alloc(provider: svm.Provider, size: int) -> Callable[[], object]:
    return lambda: provider.alloc(size, domain=0).free()


def _raw(opencl: OpenclProvider, size: int) -> dict[str, Callable[[], object]]:
    zeros = bytes(size)
    flags = cl.svm_mem_flags.READ_WRITE | cl.svm_mem_flags.SVM_FINE_GRAIN_BUFFER

    def mapped() -> None:
        private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        with mmap.mmap(-1, size, flags=private) as made:
            made.write(zeros)

    def shared() -> None:
        made = cl.SVMAllocation(opencl.context, size, 0, flags)
        ctypes.memset(made.svm_ptr, 0, size)
        made.release()

    return {
        "numpy.empty, filled": lambda: np.empty(size, np.uint8).fill(0),
        "mmap, filled": mapped,
        "pyopencl SVMAllocation, filled": shared,
    }


def pools(providers: dict[str, svm.Provider], opencl: OpenclProvider) -> list[Row]:
    """Getting memory from a pool that has some, and giving it back."""
    flags = cl.svm_mem_flags.READ_WRITE | cl.svm_mem_flags.SVM_FINE_GRAIN_BUFFER
    queue = opencl.queue
    svm_pool = cl_tools.SVMPool(cl_tools.SVMAllocator(opencl.context, flags=flags, queue=queue))
    buffers = cl_tools.MemoryPool(cl_tools.ImmediateAllocator(queue))
    rows = []
    for name, size in SIZES.items():
        work: dict[str, Callable[[], object]] = {}
        for provider in ("numa", "opencl fine_buffer"):
            pool = MemoryPool(resource=svm.Svm(providers[provider]))
            work[f"holdfast MemoryPool on {provider}"] = functools.partial(pool.allocate, size)
        work["pyopencl SVMPool"] = functools.partial(svm_pool, size)
        work["pyopencl MemoryPool"] = functools.partial(buffers, size)
        work["numpy.empty"] = functools.partial(np.empty, size, np.uint8)
        for system, call in work.items():
            us = best_us(call, 2000, 5, time.perf_counter)
            rows.append(Row(f"{name} from a pool and back", system, us, "µs"))
    return rows


# ---- round trips


def round_trips(tiers: dict[str, OpenclProvider], size: int = 16 * MIB) -> list[Row]:
    """The host writes, a kernel adds, the host reads: the same data, the same kernel."""
    subject = f"round trip of {size // MIB} MiB"
    ones = np.ones(size // 4, np.float32)
    rows = []
    for tier, provider in tiers.items():
        rows.append(Row(subject, f"holdfast {tier}", _trip_ours(provider, ones), "ms"))
    any_one = next(iter(tiers.values()))
    rows.append(Row(subject, "pyopencl buffer copies", _trip_buffers(any_one, ones), "ms"))
    rows.append(Row(subject, "pyopencl fine SVM by hand", _trip_fine(any_one, ones), "ms"))
    return rows


def _trip_ours(provider: OpenclProvider, ones: np.ndarray) -> float:
    kernel = cl.Program(provider.context, KERNEL).build().add
    with provider.alloc(ones.nbytes) as memory:

        def trip() -> None:
            array = memory.array("float32")
            array[:] = ones
            del array
            with memory.on_device() as argument:
                kernel(provider.queue, ones.shape, None, argument)
            assert memory.array("float32").max() == 2

        return median_ms(trip)


def _trip_buffers(provider: OpenclProvider, ones: np.ndarray) -> float:
    kernel = cl.Program(provider.context, KERNEL).build().add
    buffer = cl.Buffer(provider.context, cl.mem_flags.READ_WRITE, ones.nbytes)
    back, host = np.empty_like(ones), np.empty_like(ones)

    def trip() -> None:
        host[:] = ones
        cl.enqueue_copy(provider.queue, buffer, host, is_blocking=False)
        kernel(provider.queue, ones.shape, None, buffer)
        cl.enqueue_copy(provider.queue, back, buffer)
        assert back.max() == 2

    return median_ms(trip)


def _trip_fine(provider: OpenclProvider, ones: np.ndarray) -> float:
    kernel = cl.Program(provider.context, KERNEL).build().add
    array = cl.fsvm_empty(provider.context, ones.shape, ones.dtype)

    def trip() -> None:
        array[:] = ones
        kernel(provider.queue, ones.shape, None, cl.SVM(array))
        provider.queue.finish()
        assert array.max() == 2

    return median_ms(trip)


# ---- migration

MOVES = """
import ctypes, json, time
from holdfast.memory.svm.providers.numa import NumaProvider
from holdfast.topology import numa

def timed(work):
    memory = make()
    began = time.perf_counter()
    work(memory)
    seconds = time.perf_counter() - began
    memory.free()
    return seconds

provider = NumaProvider()
size = 64 << 20
make = lambda: provider.alloc(size, domain=0)
pages = lambda m: range(m.address, m.address + size, numa.PAGE_BYTES)

def copied(memory):
    other = provider.alloc(size, domain=1)
    ctypes.memmove(other.address, memory.address, size)
    other.free()

ways = {
    "holdfast migrate": lambda m: m.migrate(0, 1),
    "move_pages, one call": lambda m: numa.move(pages(m), 1),
    "mbind with MOVE": lambda m: numa.bind(m.address, size, [1]),
    "allocate there, copy, free": copied,
}
rounds = [{name: timed(work) for name, work in ways.items()} for _ in range(5)]
best = {name: min(r[name] for r in rounds) for name in ways}
print(json.dumps({name: size / seconds / 1e9 for name, seconds in best.items()}))
"""


def migration(with_guest: bool) -> list[Row]:
    """Pages from node 0 to node 1, on this machine or in the guest."""
    subject = "migrate 64 MiB, node 0 to 1"
    if len(svm.provider("numa").discover().domains) > 1:
        output = subprocess.run(
            [sys.executable, "-c", MOVES], capture_output=True, check=True, text=True
        ).stdout
        return [Row(subject, name, rate, "GB/s") for name, rate in json.loads(output).items()]
    if not with_guest or not (ROOT / "tests" / "guest").is_dir():
        print("migration was not timed: the guest is left out, or is not here", file=sys.stderr)
        return []
    sys.path.insert(0, str(ROOT))
    from tests.guest.initramfs import build_initramfs
    from tests.guest.machine import THREE_NODES, missing, run

    if reason := missing():
        print(f"migration was not timed: {reason}", file=sys.stderr)
        return []
    with tempfile.TemporaryDirectory() as folder:
        disk = Path(folder, "initramfs.cpio")
        build_initramfs(disk, packages=[Path(holdfast.__file__).parent], script=MOVES)
        result = run(THREE_NODES, disk, timeout_s=300)
    rates = json.loads(result.output.splitlines()[-1])
    remark = "emulated: the ratio counts"
    return [Row(subject, name, rate, "GB/s", remark) for name, rate in rates.items()]


def main() -> None:
    args = arguments("svm", __doc__ or "")
    tiers = {tier: OpenclProvider(tier=tier) for tier in TIERS}
    providers: dict[str, svm.Provider] = {
        "numa": svm.provider("numa"),
        **{f"opencl {tier}": provider for tier, provider in tiers.items()},
    }
    rows = [
        *allocation(providers, tiers["fine_buffer"]),
        *pools(providers, tiers["fine_buffer"]),
        *round_trips(tiers),
        *migration(with_guest=not args.quick),
    ]
    publish("svm", rows, discover(), args.out, quick=args.quick)


if __name__ == "__main__":
    main()

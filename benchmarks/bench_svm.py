"""What shared virtual memory costs: allocation, round trips to a kernel and back, migration.

Ours beside raw numpy.empty and mmap, pyopencl's own allocations and pools, and plain buffer copies,
all in one run. Migration needs several NUMA nodes: where this machine has one, it is timed in the
QEMU guest of the tests, ours beside a bare move_pages, mbind and a copy. The guest is emulated, so
its ratios count and its rates do not.
"""

from __future__ import annotations

import json
import mmap
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyopencl as cl
import pyopencl.tools as cl_tools
from report import Row, arguments, best_us, median_ms, publish

import holdfast
from holdfast.memory import svm
from holdfast.memory.svm.opencl import OpenclProvider
from holdfast.topology import discover

ROOT = Path(__file__).parents[1]
MIB = 1 << 20
SIZES = {"4 KiB": 4096, "1 MiB": MIB, "64 MiB": 64 * MIB}
TIERS = ("fine_buffer", "coarse", "host_pointer", "copy")
KERNEL = "__kernel void add(__global float *x) { x[get_global_id(0)] += 1.0f; }"


# ---- allocation


def allocation(providers: dict[str, svm.Provider], opencl: OpenclProvider) -> list[Row]:
    """Getting memory and giving it back."""
    rows = []
    for name, size in SIZES.items():
        work = _ours(providers, size) | _peers(opencl, size)
        for system_name, (touched, call) in work.items():
            state = "every page touched" if touched else "pages to come"
            subject = f"allocate and free {name}, {state}"
            count = 3 if touched and size > MIB else 200
            rows.append(Row(subject, system_name, best_us(call, count, 5), "µs"))
    return sorted(rows, key=lambda row: row.subject)


def _ours(
    providers: dict[str, svm.Provider], size: int
) -> dict[str, tuple[bool, Callable[[], object]]]:
    def call(provider: svm.Provider) -> Callable[[], object]:
        return lambda: provider.alloc(size, domain=0).free()

    return {f"holdfast {name}": (name == "numa", call(p)) for name, p in providers.items()}


def _peers(opencl: OpenclProvider, size: int) -> dict[str, tuple[bool, Callable[[], object]]]:
    context, queue = opencl.context, opencl.queue
    flags = cl.svm_mem_flags.READ_WRITE
    pool = cl_tools.SVMPool(cl_tools.SVMAllocator(context, flags=flags, queue=queue))
    buffers = cl_tools.MemoryPool(cl_tools.ImmediateAllocator(queue))

    def raw_mmap(touched: bool) -> None:
        private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        with mmap.mmap(-1, size, flags=private) as made:
            if touched:
                made.write(zeros)

    zeros = bytes(size)
    return {
        "numpy.empty": (False, lambda: np.empty(size, np.uint8)),
        "numpy.empty, filled": (True, lambda: np.empty(size, np.uint8).fill(0)),
        "mmap": (False, lambda: raw_mmap(False)),
        "mmap, filled": (True, lambda: raw_mmap(True)),
        "pyopencl SVMAllocation": (
            False,
            lambda: cl.SVMAllocation(context, size, 0, flags, queue=queue).release(),
        ),
        "pyopencl SVMPool": (False, lambda: pool.allocate(size)),
        "pyopencl MemoryPool": (False, lambda: buffers.allocate(size)),
    }


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
import ctypes, json, sys, time
from holdfast.memory import svm
from holdfast.memory.svm.numa import NumaProvider
from holdfast.topology import numa

def timed(work):
    began = time.perf_counter(); work(); return time.perf_counter() - began

def best(make, work, count=3):
    times = []
    for _ in range(count):
        memory = make()
        times.append(timed(lambda: work(memory)))
        memory.free()
    return min(times)

provider = NumaProvider()
size = 64 << 20
make = lambda: provider.alloc(size, domain=0)
pages = lambda m: range(m.address, m.address + size, numa.PAGE_BYTES)

def copied(memory):
    other = provider.alloc(size, domain=1)
    ctypes.memmove(other.address, memory.address, size)
    other.free()

results = {
    "holdfast migrate": best(make, lambda m: m.migrate(0, 1)),
    "move_pages, one call": best(make, lambda m: numa.move(pages(m), 1)),
    "mbind with MOVE": best(make, lambda m: numa.bind(m.address, size, [1])),
    "allocate there, copy, free": best(make, copied),
}
print(json.dumps({name: size / seconds / 1e9 for name, seconds in results.items()}))
"""


def migration() -> list[Row]:
    """Pages from node 0 to node 1, on this machine or in the guest."""
    subject = "migrate 64 MiB, node 0 to 1"
    if len(svm.provider("numa").discover().domains) > 1:
        output = subprocess.run(
            [sys.executable, "-c", MOVES], capture_output=True, check=True, text=True
        ).stdout
        return [Row(subject, name, rate, "GB/s") for name, rate in json.loads(output).items()]
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
        "simulated": svm.provider("simulated"),
    }
    rows = [
        *allocation(providers, tiers["fine_buffer"]),
        *round_trips(tiers),
        *migration(),
    ]
    publish("svm", rows, discover(), args.out)


if __name__ == "__main__":
    main()

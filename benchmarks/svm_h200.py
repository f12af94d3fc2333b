"""Shared virtual memory on an NVIDIA card through OpenCL alone: is it right, and what does it cost.

    PYTHONPATH=src python3 benchmarks/svm_h200.py --out out/benchmarks

Every tier that the device offers: allocated, written by the host through NumPy, used by a kernel,
read back and compared element by element; a kernel that follows real pointers where host and device
share addresses; migrations; round trips beside plain buffers; what an allocation costs. No CUDA
call is made by this program. A section that fails is written down with its error, the others run;
the exit status is 1 then. With --any-device it runs on whichever device there is.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from report import RUNS, Row, median_ms, publish

from holdfast.base.config import Config
from holdfast.topology import discover

LIBRARY = "libnvidia-opencl.so.1"
FOLDERS = (
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/usr/local/nvidia/lib64",
    "/usr/local/nvidia/lib",
)
MIB = 2**20
SHARED_ADDRESSES = ("fine_system", "fine_buffer", "coarse")
LINKS = 256  # in one chain
KERNELS = """
kernel void change(global uint *p) { size_t i = get_global_id(0); p[i] = p[i] * 3u + (uint)i; }

// A node is two words: the address of the next one, and a value. `nodes` is here only to tell the
// runtime that this memory is used; what is read and written are the addresses in it.
kernel void follow(global const ulong *heads, global ulong *nodes) {
    size_t chain = get_global_id(0);
    global ulong *node = (global ulong *)heads[chain];
    while (node) { node[1] += chain + 1; node = (global ulong *)node[0]; }
}
"""


class Section:
    """What fails inside is written down, and the next one runs."""

    def __init__(self, name: str, errors: dict[str, str]) -> None:
        self.name, self.errors = name, errors

    def __enter__(self) -> None:
        print(f"-- {self.name}", flush=True)

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, _: TracebackType | None
    ) -> bool:
        gc.collect()  # contexts of the section hold memory of the card
        if exc is None or not isinstance(exc, Exception):
            return False
        self.errors[self.name] = "".join(traceback.format_exception(exc))
        print(self.errors[self.name], file=sys.stderr, flush=True)
        return True


# ---- the device


def name_the_driver() -> str:
    """Have the OpenCL loader find NVIDIA's driver, and no other; before pyopencl is imported."""
    library = next((p for f in FOLDERS if (p := Path(f, LIBRARY)).exists()), None) or _known()
    folder = Path(tempfile.mkdtemp(prefix="vendors-"))
    (folder / "nvidia.icd").write_text(f"{library or LIBRARY}\n")
    os.environ["OCL_ICD_VENDORS"] = str(folder)
    return str(library or LIBRARY)


def _known() -> Path | None:
    """Where the dynamic linker has it."""
    try:
        known = subprocess.run(["ldconfig", "-p"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    lines = (line.split(" => ") for line in known.stdout.splitlines() if LIBRARY in line)
    return next((Path(parts[1].strip()) for parts in lines if len(parts) == 2), None)


def about_device(any_device: bool) -> dict[str, Any]:
    """The device that the provider chooses, and what it says of itself."""
    from holdfast.memory.svm.providers.opencl_tiers import tiers_of

    provider = make()
    [device] = provider.context.devices
    facts = {
        "id": provider.device.id,
        "name": device.name,
        "platform": device.platform.name,
        "platform_version": device.platform.version,
        "version": device.version,
        "driver_version": device.driver_version,
        "memory_bytes": device.global_mem_size,
        "max_allocation_bytes": device.max_mem_alloc_size,
        "svm_bits": int(device.svm_capabilities),
        "svm": provider.device.svm,
        "tiers": tiers_of(provider.device),
        "tier": provider.tier,
        "remarks": provider.discover().remarks,
    }
    for name, value in facts.items():
        print(f"{name}: {value}")
    if not any_device and "NVIDIA" not in f"{device.platform.name} {device.vendor}".upper():
        raise SystemExit(f"this is no NVIDIA device: {device.name} (--any-device takes it)")
    return facts


def make(tier: str | None = None) -> Any:
    """A provider with a context of its own: what breaks one section breaks no other."""
    from holdfast.memory.svm.providers.opencl import OpenclProvider

    return OpenclProvider(tier=tier)


def kernel_of(context: Any, name: str) -> Any:
    import pyopencl as cl

    return cl.Kernel(cl.Program(context, KERNELS).build(), name)


def changed(before: np.ndarray) -> np.ndarray:
    """What the kernel `change` makes of it."""
    return before * np.uint32(3) + np.arange(before.size, dtype=np.uint32)


def numbers(size: int) -> np.ndarray:
    return np.random.default_rng(5).integers(0, 2**32, size // 4, dtype=np.uint32)


# ---- is it right


def check_change(tier: str, size: int) -> dict[str, Any]:
    """Host writes, kernel changes every element, host reads."""
    provider = make(tier)
    change, before = kernel_of(provider.context, "change"), numbers(size)
    with provider.alloc(size) as memory:
        array = memory.array("uint32")
        same = array.ctypes.data == memory.address
        array[:] = before
        del array
        with memory.on_device() as argument:
            change(provider.queue, (before.size,), None, argument)
        array = memory.array("uint32")
        wrong = int((array != changed(before)).sum())
        del array
        aligned = memory.address % 4096 == 0
    return _verdict("a kernel changes what NumPy wrote", tier, size, before.size, wrong) | {
        "address_of_array_is_that_of_the_allocation": bool(same),
        "page_aligned": aligned,
    }


def check_pointers(tier: str, size: int) -> dict[str, Any]:
    """The host writes chains of real pointers all over the memory; the device follows them."""
    provider = make(tier)
    follow = kernel_of(provider.context, "follow")
    count = size // 16
    order = np.random.default_rng(6).permutation(count).reshape(-1, LINKS).astype(np.uint64)
    with provider.alloc(size) as memory, provider.alloc(len(order) * 8) as heads:
        addresses = order * np.uint64(16) + np.uint64(memory.address)
        links = np.zeros(count, np.uint64)
        links[order[:, :-1].ravel()] = addresses[:, 1:].ravel()
        values = np.arange(count, dtype=np.uint64)
        nodes, starts = memory.array("uint64", (count, 2)), heads.array("uint64")
        nodes[:, 0], nodes[:, 1], starts[:] = links, values, addresses[:, 0]
        del nodes, starts
        with memory.on_device() as all_nodes, heads.on_device() as first:
            follow(provider.queue, (len(order),), None, first, all_nodes)
        values[order.ravel()] += np.repeat(np.arange(1, len(order) + 1, dtype=np.uint64), LINKS)
        nodes = memory.array("uint64", (count, 2))
        wrong = int((nodes[:, 0] != links).sum() + (nodes[:, 1] != values).sum())
        del nodes
    return _verdict("a kernel follows pointers and adds", tier, size, 2 * count, wrong)


def _verdict(what: str, tier: str, size: int, elements: int, wrong: int) -> dict[str, Any]:
    found = {"what": what, "tier": tier, "bytes": size, "elements": elements, "wrong": wrong}
    print(found, flush=True)
    if wrong:
        raise ValueError(f"{what}, {tier}: {wrong} of {elements} elements are wrong")
    return found


# ---- what it costs


def migrations(tier: str, size: int, repeats: int) -> list[Row]:
    """Host to device and back, with the data checked at the end."""
    provider, before = make(tier), numbers(size)
    rates: dict[str, list[float]] = {"host to device": [], "device to host": []}
    with provider.alloc(size) as memory:
        memory.array("uint32")[:] = before
        for _ in range(repeats + 1):
            for direction, ends in zip(rates, ((0, 1), (1, 0)), strict=True):
                done = memory.migrate(*ends)
                if not done.complete or done.pages_moved * done.page_bytes < size:
                    raise ValueError(f"{direction}: {done.to_dict()}")
                rates[direction].append(done.bandwidth_gb_s or 0.0)
        if not (memory.array("uint32") == before).all():
            raise ValueError(f"{tier}: the data is not what it was")
    remark = "as the runtime says it is done; the first of them left out"
    medians = {direction: statistics.median(found[1:]) for direction, found in rates.items()}
    return [
        Row(f"migrate {size // MIB} MiB, {direction}", tier, rate, "GB/s", remark)
        for direction, rate in medians.items()
    ]


def round_trip(tier: str, size: int, repeats: int) -> list[Row]:
    """The host writes all, a kernel changes all, the host reads all."""
    provider, before = make(tier), numbers(size)
    change, after = kernel_of(provider.context, "change"), np.zeros_like(before)
    with provider.alloc(size) as memory:

        def work() -> None:
            memory.array("uint32")[:] = before
            with memory.on_device() as argument:
                change(provider.queue, (before.size,), None, argument)
            after[:] = memory.array("uint32")

        taken = median_ms(work, repeats)
    return [_right(Row(f"round trip, {size // MIB} MiB", tier, taken, "ms"), before, after)]


def plain_round_trip(pinned: bool, size: int, repeats: int) -> list[Row]:
    """The same with a buffer of the device and copies to and from it."""
    import pyopencl as cl

    provider, before = make(), numbers(size)
    queue, context = provider.queue, provider.context
    change, after = kernel_of(context, "change"), np.zeros_like(before)
    there: Any = cl.Buffer(context, cl.mem_flags.READ_WRITE, size)
    here = _pinned(context, queue, size) if pinned else np.zeros_like(before)

    def work() -> None:
        here[:] = before
        cl.enqueue_copy(queue, there, here)
        change(queue, (before.size,), None, there)
        cl.enqueue_copy(queue, here, there)
        after[:] = here

    system = f"buffer copies, {'pinned' if pinned else 'pageable'}"
    row = Row(f"round trip, {size // MIB} MiB", system, median_ms(work, repeats), "ms")
    return [_right(row, before, after)]


def _right(row: Row, before: np.ndarray, after: np.ndarray) -> Row:
    if not (after == changed(before)).all():
        raise ValueError(f"{row.subject}, {row.system}: the result is wrong")
    return row


def _pinned(context: Any, queue: Any, size: int) -> np.ndarray:
    import pyopencl as cl

    flags = cl.mem_flags.READ_WRITE | cl.mem_flags.ALLOC_HOST_PTR
    access: Any = cl.map_flags.READ | cl.map_flags.WRITE
    kind: Any = np.uint32
    buffer = cl.Buffer(context, flags, size)
    return cl.enqueue_map_buffer(queue, buffer, access, 0, (size // 4,), kind)[0]


def allocation(tier: str, size: int, repeats: int) -> list[Row]:
    """Allocating and giving back, with pages of the host touched where the tier has some."""
    provider = make(tier)
    subject = f"allocate and free {size // MIB} MiB"
    return [Row(subject, tier, median_ms(lambda: provider.alloc(size).free(), repeats), "ms")]


def plain_allocation(size: int, repeats: int) -> list[Row]:
    """What pyopencl does with nothing around it."""
    import pyopencl as cl

    provider = make()
    context, shared = provider.context, cl.svm_mem_flags.READ_WRITE
    works: dict[str, Callable[[], object]] = {
        "pyopencl Buffer": lambda: cl.Buffer(context, cl.mem_flags.READ_WRITE, size).release(),
    }
    if "coarse_buffer" in provider.device.svm:
        works["pyopencl SVMAllocation"] = lambda: cl.SVMAllocation(
            context, size, 0, shared
        ).release()
    subject, remark = f"allocate and free {size // MIB} MiB", "nothing is touched"
    return [Row(subject, n, median_ms(work, repeats), "ms", remark) for n, work in works.items()]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--out", type=Path, default=RUNS, help=f"a folder (default {RUNS})")
    parser.add_argument("--any-device", action="store_true", help="also where there is no NVIDIA")
    parser.add_argument("--large", type=int, default=256, help="MiB of the large case")
    parser.add_argument("--repeats", type=int, default=7, help="measurements; the median counts")
    args = parser.parse_args()
    library = None if args.any_device else name_the_driver()
    args.out.mkdir(parents=True, exist_ok=True)
    began = time.perf_counter()
    errors: dict[str, str] = {}
    facts: dict[str, Any] = {}
    with Section("device", errors):
        facts = about_device(args.any_device)
    tiers = facts.get("tiers", ())
    checks, rows = measure(tiers, args.large * MIB, args.repeats, errors) if tiers else ([], [])
    more = {
        "device": facts,
        "library": library,
        "checks": checks,
        "errors": errors,
        "seconds": round(time.perf_counter() - began, 1),
    }
    out = args.out / "svm-h200.json"
    with Section("report", errors):
        machine = discover(config=Config.load(probes="linux,pci,kfd,nvml"))
        publish("svm", rows, machine, out, **more)
    if "report" in errors:  # what was measured is not lost
        out.write_text(json.dumps({"rows": [asdict(row) for row in rows], **more}, indent=1))
    print(f"{len(checks)} checks passed, {len(errors)} sections failed: {', '.join(errors)}")
    return 1 if errors else 0


def measure(
    tiers: tuple[str, ...], large: int, repeats: int, errors: dict[str, str]
) -> tuple[list[dict[str, Any]], list[Row]]:
    """All sections, one after the other."""
    checks: list[dict[str, Any]] = []
    rows: list[Row] = []
    for tier in tiers:
        with Section(f"{tier}: a kernel on {large // MIB} MiB", errors):
            checks.append(check_change(tier, large))
    for tier in (t for t in tiers if t in SHARED_ADDRESSES):
        with Section(f"{tier}: pointers in {large // MIB} MiB", errors):
            checks.append(check_pointers(tier, large))
    for size in (16 * MIB, large):
        for tier in tiers:
            with Section(f"{tier}: round trip of {size // MIB} MiB", errors):
                rows += round_trip(tier, size, repeats)
        for pinned in (True, False):
            kind = "pinned" if pinned else "pageable"
            with Section(f"{kind} buffer copies of {size // MIB} MiB", errors):
                rows += plain_round_trip(pinned, size, repeats)
        for tier in tiers:
            with Section(f"{tier}: allocation of {size // MIB} MiB", errors):
                rows += allocation(tier, size, repeats)
        with Section(f"plain allocation of {size // MIB} MiB", errors):
            rows += plain_allocation(size, repeats)
    found: list[Row] = []
    for tier in tiers:
        with Section(f"{tier}: migration of {large // MIB} MiB", errors):
            found += migrations(tier, large, repeats)
    return checks, rows + sorted(found, key=lambda row: row.subject, reverse=True)


if __name__ == "__main__":
    sys.exit(main())

"""What runs in the guest with three NUMA nodes; prints what it found as JSON. See test_guest."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import zlib
from collections import Counter
from collections.abc import Iterator
from typing import Any

from holdfast.base.errors import HoldfastError
from holdfast.memory import autobalance, svm
from holdfast.memory.core import system_pages
from holdfast.memory.svm.providers.numa import move_range
from holdfast.topology import numa

MIB = 1 << 20
PAGE = 4096
provider = svm.provider("numa")
found: dict[str, Any] = {}


def fill(memory: svm.Allocation) -> int:
    """Different bytes in every MiB; their checksum."""
    noise = os.urandom(MIB - 8)
    view = memory.view()
    for offset in range(0, memory.size, MIB):
        part = (offset.to_bytes(8, "little") + noise)[: memory.size - offset]
        view[offset : offset + len(part)] = part
    return zlib.crc32(view)


def kernel(memory: svm.Allocation) -> dict[int, int]:
    return dict(Counter(numa.nodes_of(memory.address, memory.size)))


@contextlib.contextmanager
def running_on(cpus: list[int]) -> Iterator[None]:
    with numa.running_on(cpus):
        yield


# ---- bind and move

memory = provider.alloc(256 * MIB, domain=0)
checksum = fill(memory)
where = memory.where()
found["bound"] = {
    "pages": where.pages,
    "verified": where.verified,
    "reason": memory.placement.reason,
    "checksum": checksum,
}
found["moves"] = {}
steps: list[tuple[int, int]] = []
for source, target in ((0, 1), (1, 2), (2, 0)):
    steps.clear()
    result = memory.migrate(source, target, progress=lambda *step: steps.append(step))
    found["moves"][f"{source} to {target}"] = result.to_dict() | {
        "kernel": kernel(memory),
        "checksum": zlib.crc32(memory.view()),
    }
found["progress"] = list(steps)
memory.free()

with provider.alloc(4 * PAGE, domain=0) as memory:
    memory.migrate(0, 1)
    system_pages.discard_pages(memory.address, 4 * PAGE)
    system_pages.touch(memory.address, 4 * PAGE)
    found["retouched"] = kernel(memory)

# ---- other placements

with provider.alloc(48 * MIB, domain=[0, 1, 2]) as memory:
    found["interleaved"] = kernel(memory)
with provider.alloc(16 * MIB, domain=1, mode="preferred") as memory:
    found["preferred"] = kernel(memory)
with provider.alloc(900 * MIB) as memory:
    found["spread"] = {"pages": kernel(memory), "reason": memory.placement.reason}
try:
    provider.alloc(4096 * MIB)
except HoldfastError as exc:
    found["too much"] = f"{type(exc).__name__}: {exc}"
with running_on([2, 3]), provider.alloc(MIB) as memory:
    found["near the cpus"] = [kernel(memory), memory.placement.reason]
with provider.alloc(MIB, near="gpu:0") as memory:
    found["near the gpu"] = [kernel(memory), memory.placement.reason]

# ---- broken off, and no room

with provider.alloc(100 * MIB, domain=0) as memory:
    before = fill(memory)
    asked = iter([False, False, False, True])
    result = memory.migrate(0, 1, stop=lambda: next(asked))
    found["stopped"] = result.to_dict() | {
        "pages": kernel(memory),
        "checksum before": before,
        "checksum": zlib.crc32(memory.view()),
    }

free = {d.id: d.free_bytes or 0 for d in provider.discover().domains}
with (
    provider.alloc(free[2] - 100 * MIB, domain=2),
    provider.alloc(192 * MIB, domain=0) as memory,
):
    before = fill(memory)
    try:
        memory.migrate(0, 2)
    except HoldfastError as exc:
        name = type(exc).__name__
        found["refused"] = {"error": name, "text": str(exc), "pages": kernel(memory)}
    # What happens where memory runs out after all, because somebody else took it.
    chunk = move_range(memory.address, memory.size, 0, 2)
    pages = kernel(memory)
    found["full"] = {
        "not_moved": chunk.not_moved,
        "moved": chunk.moved,
        "left": pages[0],
        "pages": pages,
        "checksum before": before,
        "checksum": zlib.crc32(memory.view()),
    }

# ---- against the rules

memory = provider.alloc(40 * MIB, domain=0)
before = fill(memory)
refused: list[str] = []


def meddle(done: int, total: int) -> None:
    for work in (memory.free, lambda: memory.migrate(0, 2)):
        try:
            work()
        except HoldfastError as exc:
            refused.append(f"{type(exc).__name__}: {exc.what.partition(' cannot ')[2]}")


def interrupt(done: int, total: int) -> None:
    raise KeyboardInterrupt


try:
    memory.migrate(0, 1, progress=interrupt)
except KeyboardInterrupt:
    found["interrupted"] = {
        "pages": kernel(memory),
        "checksum": zlib.crc32(memory.view()) == before,
    }
view = memory.view()  # the kernel moves it under who looks
found["meddled"] = {
    "complete": memory.migrate(0, 1, progress=meddle).complete,
    "refused": sorted(set(refused)),
    "pages": kernel(memory),
    "checksum": zlib.crc32(view) == before,
}
del view
memory.free()

# ---- threads


def masks() -> list[list[int]]:
    """Where this thread and another may run."""
    return [sorted(os.sched_getaffinity(tid)) for tid in (0, other.native_id)]


done = threading.Event()
other = threading.Thread(target=done.wait)
other.start()
while other.native_id is None:
    pass
found["affinity"] = {"before": masks()}
near = provider.alloc(MIB, domain=1, set_affinity=True)
found["affinity"]["node 1"] = masks()
far = provider.alloc(MIB, domain=2, set_affinity=True)
found["affinity"]["node 1 and the far node, whose nearest CPUs are those of node 0"] = masks()
near.free()
found["affinity"]["the far node alone"] = masks()
far.free()
found["affinity"]["after"] = masks()
done.set()
other.join()

# ---- figures

found["locality"] = {}
with provider.alloc(16 * MIB, domain=1) as memory:
    for name, cpus in {"all CPUs": [0, 1, 2, 3], "CPUs of node 0": [0, 1]}.items():
        with running_on(cpus):
            m = provider.metrics(memory)
            found["locality"][name] = [m.local_pages, m.remote_pages, m.local_ratio]
    with running_on([2, 3]):
        m = provider.metrics(memory)
        found["locality"]["CPUs of node 1"] = [m.local_pages, m.remote_pages, m.local_ratio]

# ---- balance

with running_on([0, 1]):
    memory = provider.alloc(16 * MIB)
with memory, running_on([2, 3]):
    before = fill(memory)
    balance = autobalance(provider="numa", apply=True)
    proposed = balance.propose()
    balance.round()
    found["balance"] = {
        "proposed": [[p.from_domain, p.to_domain] for p in proposed],
        "pages": kernel(memory),
        "then": [str(p) for p in balance.propose()],
        "checksum before": before,
        "checksum": zlib.crc32(memory.view()),
    }

print(json.dumps(found))

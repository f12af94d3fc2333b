"""What runs in the guest with three NUMA nodes: moving another process. See test_process."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from holdfast.memory.svm import process
from holdfast.memory.svm.providers.numa import where_is

MIB = 1 << 20
SIZE = 48 * MIB
CHILD = """
import os, sys, zlib
from holdfast.memory import svm
memory = svm.provider("numa").alloc(int(sys.argv[1]), domain=0)
view = memory.view()
view[:] = os.urandom(1 << 20) * (len(view) >> 20)
print(memory.address, zlib.crc32(view), flush=True)
for line in sys.stdin:
    print(zlib.crc32(view), flush=True)
"""


def checksum(child: subprocess.Popen[str]) -> int:
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write("again\n")
    child.stdin.flush()
    return int(child.stdout.readline())


def moved(pid: int, source: int, target: int, **options: Any) -> dict[str, Any]:
    told: list[tuple[int, int]] = []
    result = process.move(
        pid, source, target, progress=lambda *step: told.append(step), **options
    ).to_dict()
    return result | {"progress": told, "there": where_is(address, SIZE, pid=pid).pages}


child = subprocess.Popen(
    [sys.executable, "-c", CHILD, str(SIZE)],
    stdin=subprocess.PIPE,
    stdout=subprocess.PIPE,
    text=True,
)
assert child.stdout is not None
address, before = map(int, child.stdout.readline().split())
found: dict[str, Any] = {"before": before}
region = next(r for r in process.regions(child.pid) if r.address <= address < r.address + r.length)
found["region"] = {"pages": region.pages, "policy": region.policy, "length": region.length}
found["part"] = moved(child.pid, 0, 2, address=address + 16 * MIB, length=16 * MIB)
found["whole"] = moved(child.pid, 0, 1)
asked = iter([False, False, True])
found["stopped"] = moved(child.pid, 1, 0, address=address, length=SIZE, stop=lambda: next(asked))
found["total"] = process.pages(child.pid).pages
found["after"] = checksum(child)
assert child.stdin is not None
child.stdin.close()
child.wait()
print(json.dumps(found))

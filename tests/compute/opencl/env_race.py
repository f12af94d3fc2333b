"""Build kernels through the engine while threads change the environment; run as a program.

    python -m tests.compute.opencl.env_race SECONDS [THREADS] [BUILDS]

PoCL links a kernel in a thread of its own, with the process's environment. Prints "built N" at the
end; a process that cannot take it dies with "posix_spawn failed" or a segmentation fault.
Set POCL_CACHE_DIR to an empty folder, so that kernels are really built.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import sys
import threading
import time

import numpy

from holdfast.compute.engines.opencl.engine import engine_at

_TEXT = """
__kernel void k(__global char* memory, ulong offset) {{
    __global float* a = (__global float*)(memory + offset);
    a[get_global_id(0)] = {first}.0f + sin(a[get_global_id(0)]) * {second}f;
}}
"""


def change(stop: threading.Event | None, draw: random.Random, times: int = 0) -> None:
    """Add, replace and remove variables, until `stop` is set or a number of times."""
    for i in itertools.count():
        if stop.is_set() if stop else i >= times:
            return
        os.environ[f"RACE_{draw.randrange(400)}"] = "v" * draw.randint(1, 400)
        if i % 5 == 0:
            with contextlib.suppress(KeyError):  # another thread was quicker
                del os.environ[f"RACE_{draw.randrange(400)}"]


def main(seconds: float, threads: int = 0, builds: int = 10**9) -> None:
    engine = engine_at(0)
    array = engine.upload(numpy.zeros(1024, numpy.float32))
    stop, draw = threading.Event(), random.Random(0)
    others = [
        threading.Thread(target=change, args=(stop, random.Random(n))) for n in range(threads)
    ]
    for thread in others:
        thread.start()
    end, built = time.monotonic() + seconds, 0
    while time.monotonic() < end and built < builds:
        kernel = engine.kernel_from(_TEXT.format(first=built, second=random.random()), "k")
        for size, group in (((64,), (8,)), ((64,), (16,)), ((64,), None), ((64,), (8,))):
            engine.launch(kernel, size, group, array)
            change(None, draw, 200)
        engine.synchronize()
        built += 1
    stop.set()
    for thread in others:
        thread.join()
    print("built", built)


if __name__ == "__main__":
    main(float(sys.argv[1]), *map(int, sys.argv[2:]))

"""Run the tests repeatedly in random order and under load, to find those that are flaky.

    .venv/bin/python tools/stress_tests.py --rounds 4 --load busy --load memory [PYTEST-ARGUMENT...]

Loads: busy (two loops for each core), memory (all but 4 GB is taken), disk (files written and
synced without pause). Each round takes the next seed and the next load. At the end: which tests
failed, how often, under which load, and whether they pass alone.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+::.+?)(?: - .*)?$", re.MULTILINE)
_LEFT_BYTES = 4 << 30
_BUSY = "while True: pass"
_MEMORY = """
import mmap, psutil, time
size = max(0, psutil.virtual_memory().available - {left})
taken = mmap.mmap(-1, max(size, mmap.PAGESIZE))
for at in range(0, size, mmap.PAGESIZE):
    taken[at] = 1
time.sleep(10**6)
"""
_DISK = """
import os
while True:
    with open({file!r}, "wb") as file:
        for _ in range(64):
            file.write(os.urandom(1 << 20))
            os.fsync(file.fileno())
"""


def main() -> int:
    """Stress the tests; 1 if any failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=2, help="how often (2)")
    parser.add_argument("--seed", type=int, default=1, help="of the first round (1)")
    parser.add_argument("--load", action="append", choices=["busy", "memory", "disk", "none"])
    options, more = parser.parse_known_args()
    loads = options.load or ["busy", "memory", "disk"]
    failed: dict[str, list[str]] = defaultdict(list)
    for number in range(options.rounds):
        seed, kind = options.seed + number, loads[number % len(loads)]
        print(f"round {number + 1} of {options.rounds}: seed {seed}, load {kind}", flush=True)
        with tempfile.TemporaryDirectory(dir=ROOT) as folder, load(kind, folder):
            for test in run("-n", "2", "--dist", "loadfile", "--shuffle", str(seed), *more):
                failed[test].append(f"{kind}, seed {seed}")
    for test, rounds in failed.items():
        alone = "fails alone too" if run("-n", "0", test) else "passes alone"
        print(f"{test}\n  failed {len(rounds)} times ({'; '.join(rounds)}); {alone}")
    print(f"{options.rounds} rounds, {len(failed)} tests that failed")
    return bool(failed)


def run(*arguments: str) -> list[str]:
    """Run pytest, show its output, and return the tests that failed."""
    default = [] if "-m" in arguments or "::" in arguments[-1] else ["-m", "not exhaustive"]
    command = [sys.executable, "-m", "pytest", *default, *arguments]
    failed: list[str] = []
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as pytest:
        assert pytest.stdout is not None
        for line in pytest.stdout:
            print("  " + line, end="", flush=True)
            failed += _FAILED.findall(line)
    if pytest.returncode not in (0, 1) and not failed:
        failed.append(f"the run itself (status {pytest.returncode})")
    return failed


@contextlib.contextmanager
def load(kind: str, folder: str) -> Iterator[None]:
    """Put load on this machine until the block ends."""
    programs = {
        "none": [],
        "busy": [_BUSY] * 2 * (os.cpu_count() or 1),
        "memory": [_MEMORY.format(left=_LEFT_BYTES)],
        "disk": [_DISK.format(file=f"{folder}/written")] * 2,
    }
    others = [subprocess.Popen([sys.executable, "-c", text]) for text in programs[kind]]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


if __name__ == "__main__":
    sys.exit(main())

"""What it costs to be looked at: one look, and a process that computes while somebody looks on.

Nobody else does this, so there are no peers. The cost of attaching is measured in rounds in one
run, three times the same work: while somebody looks at it (twice a second as `top` does, and ten
times), while he looks at an idle process of the same kind, and while nobody looks. Against the
last, what the reader takes of the machine is in the figure as well; against the second it is in
both. A figure is the median of the rounds, its span their middle half. With other work on the
machine that span is wide; how long the working thread stood still, and the CPU time of the threads
that answer, tell more there.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from report import Row, arguments, best, middle, publish

from holdfast.dashboard.ipc.client import Attached
from holdfast.dashboard.snapshot.machine import MachineLooker
from holdfast.topology import discover

# Looks a second, and seconds of work that they are measured over: as `top` does, and many.
RATES = {2: 1.0, 10: 0.3}
POOLS, MODULES = 20, 3
ARMS = ("here", "elsewhere", "none")  # where somebody looks
HERE = Path(__file__)


# ---- the process that is looked at


def busy(wanted_s: float, work: Callable[[], object]) -> int:
    """How many times `work` is done in about that many seconds."""
    count, end = 0, time.perf_counter() + wanted_s
    while time.perf_counter() < end:
        work()
        count += 1
    return max(count, 1)


def works() -> dict[str, Callable[[], object]]:
    """What a process may be doing."""
    import torch

    left, right = torch.ones(384, 384), torch.ones(384, 384)
    found: dict[str, Callable[[], object]] = {
        "a loop in Python": lambda: sum(number * number for number in range(20_000)),
        "matrix products of torch": lambda: left @ right,
        "a model under a budget": _model("cpu"),
    }
    if torch.cuda.is_available():
        there = torch.ones(4096, 4096, device="cuda", dtype=torch.bfloat16)

        def multiply() -> None:
            for _ in range(20):
                there @ there
            torch.cuda.synchronize()

        found["matrix products on CUDA"] = multiply
        found["a model under a budget on CUDA"] = _model("cuda", width=4096, budget="1500MB")
    return found


def _model(device: str, width: int = 256, budget: str = "2MB") -> Callable[[], object]:
    """Passes of a module of which half has to be streamed."""
    import torch

    from holdfast import residency

    module = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(16)))
    residency.manage(module, budget=budget, device=device)
    given = torch.ones(4, width)

    def run() -> None:
        with torch.no_grad():
            module(given)
        if device == "cuda":
            torch.cuda.synchronize()

    for _ in range(6):  # until its plan has settled
        run()
    return run


def serve() -> None:
    """The child: does a line's work, and says how long it took."""
    import torch

    from holdfast import residency
    from holdfast.memory import MemoryPool

    torch.set_num_threads(1)
    pools = [MemoryPool("cpu", name=f"pool {number}") for number in range(POOLS)]
    blocks = [pool.allocate("1MB") for pool in pools]
    modules = [torch.nn.Sequential(torch.nn.Linear(64, 64)) for _ in range(MODULES - 1)]
    for module in modules:
        residency.manage(module, device="cpu")
    table = works()
    print(json.dumps(list(table)), flush=True)
    for line in sys.stdin:
        name, count, seconds = json.loads(line)
        work = table[name]
        if count is None:
            print(json.dumps(busy(seconds, work)), flush=True)
            continue
        print(json.dumps(timed(work, count)), flush=True)
    del blocks


def timed(work: Callable[[], object], count: int) -> tuple[float, float]:
    """Seconds that it took, and of these how long the thread stood still.

    It stood still where it neither ran nor waited for a free CPU: it waited for another thread of
    its own process to let it go on.
    """
    ran, waited = scheduled()
    start = time.perf_counter()
    for _ in range(count):
        work()
    took = time.perf_counter() - start
    ran_after, waited_after = scheduled()
    return took, max(0.0, took - (ran_after - ran) - (waited_after - waited))


def scheduled() -> tuple[float, float]:
    """Seconds that this thread ran, and that it waited for a free CPU."""
    ran, waited, _ = Path("/proc/thread-self/schedstat").read_text().split()
    return int(ran) / 1e9, int(waited) / 1e9


# ---- those who look


class Child(contextlib.AbstractContextManager["Child"]):
    """The process that is looked at."""

    def __init__(self) -> None:
        command = [sys.executable, str(HERE), "--serve"]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.pid = self._process.pid
        self.works: list[str] = json.loads(self._line())

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    def do(self, name: str, count: int | None, seconds: float = 0.0) -> Any:
        """What `timed` says of so many times; with None, how many times go into `seconds`."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([name, count, seconds]) + "\n")
        self._process.stdin.flush()
        return json.loads(self._line())

    def answering_s(self) -> float:
        """CPU time of all its threads but the first, which works."""
        tasks = Path(f"/proc/{self.pid}/task")
        others = [one for one in tasks.iterdir() if one.name != str(self.pid)]
        spent = 0
        for one in others:
            with contextlib.suppress(OSError):  # a thread that ended
                spent += int((one / "schedstat").read_text().split()[0])
        return spent / 1e9

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()


@contextlib.contextmanager
def looking(attached: Attached, rate: int) -> Iterator[None]:
    """In the block, somebody looks so many times a second."""
    over = threading.Event()

    def look() -> None:
        while not over.wait(1 / rate):
            attached.process()

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def rounds(child: Child, twin: Child, name: str, rate: int, count: int) -> list[Row]:
    """The same work with looks at it, with looks at an idle process instead, and with none."""
    window_s = RATES[rate]
    times = int(child.do(name, None, window_s))
    took: dict[str, list[float]] = {arm: [] for arm in ARMS}
    still: dict[str, list[float]] = {arm: [] for arm in ARMS}
    answering: list[float] = []
    with Attached(child.pid) as attached, Attached(twin.pid) as elsewhere:
        watched = {"here": attached, "elsewhere": elsewhere}
        for one in watched.values():
            one.process()
        for number in range(count):
            for arm in (*ARMS[number % 3 :], *ARMS[: number % 3]):
                before = child.answering_s()
                with looking(watched[arm], rate) if arm in watched else contextlib.nullcontext():
                    seconds, stood = child.do(name, times)
                took[arm].append(seconds)
                still[arm].append(stood / seconds * 100)
                if arm == "here":
                    answering.append((child.answering_s() - before) / seconds * 100)
    subject = f"{rate} looks a second: {name}"
    return _rows(subject, f"{count} rounds of {window_s:g} s", took, still, answering)


def _rows(
    subject: str,
    remark: str,
    took: dict[str, list[float]],
    still: dict[str, list[float]],
    answering: list[float],
) -> list[Row]:
    def slower_than(other: str) -> Any:
        pairs = zip(took["here"], took[other], strict=True)
        return middle([(here / there - 1) * 100 for here, there in pairs])

    stood = [here - none for here, none in zip(still["here"], still["none"], strict=True)]
    return [
        Row(f"{subject}, slower than without", "holdfast", slower_than("none"), "%", remark),
        Row(
            f"{subject}, slower than with looks elsewhere",
            "holdfast",
            slower_than("elsewhere"),
            "%",
            remark,
        ),
        Row(f"{subject}, stood still", "holdfast", middle(stood), "%", "of wall time"),
        Row(f"{subject}, CPU of answering", "holdfast", middle(answering), "%", "of wall time"),
    ]


# ---- single looks


def single(child: Child, repeats: int) -> list[Row]:
    """One look at the process and at the machine."""
    about = f"{POOLS} pools, {MODULES} modules"
    with Attached(child.pid) as attached:
        attached.process()
        inside = [attached.process().look_us for _ in range(repeats)]
        before = child.answering_s()
        around = [_ms(attached.process) for _ in range(repeats)]
        cpu_us = (child.answering_s() - before) / repeats * 1e6
    looker = MachineLooker()
    machine = [_ms(looker.look) * 1000 for _ in range(repeats)]
    return [
        Row("a look at a process, inside of it", "holdfast", best(inside), "us", about),
        Row("a look at a process, its CPU time in all", "holdfast", cpu_us, "us", "JSON, socket"),
        Row("a look at a process, as the reader waits", "holdfast", best(around), "ms", about),
        Row("a look at the machine", "holdfast", best(machine), "us"),
    ]


def _ms(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return (time.perf_counter() - start) * 1000


COLD = """
import time
from holdfast.memory import MemoryPool
start = time.perf_counter()
MemoryPool("cpu")
print((time.perf_counter() - start) * 1000)
"""


def first_pool(repeats: int) -> list[Row]:
    """The first pool of a new process, which is when the socket is made."""
    runs: dict[str, list[float]] = {"1": [], "0": []}
    for _ in range(repeats):
        for offer, found in runs.items():
            environ = {**os.environ, "HOLDFAST_OFFER": offer}
            command = [sys.executable, "-c", COLD]
            done = subprocess.run(command, env=environ, capture_output=True, check=True)
            found.append(float(done.stdout))
    subject = "the first pool of a new process"
    return [
        Row(subject, "holdfast, offered", best(runs["1"]), "ms"),
        Row(subject, "holdfast, HOLDFAST_OFFER=0", best(runs["0"]), "ms"),
    ]


def main() -> None:
    if sys.argv[1:] == ["--serve"]:
        serve()
        return
    args = arguments("dashboard", __doc__ or "")
    count = 6 if args.quick else 30
    with tempfile.TemporaryDirectory(prefix="hf-") as folder:
        os.environ["HOLDFAST_RUNTIME_DIR"] = f"{folder}/meet"
        rows = first_pool(5 if args.quick else 15)
        with Child() as child, Child() as twin:
            rows += single(child, 50 if args.quick else 500)
            for rate in list(RATES)[-1:] if args.quick else RATES:
                for name in child.works:
                    rows += rounds(child, twin, name, rate, count // (1 + (rate == 2)))
    publish("dashboard", rows, discover(), args.out, quick=args.quick)


if __name__ == "__main__":
    main()

"""A process that works with Holdfast, told what to do by lines on its standard input.

python -m tests.dashboard.web.page_guest
hold [NAME] | manage | load BUDGET | draw STEPS SEED PROMPT | leak

`draw` says "half way" in the middle of its steps, and waits there for one more line.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable
from typing import Any

from holdfast import memory

KEPT: list[Any] = []


def hold(*name: str) -> None:
    """Blocks of several sizes, with tags; in a pool of that name, which is the last block's tag."""
    called = " ".join(name) or "working set"
    pool = memory.MemoryPool("cpu", name=called)
    if name:
        with memory.tag(called):
            KEPT.append(pool.allocate("2MB"))
        return
    for tag, size in (("latents", "48MB"), ("activations", "20MB"), ("prompt", "6MB")):
        with memory.tag(tag):
            KEPT.append(pool.allocate(size))


def manage() -> None:
    """A module on the simulated device that runs passes, on and on."""
    import torch

    from holdfast import residency

    torch.manual_seed(0)
    layers = (torch.nn.Linear(256, 256) for _ in range(40))
    model = torch.nn.Sequential(*layers).requires_grad_(False)
    KEPT.append(residency.manage(model, budget="4MB", device="simulated"))
    threading.Thread(target=_pass_on, args=(model, torch.randn(4, 256)), daemon=True).start()


def _pass_on(model: Any, x: Any) -> None:
    pause = threading.Event()
    while not pause.wait(0.05):
        model(x)


def load(budget: str) -> None:
    """The built-in model, under a budget."""
    from holdfast.pipeline import Pipeline

    KEPT.append(Pipeline.load("tiny-flux", device="simulated", budget=budget))


def draw(steps: str, seed: str, *prompt: str) -> None:
    """A picture, with what was loaded last; waits for a line in the middle of its steps."""
    from holdfast.pipeline import Pipeline
    from holdfast.pipeline.run.progress import Event
    from holdfast.residency.interrupt import InterruptProcessingException

    def wait(event: Event) -> None:
        if (event.stage, event.done) == ("denoise", int(steps) // 2):
            print("half way", flush=True)
            sys.stdin.readline()

    pipe = next(one for one in reversed(KEPT) if isinstance(one, Pipeline))
    with contextlib.suppress(InterruptProcessingException):
        pipe(" ".join(prompt), steps=int(steps), seed=int(seed), progress=wait)


def leak() -> None:
    """Blocks that stay in a cache after the code that made them is over."""
    pool = memory.MemoryPool("cpu", name="features")
    KEPT.append(pool)
    for size in (7, 5, 3):
        _remember(pool.allocate(f"{size}MB"))


def _remember(block: Any) -> None:
    KEPT.append(block)


DOES: dict[str, Callable[..., None]] = {
    "hold": hold,
    "manage": manage,
    "load": load,
    "draw": draw,
    "leak": leak,
}


def main() -> None:
    """Do what each line says, and answer when it is done."""
    print("ready", flush=True)
    for line in sys.stdin:
        name, *words = line.split()
        DOES[name](*words)
        print("done", name, flush=True)


if __name__ == "__main__":
    main()

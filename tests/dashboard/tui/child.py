"""A process to look at: a pool, a model under a budget that runs. It does what its input says.

leak    a block is made that nobody needs
(end)   it ends
"""

from __future__ import annotations

import sys
import threading
from typing import Any

import torch

from holdfast import memory, residency
from holdfast.memory import MemoryPool

torch.set_num_threads(1)
scratch = MemoryPool("cpu", name="scratch of a test")
with memory.tag("kept on purpose"):
    block = scratch.allocate("8MB")
spare = scratch.allocate("24MB")
del spare  # stays in the cache

model = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(40))).requires_grad_(False)
managed = residency.manage(model, budget="4MB", device="simulated")
x = torch.randn(4, 256)

over = threading.Event()
forgotten: list[Any] = []


def listen() -> None:
    """Do what the input says."""
    for line in sys.stdin:
        if line.strip() == "leak":
            with memory.tag("forgotten"):
                forgotten.append(scratch.allocate("2MB"))
            print("leaked", flush=True)
    over.set()


threading.Thread(target=listen, daemon=True).start()
print("ready", flush=True)
with torch.no_grad():
    while not over.wait(0.05):
        model(x)

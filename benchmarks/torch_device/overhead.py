"""What one small op costs on a device, beside torch's CPU in the same process.

    python overhead.py holdfast            # prints JSON; HOLDFAST_TORCH_SHIM=off|on chooses the way
    python overhead.py tiny FOLDER         # tinygrad's torch backend, from a checkout of tinygrad
    python overhead.py tinygrad            # tinygrad's own tensors, from its release

A device has to be registered before the first tensor, so each way needs a process of its own.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

COUNT, REPEATS = 4000, 9
LAZY_COUNT, REALISED_COUNT = 200, 20  # where one op takes hundreds of microseconds or more
SIDE = 16
LACKS = (AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)


def ops(torch: Any, device: str) -> dict[str, Callable[[], Any]]:
    """Small ops on tensors of 16 numbers."""
    a, b = (torch.randn(SIDE, device="cpu").to(device) for _ in range(2))
    square = torch.randn(4, 4).to(device)
    weight = torch.nn.Linear(SIDE, SIDE).to(device)
    row = torch.randn(2, SIDE).to(device)
    target = torch.zeros(SIDE).to(device)
    return {
        "add": lambda: a + b,
        "multiply by a number": lambda: a * 2.5,
        "relu": lambda: torch.relu(a),
        "exp": lambda: torch.exp(a),
        "view": lambda: a.view(4, 4),
        "add_": lambda: target.add_(b),
        "sum": lambda: a.sum(),
        "softmax": lambda: torch.softmax(a, 0),
        "matrix product": lambda: square @ square,
        "linear, with its graph": lambda: weight(row),
        "empty": lambda: torch.empty(SIDE, device=device),
    }


def best_us(work: Callable[[], Any], count: int, settle: Callable[[], None]) -> float:
    """Microseconds for one call; the best of several rounds."""
    best = float("inf")
    for _ in range(REPEATS):
        start = time.perf_counter()
        for _ in range(count):
            work()
        settle()
        best = min(best, (time.perf_counter() - start) / count * 1e6)
    return best


def measured(device: str, count: int, realise: bool) -> dict[str, dict[str, float]]:
    """Microseconds by op: here and on torch's CPU. An op another device lacks is left out."""
    import torch

    torch.set_num_threads(1)
    settle = getattr(getattr(torch, device, None), "synchronize", lambda: None)
    found = {}
    here, there = ops(torch, device), ops(torch, "cpu")
    for name, work in here.items():
        done = (lambda w=work: w().cpu()) if realise else work
        try:
            work().cpu()  # a lazy device has its inputs in place before the clock starts
            us = best_us(done, count, settle)
        except LACKS as error:
            if device == "holdfast":
                raise
            print(f"{device}: {name} left out: {type(error).__name__}: {error}", file=sys.stderr)
            continue
        found[name] = {"us": us, "cpu_us": best_us(there[name], COUNT, lambda: None)}
    return found


def own_tensors() -> dict[str, dict[str, float]]:
    """tinygrad without torch: each result realised."""
    from tinygrad import Tensor

    a, b = Tensor.randn(SIDE).realize(), Tensor.randn(SIDE).realize()
    work = {"add": lambda: (a + b).realize(), "relu": lambda: a.relu().realize()}
    return {name: {"us": best_us(one, 50, lambda: None)} for name, one in work.items()}


def main() -> None:
    """Measure and print."""
    device, *more = sys.argv[1:]
    result: dict[str, Any] = {"device": device}
    if device == "tinygrad":
        result["ops"] = own_tensors()
    elif device == "tiny":
        sys.path.insert(0, more[0])
        import extra.torch_backend.backend  # noqa: F401  (registers the device "tiny")

        result["ops"] = measured(device, LAZY_COUNT, realise=False)
        result["realised"] = measured(device, REALISED_COUNT, realise=True)
    else:
        import holdfast.torch as ours

        result["shim"] = getattr(ours, "shim_loaded", lambda: False)()
        result["ops"] = measured(device, COUNT, realise=False)
    print(json.dumps(result))


if __name__ == "__main__":
    main()

"""Attention alone: Holdfast's on JAX beside torch's on the same device, in one process.

Arrays lie as models make them: [batch, length, heads, dim], looked at as [batch, heads, length,
dim]; one subject has them the other way. Times are of one attention; waited for are, on both sides,

    median_ms    ten calls in a row, of one compiled attention here and of torch's function there
    row_ms       57 of them, as many as a step of FLUX.1 has: the wait itself counts for less then
    chained_ms   57 in one compiled program, as in a model; each takes what the ones before gave.
                 torch has them called one by one, and (`graph`) captured in a CUDA graph
    device_ms    what the kernels of the latter take by the device's own clock
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from typing import Any

import jax
import numpy as np
import torch
from torch.nn import functional

from holdfast.xla.attention import attention
from xla import kernels
from xla.flux_jax import arrived
from xla.flux_torch import relative
from xla.working import Settings, in_turns_ms

CALLS = 10
CALLS_OF_A_STEP = 57
COUNTS = {"median_ms": CALLS, "row_ms": CALLS_OF_A_STEP, "chained_ms": CALLS_OF_A_STEP}
Wait = Callable[[Any], object]
Steps = dict[str, dict[str, Callable[[], object]]]  # by kind of time and system


@dataclass(frozen=True)
class Subject:
    """One attention. `padded`: so many keys at the end are left out by a mask."""

    name: str
    length: int
    padded: int = 0
    heads_first: bool = False


SUBJECTS = (
    Subject("4608", 4608),
    Subject("4608, heads first in memory", 4608, heads_first=True),
    Subject("4592", 4592),
    Subject("5000", 5000),
    Subject("4608, 400 keys masked", 4608, padded=400),
    Subject("5000, 333 keys masked", 5000, padded=333),
)


def measure(settings: Settings) -> dict[str, Any]:
    """Times of ours by the engine that is chosen, by plain XLA, and of torch."""
    return {subject.name: _measured(subject, settings) for subject in SUBJECTS}


def _measured(subject: Subject, settings: Settings) -> dict[str, Any]:
    heads, dim = (2, 16) if settings.tiny else (24, 128)
    length = subject.length // 64 if settings.tiny else subject.length
    padded = subject.padded // 64 if settings.tiny else subject.padded
    device = torch.device(settings.device)
    generator = torch.Generator(device).manual_seed(length)
    shape = (1, heads, length, dim) if subject.heads_first else (1, length, heads, dim)
    tensors = [torch.randn(shape, generator=generator, device=device).bfloat16() for _ in range(3)]
    mask = None
    if padded:
        mask = torch.ones(1, 1, 1, length, dtype=torch.bool, device=device)
        mask[..., -padded:] = False
    views = tensors if subject.heads_first else [one.transpose(1, 2) for one in tensors]
    arrays = [arrived(one) for one in tensors]
    keep = None if mask is None else jax.numpy.arange(length)[None, None, None] < length - padded

    exact = functional.scaled_dot_product_attention(*(one.float() for one in views), attn_mask=mask)
    of_torch: Any = partial(functional.scaled_dot_product_attention, attn_mask=mask)
    steps = _steps_of_torch(of_torch, views, device)
    errors = {"torch": relative_to(exact, of_torch(*views))}
    for name, engine in (("ours", None), ("xla", "xla")):
        one = partial(_ours, mask=keep, engine=engine, heads_first=subject.heads_first)
        program, chain = jax.jit(one), jax.jit(partial(_chain, one))
        called = partial(program, *arrays)
        steps["median_ms"][name] = _repeated(called, CALLS, jax.block_until_ready)
        if name == "ours":
            steps["row_ms"][name] = _repeated(called, CALLS_OF_A_STEP, jax.block_until_ready)
            chained = partial(chain, *arrays)
            steps["chained_ms"][name] = _repeated(chained, 1, jax.block_until_ready)
        errors[name] = relative_to(exact, program(*arrays))
    return _figures(steps, errors, settings)


def _steps_of_torch(one: Callable[..., Any], views: list[Any], device: torch.device) -> Steps:
    is_cuda = device.type == "cuda"
    wait: Wait = (lambda _: torch.cuda.synchronize()) if is_cuda else (lambda _: None)
    called, chained = partial(one, *views), partial(_chain, one, *views)
    steps: Steps = {
        "median_ms": {"torch": _repeated(called, CALLS, wait)},
        "row_ms": {"torch": _repeated(called, CALLS_OF_A_STEP, wait)},
        "chained_ms": {"torch": _repeated(chained, 1, wait)},
    }
    if is_cuda:
        wait(chained())  # what is made at the first call cannot be captured
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            chained()
        steps["chained_ms"]["graph"] = _repeated(graph.replay, 1, wait)
    return steps


def _ours(q: Any, k: Any, v: Any, *, mask: Any, engine: str | None, heads_first: bool) -> Any:
    if not heads_first:
        q, k, v = (one.swapaxes(1, 2) for one in (q, k, v))
    out = attention(q, k, v, mask, engine=engine)
    return out if heads_first else out.swapaxes(1, 2)


def _chain(one: Callable[..., Any], q: Any, k: Any, v: Any) -> Any:
    for _ in range(CALLS_OF_A_STEP):
        q, k, v = one(q, k, v), q, k
    return q


def _repeated(called: Callable[[], Any], calls: int, wait: Wait) -> Callable[[], None]:
    def step() -> None:
        for _ in range(calls - 1):
            called()
        wait(called())

    return step


def relative_to(exact: torch.Tensor, got: Any) -> float:
    """The error against the answer in float32."""
    want = exact.cpu().numpy()
    if isinstance(got, torch.Tensor):
        return relative(got.float().cpu().numpy(), want)
    found = np.asarray(got.astype("float32"))
    return relative(found if found.shape == want.shape else found.swapaxes(1, 2), want)


def _figures(steps: Steps, errors: dict[str, float], settings: Settings) -> dict[str, Any]:
    """torch and ours to and fro; XLA's own attention, which is slow, by itself and less often."""
    figures: dict[str, Any] = {name: {"error": error} for name, error in errors.items()}
    rarely = replace(settings, steps=-(-settings.steps // 4), warm=1)
    for kind, named in steps.items():
        others = {name: step for name, step in named.items() if name != "xla"}
        slow = {name: step for name, step in named.items() if name == "xla"}
        for name, found in (in_turns_ms(others, settings) | in_turns_ms(slow, rarely)).items():
            figures.setdefault(name, {})[kind] = median(found) / COUNTS[kind]
    if settings.device == "cuda":
        for name, found in _device_ms(steps["chained_ms"]).items():
            figures[name]["device_ms"] = found
    return figures


def _device_ms(chained: dict[str, Callable[[], object]]) -> dict[str, float]:
    """To and fro as well. JAX's profiler sees torch's kernels too; after torch's it sees none."""
    found: dict[str, list[float]] = {name: [] for name in chained}
    for name in (*chained, *reversed(chained)):
        seen = kernels.of_jax(chained[name])
        found[name].append(sum(one["us"] for one in seen) / 1e3 / CALLS_OF_A_STEP)
    return {name: sum(times) / len(times) for name, times in found.items()}

"""Attention alone: Holdfast's on JAX beside torch's on the same device, in one process.

Arrays lie as models make them: [batch, length, heads, dim], looked at as [batch, heads, length,
dim]; one subject has them the other way. Ten are waited for at once, on both sides:

    alone      ten calls in a row, of one compiled attention here and of torch's function there
    chained    ten in one compiled program, as in a model; each takes what the ones before gave
Times are of one attention. `device_ms` is what its kernels take by the device's own clock.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
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
Wait = Callable[[Any], object]


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
    wait = _wait(device)
    alone = {"torch": _repeated(partial(of_torch, *views), wait)}
    chained = {"torch": partial(_then, partial(_chain, of_torch, *views), wait)}
    errors = {"torch": relative_to(exact, of_torch(*views))}
    for name, engine in (("ours", None), ("xla", "xla")):
        one = partial(_ours, mask=keep, engine=engine, heads_first=subject.heads_first)
        program, ten = jax.jit(one), jax.jit(partial(_chain, one))
        alone[name] = _repeated(partial(program, *arrays), jax.block_until_ready)
        chained[name] = partial(_then, partial(ten, *arrays), jax.block_until_ready)
        errors[name] = relative_to(exact, program(*arrays))
    return _figures(alone, chained, errors, settings)


def _ours(q: Any, k: Any, v: Any, *, mask: Any, engine: str | None, heads_first: bool) -> Any:
    if not heads_first:
        q, k, v = (one.swapaxes(1, 2) for one in (q, k, v))
    out = attention(q, k, v, mask, engine=engine)
    return out if heads_first else out.swapaxes(1, 2)


def _chain(one: Callable[..., Any], q: Any, k: Any, v: Any) -> Any:
    for _ in range(CALLS):
        q, k, v = one(q, k, v), q, k
    return q


def _repeated(called: Callable[[], Any], wait: Wait) -> Callable[[], None]:
    def step() -> None:
        for _ in range(CALLS - 1):
            called()
        wait(called())

    return step


def _then(called: Callable[[], Any], wait: Wait) -> None:
    wait(called())


def relative_to(exact: torch.Tensor, got: Any) -> float:
    """The error against the answer in float32."""
    want = exact.cpu().numpy()
    if isinstance(got, torch.Tensor):
        return relative(got.float().cpu().numpy(), want)
    found = np.asarray(got.astype("float32"))
    return relative(found if found.shape == want.shape else found.swapaxes(1, 2), want)


def _wait(device: torch.device) -> Wait:
    return (lambda _: torch.cuda.synchronize()) if device.type == "cuda" else (lambda _: None)


def _figures(
    alone: dict[str, Callable[[], None]],
    chained: dict[str, Callable[[], None]],
    errors: dict[str, float],
    settings: Settings,
) -> dict[str, Any]:
    """torch and ours to and fro; XLA's own attention, which is slow, by itself."""
    figures: dict[str, Any] = {name: {"error": error} for name, error in errors.items()}
    for kind, steps in (("median_ms", alone), ("chained_ms", chained)):
        others = {name: step for name, step in steps.items() if name != "xla"}
        times = in_turns_ms(others, settings) | in_turns_ms({"xla": steps["xla"]}, settings)
        for name, found in times.items():
            figures[name][kind] = median(found) / CALLS
    for name, step in chained.items() if settings.device == "cuda" else ():
        seen = kernels.of_torch(step) if name == "torch" else kernels.of_jax(step)
        figures[name]["device_ms"] = sum(one["us"] for one in seen) / 1e3 / CALLS
    return figures

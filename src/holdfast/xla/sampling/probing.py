"""From a diffusers scheduler to its table, by watching the scheduler work.

The scheduler and torch's generators are left as they were. No class is known by name. The table is
compared with the scheduler itself on random elements, and a scheduler that no table can represent
is refused.

How: what a scheduler remembers between two steps are tensors of the latents' shape somewhere among
its attributes. Before each step they are overwritten with unit vectors, as are the latents and the
model's output; the step then writes its own coefficients into what it returns and remembers. This
needs one pass, and no bound on how far back a scheduler looks: UniPC's corrector, which feeds on
itself, is as exact as Euler's step.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from holdfast.base.errors import BadInput, Unsupported
from holdfast.xla.sampling.table import Table

_REMEMBERED = 30  # tensors at most; a scheduler that keeps every output is none for a loop
_WIDTH = _REMEMBERED + 2  # unit vectors: latents, what is remembered, output
_TOLERANCE = 1e-5
_SIZES = (1.0, 1e3)  # of the random elements: a clip shows in large ones, an offset in small ones
_DEPTH = 3  # a scheduler's lists, and a scheduler inside a scheduler with its lists
_NONLINEAR = ("thresholding", "clip_sample", "clip_denoised")
_NOT_LINEAR, _NOT_FINITE = "is not linear", "gives values that are not finite"
_THEIRS = (  # what a scheduler may raise on inputs it was not made for
    *(ArithmeticError, AssertionError, AttributeError, ImportError, LookupError),
    *(RuntimeError, TypeError, ValueError),
)
_LOG = logging.getLogger(__name__)


def table_of(scheduler: Any, steps: int | None, **set_timesteps_options: Any) -> Table:
    """The table of a scheduler for a number of steps.

    Options go to `set_timesteps` (`sigmas`, `timesteps`, `mu`); where they fix the number already,
    `steps` is None. Raises BadInput for options that the scheduler refuses, Unsupported for one
    whose steps draw noise, clip, or otherwise are not linear.
    """
    with (
        torch.inference_mode(False),
        torch.no_grad(),
        torch.random.fork_rng(devices=[]),
        torch.device("cpu"),
    ):
        ready = _prepare(scheduler, steps, set_timesteps_options)
        runs = [_random_run(ready, size, seed) for seed, size in enumerate(_SIZES)]
        _refuse_noise(ready, runs[0], _random_run(ready, _SIZES[0], len(_SIZES)))
        table = _table(ready, _probe(ready))
        for run in runs:
            _compare(ready, table, run)
    _LOG.debug("%s: %d calls, %d remembered", table.scheduler, len(table), table.history_size)
    return table


def _prepare(scheduler: Any, steps: int | None, options: dict[str, Any]) -> Any:
    ready = copy.deepcopy(scheduler)
    count = () if steps is None else (steps,)
    if steps is not None and steps < 1:
        raise BadInput(f"{steps} steps were asked for", expected="1 or more")
    try:
        ready.set_timesteps(*count, **options)
    except _THEIRS as exc:
        given = ", ".join([*map(str, count), *(f"{name}=..." for name in options)])
        raise BadInput(
            f"{_name(scheduler)}.set_timesteps({given}) failed: {type(exc).__name__}: {exc}",
            expected="options that this scheduler takes together",
        ) from exc
    if hasattr(ready, "set_begin_index"):
        ready.set_begin_index(0)
    return ready


_Call = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def _refuse_noise(ready: Any, first: list[_Call], second: list[_Call]) -> None:
    """Raise Unsupported if two runs on the same inputs differ: the scheduler drew noise."""
    for i, (one, other) in enumerate(zip(first, second, strict=True)):
        if not torch.isfinite(one[-1]).all():
            raise _unsupported(ready, f"call {i} {_NOT_FINITE}")
        if not torch.equal(one[-1], other[-1]):
            raise _unsupported(ready, f"call {i} adds noise of its own")


def _random_run(ready: Any, size: float, seed: int) -> list[_Call]:
    """A real run: latents, model output, scaled latents and result of each call, in float64.

    Latents and outputs are random, the same each time; the seed is for what the scheduler draws.
    """
    scheduler = copy.deepcopy(ready)
    numbers = torch.Generator().manual_seed(0)
    torch.manual_seed(seed)
    run: list[_Call] = []
    sample = _random(numbers, size)
    for i in range(len(scheduler.timesteps)):
        output = _random(numbers, size)
        scaled, result = _call(scheduler, i, sample.clone(), output.clone())
        run.append((sample, output, scaled.double(), result.double()))
        sample = run[-1][-1]
    return run


def _random(numbers: torch.Generator, size: float) -> torch.Tensor:
    return torch.randn(1, 4, 3, 3, generator=numbers, dtype=torch.float64) * size


def _call(
    scheduler: Any, i: int, sample: torch.Tensor, output: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """What the model would be given, and the latents after the step."""
    timestep = scheduler.timesteps[i]
    try:
        scaled = sample
        if hasattr(scheduler, "scale_model_input"):
            scaled = scheduler.scale_model_input(sample, timestep)
        result = scheduler.step(output, timestep, sample, return_dict=False)[0]
        return scaled.clone(), result.clone()  # as they are now: a scheduler may reuse them
    except _THEIRS as exc:
        raise _unsupported(scheduler, f"call {i} failed: {type(exc).__name__}: {exc}") from exc


class _Step(NamedTuple):
    """Coefficients of one call over [latents, remembered..., output]."""

    scale: np.ndarray
    latents: np.ndarray
    remembered: list[np.ndarray]


def _probe(ready: Any) -> list[_Step]:
    """One entry for each call of a scheduler whose memory holds unit vectors."""
    scheduler = copy.deepcopy(ready)
    steps: list[_Step] = []
    for i in range(len(scheduler.timesteps)):
        scaled, result = _call(scheduler, i, _unit(0), _unit(_WIDTH - 1))
        steps.append(_Step(_to_numpy(scaled), _to_numpy(result), _overwrite_memory(scheduler, i)))
    return steps


def _overwrite_memory(scheduler: Any, i: int) -> list[np.ndarray]:
    """Tensors that hold the same share a vector; one that holds nothing gets none."""
    held = [(tensor, _to_numpy(tensor)) for tensor in _tensors(scheduler, _DEPTH)]
    rows: list[np.ndarray] = []
    for tensor, row in held:
        place = next((p for p, known in enumerate(rows) if np.array_equal(known, row)), None)
        if place is None and row.any():
            place = len(rows)
            rows.append(row)
        if place is not None and place < _REMEMBERED:
            tensor.copy_(_unit(1 + place))
    if len(rows) > _REMEMBERED:
        raise _unsupported(scheduler, f"after call {i} it remembers {len(rows)} tensors")
    return rows


def _unit(place: int) -> torch.Tensor:
    vector = torch.zeros(1, _WIDTH, 1, 1, dtype=torch.float64)
    vector[0, place] = 1
    return vector


def _to_numpy(tensor: torch.Tensor) -> np.ndarray:
    return tensor.double().flatten().numpy().copy()


def _tensors(holder: Any, depth: int) -> Iterator[torch.Tensor]:
    """Every tensor shaped like the unit vectors, in attributes, lists and dictionaries."""
    if isinstance(holder, torch.Tensor):
        if holder.shape == (1, _WIDTH, 1, 1):
            yield holder
        return
    if depth < 0 or isinstance(holder, str | bytes | np.ndarray):
        return
    if isinstance(holder, dict):
        inside: Sequence[Any] = list(holder.values())
    elif isinstance(holder, list | tuple):
        inside = holder
    else:
        inside = list(getattr(holder, "__dict__", {}).values())
    for one in inside:
        yield from _tensors(one, depth - 1)


def _table(ready: Any, steps: list[_Step]) -> Table:
    for i, step in enumerate(steps):
        if step.scale[1:].any():
            raise _unsupported(ready, f"call {i} scales its input by more than a factor")
    matrices = _matrices(steps)
    bad = np.flatnonzero(~np.isfinite(matrices).all(axis=(1, 2)))
    if bad.size:
        raise _unsupported(ready, f"call {bad[0]} {_NOT_FINITE}")
    return Table(
        scheduler=_name(ready),
        timesteps=np.asarray([float(t) for t in ready.timesteps], np.float32),
        scale=np.asarray([step.scale[0] for step in steps]),
        matrices=matrices,
        init_noise_sigma=float(getattr(ready, "init_noise_sigma", 1.0)),
    )


def _matrices(steps: list[_Step]) -> np.ndarray:
    """Drop memory that is never read again and pack the rest."""
    needed = _find_needed(steps)
    size = max(len(places) for places in needed)
    found = np.zeros((len(steps), 1 + size, size + 2))
    for i, step in enumerate(steps):
        before, after = needed[i], needed[i + 1]
        columns = [0, *(1 + place for place in before), _WIDTH - 1]
        targets = [*range(1 + len(before)), size + 1]
        rows = [step.latents, *(step.remembered[place] for place in after)]
        for to, row in enumerate(rows):
            found[i, to, targets] = row[columns]
    return found


def _find_needed(steps: list[_Step]) -> list[list[int]]:
    """For each call, and after the last, the indices of memory that later latents depend on."""
    needed: list[list[int]] = [[]]
    for step in reversed(steps):
        rows = [step.latents, *(step.remembered[place] for place in needed[0])]
        used = np.any([row != 0 for row in rows], axis=0)[1:-1]
        needed.insert(0, np.flatnonzero(used).tolist())
    return needed


def _compare(ready: Any, table: Table, run: list[_Call]) -> None:
    """Linear, and nothing left out: the table says what the scheduler did."""
    state = np.zeros((1 + table.history_size, run[0][0].numel()))
    for i, (matrix, call) in enumerate(zip(table.matrices, run, strict=True)):
        sample, output, scaled, result = map(_to_numpy, call)
        state = matrix @ np.stack([sample, *state[1:], output])
        for found, real in ((state[0], result), (table.scale[i] * sample, scaled)):
            # A NaN is not near.
            if not np.abs(found - real).max() <= _TOLERANCE * max(np.abs(real).max(), 1e-30):
                raise _unsupported(ready, f"call {i} {_NOT_LINEAR}")


def _name(scheduler: Any) -> str:
    return type(scheduler).__name__


def _unsupported(scheduler: Any, found: str) -> Unsupported:
    return Unsupported(
        f"{_name(scheduler)} cannot be put inside a compiled loop: {found}",
        expected="steps that are linear in the latents and the model's outputs, without noise",
        hint=_hint(getattr(scheduler, "config", {}), found),
    )


def _hint(config: Mapping[str, Any], found: str) -> str:
    switches = [f"{name}=False" for name in _NONLINEAR if config.get(name)]
    if found.endswith(_NOT_LINEAR) and switches:
        return f"the same scheduler with {' and '.join(switches)}"
    if found.endswith(_NOT_FINITE) and config.get("final_sigmas_type") == "zero":
        return "the same scheduler with final_sigmas_type='sigma_min'"
    return "EulerDiscreteScheduler, DPMSolverMultistepScheduler or UniPCMultistepScheduler"

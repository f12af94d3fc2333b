"""The answer of `fit`: `to_dict` for JSON, `str` for people. Unknown values are None."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from holdfast.base.units import format_bytes


@dataclass(frozen=True, slots=True)
class BudgetChange:
    """The step time with another budget; None if the model would not fit."""

    budget_bytes: int
    step_ms: float | None


@dataclass(frozen=True, slots=True)
class PrecisionChoice:
    """A precision: whether it fits, about how long a step takes, whether images lose quality."""

    precision: str
    fits: bool
    step_ms: float | None
    loses_quality: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Whether a network runs under a budget, how fast, and what would help.

    Bytes are device memory, except `weight_bytes` (all weights), `streamed_bytes` (copied to the
    device in each step) and `link_bytes` (the same as packed bytes). `floor_ms` is compute or link
    time, whichever is longer; `resident_ms` is a step with all weights on the device. `way` is the
    source of the times: "measured", "estimated", "simulated", or "headers" if only the sizes of
    the weights are known.
    """

    model: str
    network: str | None = None
    device: str
    budget_bytes: int
    size: str | None = None
    precision: str | None = None
    fits: bool
    smallest_bytes: int | None = None
    weight_bytes: int
    kept_bytes: int | None = None
    streamed_bytes: int | None = None
    link_bytes: int | None = None
    ring_bytes: int | None = None
    activation_bytes: int | None = None
    reserve_bytes: int
    peak_bytes: int | None = None
    step_ms: float | None = None
    floor_ms: float | None = None
    resident_ms: float | None = None
    packed: bool
    way: str
    more: BudgetChange | None = None
    less: BudgetChange | None = None
    choices: tuple[PrecisionChoice, ...] = ()
    best_precision: str | None = None
    why: str | None = None
    assumptions: tuple[str, ...] = ()
    parts: tuple[Fit, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """All fields, for JSON."""
        return dataclasses.asdict(self)

    def __str__(self) -> str:
        parts = [f"{self.model} on {self.device}", f"budget {format_bytes(self.budget_bytes)}"]
        title = ", ".join([*parts, *filter(None, (self.size, self.precision))])
        lines = [title, _verdict(self), *_times(self), *_memory(self), *_changes(self)]
        if self.why is not None:
            lines.append(f"precision {self.why}")
        lines += _table(self.parts)
        lines += [f"assumed   {text}" for text in self.assumptions]
        return "\n".join(lines)


def format_duration(milliseconds: float) -> str:
    """Milliseconds with three significant digits: "0.246 s", "1.2 ms"."""
    if milliseconds < 99.95:
        return f"{milliseconds:.3g} ms"
    seconds = milliseconds / 1000
    return f"{seconds:.3g} s" if milliseconds >= 9995 else f"{seconds:.3f} s"


def _verdict(fit: Fit) -> str:
    whole = format_bytes(fit.weight_bytes)
    if not fit.fits:
        least = fit.smallest_bytes
        text = "does not fit" + ("" if least is None else f": {format_bytes(least)} is the least")
        failing = [part.network or part.model for part in fit.parts if not part.fits]
        return text + (f" for {', '.join(failing)}" if failing else "")
    if fit.streamed_bytes is None:
        return f"fits, judged by {whole} of weights alone"
    if fit.streamed_bytes == 0:
        return f"fits: all {whole} of weights stay"
    text = f"fits: streams {format_bytes(fit.streamed_bytes)} of {whole} per step"
    if fit.packed and fit.link_bytes is not None:
        text += f" (packed to {format_bytes(fit.link_bytes)})"
    return text


def _times(fit: Fit) -> list[str]:
    if fit.step_ms is None or fit.floor_ms is None or fit.resident_ms is None:
        if fit.floor_ms is None:
            return []
        return [f"step      {format_duration(fit.floor_ms)} at least, for the link alone"]
    return [
        f"step      {format_duration(fit.step_ms)}  (floor {format_duration(fit.floor_ms)}, "
        f"all in memory {format_duration(fit.resident_ms)}; {fit.way})"
    ]


def _memory(fit: Fit) -> list[str]:
    if fit.peak_bytes is None or fit.kept_bytes is None:
        return []
    weights = fit.kept_bytes + (fit.ring_bytes or 0)
    return [
        f"peak      {format_bytes(fit.peak_bytes)}  (weights {format_bytes(weights)}, activations "
        f"{format_bytes(fit.activation_bytes or 0)}, reserve {format_bytes(fit.reserve_bytes)})"
    ]


def _changes(fit: Fit) -> list[str]:
    lines: list[str] = []
    for change in (fit.more, fit.less):
        if change is None or fit.step_ms is None:
            continue
        size = format_bytes(change.budget_bytes)
        if change.step_ms is None:
            lines.append(f"{size:<9} does not fit")
        else:
            percent = (change.step_ms / fit.step_ms - 1) * 100
            sign = f"{percent:+.0f} %" if abs(percent) >= 0.5 else "the same"
            lines.append(f"{size:<9} {format_duration(change.step_ms)}  ({sign})")
    return lines


def _table(parts: tuple[Fit, ...]) -> list[str]:
    if not parts:
        return []
    rows: list[tuple[str, ...]] = [("network", "weights", "streams", "peak", "pass", "")]
    for part in parts:
        sizes = (part.weight_bytes, part.streamed_bytes, part.peak_bytes)
        texts = ("?" if size is None else format_bytes(size) for size in sizes)
        step = "?" if part.step_ms is None else format_duration(part.step_ms)
        verdict = "" if part.fits else "does not fit"
        rows.append((part.network or part.model, *texts, step, verdict))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]

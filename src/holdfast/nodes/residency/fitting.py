"""The node Will It Fit: yes or no, how long, and the best setting, before anything is loaded.

The model is passed on unchanged. GiB are 2**30 bytes, as in Stream Model; unknown times are NaN.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from holdfast.base.errors import BadInput
from holdfast.nodes.host import fitting as host
from holdfast.nodes.host import running
from holdfast.nodes.node import Node, declare, integer, link, number
from holdfast.nodes.refusing import check_linked, format_value

if TYPE_CHECKING:
    from holdfast.nodes.residency.choices import Answer, Choice

CATEGORY = "Holdfast"
GIB = 1 << 30
MOST_GB = 4096.0
MOST_STEPS = 10_000
MOST_CFG = 100.0

_WAYS = {
    "measured": "its layers were timed on this device",
    "estimated": "estimated from the device's speed: there was no room to time its layers, or it "
    "would have taken too long",
    "simulated": "by the clock of a made-up device",
}


class HoldfastWillItFit(Node):
    """Tells before sampling whether a model fits, how long it takes, and the best setting."""

    CATEGORY = CATEGORY
    RETURN_TYPES = ("MODEL", "BOOLEAN", "FLOAT", "BOOLEAN", "FLOAT", "STRING")
    RETURN_NAMES = ("model", "fits", "seconds", "stream", "budget_gb", "report")
    FUNCTION = "look"
    OUTPUT_NODE = True
    INPUTS = declare(
        {
            "model": link("MODEL"),
            "latent_image": link("LATENT"),
            "steps": integer(20, 1, MOST_STEPS),
            "cfg": number(8.0, 0.0, MOST_CFG, 0.1, round=0.01),
            "budget_gb": number(0.0, 0.0, MOST_GB, 0.5, round=0.01),
        },
        {"positive": link("CONDITIONING"), "vae": link("VAE")},
    )

    @classmethod
    def VALIDATE_INPUTS(
        cls,
        cfg: object = None,
        budget_gb: object = None,
        model: object = None,
        latent_image: object = None,
        positive: object = None,
        vae: object = None,
    ) -> bool | str:
        """A value of a workflow file is no model; numbers are numbers, which NaN is not."""
        try:
            for name, value, most in (("cfg", cfg, MOST_CFG), ("budget_gb", budget_gb, MOST_GB)):
                if value is not None:  # None: linked
                    _check(name, value, 0.0, most)
        except BadInput as exc:
            return str(exc)
        sockets = {"model": model, "latent_image": latent_image, "positive": positive, "vae": vae}
        return check_linked(cls, **sockets)

    @classmethod
    def IS_CHANGED(cls, budget_gb: float = 0.0, **_: Any) -> str | float:
        """Another answer is due when what is free is another; with a budget nothing else counts."""
        if budget_gb:
            return ""
        found = host.fingerprint()
        return math.nan if found is None else found

    def look(
        self,
        model: Any,
        latent_image: Any,
        steps: int = 20,
        cfg: float = 8.0,
        budget_gb: float = 0.0,
        positive: Any = None,
        vae: Any = None,
    ) -> dict[str, Any]:
        """Outputs as named above, and the report for the node's face. Raises BadInput."""
        _check("steps", steps, 1, MOST_STEPS, whole=True)
        _check("cfg", cfg, 0.0, MOST_CFG)
        _check("budget_gb", budget_gb, 0.0, MOST_GB)
        question = host.question(model, latent_image, positive, vae)
        from holdfast.nodes.residency.choices import answer  # needs torch

        budget = int(budget_gb * GIB) or None
        found = answer(
            question, steps=steps, cfg=cfg, budget_bytes=budget, progress=running.progress()
        )
        text = report(question, found)
        running.text(text)
        best = found.best is not None
        values = (model, best, found.seconds, found.stream, found.budget_gb, text)
        return {"ui": {"text": [text]}, "result": values}


def _check(name: str, value: object, least: float, most: float, whole: bool = False) -> None:
    number = value if isinstance(value, int) or (isinstance(value, float) and not whole) else None
    if number is None or isinstance(value, bool) or not least <= number <= most:
        raise BadInput(
            f"cannot use {name}={format_value(value)}",
            expected=f"{'an integer' if whole else 'a number'} from {least:g} to {most:g}",
        )


# ---- the report


def report(question: host.Question, found: Answer) -> str:
    """The report: yes or no in the first line, the best setting in the last."""
    lines = [_verdict(question, found), *_memory(question, found), *_time(found)]
    lines += _decoding(question, found)
    lines += _table(found)
    lines.append(f"best: {_advice(question, found)}")
    lines += [f"assumed: {text}" for text in question.assumptions]
    return "\n".join(lines)


def _verdict(question: host.Question, found: Answer) -> str:
    what = f"{question.name} on {found.device}"
    have = format_gib(found.have_bytes)
    if found.best is None:
        host_memory = found.device.startswith("cpu")  # nothing to stream from
        return f"NO: {what} does not fit into {have}{'' if host_memory else ', not even streamed'}"
    if found.best.stream and found.best.weights_bytes >= question.weight_bytes:
        return f"YES, with Stream Model: {what} fits whole into {have}; ComfyUI would not risk it"
    if found.best.stream:
        return f"YES, with Stream Model: {what} does not fit whole into {have}"
    if found.best.least:
        return f"YES, with ComfyUI's lowvram: {what} does not fit whole into {have}"
    return f"YES: {what} fits whole into {have}"


def _memory(question: host.Question, found: Answer) -> list[str]:
    look, weights = found.look, question.weight_bytes
    followed = look.problem is not None
    how = "by following it" if followed else "by ComfyUI's estimate"
    estimate = question.needs_bytes[look.directions - 1]
    own = f"; ComfyUI's estimate is {format_gib(estimate)}" if followed else ""
    whole = weights + look.beside_bytes
    lines = [
        f"memory: {format_gib(whole)} whole = weights {format_gib(weights)} + "
        f"computing {format_gib(look.beside_bytes)} ({how}{own})"
    ]
    if found.best is not None and found.best.peak_bytes != whole:
        lines.append(f"peak: {format_gib(found.best.peak_bytes)} with the best setting")
    return lines


def _time(found: Answer) -> list[str]:
    best = found.best
    if found.look.problem is None:
        return [
            f"time: not predicted: {found.look.why}",
            "  times below are what the link alone takes, a bound and no prediction",
        ]
    if best is None or best.step_ms is None:
        return []
    if best.least:
        return [f"time: {format_duration(best.step_ms)} a step at least"]
    calls = _calls(found, best)
    total = format_duration(best.step_ms * found.steps)
    return [
        f"time: {format_duration(best.step_ms)} a step, {total} for {found.steps} "
        f"{'step' if found.steps == 1 else 'steps'} ({calls}; {_WAYS[best.look.way]})"
    ]


def _calls(found: Answer, choice: Choice) -> str:
    if not found.guided:
        return "guidance 1: one direction"
    if choice.look.directions == 2:
        return "both directions of guidance at once"
    return "one direction of guidance after the other"


def _decoding(question: host.Question, found: Answer) -> list[str]:
    if question.decode_bytes is None:
        return []
    fits = question.decode_bytes <= found.have_bytes
    then = "fits" if fits else "does not fit; ComfyUI decodes in tiles then"
    return [f"decoding: {format_gib(question.decode_bytes)} by ComfyUI's estimate: {then}"]


def _table(found: Answer) -> list[str]:
    if not found.choices:
        return []
    rows = [("choice", "weights there", "peak", "a step", f"{found.steps} steps")]
    for one in found.choices:
        spent = [
            "?" if one.step_ms is None else format_duration(one.step_ms * n)
            for n in (1, found.steps)
        ]
        least = ">= " if one.least and one.step_ms is not None else ""
        sizes = (format_gib(one.weights_bytes), format_gib(one.peak_bytes))
        rows.append((one.name, *sizes, least + spent[0], least + spent[1]))
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return [
        "  " + "  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def _advice(question: host.Question, found: Answer) -> str:
    if found.best is None:
        least = found.smallest_bytes
        more = "" if least is None else f" or {format_gib(least)} of memory"
        return f"a smaller latent, fewer at once{more}"
    if found.best.stream:
        return f"Stream Model with budget_gb {found.budget_gb:.{_digits(found.budget_gb)}f}"
    if found.best.least:
        return "as it is; ComfyUI loads what fits"
    return "as it is; Stream Model is not needed"


def _digits(value: float) -> int:
    """Decimals, so that a small budget is not shown as 0."""
    return 2 if value >= 0.1 else 6


def format_gib(count: int) -> str:
    """Format bytes in GiB, below a tenth in MiB."""
    if count >= GIB // 10:
        return f"{count / GIB:.2f} GiB"
    return f"{count / (1 << 20):.1f} MiB"


def format_duration(milliseconds: float) -> str:
    """Format a time with three significant digits; from two minutes on in minutes."""
    if milliseconds >= 120_000:
        minutes, rest = divmod(round(milliseconds / 1000), 60)
        return f"{minutes} min {rest} s"
    if milliseconds >= 99.95:
        return f"{milliseconds / 1000:.3g} s"
    return f"{milliseconds:.3g} ms"

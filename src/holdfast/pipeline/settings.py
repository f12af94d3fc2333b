"""What to draw: the settings of one run, settled against what the model can do.

Covers: defaults, ranges, multiples, numbers that came as text.
Leaves to others: how it is drawn (families), where (devices).
Promise: `settle` does no work beyond looking at its arguments; every refusal says what would do.
"""

from __future__ import annotations

import dataclasses
import math
import numbers
import secrets
from dataclasses import dataclass
from typing import Any

from holdfast.base.errors import BadInput

LARGEST_SIDE = 8192
LARGEST_SEED = 2**63 - 1
MOST_STEPS = 1000
LONGEST_PROMPT = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """One picture or video, with nothing left open."""

    prompt: str
    negative: str | None
    height: int
    width: int
    steps: int
    seed: int
    guidance: float
    num_frames: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a model draws when it is not told, and what it cannot draw at all.

    `frame_step` is None for pictures; a video has 1 + k * `frame_step` frames.
    """

    height: int
    width: int
    multiple_of: int
    steps: int
    guidance: float
    num_frames: int = 1
    frame_step: int | None = None
    takes_negative: bool = True

    def replaced(self, defaults: dict[str, Any]) -> Limits:
        """The same with the defaults that a model's folder names."""
        known = {"height", "width", "steps", "guidance", "num_frames"}
        return dataclasses.replace(self, **{k: v for k, v in defaults.items() if k in known})


def refuse_nonsense(*, steps: object, seed: object, guidance: object) -> None:
    """Raises BadInput for what no model can draw; to be asked before one is looked at."""
    for name, value, most in (("steps", steps, MOST_STEPS), ("seed", seed, LARGEST_SEED)):
        if value is not None:
            _whole(name, value, 1 if name == "steps" else 0, most)
    if guidance is not None:
        _guidance(guidance)


def settle(
    limits: Limits,
    prompt: object,
    *,
    negative: object = None,
    height: object = None,
    width: object = None,
    steps: object = None,
    seed: object = None,
    guidance: object = None,
    num_frames: object = None,
) -> Settings:
    """The settings to run with; None takes the model's default, and a random seed.

    Raises BadInput that names the setting and what it may be.
    """
    settings = Settings(
        prompt=_text("prompt", prompt),
        negative=None if negative is None else _text("negative", negative),
        height=_side("height", limits.height if height is None else height, limits),
        width=_side("width", limits.width if width is None else width, limits),
        steps=_whole("steps", limits.steps if steps is None else steps, 1, MOST_STEPS),
        seed=_whole("seed", secrets.randbits(32) if seed is None else seed, 0, LARGEST_SEED),
        guidance=_guidance(limits.guidance if guidance is None else guidance),
        num_frames=_frames(limits.num_frames if num_frames is None else num_frames, limits),
    )
    _check_negative(settings, limits)
    return settings


def _check_negative(settings: Settings, limits: Limits) -> None:
    """A negative prompt that would do nothing is refused, not ignored."""
    if settings.negative is not None and not limits.takes_negative:
        raise BadInput(
            "cannot use a negative prompt: this model has its guidance built in",
            expected="no negative prompt",
            hint="say what you want in the prompt",
        )
    if settings.negative is not None and settings.guidance <= 1:
        raise BadInput(
            f"cannot use a negative prompt with guidance={settings.guidance:g}: there is nothing "
            "to guide away from it",
            expected="a guidance above 1",
            hint="guidance 3",
        )


def _text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise BadInput(f"cannot use {name}={value!r}", expected="text")
    if len(value) > LONGEST_PROMPT:
        raise BadInput(
            f"cannot use a {name} of {len(value)} characters",
            expected=f"at most {LONGEST_PROMPT} characters",
        )
    try:
        value.encode()
    except UnicodeEncodeError as exc:
        raise BadInput(
            f"cannot use a {name} with half a character at position {exc.start}",
            expected="text in UTF-8",
        ) from exc
    return value


def _whole(name: str, value: object, least: int, most: int) -> int:
    number = _number(value)
    if number is None or number != int(number) or not least <= number <= most:
        raise BadInput(
            f"cannot use {name}={value!r}", expected=f"a whole number from {least} to {most}"
        )
    return int(number)


def _number(value: object) -> float | int | None:
    """`value` as a finite number; whole ones keep every digit."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real | str):
        return None
    if isinstance(value, numbers.Integral):
        return int(value)
    try:
        return int(value) if isinstance(value, str) else _finite(float(value))
    except ValueError:
        pass
    try:
        return _finite(float(value))
    except ValueError:
        return None


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _side(name: str, value: object, limits: Limits) -> int:
    step = limits.multiple_of
    number = _number(value)
    if number is not None and number == int(number):
        number = int(number)
        if step <= number <= LARGEST_SIDE and number % step == 0:
            return number
    raise BadInput(
        f"cannot draw {name}={value!r}",
        expected=f"a multiple of {step} from {step} to {LARGEST_SIDE // step * step}",
        hint=_nearest(name, number, step),
    )


def _nearest(name: str, number: float | None, step: int) -> str | None:
    if number is None or not 0 < number <= LARGEST_SIDE:
        return None
    nearest = max(step, round(number / step) * step)
    return f"{name} {nearest}"


def _guidance(value: object) -> float:
    number = _number(value)
    if number is None or not 0 <= number <= 100:
        raise BadInput(f"cannot use guidance={value!r}", expected="a number from 0 to 100")
    return float(number)


def _frames(value: object, limits: Limits) -> int:
    step = limits.frame_step
    if step is None:
        if _number(value) == 1:
            return 1
        raise BadInput(
            f"cannot draw num_frames={value!r}: this model draws single pictures",
            expected="1, or nothing",
            hint="a video model such as tiny-wan",
        )
    frames = _whole("num_frames", value, 1, 10_000)
    if (frames - 1) % step:
        below = (frames - 1) // step * step + 1
        raise BadInput(
            f"cannot draw num_frames={frames}",
            expected=f"1 more than a multiple of {step}",
            hint=f"num_frames {below} or {below + step}",
        )
    return frames

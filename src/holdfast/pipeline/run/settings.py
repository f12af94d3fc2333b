"""What to draw: the settings of one run, checked against the limits of the model."""

from __future__ import annotations

import contextlib
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
    """One picture or video, with all defaults filled in."""

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
    """The defaults of a model, and the sizes and frame counts it accepts.

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

    def with_defaults(self, defaults: dict[str, Any]) -> Limits:
        """A copy with the defaults of a model's holdfast.json."""
        known = {"height", "width", "steps", "guidance", "num_frames"}
        return dataclasses.replace(self, **{k: v for k, v in defaults.items() if k in known})


def check_ranges(*, steps: object, seed: object, guidance: object) -> None:
    """Raise BadInput for values that no model accepts, before one is loaded."""
    for name, value, most in (("steps", steps, MOST_STEPS), ("seed", seed, LARGEST_SEED)):
        if value is not None:
            _integer(name, value, 1 if name == "steps" else 0, most)
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
    """Fill in defaults and check; None takes the model's default, and a random seed.

    Raises BadInput that names the setting and what it may be.
    """
    settings = Settings(
        prompt=_text("prompt", prompt),
        negative=None if negative is None else _text("negative", negative),
        height=_side("height", limits.height if height is None else height, limits),
        width=_side("width", limits.width if width is None else width, limits),
        steps=_integer("steps", limits.steps if steps is None else steps, 1, MOST_STEPS),
        seed=_integer("seed", secrets.randbits(32) if seed is None else seed, 0, LARGEST_SEED),
        guidance=_guidance(limits.guidance if guidance is None else guidance),
        num_frames=_frames(limits.num_frames if num_frames is None else num_frames, limits),
    )
    _check_negative(settings, limits)
    return settings


def _check_negative(settings: Settings, limits: Limits) -> None:
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


def _integer(name: str, value: object, least: int, most: int) -> int:
    number = _number(value)
    if number is None or number != int(number) or not least <= number <= most:
        raise BadInput(
            f"cannot use {name}={value!r}", expected=f"an integer from {least} to {most}"
        )
    return int(number)


def _number(value: object) -> float | int | None:
    """`value` as a finite number; integers keep every digit."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real | str):
        return None
    if isinstance(value, numbers.Integral | str):
        with contextlib.suppress(ValueError):
            return int(value)
    try:
        number = float(value)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _side(name: str, value: object, limits: Limits) -> int:
    step = limits.multiple_of
    number = _number(value)
    if number is not None and step <= number <= LARGEST_SIDE and number % step == 0:
        return int(number)
    hint = None
    if number is not None and 0 < number <= LARGEST_SIDE:
        hint = f"{name} {max(step, round(number / step) * step)}"
    raise BadInput(
        f"cannot draw {name}={value!r}",
        expected=f"a multiple of {step} from {step} to {LARGEST_SIDE // step * step}",
        hint=hint,
    )


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
    frames = _integer("num_frames", value, 1, 10_000)
    if (frames - 1) % step:
        below = (frames - 1) // step * step + 1
        raise BadInput(
            f"cannot draw num_frames={frames}",
            expected=f"1 more than a multiple of {step}",
            hint=f"num_frames {below} or {below + step}",
        )
    return frames

"""What a run gives back: the frames, the settings that made them, and what it cost."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy
    from PIL.Image import Image


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Time and memory of one run. `peak_bytes` has an entry for each place that did work."""

    text_ms: float
    step_ms: tuple[float, ...]
    decode_ms: float
    peak_bytes: dict[str, int]

    @property
    def total_ms(self) -> float:
        """Everything but loading."""
        return self.text_ms + sum(self.step_ms) + self.decode_ms

    @property
    def mean_step_ms(self) -> float:
        """Mean over all steps but the first, which pays for warming up."""
        steps = self.step_ms[1:] or self.step_ms
        return sum(steps) / len(steps)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        values = dataclasses.asdict(self) | {
            "mean_step_ms": self.mean_step_ms,
            "total_ms": self.total_ms,
        }
        values["step_ms"] = [round(value, 3) for value in self.step_ms]
        return {k: round(v, 3) if isinstance(v, float) else v for k, v in values.items()}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Result:
    """`frames` is uint8 [frame, height, width, colour]; `settings` can draw the same again.

    `notes` tell what a person should know about it, such as a prompt that was too long.
    """

    frames: numpy.ndarray = field(repr=False)
    settings: dict[str, Any]
    cost: Cost
    notes: tuple[str, ...] = ()

    @property
    def image(self) -> Image:
        """The picture, or the first frame of a video."""
        from PIL import Image

        return Image.fromarray(self.frames[0])

    def save(self, path: str | Path, fps: int = 8) -> Path:
        """Write a picture or video with the settings inside, whole or not at all."""
        from holdfast.pipeline import media

        target = Path(path).expanduser()
        media.check_target(target, len(self.frames))
        media.save(target, self.frames, self.settings, fps)
        return target

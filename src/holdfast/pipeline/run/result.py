"""What a run returns: the frames, the settings that made them, and what it cost."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy
    from PIL.Image import Image


@dataclass(frozen=True, slots=True, kw_only=True)
class Residence:
    """Where the weights of one network under a budget were, at the end of its stage.

    `streamed_bytes` are needed on the device in every pass and cross the link as `link_bytes`,
    which is less where they are packed. `predicted_ms` is for a pass, or a step of the denoiser;
    `took_ms` is such a step by the device's clock. None is unknown before the first pass ends.
    """

    network: str
    stage: str
    device: str
    weight_bytes: int
    kept_bytes: int | None
    streamed_bytes: int | None
    link_bytes: int | None
    predicted_ms: float | None
    took_ms: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Time and memory of one run: `peak_bytes` by device, `residences` by network (budget only)."""

    text_ms: float
    step_ms: tuple[float, ...]
    decode_ms: float
    peak_bytes: dict[str, int]
    residences: tuple[Residence, ...] = ()

    @property
    def total_ms(self) -> float:
        """Time of the run without loading."""
        return self.text_ms + sum(self.step_ms) + self.decode_ms

    @property
    def mean_step_ms(self) -> float:
        """Mean over all steps but the first, which includes warm-up."""
        steps = self.step_ms[1:] or self.step_ms
        return sum(steps) / len(steps)

    def to_dict(self) -> dict[str, Any]:
        values = dataclasses.asdict(self) | {
            "mean_step_ms": self.mean_step_ms,
            "total_ms": self.total_ms,
        }
        values["step_ms"] = [round(value, 3) for value in self.step_ms]
        values["residences"] = [_round_floats(dataclasses.asdict(one)) for one in self.residences]
        return _round_floats(values)


def _round_floats(values: dict[str, Any]) -> dict[str, Any]:
    return {k: round(v, 3) if isinstance(v, float) else v for k, v in values.items()}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Result:
    """`frames` is uint8 [frame, height, width, colour]; `settings` can draw the same again.

    `notes` are for the user, such as a prompt that was too long.
    """

    frames: numpy.ndarray = field(repr=False)
    settings: dict[str, Any]
    cost: Cost
    notes: tuple[str, ...] = ()
    run_id: str | None = None  # its id in the history of runs

    @property
    def image(self) -> Image:
        """The picture, or the first frame of a video."""
        from PIL import Image

        return Image.fromarray(self.frames[0])

    def save(self, path: str | Path, fps: int = 8) -> Path:
        """Write a picture or video with the settings inside, atomically."""
        from holdfast.pipeline.output import history, media

        target = Path(path).expanduser()
        media.check_target(target, len(self.frames))
        media.save(target, self.frames, self.settings, fps)
        if self.run_id is not None:
            history.note_file(self.run_id, target)
        return target

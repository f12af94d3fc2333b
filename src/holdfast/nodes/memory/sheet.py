"""`Sheet`: drawing with Pillow: boxes, lines, text, in a light or a dark theme.

Coordinates are those of a sheet `LOGICAL` wide, whatever the width of the picture in pixels.
Characters that Pillow's own font lacks are replaced.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from holdfast.base.errors import BadInput, MissingDependency
from holdfast.base.html import palette

LOGICAL = 1280  # width of a sheet in its own units
FINER = 2  # drawn this much larger, then reduced, for smooth edges
THEMES = ("dark", "light")
NARROWEST, WIDEST = 480, 2560
_ASCII = str.maketrans(
    {"·": "|", "×": "x", "↓": "down", "↑": "up", "…": "...", "–": "-", "µ": "u", "←": "<"}
)
Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Theme:
    """The colours of a picture."""

    page: str
    card: str
    ink: str
    soft: str
    line: str
    ram: str
    device: str
    second: str
    warn: str
    nodes: tuple[str, ...]  # of nodes, in turn


def _make_theme(name: str) -> Theme:
    """The colours of the HTML pages, so that a picture and its page look alike."""
    found = palette(name)
    return Theme(
        **{part: found[part] for part in ("page", "card", "ink", "soft", "line")},
        ram=found["c0"],
        device=found["c1"],
        second=found["rest"],
        warn=found["c6"],
        nodes=tuple(found[f"c{number}"] for number in (4, 2, 3, 5, 6, 7)),
    )


LIGHT, DARK = _make_theme("light"), _make_theme("dark")


def find_theme(name: object) -> Theme:
    """The theme with this name. Raises BadInput."""
    if name not in THEMES:
        raise BadInput(f"there is no theme {name!r}", expected='"dark" or "light"')
    return DARK if name == "dark" else LIGHT


def check_width(width: object) -> int:
    """Check a width in pixels and return it. Raises BadInput."""
    if isinstance(width, bool) or not isinstance(width, int) or not (NARROWEST <= width <= WIDEST):
        raise BadInput(
            f"cannot draw a picture {width!r} pixels wide",
            expected=f"an integer from {NARROWEST} to {WIDEST}",
        )
    return width


def to_plain(text: str) -> str:
    """Replace characters that Pillow's font lacks, by "?" if there is nothing better."""
    return text.translate(_ASCII).encode("ascii", "replace").decode()


def is_plain(text: str) -> bool:
    """Whether `to_plain` would change nothing."""
    return to_plain(text) == text and text.isprintable()


class Sheet:
    """A picture being drawn, `logical` wide and `height` high in its own units."""

    def __init__(
        self, width: int, height: float, background: str, logical: float = LOGICAL
    ) -> None:
        image, draw, _ = _pillow()
        self.width = check_width(width)
        self._scale = FINER * width / logical
        size = (width * FINER, max(round(height * self._scale / FINER), 1) * FINER)
        self.image: Any = image.new("RGB", size, background)
        self._draw: Any = draw.Draw(self.image, "RGBA")

    # ---- shapes

    def box(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        fill: str | None,
        *,
        stroke: str | None = None,
        radius: float = 0,
        alpha: float = 1,
    ) -> None:
        """A box, its corners round where `radius` says so."""
        if width <= 0 or height <= 0:
            return
        corners = [self._at(x), self._at(y), self._at(x + width) - 1, self._at(y + height) - 1]
        corners[2:] = max(corners[0], corners[2]), max(corners[1], corners[3])
        self._draw.rounded_rectangle(
            corners,
            radius=min(self._at(radius), (corners[2] - corners[0]) // 2),
            fill=None if fill is None else _colour(fill, alpha),
            outline=stroke,
            width=max(round(self._scale), 1),
        )

    def line(self, points: Sequence[Point], fill: str, width: float = 1.0) -> None:
        """A line through points."""
        if len(points) > 1:
            flat = [(self._at(x), self._at(y)) for x, y in points]
            thick = max(round(width * self._scale), 1)
            self._draw.line(flat, fill=fill, width=thick, joint="curve")

    def dashes(self, x: float, y: float, end: float, fill: str, width: float = 1.0) -> None:
        """A broken line from left to right."""
        while x < end:
            self.line([(x, y), (min(x + 7, end), y)], fill, width)
            x += 12

    def area(self, points: Sequence[Point], bottom: float, fill: str, alpha: float) -> None:
        """Fill below a line, down to `bottom`."""
        if len(points) > 1:
            around = [(points[0][0], bottom), *points, (points[-1][0], bottom)]
            flat = [(self._at(x), self._at(y)) for x, y in around]
            self._draw.polygon(flat, fill=_colour(fill, alpha))

    def dot(self, x: float, y: float, radius: float, fill: str, edge: str) -> None:
        """A round mark with an edge around it."""
        for size, colour in ((radius + 2, edge), (radius, fill)):
            corners = [self._at(v) for v in (x - size, y - size, x + size, y + size)]
            self._draw.ellipse(corners, fill=colour)

    # ---- text

    def text(
        self,
        x: float,
        y: float,
        text: str,
        size: float,
        fill: str,
        *,
        bold: bool = False,
        anchor: str = "start",
    ) -> None:
        """A line of text on the base line `y`; `anchor` is start, middle or end."""
        place = {"start": "ls", "middle": "ms", "end": "rs"}[anchor]
        font = _font(max(round(size * self._scale), 6))
        # Pillow's font has no bold letters: twice beside itself looks like them.
        for more in range(1 + max(round(size * self._scale / 40), 1) * bold):
            at = (self._at(x) + more, self._at(y))
            self._draw.text(at, to_plain(text), font=font, fill=fill, anchor=place)

    def length(self, text: str, size: float) -> float:
        """How wide a text is."""
        return _font(max(round(size * self._scale), 6)).getlength(to_plain(text)) / self._scale

    def fit_text(self, text: str, size: float, room: float) -> str:
        """Shorten a text to the width `room`; "" if too little would be left."""
        if self.length(text, size) <= room:
            return text
        short = to_plain(text)
        while short and self.length(short + "..", size) > room:
            short = short[:-1]
        return f"{short.rstrip()}.." if len(short) > 2 else ""

    def _at(self, value: float) -> int:
        return round(value * self._scale)

    # ---- the picture

    def picture(self) -> Any:
        """The finished picture of Pillow, `width` pixels wide."""
        return self.image.reduce(FINER)


def tensor(picture: Any) -> Any:
    """A picture as ComfyUI's IMAGE: float32 from 0 to 1 of shape 1, height, width, 3."""
    import numpy as np
    import torch

    return torch.from_numpy(np.asarray(picture, dtype=np.float32) / 255.0)[None]


def png(picture: Any) -> bytes:
    """A picture as the content of a PNG file."""
    file = io.BytesIO()
    picture.save(file, "PNG", compress_level=4)
    return file.getvalue()


def _colour(name: str, alpha: float) -> tuple[int, int, int, int]:
    red, green, blue = (int(name[at : at + 2], 16) for at in (1, 3, 5))
    return red, green, blue, round(255 * alpha)


def _pillow() -> tuple[Any, Any, Any]:
    try:
        from PIL import Image, ImageDraw, ImageFont
    except ImportError as exc:
        raise MissingDependency(
            "cannot draw a picture: Pillow is not installed",
            expected="pillow 11 or newer",
            hint="pip install 'holdfast[run]'",
        ) from exc
    return Image, ImageDraw, ImageFont


@lru_cache(64)
def _font(size: int) -> Any:
    return _pillow()[2].load_default(size)

"""SVG shapes: boxes, text, lines, bars. The layout is in `svg`."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

# data-NAME="VALUE" attributes of a shape, for programs that change the picture later.
Data = Mapping[str, object]
_NONE: Data = {}
FONT = "system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif"
_WIDTH_OF_A_LETTER = 0.58  # of the font size; rather too wide, so that text stays in its box


def fit(text: str, width: float, size: float) -> str:
    """`text`, shortened with an ellipsis if it would be wider than `width`."""
    room = int(width / (size * _WIDTH_OF_A_LETTER))
    return text if len(text) <= room else text[: max(room - 1, 0)].rstrip() + "…"


def wrap(text: str, width: float, size: float) -> list[str]:
    """`text` broken at its " · " into lines of at most `width`."""
    lines: list[str] = []
    for part in text.split(" · "):
        longer = f"{lines[-1]} · {part}" if lines else part
        if lines and fit(longer, width, size) == longer:
            lines[-1] = longer
        else:
            lines.append(fit(part, width, size))
    return lines


def _attributes(data: Data) -> str:
    return "".join(f' data-{name}="{escape(str(value))}"' for name, value in data.items())


class Canvas:
    """Collects shapes in drawing order; `svg()` gives the document."""

    def __init__(self) -> None:
        self._shapes: list[str] = []
        self._right = 0.0
        self._bottom = 0.0

    def box(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        *,
        fill: str,
        stroke: str = "none",
        radius: float = 6,
        title: str | None = None,
        data: Data = _NONE,
    ) -> None:
        """A rounded box; `title` is its tooltip in a browser."""
        tip = f"<title>{escape(title)}</title>" if title else ""
        self._shapes.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="{radius:g}" '
            f'fill="{fill}" stroke="{stroke}"{_attributes(data)}>{tip}</rect>'
        )
        self._right = max(self._right, x + width)
        self._bottom = max(self._bottom, y + height)

    def text(
        self,
        x: float,
        y: float,
        text: str,
        *,
        size: float = 12,
        fill: str = "#1f2933",
        bold: bool = False,
        anchor: str = "start",
    ) -> None:
        """A line of text on the base line `y`."""
        weight = ' font-weight="600"' if bold else ""
        place = f' text-anchor="{anchor}"' if anchor != "start" else ""
        self._shapes.append(
            f'<text x="{x:g}" y="{y:g}" font-size="{size:g}" fill="{fill}"{weight}{place}>'
            f"{escape(text)}</text>"
        )
        if anchor == "start":
            self._right = max(self._right, x + len(text) * size * _WIDTH_OF_A_LETTER)
        self._bottom = max(self._bottom, y + size / 3)

    def line(
        self,
        x1: float,
        y1: float,
        x2: float,
        y2: float,
        *,
        stroke: str,
        width: float = 2,
        data: Data = _NONE,
    ) -> None:
        self._shapes.append(
            f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" stroke="{stroke}" '
            f'stroke-width="{width:g}" stroke-linecap="round"{_attributes(data)}/>'
        )

    def bar(
        self,
        x: float,
        y: float,
        width: float,
        used: float | None,
        *,
        fill: str,
        back: str,
        data: Data = _NONE,
    ) -> None:
        """A bar filled from the left; unknown use leaves it empty."""
        self.box(x, y, width, 12, fill=back, radius=6, data={**data, "part": "bar"})
        if used:
            filled = max(width * min(used, 1.0), 12)
            self.box(x, y, filled, 12, fill=fill, radius=6, data={**data, "part": "fill"})

    def svg(self, margin: float, label: str) -> str:
        """The document, as large as the drawing and a margin."""
        width, height = self._right + margin, self._bottom + margin
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" height="{height:g}" '
                f'viewBox="0 0 {width:g} {height:g}" font-family="{FONT}" role="img">',
                f"<title>{escape(label)}</title>",
                f'<rect width="{width:g}" height="{height:g}" fill="#ffffff"/>',
                *self._shapes,
                "</svg>\n",
            ]
        )

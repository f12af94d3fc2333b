"""The topology as a picture: the SVG of `holdfast topo`, drawn with Pillow.

Only the shapes that our own SVG contains are drawn, with colours for a dark theme.
"""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree

from holdfast.nodes.memory.sheet import DARK, Sheet, find_theme
from holdfast.topology.model import Topology
from holdfast.topology.render import svg

_SPACE = "{http://www.w3.org/2000/svg}"
_LEAST = 760.0  # width of a sheet at least, so that a small machine has no huge letters
# Dark colours by those of topology.render: cards, edges, bars, text, caches, rates.
_IN_THE_DARK = {
    "#ffffff": DARK.page,
    "#1f2933": DARK.ink,
    "#52606d": "#aab6c2",
    "#9aa5b1": "#7b8794",
    "#7b8794": "#8793a0",
    "#f3f8f4": "#17231c",
    "#9fc5a8": "#3a6b47",
    "#3f9b57": "#4fbf82",
    "#d5e8da": "#26402f",
    "#fdf6ec": "#2a2218",
    "#e0bd84": "#7a5c2b",
    "#d18b1d": "#eaa24a",
    "#f3e2c4": "#46371f",
    "#f6f3fb": "#211c2c",
    "#b9a5dd": "#5b4a80",
    "#7a52c7": "#a98bf0",
    "#e2d8f3": "#382f4d",
    "#cfe0f3": "#27405e",
    "#e1ecf8": "#203349",
    "#f0f6fc": "#1b2938",
    "#bcd4ee": "#2e4c6f",
    "#eef7e8": "#22331f",
    "#cbd2d9": "#3a4652",
    "#f5f7fa": "#1b2128",
    "#fdece4": "#43271d",
    "#fdf6dc": "#3d371c",
    "#e9f5e1": "#25391f",
    "#d3ecd4": "#22472c",
    "#b9dfc2": "#235a38",
}


def machine(topology: Topology, *, width: int = 1280, theme: str = "dark") -> Any:
    """Draw a topology; returns a Pillow image."""
    dark = find_theme(theme) is DARK
    root = ElementTree.fromstring(svg(topology))
    wide, high = max(float(root.attrib["width"]), _LEAST), float(root.attrib["height"])
    sheet = Sheet(width, high, _colour("#ffffff", dark) or DARK.page, logical=wide)
    for shape in root:
        _draw(sheet, shape, dark, whole=wide)
    return sheet.picture()


def _draw(sheet: Sheet, shape: Any, dark: bool, whole: float) -> None:
    about = shape.attrib
    kind = shape.tag.removeprefix(_SPACE)
    if kind == "rect" and "x" in about:  # the one without is the page, which is there
        x, y, width, height = (float(about[name]) for name in ("x", "y", "width", "height"))
        fill, stroke = _colour(about["fill"], dark), _colour(about["stroke"], dark)
        sheet.box(x, y, width, height, fill, stroke=stroke, radius=float(about["rx"]))
    elif kind == "line":
        x1, y1, x2, y2 = (float(about[name]) for name in ("x1", "y1", "x2", "y2"))
        stroke = _colour(about["stroke"], dark) or DARK.line
        sheet.line([(x1, y1), (x2, y2)], stroke, float(about["stroke-width"]))
    elif kind == "text":
        x, size = float(about["x"]), float(about["font-size"])
        anchor = about.get("text-anchor", "start")
        text = shape.text or ""
        if anchor == "start":
            text = sheet.fit_text(text, size, whole - x - 6)
        sheet.text(
            *(x, float(about["y"]), text, size, _colour(about["fill"], dark) or DARK.ink),
            bold="font-weight" in about,
            anchor=anchor,
        )


def _colour(name: str, dark: bool) -> str | None:
    if name == "none":
        return None
    return _IN_THE_DARK.get(name.lower(), name) if dark else name

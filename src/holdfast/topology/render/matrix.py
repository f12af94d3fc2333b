"""The table of bandwidths and distances between all nodes and GPUs of a machine.

Measured figures are bold and replace nominal ones.
"""

from __future__ import annotations

from holdfast.topology.model import Link, Topology
from holdfast.topology.render import words
from holdfast.topology.render.canvas import Canvas, fit

CELL_W, CELL_H, HEAD_W = 86, 34, 70
INK, SOFT = "#1f2933", "#52606d"
_SHADES = ("#fdece4", "#fdf6dc", "#e9f5e1", "#d3ecd4", "#b9dfc2")
_STEPS_GB_S = (10, 30, 100, 300)
MOST_ENDPOINTS = 16


def draw_matrix(canvas: Canvas, x: float, y: float, topology: Topology) -> float:
    """Draw the table if there are several nodes or GPUs; returns the y below it."""
    endpoints = [f"node:{n.id}" for n in topology.nodes] + [f"gpu:{g.id}" for g in topology.gpus]
    endpoints = endpoints[:MOST_ENDPOINTS]
    if len(endpoints) < 2 or (len(endpoints) == 2 and not topology.measurements):
        return y
    title = "Ways from the row to the column: GB/s measured in bold, or on paper; distance"
    canvas.text(x, y + 12, title, size=12, fill=SOFT)
    y += 26
    for number, endpoint in enumerate(endpoints):
        name = words.endpoint(endpoint)
        left = x + HEAD_W + (number + 0.5) * CELL_W
        canvas.text(left, y + 14, name, size=12, bold=True, anchor="middle")
        canvas.text(x, y + 22 + (number + 0.65) * CELL_H, name, size=12, bold=True)
    y += 22
    for row, source in enumerate(endpoints):
        for column, target in enumerate(endpoints):
            left, top = x + HEAD_W + column * CELL_W, y + row * CELL_H
            _cell(canvas, left, top, source, target, topology)
    return y + len(endpoints) * CELL_H + 26


def _cell(canvas: Canvas, x: float, y: float, source: str, target: str, topology: Topology) -> None:
    rate = _measured_gb_s(topology, source, target)
    ends = {source, target}
    link = next((k for k in topology.links if {k.source, k.target} == ends), None)
    paper = link.bandwidth_gb_s if link else None
    below = _below(topology, source, target, link)
    best = rate if rate is not None else paper
    tip = f"from {words.endpoint(source)} to {words.endpoint(target)}"
    fill = "#f5f7fa" if best is None else _SHADES[sum(best >= step for step in _STEPS_GB_S)]
    canvas.box(x + 1, y + 1, CELL_W - 2, CELL_H - 2, fill=fill, radius=4, title=tip)
    middle = x + CELL_W / 2
    if best is not None:
        up = 5 if below else 0
        canvas.text(
            middle, y + 21 - up, f"{best:.3g}", size=12, bold=rate is not None, anchor="middle"
        )
    if below:
        down = 8 if best is not None else 0
        text = fit(below, CELL_W - 4, 10)
        canvas.text(middle, y + 20 + down, text, size=10, fill=SOFT, anchor="middle")


def _measured_gb_s(topology: Topology, source: str, target: str) -> float | None:
    rates = [
        m.bandwidth_gb_s
        for m in topology.measurements
        if (m.source, m.target) == (source, target) and m.bandwidth_gb_s is not None
    ]
    return max(rates, default=None)


def _below(topology: Topology, source: str, target: str, link: Link | None) -> str | None:
    if source.startswith("node:") and target.startswith("node:"):
        distance = topology.distance(int(source[5:]), int(target[5:]))
        return f"distance {distance}" if distance is not None else None
    if link is None:
        return None
    return "C2C" if link.kind == "c2c" else words.LINKS.get(link.kind, link.kind)

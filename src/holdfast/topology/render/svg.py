"""A machine as an SVG picture: nodes with memory bars, caches and cores, GPUs, links.

The file is self-contained, and every text stays in its box.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.topology.model import Cache, Cpu, Gpu, Node, Topology
from holdfast.topology.render import words
from holdfast.topology.render.canvas import Canvas, fit, wrap
from holdfast.topology.render.matrix import draw_matrix

MARGIN, GAP, PAD = 24, 36, 14
CARD, COLUMNS = 380, 3
INK, SOFT, FAINT = "#1f2933", "#52606d", "#9aa5b1"
NODE = {"card": "#f3f8f4", "edge": "#9fc5a8", "fill": "#3f9b57", "back": "#d5e8da"}
FAR = {"card": "#fdf6ec", "edge": "#e0bd84", "fill": "#d18b1d", "back": "#f3e2c4"}
CARDS = {"card": "#f6f3fb", "edge": "#b9a5dd", "fill": "#7a52c7", "back": "#e2d8f3"}
CACHES = {3: "#cfe0f3", 2: "#e1ecf8", 1: "#f0f6fc", 4: "#bcd4ee"}
CORE, EFFICIENT = "#ffffff", "#eef7e8"


def svg(topology: Topology) -> str:
    """The picture of a machine."""
    canvas = Canvas()
    y = _heading(canvas, topology)
    homes = [node for node in topology.nodes if node.cpus]
    others = [node for node in topology.nodes if node.memory_only]
    for nodes in (homes, others):
        y = _rows(canvas, y, [(node, _gpus_of(topology, node)) for node in nodes], topology)
    known = {node.id for node in topology.nodes}
    loose = [gpu for gpu in topology.gpus if gpu.numa_node not in known]
    for number, gpu in enumerate(loose):
        _gpu(canvas, MARGIN + number % COLUMNS * (CARD + GAP), y, gpu, topology)
        if number % COLUMNS == COLUMNS - 1 or number == len(loose) - 1:
            y += _gpu_height(gpu) + GAP
    y = draw_matrix(canvas, MARGIN, y, topology)
    _footer(canvas, y, topology)
    return canvas.svg(MARGIN, "Topology of " + words.machine(topology))


def _gpus_of(topology: Topology, node: Node) -> list[Gpu]:
    return [gpu for gpu in topology.gpus if gpu.numa_node == node.id]


def _heading(canvas: Canvas, topology: Topology) -> float:
    y = MARGIN + 18
    canvas.text(MARGIN, y, words.machine(topology), size=20, bold=True)
    cores, cpus = len(topology.cores), len(topology.cpus)
    about = words.phrase(
        topology.cpu_model,
        words.count(len(topology.packages), "package") if cpus else None,
        words.count(cores, "core") if cpus else None,
        words.count(cpus, "thread") if cpus > cores else None,
    )
    for line in [about, *words.memory_remarks(topology)]:
        y += 20
        canvas.text(MARGIN, y, line, size=13, fill=SOFT)
    return y + 22


def _footer(canvas: Canvas, y: float, topology: Topology) -> None:
    dates = sorted({m.measured_at.partition("T")[0] for m in topology.measurements})
    about = words.phrase(
        f"found {topology.discovered_at}" if topology.discovered_at else None,
        f"measured {', '.join(dates)}" if dates else "not measured",
    )
    canvas.text(MARGIN, y + 6, about, size=11, fill=FAINT)


def _rows(
    canvas: Canvas, y: float, cards: Sequence[tuple[Node, list[Gpu]]], topology: Topology
) -> float:
    """Draw nodes in rows, each with its GPUs below; returns the y of the next row."""
    for start in range(0, len(cards), COLUMNS):
        row = cards[start : start + COLUMNS]
        top = max(_node_height(node, topology) for node, _ in row)
        for column, (node, gpus) in enumerate(row):
            x = MARGIN + column * (CARD + GAP)
            _node(canvas, x, y, top, node, topology)
            if column:
                _between(canvas, x, y, row[column - 1][0], node, topology)
            below = y + top
            for gpu in gpus:
                _host_link(canvas, x, below, gpu, topology)
                _gpu(canvas, x, below + GAP, gpu, topology)
                below += GAP + _gpu_height(gpu)
        stacks = [sum(GAP + _gpu_height(gpu) for gpu in gpus) for _, gpus in row]
        y += top + max(stacks, default=0) + GAP
    return y


def _facts(node: Node) -> list[str]:
    return wrap(words.node_facts(node), CARD - 2 * PAD, 12)


def _node_height(node: Node, topology: Topology) -> float:
    body = 64 + 17 * len(_facts(node))
    if node.cpus:
        rows = -(-len(_cores(node, topology)) // _PER_ROW)
        body += (_CACHE + 4) * len(_levels(node, topology)) + rows * _STEP + 16
    return body


def _node(
    canvas: Canvas, x: float, y: float, height: float, node: Node, topology: Topology
) -> None:
    colours = FAR if node.memory_only else NODE
    here = {"node": node.id}
    card = {**here, "part": "card"}
    edge = colours["edge"]
    canvas.box(x, y, CARD, height, fill=colours["card"], stroke=edge, radius=10, data=card)
    title = words.join([words.node_title(node), _packages(node, topology)])
    canvas.text(x + PAD, y + 26, title, size=15, bold=True)
    total = words.size(node.total_bytes) or ""
    canvas.text(x + CARD - PAD, y + 26, total, size=15, bold=True, anchor="end")
    used = words.used_fraction(node.total_bytes, node.free_bytes)
    fill, back = colours["fill"], colours["back"]
    canvas.bar(x + PAD, y + 38, CARD - 2 * PAD, used, fill=fill, back=back, data=here)
    line = y + 50
    for text in _facts(node):
        line += 17
        canvas.text(x + PAD, line, text, fill=SOFT)
    if node.cpus:
        _chip(canvas, x + PAD, line + 14, node, topology)


def _packages(node: Node, topology: Topology) -> str | None:
    packages = {cpu.package for cpu in topology.cpus if cpu.id in node.cpus}
    known = sorted(p for p in packages if p is not None)
    return f"package {words.ranges(known)}" if known and len(topology.packages) > 1 else None


def _between(
    canvas: Canvas, x: float, y: float, left: Node, right: Node, topology: Topology
) -> None:
    between = {"part": "between", "from": left.id, "to": right.id}
    canvas.line(x - GAP + 3, y + 44, x - 3, y + 44, stroke="#7b8794", data=between)
    distance = topology.distance(left.id, right.id)
    if distance is not None:
        canvas.text(x - GAP / 2, y + 37, str(distance), size=11, fill=SOFT, anchor="middle")


_CELL, _STEP, _CACHE = 30, 34, 20
_PER_ROW = int((CARD - 2 * PAD) // _STEP)


def _levels(node: Node, topology: Topology) -> dict[int, list[Cache]]:
    """Caches of a node's CPUs above level 1, by level, outermost first."""
    mine = set(node.cpus)
    found = [c for c in topology.caches if c.level > 1 and mine & set(c.cpus)]
    levels = sorted({cache.level for cache in found}, reverse=True)
    return {level: [c for c in found if c.level == level] for level in levels}


def _cores(node: Node, topology: Topology) -> list[tuple[Cpu, ...]]:
    mine = set(node.cpus)
    return [core for core in topology.cores if core[0].id in mine]


def _chip(canvas: Canvas, x: float, y: float, node: Node, topology: Topology) -> None:
    width = CARD - 2 * PAD
    for level, caches in _levels(node, topology).items():
        _cache_band(canvas, x, y, width, level, caches)
        y += _CACHE + 4
    for number, core in enumerate(_cores(node, topology)):
        row, column = divmod(number, _PER_ROW)
        _core(canvas, x + column * _STEP, y + row * _STEP, core, topology)


def _cache_band(
    canvas: Canvas, x: float, y: float, width: float, level: int, caches: list[Cache]
) -> None:
    """Draw a box for each of up to four caches, else one for the whole level."""
    colour = CACHES.get(level, CACHES[4])
    if len(caches) > 4:
        caches_text = words.caches(caches)
        canvas.box(x, y, width, _CACHE, fill=colour, radius=4, title=caches_text)
        text = fit(caches_text, width - 8, 11)
        canvas.text(x + width / 2, y + 14, text, size=11, fill=SOFT, anchor="middle")
        return
    each = (width - 4 * (len(caches) - 1)) / len(caches)
    for number, cache in enumerate(caches):
        left = x + number * (each + 4)
        tip = f"{words.caches([cache])}, CPUs {words.ranges(cache.cpus)}"
        canvas.box(left, y, each, _CACHE, fill=colour, radius=4, title=tip)
        text = fit(words.caches([cache]), each - 8, 11)
        canvas.text(left + each / 2, y + 14, text, size=11, fill=SOFT, anchor="middle")


def _core(canvas: Canvas, x: float, y: float, core: tuple[Cpu, ...], topology: Topology) -> None:
    first = [c for c in topology.caches if c.level == 1 and core[0].id in c.cpus]
    tip = words.phrase(
        f"core {core[0].core}",
        core[0].kind,
        f"CPUs {words.ranges([cpu.id for cpu in core])}",
        words.caches(first),
    )
    fill = EFFICIENT if core[0].kind == "efficiency" else CORE
    canvas.box(x, y, _CELL, _CELL, fill=fill, stroke="#cbd2d9", radius=4, title=tip)
    step = _CELL / (len(core) + 1)
    size = 11 if len(core) == 1 else 9
    for number, cpu in enumerate(core, start=1):
        at = (x + _CELL / 2, y + step * number + 4)
        canvas.text(*at, str(cpu.id), size=size, fill=SOFT, anchor="middle")


def _gpu_facts(gpu: Gpu) -> list[str]:
    text = words.phrase(
        words.gpu_memory(gpu),
        gpu.kind if gpu.kind in ("display", "virtual", "integrated") else None,
        f"its memory is node {gpu.memory_node}" if gpu.memory_node is not None else None,
        gpu.pci_address,
        words.join([gpu.torch, gpu.opencl], ", "),
    )
    return wrap(text, CARD - 2 * PAD, 12)


def _gpu_height(gpu: Gpu) -> float:
    return 40 + 17 * len(_gpu_facts(gpu)) + (20 if gpu.memory_bytes else 0)


def _gpu(canvas: Canvas, x: float, y: float, gpu: Gpu, topology: Topology) -> None:
    here = {"gpu": gpu.id}
    card, height = {**here, "part": "card"}, _gpu_height(gpu)
    edge = CARDS["edge"]
    canvas.box(x, y, CARD, height, fill=CARDS["card"], stroke=edge, radius=10, data=card)
    title = fit(f"gpu {gpu.id}  {words.gpu_title(gpu)}", CARD - 2 * PAD, 15)
    canvas.text(x + PAD, y + 25, title, size=15, bold=True)
    line = y + 32
    if gpu.memory_bytes:
        used = words.used_fraction(gpu.memory_bytes, gpu.free_bytes)
        width = CARD - 2 * PAD
        fill, back = CARDS["fill"], CARDS["back"]
        canvas.bar(x + PAD, y + 36, width, used, fill=fill, back=back, data=here)
        line += 20
    for text in _gpu_facts(gpu):
        line += 17
        canvas.text(x + PAD, line - 4, text, fill=SOFT)


def _host_link(canvas: Canvas, x: float, y: float, gpu: Gpu, topology: Topology) -> None:
    link = {"gpu": gpu.id, "part": "link"}
    canvas.line(x + 40, y + 3, x + 40, y + GAP - 3, stroke="#7b8794", width=3, data=link)
    host, card = f"node:{gpu.numa_node}", f"gpu:{gpu.id}"
    rates = {
        (m.source, m.target): m.bandwidth_gb_s for m in topology.measurements if m.mode == "pinned"
    }
    down, up = rates.get((host, card)), rates.get((card, host))
    paper = next((k for k in topology.links if {k.source, k.target} == {host, card}), None)
    text = words.pcie(gpu.link) if paper is None or paper.kind == "pcie" else None
    lines = [text or (words.link(paper) if paper else "")]
    if down and up:
        lines.insert(0, f"measured ↓ {down:.3g} ↑ {up:.3g} GB/s pinned")
    top = y + GAP / 2 + 4 - 7 * (len(lines) - 1)
    for number, line in enumerate(lines):
        canvas.text(x + 52, top + 14 * number, fit(line, CARD - 52, 12), size=11.5, fill=SOFT)

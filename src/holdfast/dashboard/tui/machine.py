"""The machine as a few lines: RAM, NUMA nodes, GPUs with their links, sparklines.

No line is wider than asked for, from 60 characters on.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from holdfast.dashboard.snapshot.snapshot import GpuUse, Machine
from holdfast.dashboard.tui import words
from holdfast.dashboard.tui.history import Track
from holdfast.dashboard.tui.session import Session

LEAST_S, MOST_S = 15.0, 180.0  # time span of the curves
WIDE = 116  # from this width on, two nodes or curves per line
LABEL = 6


def machine_lines(machine: Machine, width: int) -> list[Text]:
    """RAM, then nodes if there are several, then GPUs."""
    lines = [_line("RAM", machine.ram_used_bytes, machine.ram_total_bytes, width)]
    if len(machine.nodes) > 1:
        across = 2 if width >= WIDE else 1
        part = (width - 2 * (across - 1)) // across
        nodes = [
            _line(f"node {node.id}", node.used_bytes, node.total_bytes, part, f"{node.cpus} CPUs")
            for node in machine.nodes
        ]
        lines += [_beside(nodes[at : at + across], part) for at in range(0, len(nodes), across)]
    return [*lines, *(_gpu(gpu, width) for gpu in machine.gpus)]


def _gpu(gpu: GpuUse, width: int) -> Text:
    facts = []
    if gpu.busy is not None:
        facts.append(f"{gpu.busy * 100:.0f} % busy")
    if gpu.link_gb_s is not None:
        facts.append(f"link {gpu.link_gb_s:.1f} GB/s")
    if width >= 96:
        facts.append(words.plain(gpu.label))
    return _line(f"gpu {gpu.id}", gpu.used_bytes, gpu.total_bytes, width, ", ".join(facts))


def _line(label: str, used: int | None, total: int | None, width: int, more: str = "") -> Text:
    """ "RAM    ━━━━───── 12.3 GB of 62.0 GB, 20 %  more"."""
    share = used / total if total and used is not None else None
    figures = f"{words.size(used)} of {words.size(total)}, {words.percent(share)}"
    room = min(max(width - LABEL - 2 - 28 - len(more) - 2, 8), 60)
    text = Text(f"{label:<{LABEL}} ", style="bold", no_wrap=True)
    text.append(words.bar(share, room)).append(f" {figures:<28}", style="not bold")
    text.append(f"  {more}" if more else "", style=f"not bold {words.SOFT}")
    text.truncate(width, overflow="ellipsis")
    return text


def _beside(parts: Sequence[Text], width: int) -> Text:
    line = Text(no_wrap=True)
    for number, part in enumerate(parts):
        part.pad_right(max(width - part.cell_len, 0))
        line.append("  " if number else "").append(part)
    return line


def curves(session: Session, width: int) -> list[Text]:
    """RAM and devices over the last minutes, each from its minimum to its maximum."""
    snapshot = session.snapshot
    if snapshot is None:
        return []
    now_s, track = snapshot.at_s, session.machine
    span_s = min(max(now_s - track.samples[0].at_s, LEAST_S), MOST_S)
    across = 2 if width >= WIDE else 1
    part = (width - 2 * (across - 1)) // across
    lines = [_curve("RAM", track, "ram_bytes", part, (span_s, now_s), words.RAM)]
    if any(sample.device_bytes is not None for sample in track.samples[-1:]):
        name = "GPUs" if snapshot.machine.gpus else "device"
        lines.append(_curve(name, track, "device_bytes", part, (span_s, now_s), words.DEVICE))
    return [_beside(lines[at : at + across], part) for at in range(0, len(lines), across)]


def _curve(
    name: str, track: Track, figure: str, width: int, when: tuple[float, float], style: str
) -> Text:
    span_s, now_s = when
    room = max(width - LABEL - 1 - 36, 12)
    values = track.columns(lambda sample: getattr(sample, figure), room, span_s, now_s)
    text = Text(f"{name:<{LABEL}} ", style="bold", no_wrap=True)
    text.append(words.curve(values, f"not bold {style}"))
    about = f" {words.between(values)}, {words.seconds(span_s)}"
    text.append(about, style=f"not bold {words.SOFT}")
    text.truncate(width, overflow="ellipsis")
    return text

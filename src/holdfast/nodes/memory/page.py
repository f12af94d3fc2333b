"""A recorded run as one HTML file: the page of the pipeline's runs, with nodes for stages.

Covers: a recording in the shape that page reads, the table of nodes.
Leaves to others: the page itself (pipeline.timeline_page), where it is written (host.models).
Promise: one file that needs no network; every text in it is escaped.
"""

from __future__ import annotations

from holdfast.base.units import format_bytes
from holdfast.memory.page import escaped
from holdfast.nodes.memory.recording import Recorded
from holdfast.nodes.memory.words import advice, rows, run_settings, spent
from holdfast.pipeline import timeline_page
from holdfast.pipeline.timeline import Event, Sample, Stage, Timeline


class _Run(Timeline):
    """A run that was recorded elsewhere, as the page asks for it."""

    def __init__(self, recorded: Recorded) -> None:
        super().__init__()
        self._recorded = recorded

    @property
    def duration_s(self) -> float:
        return self._recorded.seconds

    @property
    def events(self) -> tuple[Event, ...]:
        return ()

    @property
    def samples(self) -> tuple[Sample, ...]:
        begin = self._recorded.began_s
        return tuple(
            Sample(one.at_s - begin, one.ram_bytes, one.device_bytes)
            for one in self._recorded.samples
        )

    @property
    def stages(self) -> tuple[Stage, ...]:
        return tuple(self._stages())

    def _stages(self) -> list[Stage]:
        found, recorded = [], self._recorded
        for span in recorded.spans:
            peak = recorded.peaks.get(span.node)
            begin_s, end_s = span.began_s - recorded.began_s, span.ended_s or span.began_s
            found.append(
                Stage(
                    name=recorded.name(span.node),
                    start_s=begin_s,
                    end_s=end_s - recorded.began_s,
                    steps=0,
                    total=None,
                    step_ms=(),
                    peak_host_bytes=peak and peak.ram_bytes,
                    peak_device_bytes=peak and peak.device_bytes,
                )
            )
        return found


def html(recorded: Recorded) -> str:
    """The page of a run."""
    return timeline_page.render(
        _Run(recorded), run_settings(recorded), weights=[_nodes(recorded), *_advice(recorded)]
    )


def _nodes(recorded: Recorded) -> str:
    head = "<tr><th>node</th><th>time</th><th>most</th><th>more than when it began</th></tr>"
    lines = []
    for row in rows(recorded):
        most = row.ram_bytes if row.device_bytes is None else row.device_bytes
        cells = (spent(row.seconds), format_bytes(most), f"+{format_bytes(row.above_bytes)}")
        columns = "".join(f"<td>{cell}</td>" for cell in cells)
        lines.append(f"<tr><th>{escaped(row.name)}</th>{columns}</tr>")
    body = "\n".join(lines)
    return f"<h2>Hungriest nodes</h2><table><thead>{head}</thead><tbody>{body}</tbody></table>"


def _advice(recorded: Recorded) -> list[str]:
    said = "".join(f"<p>{escaped(line)}</p>" for line in advice(recorded))
    return [f"<h2>What to do</h2>{said}"] if said else []

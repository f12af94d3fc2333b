"""A recorded run as one HTML file: the timeline page of the pipeline, with nodes for stages."""

from __future__ import annotations

from holdfast.base.units import format_bytes
from holdfast.memory.profile.page import escape
from holdfast.nodes.memory.recording import RunRecording
from holdfast.nodes.memory.words import advice, format_spent, rows, run_settings
from holdfast.pipeline.output import timeline_page
from holdfast.pipeline.output.timeline import Sample, StageSpan, StepMark, Timeline


class _Run(Timeline):
    """Adapts a RunRecording to the Timeline that the page reads."""

    def __init__(self, recorded: RunRecording) -> None:
        super().__init__()
        self._recorded = recorded

    @property
    def duration_s(self) -> float:
        return self._recorded.seconds

    @property
    def events(self) -> tuple[StepMark, ...]:
        return ()

    @property
    def samples(self) -> tuple[Sample, ...]:
        begin = self._recorded.began_s
        return tuple(
            Sample(one.at_s - begin, one.ram_bytes, one.device_bytes)
            for one in self._recorded.samples
        )

    @property
    def stages(self) -> tuple[StageSpan, ...]:
        return tuple(self._stages())

    def _stages(self) -> list[StageSpan]:
        found, recorded = [], self._recorded
        for span in recorded.spans:
            peak = recorded.peaks.get(span.node)
            begin_s, end_s = span.began_s - recorded.began_s, span.ended_s or span.began_s
            found.append(
                StageSpan(
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


def html(recorded: RunRecording) -> str:
    """The page of a run."""
    return timeline_page.render(
        _Run(recorded), run_settings(recorded), weights=[_nodes(recorded), *_advice(recorded)]
    )


def _nodes(recorded: RunRecording) -> str:
    head = "<tr><th>node</th><th>time</th><th>most</th><th>more than when it began</th></tr>"
    lines = []
    for row in rows(recorded):
        most = row.ram_bytes if row.device_bytes is None else row.device_bytes
        cells = (format_spent(row.seconds), format_bytes(most), f"+{format_bytes(row.above_bytes)}")
        columns = "".join(f"<td>{cell}</td>" for cell in cells)
        lines.append(f"<tr><th>{escape(row.name)}</th>{columns}</tr>")
    body = "\n".join(lines)
    return f"<h2>Hungriest nodes</h2><table><thead>{head}</thead><tbody>{body}</tbody></table>"


def _advice(recorded: RunRecording) -> list[str]:
    lines = "".join(f"<p>{escape(line)}</p>" for line in advice(recorded))
    return [f"<h2>What to do</h2>{lines}"] if lines else []

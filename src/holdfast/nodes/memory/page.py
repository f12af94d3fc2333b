"""A recorded run as one HTML file: the timeline page of the pipeline, with nodes for stages."""

from __future__ import annotations

from holdfast.base.html import Section, escape
from holdfast.base.units import format_bytes
from holdfast.nodes.memory.recording import RunRecording
from holdfast.nodes.memory.words import advice, format_spent, rows, run_settings
from holdfast.pipeline.output.timeline import Sample, StageSpan
from holdfast.pipeline.output.timeline_page import render_samples


def html(recorded: RunRecording) -> str:
    """The page of a run."""
    begin = recorded.began_s
    samples = [Sample(s.at_s - begin, s.ram_bytes, s.device_bytes) for s in recorded.samples]
    stages = []
    for span in recorded.spans:
        peak = recorded.peaks.get(span.node)
        stages.append(
            StageSpan(
                name=recorded.name(span.node),
                start_s=span.began_s - begin,
                end_s=(span.ended_s or span.began_s) - begin,
                steps=0,
                total=None,
                step_ms=(),
                peak_host_bytes=peak and peak.ram_bytes,
                peak_device_bytes=peak and peak.device_bytes,
            )
        )
    sections = [_nodes(recorded), *_advice(recorded)]
    return render_samples(
        recorded.seconds, samples, stages, run_settings(recorded), sections=sections
    )


def _nodes(recorded: RunRecording) -> Section:
    head = "<tr><th>node</th><th>time</th><th>most</th><th>more than when it began</th></tr>"
    lines = []
    for row in rows(recorded):
        cells = (
            format_spent(row.seconds),
            format_bytes(row.most_bytes),
            f"+{format_bytes(row.above_bytes)}",
        )
        columns = "".join(f"<td>{cell}</td>" for cell in cells)
        lines.append(f"<tr><th>{escape(recorded.name(row.node))}</th>{columns}</tr>")
    table = f"<table><thead>{head}</thead><tbody>{''.join(lines)}</tbody></table>"
    return Section("Hungriest nodes", f"<h2>Hungriest nodes</h2>{table}")


def _advice(recorded: RunRecording) -> list[Section]:
    lines = "".join(f"<p>{escape(line)}</p>" for line in advice(recorded))
    return [Section("What to do", f"<h2>What to do</h2>{lines}")] if lines else []

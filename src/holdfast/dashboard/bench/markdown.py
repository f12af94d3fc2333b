"""A report as Markdown, for pull requests and documentation. All texts are escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from holdfast.dashboard.bench import phrases
from holdfast.dashboard.bench.comparing import Comparison
from holdfast.dashboard.bench.document import Report, Table, standings


def markdown(report: Report | None, comparison: Comparison | None = None) -> str:
    """Format a report, a comparison, or both."""
    title = "# Holdfast benchmarks" if report is not None else "# Holdfast benchmarks, compared"
    blocks = [title]
    if report is not None:
        blocks += _head(report)
    if comparison is not None:
        blocks += _write_comparison(comparison)
    if report is not None:
        blocks += _overview(report.tables)
        for table in report.tables:
            blocks += _table(table)
    return "\n\n".join(blocks) + "\n"


def _head(report: Report) -> Iterable[str]:
    machine = report.machine
    facts = [
        f"- machine: {plain(machine.about)}",
        f"- CPU: {plain(machine.cpu or phrases.NONE)}, {machine.cpus or phrases.NONE} CPUs",
        f"- GPUs: {plain(', '.join(machine.gpus)) or 'none'}",
        f"- measured: {phrases.date(report.date)}, with Holdfast {report.holdfast}",
    ]
    if report.versions:
        facts.append("- " + ", ".join(f"{v.name} {v.version}" for v in report.versions))
    yield "\n".join(facts)


def _overview(tables: Sequence[Table]) -> Iterable[str]:
    rows = [
        (table.name, s.peer, phrases.times(s.mean), phrases.times(s.least), phrases.times(s.most))
        for table in tables
        for s in standings(table)
    ]
    if rows:
        yield "## At a glance"
        yield "How many times better Holdfast is (above 1× it takes less, or is quicker)."
        yield grid(("benchmark", "peer", "mean", "worst", "best"), rows)


def _table(table: Table) -> Iterable[str]:
    yield f"## {plain(table.name)}"
    if table.about:
        yield plain(table.about[:1].upper() + table.about[1:]) + "."
    quick = ", a quick run" if table.quick and table.rows else ""
    yield f"{plain(phrases.how(table))}{quick}"
    if table.absent:
        words = "; ".join(f"{plain(one.name)} ({plain(one.get)})" for one in table.absent)
        yield f"Not installed here, so not measured: {words}."
    if table.rows:
        heads = ("subject", "system", ">figure", ">spread", ">we are better by", "remark")
        yield grid(heads, _rows(table))


def _rows(table: Table) -> Iterable[Sequence[str]]:
    for subject in table.subjects():
        for row in subject.rows:
            figure = phrases.figure(row.value, row.unit)
            better = phrases.times(subject.times_better(row))
            yield row.subject, row.system, figure, phrases.spread(row), better, row.remark


def _write_comparison(comparison: Comparison) -> Iterable[str]:
    yield "## Compared"
    if warning := phrases.warning(comparison):
        yield f"> **{plain(warning)}**"
    old, new = plain(comparison.old_machine), plain(comparison.new_machine)
    dates = (phrases.date(date) for date in (comparison.old_date, comparison.new_date))
    yield f"Earlier: {old}, {next(dates)}. Later: {new}, {next(dates)}."
    yield phrases.verdicts(comparison)
    if comparison.remarks:
        yield "\n".join(f"- {plain(remark)}" for remark in comparison.remarks)
    if comparison.changes:
        rows = map(phrases.change, comparison.changes)
        yield grid(phrases.CHANGE_HEADS, rows)


def grid(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; a heading that begins with ">" is right-aligned."""
    lines = [f"| {' | '.join(head.removeprefix('>') for head in heads)} |"]
    lines.append("|" + "|".join("---:" if head[0] == ">" else "---" for head in heads) + "|")
    lines += [f"| {' | '.join(map(plain, row))} |" for row in rows]
    return "\n".join(lines)


def plain(text: str) -> str:
    """Escape markup and line breaks."""
    for sign in ("\\", "|", "<", "`", "*", "_", "["):
        text = text.replace(sign, "\\" + sign)
    return " ".join(text.split())

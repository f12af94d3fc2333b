"""A report as one HTML file: machine, plots, every row, and changes since another report.

The file needs no network, runs no script, and all texts are escaped.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from holdfast.base.html import escape, policy
from holdfast.dashboard.bench import phrases, plots
from holdfast.dashboard.bench.comparing import Change, Comparison
from holdfast.dashboard.bench.document import Report, Row, Subject, Table, Version

STYLE = Path(__file__).with_name("assets") / "report.css"


def page(report: Report | None, comparison: Comparison | None = None) -> str:
    """Render a report, a comparison, or both."""
    style = STYLE.read_text(encoding="utf-8")
    title = "Holdfast benchmarks" if report is not None else "Holdfast benchmarks, compared"
    parts = [
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f'<meta http-equiv="Content-Security-Policy" content="{policy([style], [""])}">',
        f"<title>{title}</title>\n<style>{style}</style>\n</head>\n<body>\n<main>",
        f'<p class="brand"><span class="mark"></span>Holdfast</p><h1>{title}</h1>',
    ]
    if report is not None:
        parts.append(_head(report))
    if comparison is not None:
        parts.append(_write_comparison(comparison))
    if report is not None:
        tables = [_table(table) for table in report.tables if table.rows]
        parts += [_overview(report.tables), *tables, _others(report)]
    return "\n".join([*filter(None, parts), "</main>", "</body>", "</html>", ""])


def _head(report: Report) -> str:
    facts = {
        "machine": report.machine.about,
        "CPU": f"{report.machine.cpu or phrases.NONE}, {report.machine.cpus or phrases.NONE} CPUs",
        "GPUs": ", ".join(report.machine.gpus) or "none",
        "measured": phrases.date(report.date),
        "Holdfast": report.holdfast,
    }
    rows = "".join(f"<div><dt>{k}</dt><dd>{escape(v)}</dd></div>" for k, v in facts.items())
    return f'<dl class="facts">{rows}</dl>{_versions(report.versions)}'


def _versions(versions: Sequence[Version]) -> str:
    if not versions:
        return ""
    words = ", ".join(f"{one.name} {one.version}" for one in versions)
    return f'<p class="soft">{escape(words)}</p>'


def _overview(tables: Sequence[Table]) -> str:
    drawn = plots.overview(tables)
    if not drawn:
        return ""
    about = (
        "How many times better Holdfast is than each peer: the dot is the geometric mean over all "
        "subjects that both have, the line goes from the worst to the best of them. Right of 1× "
        "Holdfast takes less time or memory, or is quicker; left of it the peer does. Below, a "
        "line across the end of a bar is the spread of its runs, and a ratio in grey is within it."
    )
    return f'<section><h2>At a glance</h2><p class="soft">{about}</p>{_plot(drawn)}</section>'


def _plot(drawn: str) -> str:
    return f'<div class="plot">{drawn}</div>'


def _table(table: Table) -> str:
    quick = ", a quick run" if table.quick else ""
    state = f"{phrases.how(table)}, {phrases.date(table.date)}{quick}"
    parts = [f'<section id="{escape(table.name)}"><h2>{escape(table.name)}</h2>']
    parts.append(f'<p class="about">{escape(table.about)}</p>' if table.about else "")
    look = ' class="soft bad"' if table.state in ("failed", "stopped") else ' class="soft"'
    parts.append(f"<p{look}>{escape(state)}</p>{_versions(table.versions)}{_absent(table)}")
    parts.append(_plot(plots.bars(table)))
    body = "".join(_row(s, row) for s in table.subjects() for row in s.rows)
    heads = ("subject", "system", ">figure", ">spread of its runs", ">we are better by", "remark")
    parts.append(f"<details><summary>every row</summary>{_grid(heads, body)}</details></section>")
    return "".join(parts)


def _absent(table: Table) -> str:
    if not table.absent:
        return ""
    words = "; ".join(f"{one.name} ({one.get})" for one in table.absent)
    return f'<p class="soft">Not installed here, so not measured: {escape(words)}.</p>'


def _grid(heads: Iterable[str], body: str) -> str:
    """A table; a heading that begins with > is right-aligned."""
    titles = "".join(
        f'<th class="n">{escape(head[1:])}</th>' if head[0] == ">" else f"<th>{escape(head)}</th>"
        for head in heads
    )
    return f"<table><thead><tr>{titles}</tr></thead><tbody>{body}</tbody></table>"


def _row(subject: Subject, row: Row) -> str:
    better, look = subject.times_better(row), subject.verdict(row) or ""
    figure = phrases.figure(row.value, row.unit)
    cells = [("", row.subject), ("ours" if row.ours else "", row.system), ("n", figure)]
    cells += [("n", phrases.spread(row)), (f"n {look}", phrases.times(better)), ("", row.remark)]
    return _cells(cells)


def _cells(cells: Iterable[tuple[str, str]]) -> str:
    drawn = (
        f'<td class="{kind.strip()}">{escape(text)}</td>' if kind else f"<td>{escape(text)}</td>"
        for kind, text in cells
    )
    return f"<tr>{''.join(drawn)}</tr>"


def _others(report: Report) -> str:
    tables = [table for table in report.tables if not table.rows]
    if not tables:
        return ""
    body = "".join(
        _cells([("", t.name), ("bad" if t.state == "failed" else "", phrases.how(t))])
        for t in tables
    )
    return f"<section><h2>Without results</h2>{_grid(('benchmark', 'why'), body)}</section>"


# ---- comparing

_LOOKS = {"better": "win", "worse": "loss"}


def _write_comparison(comparison: Comparison) -> str:
    warning = phrases.warning(comparison)
    parts = ["<section><h2>Compared</h2>"]
    parts.append(f'<p class="warning">{escape(warning)}</p>' if warning else "")
    parts += [
        f'<p class="soft">earlier: {escape(comparison.old_machine)}, '
        f"{escape(phrases.date(comparison.old_date))}; "
        f"later: {escape(comparison.new_machine)}, "
        f"{escape(phrases.date(comparison.new_date))}</p>",
        f"<p>{escape(phrases.verdicts(comparison))}</p>",
    ]
    parts += [f'<p class="soft">{escape(remark)}</p>' for remark in comparison.remarks]
    if comparison.changes:
        body = "".join(map(_write_change, comparison.changes))
        parts.append(_grid(phrases.CHANGE_HEADS, body))
    return "".join(parts) + "</section>"


def _write_change(change: Change) -> str:
    verdict = _LOOKS.get(change.verdict, "soft")
    looks = ("", "", "ours" if change.ours else "", "n", "n", "n", "n", verdict)
    return _cells(zip(looks, phrases.change(change), strict=True))

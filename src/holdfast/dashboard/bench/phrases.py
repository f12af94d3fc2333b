"""Numbers of benchmarks as text, the same in terminal, page and Markdown. Unknown is a dash."""

from __future__ import annotations

from holdfast.base.units import format_bytes, format_seconds
from holdfast.dashboard.bench.comparing import Change, Comparison
from holdfast.dashboard.bench.document import Row, Table

NONE = "–"


def number(value: float) -> str:
    """Three significant digits: 0.137, 12.3, 4,930."""
    if value == 0:
        return "0"
    size = abs(value)
    if size >= 1000:
        return f"{value:,.0f}"
    if size < 0.001:
        return f"{value:.2e}"
    digits = 0 if size >= 100 else 1 if size >= 10 else 2 if size >= 1 else 3
    return f"{value:.{digits}f}"


def figure(value: float | None, unit: str) -> str:
    """A value with its unit."""
    if value is None:
        return NONE
    if unit == "B":
        return format_bytes(round(value))
    return f"{number(value)} {unit}".rstrip()


def spread(row: Row) -> str:
    """The spread of its runs: "0.12 to 0.16"."""
    if row.low is None or row.high is None:
        return ""
    return f"{number(row.low)} to {number(row.high)}"


def times(ratio: float | None) -> str:
    """A ratio: "1.83×", "110×", "0.024×"."""
    if ratio is None:
        return ""
    if ratio >= 10:
        return f"{ratio:,.0f}×"
    return f"{ratio:.2f}×" if ratio >= 0.1 else f"{ratio:.2g}×"


def percent(part: float | None) -> str:
    """A relative spread: "4 %", the whole width (not "± 4 %")."""
    if part is None:
        return NONE
    return f"{part * 100:.0f} %" if part >= 0.01 else f"{part * 100:.1f} %"


def how(table: Table) -> str:
    """The outcome of a benchmark: "51 rows, 17 s", "not run: …"."""
    took = f", {format_seconds(table.took_s)}" if table.took_s is not None else ""
    count = f"{len(table.rows)} row{'' if len(table.rows) == 1 else 's'}"
    if table.state == "measured":
        return f"{count}{took}"
    kept = f" ({count} kept)" if table.rows else ""
    if table.state == "stopped":
        return f"{table.reason}{kept}"
    return f"{table.state}: {table.reason}{kept}"


def date(text: str | None) -> str:
    """Format ISO 8601 as "2026-11-16 18:50 UTC"."""
    if not text:
        return NONE
    day, _, moment = text.partition("T")
    zone = " UTC" if moment.endswith(("+00:00", "Z")) else ""
    return f"{day} {moment[:5]}{zone}".strip()


# A heading that begins with ">" is right-aligned.
CHANGE_HEADS = ("benchmark", "subject", "system", ">earlier", ">later", ">÷", ">noise", "verdict")


def change(found: Change) -> tuple[str, ...]:
    """A change as cells below CHANGE_HEADS."""
    figures = (figure(value, found.unit) for value in (found.old, found.new))
    noise = percent(found.noise)
    return (
        *(found.table, found.subject, found.system),
        *(*figures, times(found.ratio), noise, found.verdict),
    )


def verdicts(comparison: Comparison) -> str:
    """Counts: "3 better, 1 worse, 40 the same within noise"."""
    counts = comparison.counts()
    parts = [f"{counts[name]} {name}" for name in _ORDER if name in counts]
    parts += [f"{comparison.gone} only in the earlier"] if comparison.gone else []
    parts += [f"{comparison.added} only in the later"] if comparison.added else []
    return ", ".join(parts) or "no figure is in both"


_ORDER = ("better", "worse", "the same within noise", "spread not known")


def warning(comparison: Comparison) -> str | None:
    """A warning if the reports are from different machines."""
    if not comparison.differences:
        return None
    return "DIFFERENT MACHINES: a change says nothing about Holdfast. " + "; ".join(
        comparison.differences
    )

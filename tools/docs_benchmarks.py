"""The tables of the benchmarks page, from the files in benchmarks/results.

Each file has a section with its machine and date. Figures are rounded to four digits.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from holdfast.dashboard.bench.document import Report, Row, Subject, Table
from holdfast.dashboard.bench.reading import read

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"


def files() -> list[Path]:
    """All result files."""
    return sorted(RESULTS.glob("*.json"))


def tables() -> str:
    """The sections of all files."""
    return "\n".join(line for path in files() for line in _part(path, read(path)))


def _part(path: Path, report: Report) -> Iterator[str]:
    link = f"repository/{path.relative_to(ROOT).as_posix()}"
    yield f"### {path.stem}\n"
    machine = ", ".join((report.machine.about, *report.machine.gpus))
    yield f"[{path.name}]({link}), measured on {report.date[:10]} with Holdfast {report.holdfast}."
    yield f"Machine: {machine}.\n"
    for table in report.tables:
        if table.versions:
            named = ", ".join(f"{one.name} {one.version}" for one in table.versions)
            yield f"Versions: {named}.\n"
        yield from _tables(table)


def _tables(table: Table) -> Iterator[str]:
    """One table for all subjects with the same systems and units, in the order of the file."""
    groups: dict[tuple[str, ...], list[Subject]] = {}
    for subject in table.subjects():
        systems = tuple(dict.fromkeys(f"{row.system}, {row.unit}" for row in subject.rows))
        groups.setdefault(systems, []).append(subject)
    for systems, subjects in groups.items():
        yield f"| {table.name} | {' | '.join(map(_cell, systems))} |"
        yield "|---" + "|---:" * len(systems) + "|"
        for subject in subjects:
            values = {f"{row.system}, {row.unit}": figure(row) for row in subject.rows}
            yield f"| {_cell(subject.name)} | {' | '.join(values[name] for name in systems)} |"
        yield ""


def figure(row: Row) -> str:
    """The value with four digits, or the remark why there is none."""
    if row.value is None:
        return _cell(row.remark or "–")
    if row.value == 0 or abs(row.value) >= 1000:
        return f"{row.value:.0f}"
    return f"{row.value:.4g}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")

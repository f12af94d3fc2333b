"""Measure Holdfast beside the peers that are installed here, and write one report.

Each benchmark that this machine can run has its own process, one after the other. The folder
gets report.html (one file with plots, no network), report.md and report.json; what cannot run or
fails is in it with the reason. Ctrl-C ends it early and keeps what was measured.

--compare adds what changed since an earlier report (or a file of benchmarks/results), with a
verdict only where the change is larger than the spread of the runs.
Exit status: 0 all is well, 1 a benchmark failed or nothing was measured.

examples:
holdfast bench --list                        what would run here, and for how long
holdfast bench --quick                       a look in about five minutes
holdfast bench compute pool --out results    two of them, whole
holdfast bench --quick --compare holdfast-bench/report.json
holdfast bench --compare before.json after.json
"""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from holdfast.base.codec import encode
from holdfast.base.config import Config
from holdfast.base.errors import BadInput
from holdfast.base.units import format_seconds
from holdfast.cli.files import write_file
from holdfast.cli.parsing import option
from holdfast.cli.tables import output_console
from holdfast.dashboard.bench import ability, markdown, page, phrases, reading
from holdfast.dashboard.bench.catalog import Benchmark, select
from holdfast.dashboard.bench.comparing import Comparison, compare
from holdfast.dashboard.bench.document import Report, standings
from holdfast.dashboard.bench.running import Listener, Progress, Session
from holdfast.topology import Topology, discover

FOLDER = "holdfast-bench"


OPTIONS = (
    option("names NAME", "which benchmarks (default: all that can run)", nargs="*"),
    option("--list", "show them, run none"),
    option("--quick", "fewer sizes and runs"),
    option("--out DIR", f"folder for the report (default: {FOLDER})"),
    option(
        "--compare",
        "an earlier report or result to compare with; or two, and nothing is run",
        metavar=("OLD.json", "NEW.json"),
        nargs="+",
    ),
    option("--json", "print JSON instead of tables"),
)


def run(args: argparse.Namespace) -> int:
    """List, compare or measure."""
    wanted = select(args.names)
    files = args.compare or []
    if len(files) > 2:
        raise BadInput(
            f"cannot compare {len(files)} files",
            expected="one earlier report, or two",
            hint="names of benchmarks before --compare",
        )
    if len(files) == 2:
        return _only_compare(args, *map(reading.read, files))
    earlier = reading.read(files[0]) if files else None
    if args.list:
        return _list(args, wanted)
    return _measure(args, wanted, earlier)


# ---- comparing two files


def _only_compare(args: argparse.Namespace, old: Report, new: Report) -> int:
    comparison = compare(old, new)
    if args.out is not None:
        folder = _folder(args.out)
        write_file(folder / "compare.html", page.page(None, comparison))
        write_file(folder / "compare.md", markdown.markdown(None, comparison))
        write_file(folder / "compare.json", _as_json(comparison))
    if args.json:
        print(_as_json(comparison), end="")
    else:
        _show_comparison(comparison)
    return 0


def _as_json(value: Any) -> str:
    return json.dumps(encode(value), indent=1, ensure_ascii=False) + "\n"


def _show_comparison(comparison: Comparison) -> None:
    from rich.markup import escape

    if warning := phrases.warning(comparison):
        _say(f"[bold red]{escape(warning)}[/]")
    for remark in comparison.remarks:
        _say(f"[yellow]{escape(remark)}[/]")
    looks = {"better": "green", "worse": "red"}
    rows = []
    for change in comparison.changes:
        *cells, verdict = map(escape, phrases.change(change))
        rows.append([*cells, f"[{looks.get(change.verdict, 'dim')}]{verdict}[/]"])
    if rows:
        _table(phrases.CHANGE_HEADS, rows)
    _say(escape(phrases.verdicts(comparison)))


# ---- listing


def _list(args: argparse.Namespace, wanted: Sequence[Benchmark]) -> int:
    machine = discover(config=Config.load())
    found = [_describe(benchmark, machine) for benchmark in wanted]
    if args.json:
        print(json.dumps(found, indent=1, ensure_ascii=False))
        return 0
    from rich.markup import escape

    rows = []
    for one in found:
        peers = "; ".join(f"without {a['name']} ({a['get']})" for a in one["absent"])
        state = f"[yellow]{escape(one['reason'])}[/]" if one["reason"] else "[green]ready[/]"
        notes = escape(peers) if not one["reason"] else ""
        times = [format_seconds(one[key]) for key in ("quick_s", "whole_s")]
        rows.append([one["name"], escape(one["about"]), *times, state, notes])
    _table(("name", "what it measures", ">quick", ">whole", "here", "peers"), rows)
    ready = [one for one in found if not one["reason"]]
    quick, whole = (
        format_seconds(sum(one[key] for one in ready)) for key in ("quick_s", "whole_s")
    )
    _say(f"{len(ready)} of {len(found)} can run here: about {quick} with --quick, {whole} whole")
    return 0


def _describe(benchmark: Benchmark, machine: Topology) -> dict[str, Any]:
    return {
        "name": benchmark.name,
        "about": benchmark.about,
        "quick_s": benchmark.seconds(quick=True),
        "whole_s": benchmark.seconds(quick=False),
        "reason": ability.why_not(benchmark, machine),
        "absent": [encode(one) for one in ability.missing_peers(benchmark)],
    }


# ---- measuring


def _measure(args: argparse.Namespace, wanted: Sequence[Benchmark], earlier: Report | None) -> int:
    ability.scripts()  # raises if they are missing
    folder = _folder(args.out or FOLDER)
    session = Session(discover(config=Config.load()), folder, args.quick)
    with _show_progress(args.quick) as listener:

        def on_progress(progress: Progress) -> None:
            listener(progress)
            if progress.table is not None:  # so that a crash leaves a report
                _write(folder, session.report(), earlier)

        report = session.run(wanted, on_progress)
    comparison = _write(folder, report, earlier)
    if args.json:
        print(report.to_json(), end="")
    else:
        _show(report, comparison, folder)
    if session.stop.by == signal.SIGINT:
        raise KeyboardInterrupt
    if session.stop.by is not None:
        return 128 + session.stop.by
    measured = any(table.rows for table in report.tables)
    return 0 if measured and not report.failed else 1


def _folder(path: str) -> Path:
    """Make the folder if needed. Raises BadInput with the system's reason."""
    folder = Path(path).expanduser()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise BadInput(
            f"cannot write into {path!r}: {exc.strerror}", expected="a folder, or a name for one"
        ) from exc
    return folder


def _write(folder: Path, report: Report, earlier: Report | None) -> Comparison | None:
    comparison = compare(earlier, report) if earlier is not None else None
    write_file(folder / "report.json", report.to_json())
    write_file(folder / "report.md", markdown.markdown(report, comparison))
    write_file(folder / "report.html", page.page(report, comparison))
    return comparison


def _show(report: Report, comparison: Comparison | None, folder: Path) -> None:
    from rich.markup import escape

    looks = {"measured": "green", "failed": "red", "stopped": "yellow", "not run": "dim"}
    rows = []
    for table in report.tables:
        means = [f"{s.peer} {phrases.times(s.mean)}" for s in standings(table)]
        state = f"[{looks[table.state]}]{escape(phrases.how(table))}[/]"
        rows.append([table.name, state, escape(", ".join(means))])
    _table(("benchmark", "how it went", "times better than"), rows)
    absent = {one.name: one.get for table in report.tables for one in table.absent}
    if absent:
        names = "; ".join(f"{name} ({get})" for name, get in absent.items())
        _say(f"not installed, so not measured: {escape(names)}")
    if comparison is not None:
        _show_comparison(comparison)
    _say(f"report: {escape(str(folder / 'report.html'))}, report.md and report.json beside it")


# ---- the terminal


def _say(text: str) -> None:
    output_console().print(text, soft_wrap=True, highlight=False)


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table; a heading that begins with ">" aligns its column to the right."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for head in heads:
        right = head.startswith(">")
        table.add_column(head.lstrip(">"), justify="right" if right else "left", overflow="fold")
    for row in rows:
        table.add_row(*row)
    output_console().print(table, highlight=False)


@contextlib.contextmanager
def _show_progress(quick: bool) -> Iterator[Listener]:
    """Show the running benchmark, its rows and its time on standard error.

    On a terminal as one changing line; elsewhere as a line at the start and end of each benchmark.
    """
    from rich.console import Console
    from rich.markup import escape

    console = Console(stderr=True, highlight=False)
    if not console.is_terminal:

        def say(progress: Progress) -> None:
            said = phrases.how(progress.table) if progress.table is not None else "began"
            if progress.table is not None or progress.rows == progress.seconds == 0:
                print(f"{_position(progress)}: {said}", file=sys.stderr, flush=True)

        yield say
        return
    with console.status("looking at the machine", refresh_per_second=4) as status:

        def show(progress: Progress) -> None:
            if progress.table is not None:
                console.print(f"{_position(progress)}: {escape(phrases.how(progress.table))}")
                return
            rows = f"{progress.rows} of about {progress.benchmark.figures(quick)} rows"
            times = [progress.seconds, progress.benchmark.seconds(quick)]
            taken, about = map(format_seconds, times)
            status.update(f"{_position(progress)}: {rows}, {taken} of about {about}")

        yield show


def _position(progress: Progress) -> str:
    return f"({progress.place} of {progress.of}) {progress.benchmark.name}"

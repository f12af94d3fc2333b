"""Run benchmarks one after the other, each in a process of its own.

No process outlives the call, even after Ctrl-C, SIGTERM or a closed terminal; what was measured
until then is in the report. A failed benchmark is a table with the reason, never an exception.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import holdfast
from holdfast.base.errors import HoldfastError
from holdfast.base.units import format_seconds
from holdfast.dashboard.bench import ability, reading
from holdfast.dashboard.bench.catalog import Benchmark
from holdfast.dashboard.bench.document import Report, State, Table
from holdfast.topology import Topology

ROWS = "BENCH_ROWS"  # names the file to which a script appends each row
LOOK_S = 0.2
PATIENCE = 8.0  # timeout: so many times the expected time, at least ten minutes


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of a run."""

    benchmark: Benchmark
    place: int  # from 1
    of: int
    rows: int
    seconds: float
    table: Table | None = None  # once it is over


Listener = Callable[[Progress], None]


class Stop(contextlib.AbstractContextManager["Stop"]):
    """Defers signals that end a program, so that the report can be finished.

    Python delivers signals to the main thread only; elsewhere the block does nothing.
    """

    SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP")  # the last is not on every system

    def __init__(self) -> None:
        self.by: signal.Signals | None = None
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Stop:
        if threading.current_thread() is threading.main_thread():
            for name in self.SIGNALS:
                if number := getattr(signal, name, None):
                    self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def _note(self, number: int, _: object) -> None:
        self.by = self.by or signal.Signals(number)

    @property
    def reason(self) -> str | None:
        """Such as "stopped by Ctrl-C", or None."""
        if self.by is None:
            return None
        return "stopped by Ctrl-C" if self.by == signal.SIGINT else f"stopped by {self.by.name}"


class Session:
    """A run of benchmarks; `folder` gets the result file and the output of each."""

    def __init__(self, machine: Topology, folder: Path, quick: bool = False) -> None:
        self.machine, self.quick = machine, quick
        self.parts = folder / "parts"
        self.stop = Stop()
        self._tables: list[Table] = []
        self._date = _now()

    def report(self) -> Report:
        """The results so far."""
        where, versions = ability.describe_machine(self.machine), ability.versions()
        return Report(where, self._date, holdfast.__version__, tuple(self._tables), versions)

    def run(self, wanted: Sequence[Benchmark], listener: Listener) -> Report:
        """Run all and return the report.

        Ctrl-C ends the current one and skips the rest; see `stop`.
        """
        self.parts.mkdir(parents=True, exist_ok=True)
        with self.stop:
            for place, benchmark in enumerate(wanted, 1):
                begun = Progress(benchmark, place, len(wanted), 0, 0.0)
                table = self._table(benchmark, begun, listener)
                self._tables.append(table)
                listener(replace(begun, rows=len(table.rows), table=table))
        return self.report()

    def _table(self, benchmark: Benchmark, begun: Progress, listener: Listener) -> Table:
        empty = Table(benchmark.name, benchmark.about, quick=self.quick, date=_now())
        if self.stop.by is not None:
            return replace(empty, state="not run", reason=f"{self.stop.reason} before it began")
        if reason := ability.why_not(benchmark, self.machine):
            return replace(empty, state="not run", reason=reason)
        empty = replace(empty, absent=ability.missing_peers(benchmark))
        started = time.monotonic()
        quick = ["--quick"] if self.quick else []
        arguments = [*ability.arguments(benchmark, self.machine), *quick]
        with Script(benchmark, arguments, self.parts) as script:
            listener(begun)
            script.follow(self.stop, lambda n, s: listener(replace(begun, rows=n, seconds=s)))
            state, reason = script.outcome(self.stop)
            found = script.found()
        took = round(time.monotonic() - started, 1)
        table = replace(empty, state=state, reason=reason, took_s=took, rows=found.rows)
        return replace(table, date=found.date or table.date, versions=found.versions)


class Script(contextlib.AbstractContextManager["Script"]):
    """One script while it runs; leaving the block ends it."""

    def __init__(self, benchmark: Benchmark, arguments: Sequence[str], parts: Path) -> None:
        self._benchmark = benchmark
        self._out, self._log, self._rows = (
            parts / f"{benchmark.name}{ending}" for ending in (".json", ".txt", ".rows")
        )
        for file in (self._out, self._rows):
            file.unlink(missing_ok=True)
        expected_s = benchmark.seconds("--quick" in arguments)
        self._limit_s = max(600.0, PATIENCE * expected_s)
        self._late = False
        command = [sys.executable, str(ability.scripts() / benchmark.script), *arguments]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [*command, "--out", str(self._out.absolute())],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=os.environ | {ROWS: str(self._rows.absolute()), "PYTHONUNBUFFERED": "1"},
                start_new_session=True,  # Ctrl-C is ours; children are killed with it
            )

    def follow(self, stop: Stop, look: Callable[[int, float], None]) -> None:
        """Wait until it ends, is stopped or times out; `look` gets rows and seconds."""
        began = time.monotonic()
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(LOOK_S)
            took_s = time.monotonic() - began
            look(len(self._read_rows()), took_s)
            if self._process.returncode is not None or stop.by is not None:
                return
            if took_s > self._limit_s:
                self._late = True
                return

    def outcome(self, stop: Stop) -> tuple[State, str | None]:
        """State and reason of a failure. Kills it if it still runs."""
        running = self._process.poll() is None
        self._end()
        if running and self._late:
            return "failed", f"it took more than {format_seconds(self._limit_s)}"
        if running and stop.by is not None:
            return "stopped", stop.reason
        if self._process.returncode:
            return "failed", self._last_line()
        if not self._out.exists():
            return "failed", f"it wrote no results; its last words: {self._last_line()}"
        if not self.found().rows:
            return "failed", f"its results have no rows; its last words: {self._last_line()}"
        return "measured", None

    def found(self) -> Table:
        """Its results: the file, or the rows written until it ended."""
        try:
            return reading.read(self._out).tables[0]
        except HoldfastError:  # missing or incomplete: it was interrupted
            rows = reading.rows_of({"rows": self._read_rows()})
            return Table(self._benchmark.name, rows=tuple(rows))

    def _read_rows(self) -> list[dict[str, Any]]:
        """Rows so far; the last one of each figure."""
        if not self._rows.exists():
            return []
        rows: dict[tuple[str, str], dict[str, Any]] = {}
        for line in self._rows.read_text(encoding="utf-8").splitlines():
            with contextlib.suppress(ValueError):  # an incomplete line
                row = json.loads(line)
                rows[row["subject"], row["system"]] = {"value": None, "unit": ""} | row
        return list(rows.values())

    def _last_line(self) -> str:
        lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines()
        words = next((line.strip() for line in reversed(lines) if line.strip()), "it said nothing")
        status = self._process.returncode
        if status < 0:
            return f"ended by {signal.Signals(-status).name}; its last words: {words[:300]}"
        return words[:300]

    def _end(self) -> None:
        """Kill it with its children."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def __exit__(self, *_: object) -> None:
        self._end()
        self._rows.unlink(missing_ok=True)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")

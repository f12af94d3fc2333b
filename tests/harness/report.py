"""What a run of the tests prints: one line for each file, failures at once, a summary.

The summary has the skipped tests by reason, the ten slowest, and how to run a failed one again.
"""

from __future__ import annotations

import shlex
import time
from collections import Counter
from typing import Any

import pytest

from tests.harness.scheduling import file_of

_SHOWN = ("passed", "failed", "error", "skipped", "xfailed", "xpassed")
_SLOWEST = 10
_SLOW_S = 1.0


class FileReport:
    """Counts of one file."""

    def __init__(self) -> None:
        self.left = 0  # tests that have not ended
        self.counts: Counter[str] = Counter()
        self.seconds = 0.0

    def describe(self) -> str:
        parts = [f"{self.counts[kind]} {kind}" for kind in _SHOWN if self.counts[kind]]
        return ", ".join(parts) or "nothing ran"


class Report:
    """Prints through pytest's own reporter, whose dots are turned off."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.files: dict[str, FileReport] = {}
        self.total = self.done = 0
        self.failed: list[str] = []
        self.skipped: Counter[str] = Counter()
        self.seconds: Counter[str] = Counter()  # of each test
        self.begin = time.monotonic()

    @property
    def terminal(self) -> Any:
        return self.config.pluginmanager.getplugin("terminalreporter")

    # ---- which tests there are

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        if session.items:
            self._expect([item.nodeid for item in session.items])

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: Any, ids: list[str]) -> None:
        if not self.files:
            self._expect(ids)

    def _expect(self, ids: list[str]) -> None:
        self.total = len(ids)
        self.terminal.showfspath = False
        for nodeid in ids:
            self.files.setdefault(file_of(nodeid), FileReport()).left += 1

    # ---- while it runs

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(self, report: Any) -> tuple[str, str, str] | None:
        """No dots; reports of collections and the like are left to pytest."""
        if not isinstance(report, pytest.TestReport) or hasattr(report, "wasxfail"):
            return None
        if report.passed:
            return ("passed" if report.when == "call" else ""), "", ""
        if report.failed:
            is_error = report.when in ("setup", "teardown")
            return ("error", "", "ERROR") if is_error else ("failed", "", "FAILED")
        return "skipped", "", ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        file = self.files.setdefault(file_of(report.nodeid), FileReport())
        duration = getattr(report, "duration", 0.0)
        file.seconds += duration
        self.seconds[report.nodeid] += duration
        if report.when in ("call", "???") or not report.passed:
            kind = report.outcome
            if report.failed and report.when in ("setup", "teardown"):
                kind = "error"
            elif hasattr(report, "wasxfail"):
                kind = "xpassed" if report.passed else "xfailed"
            file.counts[kind] += 1
        if report.failed:
            self._show_failure(report)
        elif report.skipped and isinstance(report.longrepr, tuple):
            self.skipped[str(report.longrepr[2]).removeprefix("Skipped: ")] += 1
        if report.when in ("teardown", "???"):  # "???": the worker crashed
            self._count(file, report.nodeid)

    def _count(self, file: FileReport, nodeid: str) -> None:
        file.left -= 1
        self.done += 1
        if file.left:
            return
        share = f"{self.done * 100 // max(1, self.total):3d}%"
        bad = file.counts["failed"] + file.counts["error"]
        line = f"{share}  {file_of(nodeid):<52} {file.describe()}  {file.seconds:.1f} s"
        self.terminal.ensure_newline()
        self.terminal.write_line(line, red=bool(bad))

    def _show_failure(self, report: pytest.TestReport) -> None:
        if report.nodeid not in self.failed:
            self.failed.append(report.nodeid)
        terminal = self.terminal
        terminal.ensure_newline()
        terminal.write_sep("_", report.nodeid, red=True)
        report.toterminal(terminal._tw)
        for title, content in report.sections:
            terminal.write_sep("-", title)
            terminal.write_line(content.rstrip())

    # ---- at the end

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        self.config.option.tbstyle = "no"  # failures were shown

    def pytest_terminal_summary(self) -> None:
        write = self.terminal.write_line
        slow = [(s, n) for n, s in self.seconds.most_common(_SLOWEST) if s >= _SLOW_S]
        if slow:
            self.terminal.section("slowest tests")
            for seconds, nodeid in slow:
                write(f"{seconds:6.1f} s  {nodeid}")
        if self.skipped:
            self.terminal.section("skipped, by reason")
            for reason, count in self.skipped.most_common():
                write(f"{count:6d}  {reason}")
        if self.done < self.total:
            write(f"{self.total - self.done} tests did not run")
        if self.failed:
            self.terminal.section("run one again")
            for nodeid in self.failed:
                write(f"  .venv/bin/python -m pytest -n 0 {shlex.quote(nodeid)}")


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    is_worker = hasattr(config, "workerinput")
    if not is_worker and config.option.verbose <= 0 and not config.option.collectonly:
        config.pluginmanager.register(Report(config), "holdfast-report")

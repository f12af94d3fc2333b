"""Benchmarks in processes of their own: what they give, how they fail, how they are stopped."""

from __future__ import annotations

import itertools
import os
import signal
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from holdfast.dashboard.bench import ability, running
from holdfast.dashboard.bench.catalog import Benchmark
from holdfast.dashboard.bench.document import Report, Table
from holdfast.dashboard.bench.running import Progress, Session
from holdfast.topology import Topology

from .made_up import GOOD, benchmark, script

pytestmark = pytest.mark.slow

MACHINE = Topology(hostname="box")


@pytest.fixture
def scripts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder for scripts that are made up."""
    folder = tmp_path / "benchmarks"
    folder.mkdir()
    monkeypatch.setattr(ability, "scripts", lambda: folder)
    return folder


def measured(
    folder: Path, *wanted: Benchmark, quick: bool = False
) -> tuple[Report, list[Progress], Session]:
    seen: list[Progress] = []
    session = Session(MACHINE, folder / "out", quick)
    return session.run(wanted, seen.append), seen, session


def test_a_benchmark_gives_its_rows_and_is_followed(scripts: Path, tmp_path: Path) -> None:
    report, seen, _ = measured(tmp_path, script(scripts, "good", GOOD), quick=True)
    (table,) = report.tables
    assert (table.name, table.state, table.reason) == ("good", "measured", None)
    assert [(r.system, r.value, r.ours) for r in table.rows] == [
        ("holdfast", 1.0, True),
        ("torch", 2.0, False),
    ]
    assert table.quick is True
    assert table.about == "what good measures"
    assert [(v.name, v.version) for v in table.versions] == [("torch", "2.13.0")]
    assert (seen[0].rows, seen[0].place, seen[0].of) == (0, 1, 1)
    assert seen[-1].table == table
    assert (tmp_path / "out" / "parts" / "good.json").exists()
    assert not (tmp_path / "out" / "parts" / "good.rows").exists()


def test_rows_are_counted_while_it_runs(scripts: Path, tmp_path: Path) -> None:
    body = f"""
for n in range(3):
    row(f"s{{n}}", "holdfast", 1.0)
    row(f"s{{n}}", "holdfast", 2.0)  # again: the later one counts
    while not os.path.exists({str(tmp_path)!r} + f"/{{n + 1}}"):  # it is seen
        time.sleep(0.01)
publish()
"""
    seen: list[Progress] = []

    def see(progress: Progress) -> None:
        seen.append(progress)
        (tmp_path / str(progress.rows)).touch()

    Session(MACHINE, tmp_path / "out", quick=False).run([script(scripts, "slow", body)], see)
    counts = [progress.rows for progress in seen]
    assert counts == sorted(counts)
    assert {1, 2, 3} <= set(counts)


@pytest.mark.parametrize(
    ("body", "reason", "kept"),
    [
        (
            "row('s', 'holdfast', 1.0)\nraise ValueError('no such device')",
            "ValueError: no such device",
            1,
        ),
        ("sys.exit('the results are not equal')", "the results are not equal", 0),
        (GOOD + "sys.exit('the results are not equal')", "the results are not equal", 2),
        ("sys.exit(3)", "it said nothing", 0),
        ("print('nothing to do')", "it wrote no results; its last words: nothing to do", 0),
        (
            "print('so long', flush=True)\nos.kill(os.getpid(), signal.SIGSEGV)",
            "ended by SIGSEGV; its last words: so long",
            0,
        ),
        (
            "open(out, 'w').write('{')",
            "its results have no rows; its last words: it said nothing",
            0,
        ),
        ("publish()", "its results have no rows; its last words: it said nothing", 0),
    ],
)
def test_one_that_fails_is_a_table_with_its_reason_and_the_next_one_runs(
    scripts: Path, tmp_path: Path, body: str, reason: str, kept: int
) -> None:
    report, _, _ = measured(tmp_path, script(scripts, "bad", body), script(scripts, "good", GOOD))
    bad, good = report.tables
    assert (bad.state, bad.reason) == ("failed", reason)
    assert report.failed == (bad,)
    assert len(bad.rows) == kept
    assert good.state == "measured"


def test_one_that_cannot_run_is_not_started(scripts: Path, tmp_path: Path) -> None:
    report, seen, _ = measured(tmp_path, benchmark("card", needs=("cuda",)))
    (table,) = report.tables
    assert (table.state, table.reason) == ("not run", "torch sees no CUDA or ROCm device here")
    assert [progress.table for progress in seen] == [table]


def test_one_that_hangs_is_ended(
    scripts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = "row('s', 'holdfast', 1.0)\nopen(out + '.begun', 'w').close()\ntime.sleep(600)"
    begun = tmp_path / "out" / "parts" / "hangs.json.begun"
    calls = itertools.count()  # the first two ask when it began, which may be after its row

    def monotonic() -> float:
        return 601.0 if next(calls) >= 2 and begun.exists() else 0.0

    monkeypatch.setattr(running, "time", SimpleNamespace(monotonic=monotonic))
    report, _, _ = measured(tmp_path, script(scripts, "hangs", body))
    (table,) = report.tables
    assert (table.state, table.reason) == ("failed", "it took more than 10 min")
    assert len(table.rows) == 1


# What it starts goes with it.
PARENT = """
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
row("s", "holdfast", 1.0)
with open(out + ".pid", "w") as file:
    file.write(f"{os.getpid()} {child.pid}")
time.sleep(600)
"""


@pytest.mark.parametrize(
    ("number", "reason"),
    [(signal.SIGINT, "stopped by Ctrl-C"), (signal.SIGTERM, "stopped by SIGTERM")],
)
def test_stopping_keeps_what_was_measured_and_ends_every_process(
    scripts: Path, tmp_path: Path, number: signal.Signals, reason: str
) -> None:
    wanted = [script(scripts, "good", GOOD), script(scripts, "long", PARENT)]
    pids = tmp_path / "out" / "parts" / "long.json.pid"
    before = signal.getsignal(number)

    def stop() -> None:
        while not (pids.exists() and len(pids.read_text().split()) == 2):
            time.sleep(0.05)
        os.kill(os.getpid(), number)

    stopper = threading.Thread(target=stop)
    stopper.start()
    report, _, session = measured(tmp_path, *wanted, script(scripts, "never", GOOD))
    stopper.join()
    assert session.stop.by == number
    assert [(t.state, t.reason, len(t.rows)) for t in report.tables] == [
        ("measured", None, 2),
        ("stopped", reason, 1),
        ("not run", f"{reason} before it began", 0),
    ]
    assert signal.getsignal(number) is before
    for pid in map(int, pids.read_text().split()):
        assert _is_over(pid)


def _is_over(pid: int) -> bool:
    """Gone, or dead and not yet collected by whoever is in charge of orphans."""
    for _ in range(100):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return True
        if state == "Z":
            return True
        time.sleep(0.05)
    return False


def test_a_thread_can_run_benchmarks_too(scripts: Path, tmp_path: Path) -> None:
    made = script(scripts, "good", GOOD)
    found: list[Table] = []
    thread = threading.Thread(target=lambda: found.extend(measured(tmp_path, made)[0].tables))
    thread.start()
    thread.join()
    assert [table.state for table in found] == ["measured"]

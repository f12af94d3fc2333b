"""Find out what the machine is: ask every probe, merge their answers.

Covers: which probes to ask, in what process; what a failure means; the process-wide result.
Leaves to others: the answers (probes), putting them together (merge), timing (measure).
Promise: one probe failing never breaks discovery; its reason is kept in `Topology.probes`.
"""

from __future__ import annotations

import datetime
import importlib.util
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from holdfast.base.codec import decode, encode
from holdfast.base.config import Config
from holdfast.base.errors import Absent, BadInput, HoldfastError, MissingDependency
from holdfast.topology.merge import merge
from holdfast.topology.model import ProbeReport, ProbeStatus, Topology
from holdfast.topology.probes import FROM_FILES, IN_A_CHILD, PROBES
from holdfast.topology.probes.simulated import simulate
from holdfast.topology.speed import store

_lock = threading.Lock()
_found: dict[Config, Topology] = {}


def discover(refresh: bool = False, *, config: Config | None = None) -> Topology:
    """This machine, or the one `config` names (simulated, or recorded below another root).

    The first answer is kept for the process; `refresh` asks again.
    Raises BadInput if the config names an unknown probe, a root that is no folder or a simulated
    machine that cannot be read; never because a probe failed.
    """
    config = config or Config.load()
    with _lock:
        if refresh or config not in _found:
            _found[config] = _discover(config)
        return _found[config]


def _discover(config: Config) -> Topology:
    if config.simulate is not None:
        return merge([simulate(config.simulate)]).replace(discovered_at=utc_now())
    here = config.root == Path("/")
    if not config.root.is_dir():
        raise BadInput(
            f"cannot read a machine below {str(config.root)!r}: there is no such folder",
            expected="a folder that holds sys/ and proc/",
        )
    wanted = config.probes or tuple(PROBES)
    for name in wanted:
        PROBES.entry(name)  # refuses an unknown name before anything is asked
    asked = [name for name in PROBES if name in wanted and (here or name in FROM_FILES)]
    answers = _ask_all(asked, config)
    reports = [
        answers[name].report if name in answers else ProbeReport(name=name, status="skipped")
        for name in PROBES
    ]
    topology = merge([a.topology for a in answers.values() if a.topology is not None])
    topology = topology.replace(probes=tuple(reports), discovered_at=utc_now())
    return topology.replace(measurements=store.load(topology, config)) if here else topology


def utc_now() -> str:
    """The time, to the second, as the documents write it."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


@dataclass(frozen=True, slots=True)
class _Answer:
    report: ProbeReport
    topology: Topology | None


def _ask_all(names: list[str], config: Config) -> dict[str, _Answer]:
    """Ask the slow probes in their processes while the others run here; answers in order."""
    answers: dict[str, _Answer] = {}

    def ask(name: str) -> None:
        answers[name] = _ask(name, config)

    slow = [n for n in names if n in IN_A_CHILD and importlib.util.find_spec(IN_A_CHILD[n])]
    waiting = [threading.Thread(target=ask, args=(name,), daemon=True) for name in slow]
    for thread in waiting:
        thread.start()
    for name in names:
        if name == "psutil" and "linux" in answers and answers["linux"].topology:
            report = ProbeReport(name=name, status="skipped", reason="sysfs told it all")
            answers[name] = _Answer(report, None)
        elif name not in slow:
            ask(name)
    for thread in waiting:
        thread.join()
    return {name: answers[name] for name in names}


def _ask(name: str, config: Config) -> _Answer:
    start = time.perf_counter()
    topology, reason, status = None, None, "ok"
    try:
        topology = _ask_in_a_child(name, config) if name in IN_A_CHILD else PROBES[name](config)
        own = topology.probe(name)
        reason = own.reason if own else None
    except (Absent, MissingDependency) as exc:
        status, reason = "absent", _sentence(exc)
    except HoldfastError as exc:
        status, reason = "failed", _sentence(exc)
    except Exception as exc:  # noqa: BLE001  the promise above
        status, reason = "failed", f"{type(exc).__name__}: {exc}"
    elapsed_ms = round((time.perf_counter() - start) * 1000, 2)
    return _Answer(_report(name, status, reason, elapsed_ms), topology)


def _ask_in_a_child(name: str, config: Config) -> Topology:
    if not importlib.util.find_spec(IN_A_CHILD[name]):
        return PROBES[name](config)  # raises MissingDependency with what to install
    from holdfast.topology import isolate  # not needed on a machine without extras

    answer = isolate.call(f"{__name__}:answer", [name], timeout_s=config.probe_timeout_s)
    return decode(Topology, answer)


def answer(name: str) -> dict[str, object]:
    """The child's side of asking a probe."""
    return encode(PROBES[name](Config.load()))


def _report(name: str, status: str, reason: str | None, elapsed_ms: float) -> ProbeReport:
    kept: ProbeStatus = status  # type: ignore[assignment]
    return ProbeReport(name=name, status=kept, reason=reason, elapsed_ms=elapsed_ms)


def _sentence(exc: HoldfastError) -> str:
    return f"{exc.what} (try: {exc.hint})" if exc.hint else exc.what

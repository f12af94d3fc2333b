"""Discovers the machine: asks every probe and merges the answers.

A probe that fails does not break discovery; `Topology.probes` has the reason.
"""

from __future__ import annotations

import datetime
import importlib.util
import threading
import time
from collections.abc import Callable
from pathlib import Path

from holdfast.base.codec import decode, encode
from holdfast.base.config import Config
from holdfast.base.errors import Absent, BadInput, HoldfastError, MissingDependency
from holdfast.base.threads import Team
from holdfast.topology.merge import merge
from holdfast.topology.model import ProbeReport, ProbeStatus, Topology
from holdfast.topology.probes import FROM_FILES, IN_A_CHILD, PROBES
from holdfast.topology.probes.simulated import simulate
from holdfast.topology.speed import store

_Answer = tuple[ProbeReport, Topology | None]
_lock = threading.Lock()
_found: dict[Config, Topology] = {}


def discover(refresh: bool = False, *, config: Config | None = None) -> Topology:
    """This machine, or the one `config` names (simulated, or recorded below another root).

    The result is cached for the process; `refresh` asks again. Raises BadInput for an unknown
    probe, a root that is no folder or a malformed simulated machine; not for a failed probe.
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
        PROBES.entry(name)  # raises NotFound before any probe runs
    asked = [name for name in PROBES if name in wanted and (here or name in FROM_FILES)]
    answers = _ask_all(asked, config)
    reports = [
        answers[name][0] if name in answers else ProbeReport(name=name, status="skipped")
        for name in PROBES
    ]
    topology = merge([found for _, found in answers.values() if found is not None])
    topology = topology.replace(probes=tuple(reports), discovered_at=utc_now())
    return topology.replace(measurements=store.load(topology, config)) if here else topology


def utc_now() -> str:
    """The time in ISO 8601, to the second."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def _ask_all(names: list[str], config: Config) -> dict[str, _Answer]:
    slow = [n for n in names if n in IN_A_CHILD and importlib.util.find_spec(IN_A_CHILD[n])]
    answers: dict[str, _Answer] = {}
    if slow:
        _ask_in_children(slow, config, answers, meanwhile=[n for n in names if n not in slow])
    else:
        _ask_here(names, config, answers)
    return {name: answers[name] for name in names}


def _ask_here(names: list[str], config: Config, answers: dict[str, _Answer]) -> None:
    for name in names:
        if name == "psutil" and "linux" in answers and answers["linux"][1]:
            report = ProbeReport(name=name, status="skipped", reason="sysfs has all of it")
            answers[name] = report, None
        else:
            answers[name] = _ask(name, lambda name=name: PROBES[name](config))


def _ask_in_children(
    names: list[str], config: Config, answers: dict[str, _Answer], meanwhile: list[str]
) -> None:
    from holdfast.topology import isolate  # not needed on a machine without extras

    # On an early exit the children are killed first, so that the threads end soon.
    with Team() as team, isolate.Children() as children:

        def call(name: str) -> Topology:
            limit_s = config.probe_timeout_s
            return decode(Topology, children.call(f"{__name__}:answer", [name], timeout_s=limit_s))

        def ask(name: str) -> None:
            answers[name] = _ask(name, lambda: call(name))

        for name in names:
            team.start(ask, name)
        _ask_here(meanwhile, config, answers)
        team.wait()


def answer(name: str) -> dict[str, object]:
    return encode(PROBES[name](Config.load()))


def _ask(name: str, question: Callable[[], Topology]) -> _Answer:
    start = time.perf_counter()
    topology, reason = None, None
    status: ProbeStatus = "ok"
    try:
        topology = question()
        own = topology.probe(name)
        reason = own.reason if own else None
    except (Absent, MissingDependency) as exc:
        status, reason = "absent", _sentence(exc)
    except HoldfastError as exc:
        status, reason = "failed", _sentence(exc)
    except Exception as exc:  # noqa: BLE001  a probe must not break discovery
        status, reason = "failed", f"{type(exc).__name__}: {exc}"
    elapsed_ms = round((time.perf_counter() - start) * 1000, 2)
    report = ProbeReport(name=name, status=status, reason=reason, elapsed_ms=elapsed_ms)
    return report, topology


def _sentence(exc: HoldfastError) -> str:
    return f"{exc.what} (try: {exc.hint})" if exc.hint else exc.what

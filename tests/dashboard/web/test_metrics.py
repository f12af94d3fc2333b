"""Metrics, as Prometheus' own parser reads them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from holdfast.dashboard.ipc.watching import Watcher
from holdfast.dashboard.snapshot.snapshot import (
    GpuUse,
    LeakState,
    LinkUse,
    RunNow,
    Snapshot,
)
from holdfast.dashboard.web import Server, metrics
from tests.dashboard.web.api_stage import ask, guest, served

__all__ = ["guest", "served"]
NASTY = 'a "name"\\with\nlines'


def _families(text: str) -> dict[str, Any]:
    return {one.name: one for one in text_string_to_metric_families(text)}


def _values(family: Any) -> list[tuple[dict[str, str], float]]:
    return [(sample.labels, sample.value) for sample in family.samples]


@pytest.mark.slow
def test_a_live_process_is_told(served: Server, guest: int) -> None:
    answer = ask(served, "/metrics")
    assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    families = _families(answer.body.decode())
    assert _values(families["holdfast_processes"]) == [({}, 1.0)]
    ((labels, value),) = _values(families["holdfast_process_resident_bytes"])
    assert labels["pid"] == str(guest)
    assert value > 2**20
    pools = {
        labels["pool"]: value for labels, value in _values(families["holdfast_pool_reserved_bytes"])
    }
    assert pools['say "pool"'] >= 6_000_000
    ((_, budget),) = _values(families["holdfast_model_budget_bytes"])
    assert budget == 3_000_000
    assert families["holdfast_model_passes"].type == "counter"


def test_every_series_has_a_sentence_a_type_and_a_unit(served: Server) -> None:
    families = _families(_everything(served))
    assert {*families} == {one.name.removesuffix("_total") for one in metrics.SERIES}
    for one in metrics.SERIES:
        family = families[one.name.removesuffix("_total")]
        assert (family.documentation, family.type) == (one.about, one.kind)
        assert one.name.endswith("_total") == (one.kind == "counter")


def _everything(server: Server) -> str:
    """A real snapshot, with what this machine has not got put in."""
    snapshot = Snapshot.from_dict(ask(server, "/api/v1/snapshot").json)
    (process,) = snapshot.processes
    gpu = GpuUse(0, NASTY, 10, 5, 0.5, 25.0)
    run = RunNow("1", NASTY, "", "denoise", 1, 4, None, 0.0, 2.0, 6.0)
    process = replace(
        process,
        run=run,
        links=(LinkUse("cuda:0", 7, None),),
        leaks=LeakState(True, 1.0, 2, 3),
        models=tuple(replace(model, predicted_ms=2.0) for model in process.models),
    )
    machine = replace(snapshot.machine, gpus=(gpu,))
    return metrics.text(replace(snapshot, machine=machine, processes=(process,)))


def test_names_with_quotes_and_lines_come_through(served: Server) -> None:
    families = _families(_everything(served))
    assert _values(families["holdfast_gpu_used_bytes"]) == [({"gpu": "0", "label": NASTY}, 5.0)]
    ((labels, ratio),) = _values(families["holdfast_run_step_ratio"])
    assert (labels["model"], labels["stage"], ratio) == (NASTY, "denoise", 0.25)


def test_pools_of_one_name_are_added_up(served: Server) -> None:
    snapshot = Snapshot.from_dict(ask(served, "/api/v1/snapshot").json)
    (process,) = snapshot.processes
    pool = replace(process.pools[0], allocated_bytes=5)
    process = replace(process, pools=(pool, replace(pool, allocated_bytes=7)))
    families = _families(metrics.text(replace(snapshot, processes=(process,))))
    ((_, allocated),) = _values(families["holdfast_pool_allocated_bytes"])
    assert allocated == 12


def test_what_is_unknown_is_left_out() -> None:
    with Watcher([]) as watcher:
        snapshot = watcher.look()
    gpu = GpuUse(0, "a card", None, None, None, None)
    machine = replace(snapshot.machine, gpus=(gpu,), nodes=())
    families = _families(metrics.text(replace(snapshot, machine=machine)))
    assert {*families} == {
        "holdfast_ram_total_bytes",
        "holdfast_ram_used_bytes",
        "holdfast_processes",
    }

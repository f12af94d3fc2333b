"""How memory lies: local and remote pages, free memory, bandwidths, counters over time."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.base.config import Config
from holdfast.base.errors import ForeignPointer, OutOfMemory, UseAfterFree
from holdfast.memory import svm
from holdfast.memory.svm.model import PAGE_BYTES, Layout, Metrics
from holdfast.memory.svm.providers.numa import NumaProvider
from holdfast.memory.svm.providers.simulated import SimulatedProvider
from holdfast.topology import numa
from holdfast.topology.model import Measurement, Topology
from tests.needs import needs

MB = 10**6
SIZE = 256 * PAGE_BYTES
NO_NUMA = None if numa.is_supported() else "there are no NUMA calls here"


@pytest.fixture
def simulated() -> SimulatedProvider:
    """Two nodes with four CPUs each and a far one without."""
    return SimulatedProvider(Config.load(simulate="2x1GB,1x4GB:far"))


def share(metrics: Metrics) -> tuple[int | None, int | None, float | None]:
    return metrics.local_pages, metrics.remote_pages, metrics.local_ratio


# ---- a machine that is made up


def test_pages_are_local_where_the_plan_has_them_used(simulated: SimulatedProvider) -> None:
    handle = simulated.alloc(SIZE, domain=1)
    assert share(simulated.metrics(handle)) == (256, 0, 1.0)
    handle.migrate(1, 2)
    assert share(simulated.metrics(handle)) == (0, 256, 0.0)
    assert simulated.metrics(handle).pages == {2: 256}


def test_pages_over_several_nodes_are_local_to_each_of_their_cpus_in_part(
    simulated: SimulatedProvider,
) -> None:
    handle = simulated.alloc(SIZE, domain=[0, 1])
    metrics = simulated.metrics(handle)
    assert metrics.pages == {0: 128, 1: 128}
    assert metrics.cpus == tuple(range(8))
    assert share(metrics) == (128, 128, 0.5)


def test_all_allocations_together_are_counted_by_domain(simulated: SimulatedProvider) -> None:
    held = [simulated.alloc(SIZE, domain=n) for n in (0, 0, 1, 2)]
    metrics = simulated.metrics()
    assert metrics.pages == {0: 512, 1: 256, 2: 256}
    assert metrics.cpus == (0, 1, 2, 3), "those of the first node that has any"
    assert share(metrics) == (512, 512, 0.5)
    held.pop(0).free()
    assert simulated.metrics().pages == {0: 256, 1: 256, 2: 256}


def test_where_nothing_is_allocated_there_is_no_ratio(simulated: SimulatedProvider) -> None:
    metrics = simulated.metrics()
    assert (metrics.pages, metrics.verified) == ({}, False)
    assert share(metrics) == (0, 0, None)
    assert metrics.history == ()


def test_a_machine_without_cpus_cannot_tell_what_is_local() -> None:
    bare = SimulatedProvider(Config.load(simulate="2x1GB:far"))
    handle = bare.alloc(SIZE, domain=0)
    for metrics in (bare.metrics(handle), bare.metrics()):
        assert metrics.cpus == ()
        assert share(metrics) == (None, None, None)
        assert metrics.pages == {0: 256}


def test_free_memory_follows_what_is_allocated_and_moved(simulated: SimulatedProvider) -> None:
    total = {0: 1000 * MB, 1: 1000 * MB, 2: 4000 * MB}
    assert simulated.metrics().free_bytes == total
    handle = simulated.alloc(SIZE, domain=0)
    assert simulated.metrics(handle).free_bytes == total | {0: 1000 * MB - SIZE}
    handle.migrate(0, 2)
    assert simulated.metrics(handle).free_bytes == total | {2: 4000 * MB - SIZE}
    handle.free()
    assert simulated.metrics().free_bytes == total


def test_the_history_grows_with_what_happens(simulated: SimulatedProvider) -> None:
    handle = simulated.alloc(SIZE, domain=0)
    other = simulated.alloc(PAGE_BYTES, domain=0)
    handle.migrate(0, 1)
    with pytest.raises(OutOfMemory):
        simulated.alloc("5GB", domain=0)
    other.free()
    metrics = simulated.metrics()
    assert [
        (s.event, s.current_bytes, s.current_count, s.migrated_bytes) for s in metrics.history
    ] == [
        ("alloc", SIZE, 1, 0),
        ("alloc", SIZE + PAGE_BYTES, 2, 0),
        ("migrate", SIZE + PAGE_BYTES, 2, SIZE),
        ("free", SIZE, 1, SIZE),
    ]
    seconds = [s.seconds for s in metrics.history]
    assert seconds == sorted(seconds)
    statistics = metrics.statistics
    assert (statistics.migrations, statistics.migrated_bytes) == (1, SIZE)
    assert (statistics.current_count, statistics.total_count) == (1, 2)
    assert (statistics.refused_count, statistics.peak_bytes) == (1, SIZE + PAGE_BYTES)
    handle.free()


def test_the_history_keeps_the_latest_of_many(simulated: SimulatedProvider) -> None:
    for _ in range(600):
        simulated.alloc(1).free()
    history = simulated.metrics().history
    assert len(history) == 1024
    assert history[-1].event == "free"


def test_everything_made_up_says_so(simulated: SimulatedProvider) -> None:
    with simulated.alloc(SIZE) as handle:
        metrics = simulated.metrics(handle)
    assert metrics.simulated
    assert metrics.statistics.simulated
    assert not metrics.verified
    assert metrics.kernel == {}, "counters of a machine that is not this one"


def test_metrics_are_plain_data_for_json(simulated: SimulatedProvider) -> None:
    with simulated.alloc(SIZE, domain=1) as handle:
        plain = simulated.metrics(handle).to_dict()
    assert json.loads(json.dumps(plain))["local_ratio"] == 1.0
    assert plain["simulated"] is True


def test_bandwidths_that_were_measured_are_given_in_words(simulated: SimulatedProvider) -> None:
    rows = [
        ("node:0", "node:1", "read", 11.25),
        ("node:0", "node:1", "write", 7.5),
        ("node:1", "gpu:0", "pinned", 24.0),
        ("node:2", "node:2", "read", None),
    ]
    measured = tuple(
        Measurement(source=source, target=target, mode=mode, bandwidth_gb_s=rate)  # type: ignore[arg-type]
        for source, target, mode, rate in rows
    )
    assert simulated.metrics().bandwidth_gb_s == {}
    simulated.machine = simulated.machine.replace(measurements=measured)
    assert simulated.metrics().bandwidth_gb_s == {
        "node:0 read by node:1": 11.25,
        "node:1 written by node:0": 7.5,
        "node:1 to gpu:0, pinned": 24.0,
    }


def test_where_the_machine_around_is_unknown_there_are_no_bandwidths(
    simulated: SimulatedProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = dataclasses.replace(simulated.discover(), topology=None)
    monkeypatch.setattr(simulated, "discover", lambda: layout)
    assert simulated.metrics().bandwidth_gb_s == {}


def test_metrics_of_what_is_no_allocation_are_refused(simulated: SimulatedProvider) -> None:
    handle = simulated.alloc(SIZE)
    handle.free()
    with pytest.raises(UseAfterFree):
        simulated.metrics(handle)
    with pytest.raises(ForeignPointer):
        svm.metrics(0x1000)  # type: ignore[arg-type]


def test_an_allocation_that_goes_while_all_are_looked_at_is_left_out(
    simulated: SimulatedProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    stays, goes = simulated.alloc(SIZE, domain=0), simulated.alloc(SIZE, domain=1)
    real = simulated.discover

    def meanwhile(refresh: bool = False) -> Layout:
        if not goes.freed:
            goes.free()
        return real(refresh)

    monkeypatch.setattr(simulated, "discover", meanwhile)
    assert simulated.metrics().pages == {0: 256}
    stays.free()


# ---- this machine


@pytest.fixture
def real() -> NumaProvider:
    return NumaProvider(Config.load())


@needs(NO_NUMA)
def test_pages_of_this_machine_are_asked_of_the_kernel(real: NumaProvider) -> None:
    domain = next(d for d in real.discover().domains if d.cpus)
    with real.alloc(SIZE, domain=domain.id) as handle:
        metrics = real.metrics(handle)
        assert metrics.pages == {domain.id: 256}
        assert metrics.verified
        assert not metrics.simulated
        assert metrics.cpus == tuple(sorted(os.sched_getaffinity(0)))
        assert real.metrics().pages == {domain.id: 256}
    assert real.metrics().pages == {}


@needs(NO_NUMA)
def test_on_a_machine_with_one_node_all_is_local(real: NumaProvider) -> None:
    if len(real.discover().domains) != 1:
        pytest.skip("this machine has several nodes")
    with real.alloc(SIZE) as handle:
        assert share(real.metrics(handle)) == (256, 0, 1.0)


@needs(NO_NUMA)
def test_the_kernel_counts_hits_and_misses_of_its_nodes(real: NumaProvider) -> None:
    files = {
        d.id: Path(f"/sys/devices/system/node/node{d.id}/numastat") for d in real.discover().domains
    }
    counted = {number: path for number, path in files.items() if path.exists()}
    before = real.metrics().kernel
    assert before.keys() == counted.keys()
    with real.alloc("16MB"):
        after = real.metrics().kernel
    for number, path in counted.items():
        names = [line.split()[0] for line in path.read_text().splitlines()]
        assert list(after[number]) == names
        assert all(after[number][name] >= before[number][name] for name in names)
    if counted:
        assert sum(c["numa_hit"] for c in after.values()) > sum(
            c["numa_hit"] for c in before.values()
        ), "16 MB of pages were touched"


@needs(NO_NUMA)
def test_free_memory_of_this_machine_is_below_its_total(real: NumaProvider) -> None:
    layout = real.discover()
    for domain in layout.domains:
        free = real.metrics().free_bytes[domain.id]
        assert free is not None
        total = max(domain.total_bytes or 0, (layout.topology or Topology()).memory_bytes or 0)
        assert 0 < free < total


@needs(NO_NUMA)
def test_bandwidths_measured_on_this_machine_are_found(
    real: NumaProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = real.discover()
    row = Measurement(source="node:0", target="node:0", mode="read", bandwidth_gb_s=12.5)
    machine = (known.topology or Topology()).replace(measurements=(row,))
    monkeypatch.setattr(
        "holdfast.memory.svm.providers.numa.discover", lambda refresh=False, *, config: machine
    )
    assert real.metrics().bandwidth_gb_s == {"node:0 read by node:0": 12.5}


PARTLY = """
import dataclasses, os
from holdfast.memory import svm

mine = sorted(os.sched_getaffinity(0))[:2]
os.sched_setaffinity(0, mine)
provider = svm.provider("numa")
real = provider.discover

def split():
    layout = real()
    node = layout.domains[0]
    other = dataclasses.replace(node, id=99, cpus=(mine[1],))
    node = dataclasses.replace(node, cpus=(mine[0],))
    return dataclasses.replace(layout, domains=(node, other))

handle = provider.alloc("1MiB")
provider.discover = split
halves = provider.metrics(handle)
os.sched_setaffinity(0, mine[1:])
away = provider.metrics(handle)
os.sched_setaffinity(0, mine[:1])
beside = provider.metrics(handle)
print([m.local_ratio for m in (halves, away, beside)], beside.cpus == (mine[0],))
"""


@needs(NO_NUMA)
@pytest.mark.skipif(len(getattr(os, "sched_getaffinity", lambda _: ())(0)) < 2, reason="one CPU")
def test_what_is_local_depends_on_where_the_work_runs(script: Callable[..., str]) -> None:
    assert script(PARTLY) == "[0.5, 0.0, 1.0] True\n"

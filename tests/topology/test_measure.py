"""Measuring really measures: figures are physical, memory is given back, limits hold."""

from __future__ import annotations

import os
import platform
import sys
import threading
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from holdfast.base.config import Config
from holdfast.base.errors import BadInput, OutOfMemory, Unsupported
from holdfast.topology import Measurement, Topology, discover, isolate, measure
from holdfast.topology.numa import Region
from holdfast.topology.speed import chase, host, store
from tests.needs import needs
from tests.topology.test_probes import _no_opencl

FAST = "linux,pci,psutil"


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "SMALLEST_BYTES", 32 * 2**20)
    monkeypatch.setattr(host, "LARGEST_BYTES", 32 * 2**20)


@pytest.fixture
def here() -> Topology:
    return discover(config=Config.load(probes=FAST)).replace(measurements=())


@pytest.mark.usefixtures("small")
def test_a_machine_is_measured_and_the_results_are_kept(here: Topology) -> None:
    config = Config.load(probes=FAST)
    seen: list[tuple[str, int, int]] = []
    measured = measure(here, config=config, progress=lambda *step: seen.append(step))
    reads = [m for m in measured.measurements if m.mode == "read"]
    assert len(reads) == len([n for n in here.nodes if n.total_bytes]) * len(
        [n for n in here.nodes if n.cpus]
    )
    for m in reads:
        assert 0.05 < (m.bandwidth_gb_s or 0) < 5000
        assert 0.5 < (m.latency_ns or 0) < 100_000
        assert m.measured_at.endswith("+00:00")
    assert seen[0][1:] == (0, len(seen) - 1)
    assert seen[-1] == ("done", len(seen) - 1, len(seen) - 1)
    # A new discovery finds them, and measuring again is not needed.
    again = discover(refresh=True, config=config)
    assert again.measurements == measured.measurements
    assert measure(again, config=config) is again


@pytest.mark.usefixtures("small")
def test_a_time_limit_ends_it_and_says_what_is_missing(here: Topology) -> None:
    node = here.nodes[0]
    many = here.replace(nodes=(node,) * 50)
    measured = measure(many, config=Config.load(probes=FAST), time_limit_s=0.2)
    report = measured.probe("measure")
    assert report is not None
    assert "the time limit of 0.2 s ended it after" in (report.reason or "")
    assert 0 < len(measured.measurements) < 2 * 50


@pytest.mark.usefixtures("small")
def test_older_figures_stay_until_newer_ones_replace_them(here: Topology) -> None:
    old = [
        Measurement(source="node:0", target=target, mode=mode, bandwidth_gb_s=1e6)
        for target, mode in (("gpu:0", "pinned"), ("node:0", "read"))
    ]
    known = here.replace(measurements=tuple(old))
    measured = measure(known, refresh=True, config=Config.load(probes=FAST)).measurements
    assert old[0] in measured
    assert old[1] not in measured


@pytest.mark.parametrize("limit", [0, -1, float("nan")])
def test_a_time_limit_that_is_none_is_refused(here: Topology, limit: float) -> None:
    with pytest.raises(BadInput, match=f"the time limit is {limit:g} s"):
        measure(here, time_limit_s=limit)


def test_another_machine_cannot_be_measured(here: Topology) -> None:
    with pytest.raises(Unsupported, match="cannot measure 'elsewhere'"):
        measure(here.replace(hostname="elsewhere"), config=Config.load(probes=FAST))


def test_memory_is_freed_and_affinity_restored() -> None:
    cpus = sorted(os.sched_getaffinity(0))
    before = psutil.Process().memory_info().rss
    with host.HostMemory(0, 64 * 2**20, bound=False) as memory:
        assert psutil.Process().memory_info().rss > before + 48 * 2**20
        memory.read_gb_s(cpus)
        memory.latency_ns(cpus)
    assert psutil.Process().memory_info().rss < before + 16 * 2**20
    assert sorted(os.sched_getaffinity(0)) == cpus


@pytest.mark.parametrize("native", [True, False])
def test_both_stop_watches_follow_the_whole_chain(monkeypatch, native: bool) -> None:
    native = native and chase._native_loop() is not None
    if not native:
        monkeypatch.setattr(chase, "_native_loop", lambda: None)
    with Region(2**20) as region:
        words = region.buffer.cast("Q")
        words[0], words[64] = region.address + 512, region.address
        words.release()
        assert chase.chase(region, region.address, 100_001) >= 0
        assert ("Python" in chase.chase_method()) is not native
        words = region.buffer.cast("Q")
        assert (words[0], words[64]) == (region.address + 512, region.address)
        words.release()


@pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() != "x86_64", reason="x86-64 Linux only"
)
def test_the_machine_code_ends_where_the_chain_says() -> None:
    loop = chase._native_loop()
    assert loop is not None
    with Region(2**20) as region:
        words = region.buffer.cast("Q")
        for i in range(4):
            words[8 * i] = region.address + 64 * ((i + 1) % 4)
        words.release()
        ends = [loop(region.address, steps) - region.address for steps in (1, 2, 3, 4, 1001)]
    assert ends == [64, 128, 192, 0, 64]


@pytest.mark.parametrize(
    ("cache", "free", "length"),
    [
        (None, None, 96 * 2**20),
        (260 * 2**20, 64 * 2**30, 780 * 2**20),
        (512 * 2**20, 64 * 2**30, 1024 * 2**20),
        (64 * 2**20, 600 * 2**20, 150 * 2**20),
    ],
)
def test_the_region_is_beyond_the_cache_and_within_free_memory(
    cache: int | None, free: int | None, length: int
) -> None:
    assert host.region_bytes(cache, free) == length


def test_too_little_memory_is_refused_rather_than_the_cache_measured() -> None:
    with pytest.raises(OutOfMemory) as caught:
        host.region_bytes(32 * 2**20, 100 * 2**20)
    assert str(caught.value) == (
        "too little memory to measure: 105 MB free\n"
        "  expected: 268 MB, of which a quarter is used\n"
        "  try: end other programs, or measure later"
    )


def test_a_full_node_is_left_out_and_named(here: Topology) -> None:
    full = here.replace(
        available_bytes=2**20, nodes=tuple(replace(n, free_bytes=2**20) for n in here.nodes)
    )
    report = measure(full, config=Config.load(probes=FAST)).probe("measure")
    assert report is not None
    assert report.status == "failed"
    assert "too little memory to measure: 1.0 MB free" in (report.reason or "")


def test_an_interrupt_while_the_chain_is_laid_lets_the_memory_go(monkeypatch) -> None:
    def interrupted(*_: object, strict: bool) -> object:
        raise KeyboardInterrupt

    def run() -> None:
        with host.HostMemory(0, 32 * 2**20, bound=False) as memory:
            monkeypatch.setattr(host, "zip", interrupted, raising=False)
            memory.latency_ns(sorted(os.sched_getaffinity(0)))

    with pytest.raises(KeyboardInterrupt):
        run()


def test_a_thread_that_fails_ends_the_others() -> None:
    cpus = sorted(os.sched_getaffinity(0))
    before = threading.active_count()
    with pytest.raises(Unsupported, match="cannot run on CPUs"):
        host._time_together([*cpus, 4095], lambda number: None)
    assert threading.active_count() == before


@pytest.mark.opencl
@needs(_no_opencl())
def test_copies_through_opencl_are_timed() -> None:
    rows = isolate.call(
        "holdfast.topology.speed.opencl:copies", ["opencl:0:0", None, [0]], timeout_s=120
    )
    assert [(row["mode"], row["direction"]) for row in rows] == [
        ("pinned", "to_device"),
        ("pinned", "from_device"),
        ("pageable", "to_device"),
        ("pageable", "from_device"),
    ]
    assert all(row["bandwidth_gb_s"] > 0 for row in rows)


def test_a_spoilt_or_foreign_file_of_results_counts_as_none(
    here: Topology, config: Config, tmp_path: Path
) -> None:
    kept = here.replace(measurements=(Measurement(source="a", target="b", mode="read"),))
    path = store.save(kept, config)
    assert path is not None
    assert store.load(here, config) == kept.measurements
    assert store.load(here.replace(cpu_model="another"), config) == ()
    path.write_text('[{"source": 1}]')
    assert store.load(here, config) == ()
    path.write_text("nonsense")
    assert store.load(here, config) == ()


def test_a_folder_that_cannot_be_written_loses_the_cache_and_nothing_else(
    here: Topology, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    assert store.save(here, Config.load(cache_dir=tmp_path / "file")) is None

from __future__ import annotations

import json

from holdfast.memory.core.stats import (
    Counter,
    DetailedStats,
    LargeAllocation,
    MemoryStats,
)

MB = 10**6


def test_an_allocation_changes_every_figure_it_should() -> None:
    stats = MemoryStats()
    assert stats.fragmentation_ratio() == stats.cache_hit_rate() == 0.0
    stats.update_allocation(600)
    stats.update_allocation(200)
    assert (stats.allocated_bytes, stats.active_bytes) == (800, 800)
    assert (stats.peak_allocated, stats.peak_reserved) == (800, 800)
    assert (stats.num_allocs, stats.num_frees) == (2, 0)
    stats.update_free(600)
    assert (stats.allocated_bytes, stats.peak_allocated, stats.num_frees) == (200, 800, 1)
    assert stats.active_bytes + stats.inactive_bytes == stats.reserved_bytes == 800
    assert stats.cached_bytes == stats.inactive_bytes


def test_the_specification_s_fields_are_there_and_begin_at_zero() -> None:
    stats = MemoryStats()
    names = ("allocated_bytes", "reserved_bytes", "active_bytes", "inactive_bytes")
    names += ("peak_allocated", "num_allocs", "num_frees", "cached_bytes")
    assert [getattr(stats, name) for name in names] == [0] * 8


def test_fragmentation_is_the_share_of_reserved_bytes_not_requested() -> None:
    assert MemoryStats(allocated_bytes=25, reserved_bytes=100).fragmentation_ratio() == 0.75
    assert MemoryStats(num_allocs=8, cache_hits=6).cache_hit_rate() == 0.75


def test_the_statistics_of_two_pools_add_up() -> None:
    both = MemoryStats(allocated_bytes=1, num_allocs=2, peak_allocated=5, cache_hits=1)
    both += MemoryStats(allocated_bytes=10, num_allocs=20, peak_allocated=50)
    assert both == MemoryStats(allocated_bytes=11, num_allocs=22, peak_allocated=55, cache_hits=1)


def test_a_summary_is_a_few_lines_for_people() -> None:
    stats = MemoryStats(
        allocated_bytes=3 * MB,
        reserved_bytes=4 * MB,
        cached_bytes=MB,
        peak_allocated=5 * MB,
        peak_reserved=6 * MB,
        num_allocs=10,
        num_frees=7,
        cache_hits=9,
    )
    assert stats.summary() == (
        "allocated   3.0 MB in 3 blocks, at most 5.0 MB\n"
        "reserved    4.0 MB, at most 6.0 MB\n"
        "cached      1.0 MB (25% of the reserved bytes are not in use)\n"
        "requests    10, 90.0% served from the cache"
    )
    data = json.loads(json.dumps(stats.to_dict()))
    assert (data["allocated_bytes"], data["fragmentation_ratio"]) == (3 * MB, 0.25)
    assert data["cache_hit_rate"] == 0.9


def test_a_counter_has_current_peak_and_total() -> None:
    counter = Counter()
    counter.add(10)
    counter.add(20)
    counter.remove(10)
    counter.add(5)
    assert counter == Counter(25, 30, 35, 2, 2, 3)


def test_the_detailed_view_has_the_large_blocks_and_every_device() -> None:
    large = LargeAllocation(200 * 2**20, "model.py:7 in load", "cuda:0", "vae", 4096)
    small = LargeAllocation(10, "an unrecorded location", "cpu", "", 8192)
    stats = DetailedStats(
        total_allocated=3,
        peak_allocated=4,
        total_reserved=5,
        fragmentation_ratio=0.4,
        cache_hit_rate=0.5,
        by_device={"cpu": MemoryStats(allocated_bytes=3, num_allocs=1)},
        by_tag={"vae": Counter(1, 2000, 3, 4, 5, 6)},
        allocations=(large, small),
    )
    assert stats.get_large_allocations() == [large]
    assert stats.get_large_allocations(min_size=10) == [large, small]
    assert stats.summary() == (
        "cpu\n"
        "  allocated   3 B in 1 blocks, at most 0 B\n"
        "  reserved    0 B, at most 0 B\n"
        "  cached      0 B (0% of the reserved bytes are not in use)\n"
        "  requests    1, 0.0% served from the cache\n"
        "tag vae: 1 B now, 2.0 KB at most, 6 blocks in all\n"
        "  210 MB on cuda:0 [vae] from model.py:7 in load\n"
        "  10 B on cpu from an unrecorded location"
    )
    data = json.loads(json.dumps(stats.to_dict()))
    assert data["by_tag"]["vae"]["peak_bytes"] == 2000
    assert data["allocations"][0]["location"] == "model.py:7 in load"


def test_the_lines_that_the_specification_prints() -> None:
    stats = DetailedStats(2 * 10**9, 3 * 10**9, 4 * 10**9, 0.5, 0.987)
    assert f"{stats.total_allocated / 1e9:.2f} GB" == "2.00 GB"
    assert f"{stats.peak_allocated / 1e9:.2f} GB" == "3.00 GB"
    assert f"{stats.fragmentation_ratio:.2%}, {stats.cache_hit_rate:.2%}" == "50.00%, 98.70%"

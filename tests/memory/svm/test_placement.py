"""Every rule by which memory is placed, and every refusal word for word."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.base.errors import BadInput, HoldfastError, OutOfMemory, Unsupported
from holdfast.memory.svm.model import MODES, Domain, Layout, Placement
from holdfast.memory.svm.placement import KEPT_BYTES, check_room, domain_of, place
from holdfast.topology.model import Gpu, Topology

GB = 10**9
KEPT = KEPT_BYTES


def layout(
    *free: int | None, gpus: Sequence[Gpu] = (), bare: Sequence[int] = (2, 3), **more: Any
) -> Layout:
    """Domains with two CPUs each, but those that are `bare`; neighbours are nearer than others."""
    count = len(free)
    return Layout(
        provider="a table",
        topology=Topology(gpus=tuple(gpus)),
        domains=tuple(
            Domain(
                id=n,
                name=f"node:{n}",
                total_bytes=16 * GB,
                free_bytes=room,
                cpus=() if n in bare else (2 * n, 2 * n + 1),
                distances=tuple(10 + 10 * abs(n - m) for m in range(count)),
            )
            for n, room in enumerate(free)
        ),
        **more,
    )


THREE = layout(4 * GB, 8 * GB, 6 * GB)


def refused(kind: type[HoldfastError], *arguments: Any, **options: Any) -> str:
    with pytest.raises(kind) as error:
        place(*arguments, **options)
    return str(error.value)


# ---- where somebody said


def test_a_domain_that_is_named_is_taken() -> None:
    assert place(THREE, GB, domain=1, running_on=(0,)) == Placement(
        domains=(1,), mode="bind", reason="node:1 was asked for", cpus=(2, 3), pinned=True
    )


def test_several_domains_that_are_named_are_interleaved() -> None:
    assert place(THREE, GB, domain=[2, 0, 2]) == Placement(
        domains=(2, 0),
        mode="interleave",
        reason="node:2 and node:0 were asked for",
        cpus=(0, 1),
        pinned=True,
    )


def test_several_domains_are_bound_where_that_was_said() -> None:
    assert place(THREE, 9 * GB, domain=(0, 1), mode="bind") == Placement(
        domains=(0, 1),
        mode="bind",
        reason="node:0 and node:1 were asked for",
        cpus=(0, 1, 2, 3),
        pinned=True,
    )


def test_a_preferred_domain_need_not_have_room() -> None:
    placed = place(THREE, 5 * GB, domain=0, mode="preferred")
    assert (placed.domains, placed.mode) == ((0,), "preferred")


def test_a_named_domain_comes_before_what_it_should_be_near() -> None:
    assert place(THREE, GB, domain=0, near="node:1").domains == (0,)


def test_the_work_beside_a_domain_without_cpus_runs_on_the_nearest_that_has_some() -> None:
    assert place(THREE, GB, domain=2).cpus == (2, 3)
    assert place(layout(GB, GB, bare=(0, 1)), 1, domain=0).cpus == ()


@pytest.mark.parametrize("domain", [3, -1, 0.5, True, False, "0", None])
def test_a_domain_that_is_not_there_is_refused(domain: Any) -> None:
    expected = (
        f"'a table' has no domain {domain!r}\n  expected: one of 0 (node:0), 1 (node:1), 2 (node:2)"
    )
    assert refused(BadInput, THREE, GB, domain=[domain]) == expected
    with pytest.raises(BadInput) as error:
        domain_of(THREE, domain)
    assert str(error.value) == expected


@pytest.mark.parametrize("domain", [3, True, 0.5, "0"])
def test_what_is_no_number_of_a_domain_is_refused_alone_too(domain: Any) -> None:
    assert refused(BadInput, THREE, GB, domain=domain) == (
        f"'a table' has no domain {domain!r}\n  expected: one of 0 (node:0), 1 (node:1), 2 (node:2)"
    )


def test_a_number_of_numpy_names_a_domain_too() -> None:
    numpy = pytest.importorskip("numpy")
    assert place(THREE, GB, domain=numpy.int64(1)).domains == (1,)


def test_no_domain_at_all_is_refused() -> None:
    assert refused(BadInput, THREE, GB, domain=[]) == (
        "the list of domains is empty\n  expected: a domain, or a list with one or more"
    )


def test_a_mode_that_is_not_there_is_refused() -> None:
    assert refused(BadInput, THREE, GB, mode="scatter") == (
        "there is no placement 'scatter'\n  expected: one of bind, interleave, preferred"
    )


def test_more_than_a_named_domain_has_is_refused() -> None:
    assert refused(OutOfMemory, THREE, 4 * GB, domain=0) == (
        "cannot allocate 4.0 GB on node:0: free are node:0 4.0 GB, node:1 8.0 GB, node:2 6.0 GB\n"
        "  expected: that much free, with 67.1 MB left for others on each\n"
        "  try: a smaller size, another domain, or freeing something first"
    )
    assert refused(OutOfMemory, THREE, 12 * GB, domain=[0, 1], mode="bind").startswith(
        "cannot allocate 12.0 GB on node:0, node:1: free are "
    )


def test_more_than_the_smallest_of_several_named_has_cannot_be_interleaved() -> None:
    assert refused(OutOfMemory, THREE, 9 * GB, domain=[0, 1]) == (
        "cannot interleave 9.0 GB on node:0, node:1: "
        "free are node:0 4.0 GB, node:1 8.0 GB, node:2 6.0 GB\n"
        "  expected: that much free, with 67.1 MB left for others on each\n"
        "  try: a smaller size, another domain, or freeing something first"
    )


def test_what_is_kept_for_others_is_kept_to_the_byte() -> None:
    assert place(THREE, 4 * GB - KEPT, domain=0).domains == (0,)
    refused(OutOfMemory, THREE, 4 * GB - KEPT + 1, domain=0)
    assert place(THREE, 2 * (4 * GB - KEPT), domain=[0, 1]).domains == (0, 1)
    refused(OutOfMemory, THREE, 2 * (4 * GB - KEPT) + 2, domain=[0, 1])


# ---- where it belongs


def test_an_only_domain_is_the_only_one() -> None:
    assert place(layout(GB), 1, running_on=(7,)) == Placement(
        domains=(0,), mode="bind", reason="node:0 is the only one", cpus=(0, 1)
    )


def test_memory_goes_to_the_cpus_that_run_the_work() -> None:
    assert place(THREE, GB, running_on=(0, 1)) == Placement(
        domains=(0,),
        mode="bind",
        reason="the CPUs that run the work are those of node:0",
        cpus=(0, 1),
    )


def test_memory_goes_to_the_one_gpu_where_the_cpus_do_not_tell() -> None:
    card = Gpu(id=0, numa_node=0, kind="discrete")
    screen = Gpu(id=1, numa_node=1, kind="display")
    placed = place(layout(4 * GB, 8 * GB, gpus=[card, screen]), GB, running_on=(0, 1, 2, 3))
    assert (placed.domains, placed.reason) == ((0,), "gpu:0 hangs off node:0")


def test_the_cpus_come_before_the_gpu() -> None:
    one = layout(4 * GB, 8 * GB, gpus=[Gpu(id=0, numa_node=0)])
    assert place(one, GB, running_on=(2,)).domains == (1,)


@pytest.mark.parametrize(
    "gpus",
    [
        (),
        (Gpu(id=0, numa_node=0), Gpu(id=1, numa_node=1)),
        (Gpu(id=0),),
        (Gpu(id=0, numa_node=9),),
    ],
    ids=["no GPU", "GPUs on two nodes", "a GPU of no known node", "a GPU of a node without memory"],
)
def test_else_it_goes_where_most_is_free(gpus: tuple[Gpu, ...]) -> None:
    placed = place(layout(4 * GB, 8 * GB, 9 * GB, gpus=gpus), GB, running_on=(0, 1, 2, 3))
    assert placed == Placement(
        domains=(1,),
        mode="bind",
        reason="node:1 has the most free memory of those beside the CPUs: 8.0 GB",
        cpus=(2, 3),
    )


def test_most_free_counts_only_nodes_that_run_the_work() -> None:
    busy = layout(4 * GB, 2 * GB, 8 * GB, bare=())
    assert place(busy, GB, running_on=(0, 2)).domains == (0,)
    assert place(busy, GB, running_on=()).domains == (2,)
    assert place(layout(GB, 2 * GB, bare=(0, 1)), 1).domains == (1,)


@pytest.mark.parametrize(
    ("near", "domain", "reason"),
    [
        ("node:1", 1, "node:1 was asked for"),
        ("cpu:3", 1, "CPU 3 is on node:1"),
        ("gpu:1", 2, "gpu:1 hangs off node:2"),
        ("gpu:0", 1, "gpu:0 hangs off node:1"),
        ("gpu", 1, "gpu:0 hangs off node:1"),
    ],
)
def test_near_names_what_uses_it(near: str, domain: int, reason: str) -> None:
    cards = [Gpu(id=0, numa_node=1), Gpu(id=1, numa_node=2)]
    placed = place(layout(4 * GB, 8 * GB, 6 * GB, gpus=cards), GB, near=near, running_on=(0,))
    assert (placed.domains, placed.reason) == ((domain,), reason)
    assert placed.near == near


@pytest.mark.parametrize("near", ["", "node", "cpu", "node:", "node:-1", "disk:0", "gpu:0 ", 0])
def test_near_something_that_has_no_place_is_refused(near: Any) -> None:
    assert refused(BadInput, THREE, GB, near=near) == (
        f'cannot place memory near {near!r}\n  expected: "gpu:0", "node:1" or "cpu:3"'
    )


def test_near_a_node_that_is_not_there_is_refused() -> None:
    assert refused(BadInput, THREE, GB, near="node:7") == (
        "'a table' has no domain that is node 7\n  expected: one of node:0, node:1, node:2"
    )


def test_a_domain_that_is_no_node_is_near_none() -> None:
    """Of OpenCL the numbers are 0 for the host and 1 for the device, whatever nodes there are."""
    some = layout(4 * GB, 4 * GB)
    named = replace(
        some,
        domains=tuple(
            replace(d, name=name) for d, name in zip(some.domains, ("host", "gpu"), strict=True)
        ),
    )
    assert refused(BadInput, named, GB, near="node:1") == (
        "'a table' has no domain that is node 1\n  expected: one of host, gpu"
    )


def test_near_a_cpu_that_is_not_there_is_refused() -> None:
    assert refused(BadInput, THREE, GB, near="cpu:9") == (
        "there is no CPU 9 beside a domain of 'a table'\n  expected: one of 0, 1, 2, 3"
    )
    assert refused(BadInput, layout(GB, bare=(0,)), 1, near="cpu:0") == (
        "there is no CPU 0 beside a domain of 'a table'\n  expected: a provider that knows CPUs"
    )


def test_near_a_gpu_that_is_not_there_is_refused() -> None:
    assert refused(BadInput, THREE, GB, near="gpu:0") == (
        "there is no GPU 0\n  expected: a GPU\n  try: holdfast topo lists what is there"
    )
    cards = [Gpu(id=0, numa_node=0), Gpu(id=1, numa_node=0)]
    assert refused(BadInput, layout(GB, gpus=cards), 1, near="gpu:2") == (
        "there is no GPU 2\n"
        "  expected: one of gpu:0, gpu:1\n"
        "  try: holdfast topo lists what is there"
    )
    unknown = dataclasses.replace(THREE, topology=None)
    assert refused(BadInput, unknown, GB, near="gpu").startswith("there is no GPU 0\n")


def test_near_a_gpu_of_no_known_node_is_refused_where_there_are_several() -> None:
    assert refused(Unsupported, layout(GB, GB, gpus=[Gpu(id=0)]), 1, near="gpu:0") == (
        "the machine does not tell which node gpu:0 hangs off\n"
        "  expected: a NUMA node for it in sysfs\n"
        "  try: name the domain yourself: domain=0"
    )
    placed = place(layout(GB, gpus=[Gpu(id=0)]), 1, near="gpu:0")
    assert (placed.domains, placed.reason) == ((0,), "node:0 is the only one")


# ---- what does not fit


def test_where_home_is_full_the_nearest_with_room_is_taken() -> None:
    placed = place(layout(GB, 2 * GB, 8 * GB), 3 * GB, running_on=(0,))
    assert placed == Placement(
        domains=(2,),
        mode="bind",
        reason="node:0 (the CPUs that run the work are those of node:0) has 1.0 GB free; "
        "node:2 is the nearest with room",
        cpus=(2, 3),
    )
    assert place(layout(GB, 4 * GB, 8 * GB), 3 * GB, running_on=(0,)).domains == (1,)


def test_of_those_equally_near_the_one_with_most_free_is_taken() -> None:
    assert place(layout(5 * GB, GB, 6 * GB, bare=()), 2 * GB, running_on=(2,)).domains == (2,)


def test_the_mode_that_was_asked_for_stays() -> None:
    assert place(THREE, GB, mode="preferred", running_on=(0,)).mode == "preferred"


def test_what_fits_no_domain_is_spread_over_as_few_as_do() -> None:
    placed = place(layout(4 * GB, 5 * GB, 6 * GB), 7 * GB, running_on=(0,))
    assert placed == Placement(
        domains=(0, 1),
        mode="interleave",
        reason="7.0 GB is more than any domain has free: over node:0, node:1",
        cpus=(0, 1, 2, 3),
    )
    assert place(layout(4 * GB, 5 * GB, 6 * GB), 10 * GB, running_on=(0,)).domains == (0, 1, 2)


def test_what_fits_in_no_equal_parts_takes_what_there_is() -> None:
    placed = place(layout(GB, 8 * GB), 8 * GB, running_on=(0,))
    assert placed == Placement(
        domains=(0, 1),
        mode="bind",
        reason="8.0 GB is more than any domain has free: what each of them has, nearest first",
        cpus=(0, 1, 2, 3),
    )


def test_a_full_home_takes_no_part_of_what_is_spread() -> None:
    placed = place(layout(KEPT, 4 * GB, 4 * GB), 6 * GB, running_on=(0,))
    assert (placed.domains, placed.mode) == ((1, 2), "interleave")


def test_what_is_to_be_bound_is_not_interleaved() -> None:
    placed = place(layout(4 * GB, 5 * GB), 7 * GB, mode="bind", running_on=(0,))
    assert (placed.domains, placed.mode) == ((0, 1), "bind")


def test_what_prefers_a_domain_may_overflow_into_the_others_and_no_further() -> None:
    placed = place(layout(4 * GB, 5 * GB), 7 * GB, mode="preferred", running_on=(0,))
    assert (placed.domains, placed.mode) == ((0,), "preferred")
    placed = place(layout(4 * GB, 5 * GB), 7 * GB, mode="preferred", domain=1)
    assert (placed.domains, placed.mode) == ((1,), "preferred")
    for options in ({"domain": 1}, {"running_on": (0,)}):
        assert refused(OutOfMemory, layout(4 * GB, 5 * GB), 9 * GB, mode="preferred", **options)
    assert refused(BadInput, THREE, GB, domain=[0, 1], mode="preferred") == (
        "only one domain can be preferred\n  expected: one domain, or another mode"
    )


def test_a_domain_without_room_is_left_out_of_interleaving() -> None:
    placed = place(layout(50 * GB, 50 * GB, KEPT), GB, mode="interleave", running_on=(0,))
    assert placed.domains == (0, 1)


def test_memory_of_a_gpu_is_no_place_for_what_nobody_put_there() -> None:
    some = layout(4 * GB, 90 * GB)
    gpu = replace(some, domains=(some.domains[0], replace(some.domains[1], kind="gpu", cpus=())))
    assert refused(OutOfMemory, gpu, 5 * GB, running_on=(0,)).startswith("cannot allocate 5.0 GB")
    assert place(gpu, GB, mode="interleave", running_on=(0,)).domains == (0,)
    assert place(gpu, GB, domain=1).domains == (1,)


def test_a_limit_on_the_process_counts_for_all_domains_together() -> None:
    limited = replace(layout(9 * GB, 9 * GB), free_bytes=8 * GB)
    assert place(limited, 7 * GB, running_on=(0,)).domains == (0,)
    assert refused(OutOfMemory, limited, 14 * GB) == (
        "cannot allocate 14.0 GB: this process may take 8.0 GB more\n"
        "  expected: less than the limit on its memory (control group) leaves, with 67.1 MB to "
        "spare\n"
        "  try: a smaller size, freeing something first, or a higher limit"
    )


def test_interleaving_that_was_asked_for_goes_over_all() -> None:
    assert place(THREE, GB, mode="interleave", running_on=(2,)) == Placement(
        domains=(1, 2, 0),
        mode="interleave",
        reason="interleaving was asked for",
        cpus=(0, 1, 2, 3),
    )
    assert refused(OutOfMemory, THREE, 12 * GB, mode="interleave").startswith(
        "cannot interleave 12.0 GB on node:1, node:2, node:0: free are "
    )


def test_more_than_there_is_anywhere_is_refused() -> None:
    assert refused(OutOfMemory, layout(GB, 2 * GB), 3 * GB, running_on=(0,)) == (
        "cannot allocate 3.0 GB on node:0, node:1: free are node:0 1.0 GB, node:1 2.0 GB\n"
        "  expected: that much free, with 67.1 MB left for others on each\n"
        "  try: a smaller size, another domain, or freeing something first"
    )


def test_a_domain_of_unknown_room_is_given_the_benefit_of_the_doubt() -> None:
    assert place(layout(None), 99 * GB).domains == (0,)
    assert place(layout(None, None), 99 * GB, domain=[0, 1]).mode == "interleave"
    placed = place(layout(GB, None), 3 * GB, running_on=(0,))
    assert (placed.domains, placed.reason.rpartition("; ")[2]) == (
        (1,),
        "node:1 is the nearest with room",
    )
    check_room(layout(None), 99 * GB, layout(None).domains[0], "migrate")


def test_room_for_a_migration_is_checked_in_the_same_words() -> None:
    check_room(THREE, 4 * GB - KEPT, THREE.domains[0], "migrate")
    with pytest.raises(OutOfMemory) as error:
        check_room(THREE, 4 * GB, THREE.domains[0], "migrate")
    assert str(error.value) == (
        "cannot migrate 4.0 GB on node:0: free are node:0 4.0 GB, node:1 8.0 GB, node:2 6.0 GB\n"
        "  expected: that much free, with 67.1 MB left for others on each\n"
        "  try: a smaller size, another domain, or freeing something first"
    )


ROOM = st.integers(0, 40).map(lambda n: n * GB // 10)


@given(
    free=st.lists(ROOM, min_size=1, max_size=4),
    size=st.integers(1, 160).map(lambda n: n * GB // 10),
    mode=st.sampled_from([None, "bind", "interleave"]),
    wanted=st.none() | st.lists(st.integers(0, 3), min_size=1, max_size=4),
    running_on=st.lists(st.integers(0, 8), max_size=4),
)
def test_whatever_is_placed_fits(
    free: list[int],
    size: int,
    mode: str | None,
    wanted: list[int] | None,
    running_on: list[int],
) -> None:
    made = layout(*free)
    domain = None if wanted is None else [n % len(free) for n in wanted]
    rooms = [max(0, n - KEPT) for n in free]
    try:
        placed = place(made, size, domain=domain, mode=mode, running_on=running_on)
    except OutOfMemory:
        over = set(range(len(free)) if domain is None else domain)
        if mode == "interleave" or (mode is None and len(over) > 1 and domain):
            assert size > min(rooms[n] for n in over) * len(over)
        else:
            assert size > sum(rooms[n] for n in over), "there was room"
        return
    assert placed.mode in MODES
    assert len(set(placed.domains)) == len(placed.domains)
    taken = [rooms[n] for n in placed.domains]
    assert size <= (min(taken) * len(taken) if placed.mode == "interleave" else sum(taken))
    assert placed.reason
    assert domain is None or set(placed.domains) == set(domain)

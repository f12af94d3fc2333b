"""Shared virtual memory on a machine with three NUMA nodes, which QEMU makes up."""

from __future__ import annotations

from typing import Any

import pytest

from tests.guest.machine import missing
from tests.needs import needs

pytestmark = [pytest.mark.numa, needs(missing())]

MIB = 1 << 20
PAGE = 4096
PAGES = 256 * MIB // PAGE


@pytest.fixture
def guest(guest_results: dict[str, Any]) -> dict[str, Any]:
    return guest_results["guest_script"]


def test_256_mb_bound_to_node_0_lie_there(guest: dict[str, Any]) -> None:
    assert guest["bound"]["pages"] == {"0": PAGES}
    assert guest["bound"]["verified"] is True
    assert guest["bound"]["reason"] == "node:0 was asked for"


@pytest.mark.parametrize("step", ["0 to 1", "1 to 2", "2 to 0"])
def test_256_mb_move_to_the_next_node_page_by_page(guest: dict[str, Any], step: str) -> None:
    source, target = step[0], step[-1]
    moved = guest["moves"][step]
    assert moved["kernel"] == {target: PAGES}  # asked of the kernel, past our own code
    assert moved["pages_moved"] == PAGES
    assert moved["after"]["pages"] == {target: PAGES}
    assert (moved["from_domain"], moved["to_domain"]) == (int(source), int(target))
    assert moved["not_moved"] == {}
    assert moved["complete"] is True
    assert moved["bytes_moved"] == 256 * MIB
    assert moved["bandwidth_gb_s"] > 0


def test_the_data_is_the_same_after_every_move(guest: dict[str, Any]) -> None:
    assert [m["checksum"] for m in guest["moves"].values()] == [guest["bound"]["checksum"]] * 3


def test_progress_is_told_after_every_part(guest: dict[str, Any]) -> None:
    assert guest["progress"] == [[16 * MIB * n, 256 * MIB] for n in range(1, 17)]


def test_a_page_that_is_touched_after_a_move_comes_from_the_new_node(guest: dict[str, Any]) -> None:
    assert guest["retouched"] == {"1": 4}


def test_interleaved_pages_lie_on_all_nodes_alike(guest: dict[str, Any]) -> None:
    assert guest["interleaved"] == {"0": 4096, "1": 4096, "2": 4096}


def test_preferred_pages_lie_on_the_node_while_it_has_room(guest: dict[str, Any]) -> None:
    assert guest["preferred"] == {"1": 4096}


def test_a_stopped_migration_leaves_every_page_whole_in_one_place_or_the_other(
    guest: dict[str, Any],
) -> None:
    stopped = guest["stopped"]
    assert stopped["interrupted"] is True
    assert stopped["complete"] is False
    assert stopped["pages"] == {"0": 13 * MIB * 4 // PAGE, "1": 3 * 16 * MIB // PAGE}
    assert stopped["checksum"] == stopped["checksum before"]


def test_pages_for_which_the_target_has_no_memory_stay_and_say_so(guest: dict[str, Any]) -> None:
    full = guest["full"]
    assert full["not_moved"]["no memory left on the target"] > 0
    assert sum(full["not_moved"].values()) == full["left"]
    assert full["pages"] == {"0": full["left"], "2": full["moved"]}
    assert full["checksum"] == full["checksum before"]


def test_ctrl_c_in_a_migration_leaves_every_page_whole(guest: dict[str, Any]) -> None:
    part = 16 * MIB // PAGE
    pages = {"0": 40 * MIB // PAGE - part, "1": part}
    assert guest["interrupted"] == {"pages": pages, "checksum": True}


def test_memory_that_moves_under_a_view_is_neither_freed_nor_moved_twice(
    guest: dict[str, Any],
) -> None:
    assert guest["meddled"] == {
        "complete": True,
        "refused": [
            "InUse: be freed: it is being migrated",
            "InUse: be migrated: it is being migrated",
        ],
        "pages": {"1": 40 * MIB // PAGE},
        "checksum": True,
    }


def test_a_migration_that_cannot_fit_is_refused_before_it_begins(guest: dict[str, Any]) -> None:
    assert guest["refused"]["error"] == "OutOfMemory"
    assert guest["refused"]["text"].startswith("cannot migrate 201 MB on node:2: free are node:0 ")
    assert guest["refused"]["pages"] == {"0": 192 * MIB // PAGE}


def test_more_than_one_node_has_is_spread_over_the_nearest(guest: dict[str, Any]) -> None:
    assert guest["spread"]["pages"] == {"0": 450 * MIB // PAGE, "1": 450 * MIB // PAGE}
    assert "over node:0, node:1" in guest["spread"]["reason"]
    assert guest["too much"].startswith("OutOfMemory: cannot allocate 4.3 GB on node:0, node:1, ")


def test_memory_goes_near_the_cpus_and_near_the_gpu(guest: dict[str, Any]) -> None:
    assert guest["near the cpus"] == [
        {"1": 256},
        "the CPUs that run the work are those of node:1",
    ]
    assert guest["near the gpu"] == [{"1": 256}, "gpu:0 hangs off node:1"]


def test_threads_run_beside_the_memory_until_it_is_freed(guest: dict[str, Any]) -> None:
    assert guest["affinity"] == {
        "before": [[0, 1, 2, 3]] * 2,
        "node 1": [[2, 3]] * 2,
        "node 1 and the far node, whose nearest CPUs are those of node 0": [[0, 1, 2, 3]] * 2,
        "the far node alone": [[0, 1]] * 2,
        "after": [[0, 1, 2, 3]] * 2,
    }


def test_local_and_remote_pages_are_told_apart(guest: dict[str, Any]) -> None:
    assert guest["locality"] == {
        "all CPUs": [2048, 2048, 0.5],
        "CPUs of node 0": [0, 4096, 0.0],
        "CPUs of node 1": [4096, 0, 1.0],
    }


def test_autobalance_brings_memory_to_the_cpus_that_use_it(guest: dict[str, Any]) -> None:
    assert guest["balance"]["proposed"] == [[0, 1]]
    assert guest["balance"]["pages"] == {"1": 4096}
    assert guest["balance"]["then"] == []
    assert guest["balance"]["checksum"] == guest["balance"]["checksum before"]

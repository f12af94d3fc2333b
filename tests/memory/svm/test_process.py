"""The memory of other processes by NUMA node: read from recorded text, a child, and a guest."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.base.errors import BadInput, Unsupported
from holdfast.memory.svm import describe, process
from holdfast.memory.svm.process import Region
from tests.guest.machine import missing
from tests.needs import needs

MIB = 1 << 20
NUMA_MAPS = """\
55d0c0a00000 default file=/usr/bin/my\\040tool mapped=5 mapmax=2 N0=4 N2=1 kernelpagesize_kB=4
55d0c0b00000 default heap anon=300 dirty=300 active=0 N1=300 kernelpagesize_kB=4
7f0000000000 interleave:0-1 anon=1024 dirty=1024 N0=512 N1=512 kernelpagesize_kB=4
7f0040000000 bind:2 file=/anon_hugepage\\040(deleted) huge anon=3 N2=3 kernelpagesize_kB=2048
7f0050000000 default
7f0060000000 default anon=1 dirty=1 N0=1 kernelpagesize_kB=4
7ffd00000000 default
"""
MAPS = """\
55d0c0a00000-55d0c0a05000 r-xp 00000000 fe:00 1234                       /usr/bin/my tool
55d0c0b00000-55d0c0c00000 rw-p 00000000 00:00 0                          [heap]
7f0000000000-7f0000400000 rw-p 00000000 00:00 0
7f0040000000-7f0040600000 rw-p 00000000 00:0f 5 /anon_hugepage (deleted)
7f0050000000-7f0054000000 ---p 00000000 00:00 0
7ffd00000000-7ffd00021000 rw-p 00000000 00:00 0                          [stack]
"""
SMAPS = """\
55d0c0a00000-55d0c0a05000 r-xp 00000000 fe:00 1234                       /usr/bin/tool
Size:                 20 kB
KernelPageSize:        4 kB
Rss:                  12 kB
VmFlags: rd ex mr mw me sd
7f0000000000-7f0000400000 rw-p 00000000 00:00 0
Size:               4096 kB
KernelPageSize:        4 kB
Rss:                4096 kB
VmFlags: rd wr mr mw me ac sd
7f0050000000-7f0054000000 ---p 00000000 00:00 0
Size:              65536 kB
KernelPageSize:        4 kB
Rss:                   0 kB
"""


def recorded(folder: Path, **files: str) -> Path:
    """A /proc with process 7 in it."""
    (folder / "self").mkdir()
    (folder / "7").mkdir()
    for name, text in files.items():
        (folder / "7" / name).write_text(text)
    return folder


def test_mappings_of_three_nodes_come_largest_first_with_their_ends(tmp_path: Path) -> None:
    found = process.regions(7, proc=recorded(tmp_path, numa_maps=NUMA_MAPS, maps=MAPS))
    assert [region.name for region in found] == [
        "/anon_hugepage (deleted)",
        "anonymous",
        "[heap]",
        "/usr/bin/my tool",
        "anonymous",
        "[stack]",
    ]
    assert found[1] == Region(
        address=0x7F0000000000,
        length=4 * MIB,
        name="anonymous",
        policy="interleave:0-1",
        pages={0: 512, 1: 512},
    )


def test_huge_pages_count_as_many_pages_of_the_usual_size(tmp_path: Path) -> None:
    proc = recorded(tmp_path, numa_maps=NUMA_MAPS, maps=MAPS)
    huge = process.regions(7, proc=proc)[0]
    assert (huge.pages, huge.page_bytes, huge.resident_bytes) == ({2: 3}, 2 * MIB, 6 * MIB)
    where = process.pages(7, proc=proc)
    assert where.pages == {0: 4 + 512, 1: 300 + 512, 2: 1 + 3 * 512}
    assert (where.verified, where.method) == (True, "numa_maps of the kernel")


def test_a_mapping_that_came_in_between_is_left_out(tmp_path: Path) -> None:
    found = process.regions(7, proc=recorded(tmp_path, numa_maps=NUMA_MAPS, maps=MAPS))
    assert 0x7F0060000000 not in [region.address for region in found]


def test_without_numa_all_is_in_node_0_and_called_unverified(tmp_path: Path) -> None:
    proc = recorded(tmp_path, smaps=SMAPS)
    assert [(r.name, r.pages) for r in process.regions(7, proc=proc)] == [
        ("anonymous", {0: 1024}),
        ("/usr/bin/tool", {0: 3}),
        ("anonymous", {}),
    ]
    where = process.pages(7, proc=proc)
    assert where.pages == {0: 1027}
    assert (where.verified, where.method) == (False, "smaps of a kernel without NUMA")


@pytest.mark.parametrize("pid", [0, -1, True, "7"])
def test_what_is_no_process_number_is_refused(pid: Any) -> None:
    with pytest.raises(BadInput) as caught:
        process.regions(pid)
    assert str(caught.value) == f"{pid!r} is no process\n  expected: a process number, 1 or more"


def test_a_process_that_is_not_there_is_refused() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    for look in (process.regions, process.pages, lambda pid: process.move(pid, 0, 0)):
        with pytest.raises(BadInput) as caught:
            look(child.pid)
        assert str(caught.value) == (
            f"there is no process {child.pid}\n"
            "  expected: the number of a running process\n"
            "  try: ps, or pgrep"
        )


@pytest.mark.parametrize(("user", "advice"), [(1000, "\n  try: sudo"), (0, "")])
def test_a_process_of_somebody_else_is_refused(
    tmp_path: Path, monkeypatch, user: int, advice: str
) -> None:
    proc = recorded(tmp_path, numa_maps="", maps="")

    def refuse(*_: Any, **__: Any) -> bytes:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", refuse)
    monkeypatch.setattr(os, "geteuid", lambda: user)
    with pytest.raises(Unsupported) as caught:
        process.regions(7, proc=proc)
    assert str(caught.value) == (
        "this user may not read the memory map of process 7\n"
        "  expected: a process of the same user, or the right to trace it" + advice
    )


def test_the_name_of_a_file_cannot_pass_for_another_mapping(tmp_path: Path) -> None:
    """The kernel escapes a line feed and nothing else of what Python ends lines and words at."""
    name = "/tmp/\r7f0000000000-7f0000400000 rw-p 0 00:00 0 x\x85\x1c\u2028N1=9\x0b"
    numa_maps = f"55d0c0a00000 default file={name.replace(' ', chr(92) + '040')} mapped=5 N0=4\n"
    maps = f"55d0c0a00000-55d0c0a05000 r-xp 00000000 fe:00 1234 {name}\n"
    (tmp_path / "7").mkdir()
    (tmp_path / "self").mkdir()
    (tmp_path / "7" / "numa_maps").write_bytes(numa_maps.encode())
    (tmp_path / "7" / "maps").write_bytes(maps.encode() + b"55d0c0b00000-55d0c0c00000 junk \xff\n")
    [found] = process.regions(7, proc=tmp_path)
    assert (found.name, found.pages) == (name, {0: 4})


def test_a_name_that_is_not_utf_8_is_read_as_its_bytes(tmp_path: Path) -> None:
    proc = recorded(tmp_path)
    smaps = SMAPS.encode().replace(b"/usr/bin/tool", b"/usr/bin/\xff")
    (proc / "7" / "smaps").write_bytes(smaps)
    assert process.regions(7, proc=proc)[1].name == r"/usr/bin/\xff"


def test_a_system_without_proc_says_so(tmp_path: Path) -> None:
    with pytest.raises(Unsupported) as caught:
        process.regions(7, proc=tmp_path)
    assert str(caught.value) == (
        "the memory of processes cannot be read\n  expected: Linux with /proc"
    )


# ---- a real process, on this machine


@pytest.fixture
def child() -> Iterator[subprocess.Popen[str]]:
    """A process that holds 8 MiB and waits."""
    program = "memory = bytearray(b'x' * (8 << 20)); print(flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as started:
        assert started.stdout is not None
        started.stdout.readline()
        yield started
        started.kill()


def test_the_memory_of_a_child_is_found(child: subprocess.Popen[str]) -> None:
    found = process.regions(child.pid)
    assert found[0].resident_bytes >= 8 * MIB
    assert found[0].length >= found[0].resident_bytes
    total = process.pages(child.pid)
    assert sum(total.pages.values()) * total.page_bytes == sum(r.resident_bytes for r in found)


def test_moving_to_where_it_is_has_nothing_to_do(child: subprocess.Popen[str]) -> None:
    node = next(iter(process.pages(child.pid).pages))
    done = process.move(child.pid, node, node)
    assert (done.pages_moved, done.not_moved, done.complete) == (0, {}, True)
    assert done.provider == f"numa, process {child.pid}"


@pytest.mark.parametrize("nodes", [(0, 700), (700, 0)])
def test_a_node_that_is_not_there_is_refused(
    child: subprocess.Popen[str], nodes: tuple[int, int]
) -> None:
    with pytest.raises(BadInput, match=r"^'numa' has no domain 700\n  expected: one of 0 "):
        process.move(child.pid, *nodes)


def test_pages_are_looked_for_only_where_there_are_some(monkeypatch) -> None:
    """A range that is reserved and mostly empty is left as soon as its pages were seen."""
    asked: list[tuple[int, int]] = []

    def move_range(address: int, length: int, *_: int, pid: int) -> process.Chunk:
        asked.append((address, length))
        return process.Chunk(moved=10)

    monkeypatch.setattr(process.numa, "move_range", move_range)
    huge = Region(address=0x1000_0000, length=1 << 44, name="x", policy="default", pages={0: 20})
    other = Region(address=0x4000, length=0x4000, name="y", policy="default", pages={1: 4})
    work = list(process._ranges([huge, other], 0, None, None))
    told: list[tuple[int, int]] = []
    done, stopped = process._move(9, work, 0, 1, lambda *step: told.append(step), None)
    assert (done.moved, stopped) == (20, False)
    assert asked == [(0x1000_0000, 16 * MIB), (0x1000_0000 + 16 * MIB, 16 * MIB)]
    assert told == [(10 * 4096, 20 * 4096), (20 * 4096, 20 * 4096)]


def test_a_process_that_ends_meanwhile_is_told(monkeypatch) -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    with pytest.raises(Unsupported) as caught:
        process._move_part(child.pid, 0x1000, 0x1000, 0, 0)
    assert str(caught.value) == (
        f"process {child.pid} ended while its memory was moved\n  expected: a process that runs on"
    )


def test_what_was_moved_is_told_also_of_a_process_that_ended_then() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    assert describe.where_text(process._after(child.pid)) == (
        "0 of 4KiB: none (the process has ended)"
    )


def test_what_the_kernel_refuses_stays_its_refusal(monkeypatch) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise Unsupported("the kernel refused")

    monkeypatch.setattr(process.numa, "move_range", refuse)
    with pytest.raises(Unsupported, match=r"^the kernel refused$"):
        process._move_part(os.getpid(), 0x1000, 0x1000, 0, 0)


# ---- three nodes, in a guest


def in_guest(test: Any) -> Any:
    """Mark a test that boots one."""
    return pytest.mark.numa(pytest.mark.slow(needs(missing())(test)))


PAGES = 48 * MIB // 4096
PART = 16 * MIB // 4096


@pytest.fixture
def guest(guest_results: dict[str, Any]) -> dict[str, Any]:
    return guest_results["process_guest_script"]


@in_guest
def test_the_mapping_and_policy_of_another_process_are_seen(guest: dict[str, Any]) -> None:
    assert guest["region"]["policy"] == "bind:0"
    assert guest["region"]["pages"]["0"] >= PAGES


@in_guest
def test_a_part_of_another_process_moves_alone(guest: dict[str, Any]) -> None:
    assert guest["part"]["pages_moved"] == PART
    assert guest["part"]["there"] == {"0": PAGES - PART, "2": PART}
    assert guest["part"]["progress"] == [[16 * MIB, 16 * MIB]]


@in_guest
def test_all_of_another_process_moves_but_what_is_shared(guest: dict[str, Any]) -> None:
    whole = guest["whole"]
    assert whole["there"] == {"1": PAGES - PART, "2": PART}
    assert set(whole["not_moved"]) <= {process.numa.SHARED}
    assert whole["pages_moved"] >= PAGES - PART
    assert whole["bandwidth_gb_s"] > 0
    steps = [done for done, _ in whole["progress"]]
    assert steps == sorted(steps)


@in_guest
def test_moving_a_process_can_be_stopped_between_parts(guest: dict[str, Any]) -> None:
    stopped = guest["stopped"]
    assert (stopped["interrupted"], stopped["complete"]) == (True, False)
    assert stopped["there"] == {"0": PART, "1": PAGES - 2 * PART, "2": PART}


@in_guest
def test_the_totals_of_a_process_are_those_after_the_last_move(guest: dict[str, Any]) -> None:
    assert guest["total"] == guest["stopped"]["after"]["pages"]


@in_guest
def test_the_data_of_a_process_that_was_moved_is_the_same(guest: dict[str, Any]) -> None:
    assert guest["after"] == guest["before"]

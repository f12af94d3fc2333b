"""Looking at another process of this user, and asking it to do something."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.base.errors import BadInput, HoldfastError, Misuse, NotFound, OutOfTime, Unsupported
from holdfast.dashboard.ipc import server, socket_dir, wire
from holdfast.dashboard.ipc.client import Attached, Offer, offers
from holdfast.memory import MemoryPool, tag
from holdfast.memory.debug import debugging
from tests.dashboard.meeting_place import A_POOL, child, stop

HERE = os.getpid()


@pytest.fixture
def attached(offered: Path) -> Iterator[Attached]:
    """To this very process."""
    with Attached(HERE) as made:
        yield made


# ---- other processes


def test_another_process_is_listed_and_told(place: Path) -> None:
    with child(A_POOL) as process, Attached(process.pid) as attached:
        (offer,) = offers()
        found = attached.process()
        assert offer == Offer(process.pid, "python -c", found.began_s)
        assert found.pid == process.pid
        assert found.rss_bytes > 1_000_000
        assert found.name == "python -c"
        assert [(pool.name, pool.allocated_bytes) for pool in found.pools] == [("mine", 3_000_000)]


def test_a_process_that_ends_is_not_found_any_more(place: Path) -> None:
    with child(A_POOL) as process, Attached(process.pid) as attached:
        attached.process()
        process.kill()
        process.wait()
        for _ in range(2):
            with pytest.raises(NotFound) as caught:
                attached.process()
        assert str(caught.value) == (
            f"process {process.pid} has ended\n  expected: a process that runs"
        )


def test_a_process_that_ends_in_the_middle_of_an_answer_has_ended(place: Path) -> None:
    with child(A_POOL) as process, Attached(process.pid) as attached:
        stop(process)
        attached.ask_for_process()
        process.kill()
        with pytest.raises(NotFound) as caught:
            attached.receive_process()
        assert str(caught.value) == (
            f"process {process.pid} has ended\n  expected: a process that runs"
        )


def test_a_process_that_does_not_answer_is_out_of_time_and_can_be_asked_again(place: Path) -> None:
    with child(A_POOL) as process, Attached(process.pid, timeout_s=240) as attached:
        stop(process)
        attached.timeout_s = 0.2
        with pytest.raises(OutOfTime) as caught:
            attached.process()
        assert str(caught.value) == (
            f"process {process.pid} did not answer within 0.2 s\n"
            "  expected: a process that runs\n"
            "  try: try again; it may be stopped, or busy in a library that holds the GIL"
        )
        process.send_signal(signal.SIGCONT)
        attached.timeout_s = 240
        assert attached.process().pid == process.pid


def test_an_answer_that_nobody_waited_for_is_not_taken_for_the_next(attached: Attached) -> None:
    attached.ask_for_process()
    assert attached.holders(1) is not None
    assert attached.process().pid == HERE


@pytest.mark.parametrize(
    ("pid", "text"),
    [
        (
            2**22 + 7,
            "there is no process 4194311\n"
            "  expected: the number of a process that runs\n"
            "  try: holdfast top --once, which lists them",
        ),
        (
            os.getppid(),
            f"process {os.getppid()} offers nothing to look at\n"
            "  expected: a process that uses Holdfast\n"
            "  try: HOLDFAST_OFFER=1 when it is started, if it was 0",
        ),
    ],
)
def test_a_process_that_cannot_be_looked_at_is_not_found(place: Path, pid: int, text: str) -> None:
    with pytest.raises(NotFound) as caught:
        Attached(pid)
    assert str(caught.value) == text


def test_a_process_of_another_user_is_refused(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 4711)
    with pytest.raises(Unsupported) as caught:
        Attached(os.getppid())
    assert str(caught.value) == (
        f"cannot look at process {os.getppid()}: it is another user's\n"
        "  expected: a process of this user's"
    )


def test_a_folder_that_is_not_this_users_alone_is_refused(place: Path) -> None:
    place.mkdir(mode=0o755)
    for ask in (offers, lambda: Attached(1)):
        with pytest.raises(Unsupported) as caught:
            ask()
        assert str(caught.value) == (
            f"cannot use the socket folder {str(place)!r}: it is open to others\n"
            "  expected: a folder that this user alone can read and write\n"
            f"  try: chmod 700 {place}, or another HOLDFAST_RUNTIME_DIR"
        )


def test_a_folder_of_somebody_elses_is_refused(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.mkdir(mode=0o700)
    monkeypatch.setattr(os, "getuid", lambda: 4711)
    with pytest.raises(Unsupported) as caught:
        socket_dir.refuse_shared(place)
    assert caught.value.what == (
        f"cannot use the socket folder {str(place)!r}: it is somebody else's"
    )


def said_by_another(place: Path, line: bytes) -> threading.Thread:
    """Something that listens under this process's number and answers with one line."""
    place.mkdir(mode=0o700)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(place / f"{HERE}.sock"))
    listener.listen()

    def serve() -> None:
        with listener, listener.accept()[0] as connection:
            connection.recv(1000)
            connection.sendall(line)

    thread = threading.Thread(target=serve)
    thread.start()
    return thread


def test_another_version_is_refused(place: Path) -> None:
    said = {"ok": {"protocol": 99, "holdfast": "9.0", "pid": HERE}}
    thread = said_by_another(place, json.dumps(said).encode() + b"\n")
    with pytest.raises(Unsupported) as caught:
        Attached(HERE)
    thread.join()
    assert str(caught.value) == (
        f"cannot look at process {HERE}: it runs Holdfast 9.0\n"
        "  expected: the version that runs here\n"
        "  try: the same version of Holdfast for both"
    )


@pytest.mark.parametrize("line", [b"what?\n", b"[]\n", b"{}\n"])
def test_an_answer_that_is_none_is_not_understood(place: Path, line: bytes) -> None:
    thread = said_by_another(place, line)
    with pytest.raises(Unsupported) as caught:
        Attached(HERE)
    thread.join()
    assert str(caught.value) == (
        f"cannot understand process {HERE}\n  try: the same version of Holdfast for both"
    )


# ---- questions and acts


def test_errors_come_over_as_they_are() -> None:
    for error in (BadInput("a", expected="b", hint="c"), NotFound("a"), OutOfTime("x", hint="y")):
        back = wire.decode_error(json.loads(json.dumps(wire.error_message(error)))["error"])
        assert (type(back), str(back)) == (type(error), str(error))
    strange = wire.decode_error({"kind": "os", "what": "x"})
    assert (type(strange), str(strange)) == (HoldfastError, "x")


def test_the_largest_holders_are_told_with_their_tags(attached: Attached) -> None:
    pool = MemoryPool("cpu", name="holders")
    with tag("held for the dashboard"):
        block = pool.allocate("900MB")  # never touched, so it takes no memory
    found = attached.holders(3)
    assert len(found) <= 3
    assert (found[0].pid, found[0].nbytes, found[0].device) == (HERE, 900_000_000, "cpu")
    assert (found[0].tag, found[0].location) == (
        "held for the dashboard",
        "an unrecorded location",
    )
    assert list(found) == sorted(found, key=lambda one: -one.nbytes)
    del block


@pytest.mark.parametrize("most", [0, 1001, True, "many"])
def test_a_number_of_holders_that_is_none_is_refused(attached: Attached, most: int) -> None:
    with pytest.raises(BadInput) as caught:
        attached.holders(most)
    assert str(caught.value) == (f"cannot use most={most!r}\n  expected: an integer from 1 to 1000")


def test_leaks_are_found_once_blocks_are_recorded(attached: Attached) -> None:
    with pytest.raises(Misuse) as caught:
        attached.leaks()
    assert str(caught.value) == (
        f"cannot find leaks: memory debugging is off in process {HERE}\n"
        "  expected: memory debugging that was on while the blocks were made\n"
        "  try: switch it on, let the process work on, and look again"
    )
    assert attached.set_debugging(True).debugging is True
    cache: dict[str, list[object]] = {}
    try:
        cache["kept"] = [MemoryPool("cpu").allocate(12_345)]
        (leak,) = attached.leaks()
        assert (leak.pid, leak.nbytes, leak.device) == (HERE, 12_345, "cpu")
        assert f"{Path(__file__).name}:" in leak.location
        assert "cache" in leak.referrers[0]
        known = attached.process().leaks
        assert (known.count, known.total_bytes) == (1, 12_345)
        assert known.checked_s is not None
    finally:
        cache.clear()
        assert attached.set_debugging(False).debugging is False
        debugging.clear_problems()


def test_freeing_empties_the_caches_of_pools(attached: Attached) -> None:
    pool = MemoryPool("cpu", name="freed")
    blocks = [pool.allocate("8MB") for _ in range(4)]
    for block in blocks:
        block.array("uint8", (block.size,))[:] = 1
    del blocks, block
    assert pool.stats().cached_bytes > 30_000_000
    freed = attached.free(garbage=False)
    assert pool.stats().cached_bytes == 0
    assert freed.ram_bytes > 20_000_000
    assert (freed.pid, freed.models) == (HERE, 0)
    assert " MB of RAM" in freed.text  # and what other tests left on devices


def test_nothing_is_stopped_where_nothing_runs(attached: Attached) -> None:
    assert attached.interrupt() is False


def test_a_process_that_withdraws_lets_its_readers_go(attached: Attached) -> None:
    attached.process()
    server.withdraw()
    with pytest.raises(NotFound):
        attached.process()

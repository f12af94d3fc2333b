"""The socket on which a process lets others of its user look at it."""

from __future__ import annotations

import json
import os
import socket
import stat
import struct
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from holdfast.base import announce as base
from holdfast.base.config import Config
from holdfast.dashboard.ipc import server, socket_dir
from holdfast.dashboard.ipc.client import Attached, offers
from holdfast.topology import isolate
from tests.dashboard.meeting_place import A_POOL, child

HERE = os.getpid()


def raw(folder: Path) -> socket.socket:
    """A reader that says what it likes."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.connect(str(folder / f"{HERE}.sock"))  # waits for its turn
    connection.settimeout(10)
    return connection


def is_dropped(connection: socket.socket) -> bool:
    """Whether the other end lets go, without an answer."""
    with connection:
        try:
            return connection.recv(1) == b""
        except ConnectionError:
            return True


def answers() -> bool:
    with Attached(HERE) as attached:
        return attached.process().pid == HERE


# ---- where it is, and for whom


def test_the_folder_and_the_socket_are_this_users_alone(offered: Path) -> None:
    assert stat.S_IMODE(offered.stat().st_mode) == 0o700
    file = offered / f"{HERE}.sock"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_ISSOCK(file.stat().st_mode)
    assert [one.name for one in offered.iterdir()] == [file.name]
    server.withdraw()
    assert list(offered.iterdir()) == []


def test_offering_twice_is_offering_once(offered: Path) -> None:
    threads = threading.active_count()
    assert server.offer()
    assert threading.active_count() == threads
    assert answers()


def test_nothing_is_offered_where_the_setting_is_off(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_OFFER", "0")
    assert not server.offer()
    assert not place.exists()


def test_a_folder_that_others_can_read_is_not_used(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HOLDFAST_RUNTIME_DIR")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(place.parent))
    systems = place.parent / "holdfast"
    systems.mkdir(mode=0o755)
    assert server.offer()
    assert list(systems.iterdir()) == []
    own = place.parent / f"holdfast-{os.getuid()}"
    assert [one.name for one in own.iterdir()] == [f"{HERE}.sock"]


def test_where_the_folder_of_the_settings_will_not_do_nothing_is_offered(place: Path) -> None:
    place.mkdir(mode=0o755)
    assert not server.offer()
    assert not server.is_offered()


def test_a_path_too_long_for_a_socket_is_met_in_the_users_own_folder(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_RUNTIME_DIR", str(place / ("x" * 90)))
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    assert server.offer()
    assert (place.parent / f"holdfast-{os.getuid()}" / f"{HERE}.sock").exists()
    assert [one.pid for one in offers()] == [HERE]
    assert answers()


def test_without_a_setting_the_systems_folder_for_this_is_used() -> None:
    unset = Config.load({})
    own = socket_dir.folders(unset, {})
    assert [one.name for one in own] == [f"holdfast-{os.getuid()}"]
    systems = {"XDG_RUNTIME_DIR": "/run/user/7"}
    assert socket_dir.folders(unset, systems) == [Path("/run/user/7/holdfast"), *own]


@pytest.mark.skipif(not hasattr(socket, "SO_PEERCRED"), reason="the system does not tell")
def test_a_reader_of_another_user_is_not_let_in() -> None:
    class Peer:
        family = socket.AF_UNIX

        def __init__(self, user: int) -> None:
            self.user = user

        def getsockopt(self, *_: int) -> bytes:
            return struct.pack("3i", 1, self.user, self.user)

    assert socket_dir.is_allowed(Peer(os.getuid()))  # type: ignore[arg-type]
    assert socket_dir.is_allowed(Peer(0))  # type: ignore[arg-type]
    assert not socket_dir.is_allowed(Peer(os.getuid() + 4711))  # type: ignore[arg-type]


# ---- readers that do not behave


def test_nonsense_ends_its_connection_and_no_other(offered: Path) -> None:
    for said in (b"hello\n", b"\xff\xfe\n", b"[" * 30_000 + b"\n"):
        reader = raw(offered)
        reader.sendall(said)
        assert is_dropped(reader)
    assert answers()


def test_a_line_without_an_end_is_not_read_to_its_end(offered: Path) -> None:
    reader = raw(offered)
    with pytest.raises(ConnectionError):
        reader.sendall(b"x" * 10_000_000)
    assert is_dropped(reader)
    assert answers()


def test_a_question_that_nobody_knows_is_answered_with_what_is_known(offered: Path) -> None:
    with raw(offered) as reader, reader.makefile("rw") as file:
        answered = []
        for question in ({"ask": "everything"}, ["ask"], {"ask": "process", "of": "me"}):
            file.write(json.dumps(question) + "\n")
            file.flush()
            answered.append(json.loads(file.readline())["error"])
    assert answered == [
        {
            "kind": "BadInput",
            "what": "unknown request 'everything'",
            "expected": "one of hello, process, look, interrupt, holders, leaks, set_debugging, "
            "free, set_budget",
            "hint": None,
        },
        {
            "kind": "BadInput",
            "what": "this is not a request",
            "expected": 'an object such as {"ask": "process"}',
            "hint": None,
        },
        {
            "kind": "BadInput",
            "what": "cannot answer 'process'",
            "expected": "no arguments",
            "hint": None,
        },
    ]


def test_a_reader_that_hangs_holds_up_nobody(offered: Path) -> None:
    hanging = [raw(offered) for _ in range(3)]
    hanging[0].sendall(b'{"ask": "pro')
    assert answers()
    for one in hanging:
        one.close()


def test_a_reader_that_asks_and_does_not_read_is_dropped(
    offered: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "SENDING_S", 0.2)
    with raw(offered) as greedy:
        greedy.settimeout(0.05)
        with pytest.raises((TimeoutError, ConnectionError)):  # neither end takes more
            greedy.sendall(b'{"ask": "process"}\n' * 100_000)
        assert answers()


def test_of_too_many_readers_the_one_that_asked_longest_ago_goes(offered: Path) -> None:
    readers = [raw(offered) for _ in range(server.MOST_READERS)]
    for one in readers:  # all are let in
        one.sendall(b'{"ask": "hello"}\n')
        assert one.recv(10) == b'{"ok":{"pr'
    assert answers()
    assert is_dropped_after_answer(readers[0])
    for one in readers:
        one.close()


def is_dropped_after_answer(reader: socket.socket) -> bool:
    while said := reader.recv(4096):
        assert said
    return True


def test_a_reader_may_ask_again_and_again_from_several_connections(offered: Path) -> None:
    found: list[int] = []

    def ask() -> None:
        with Attached(HERE) as attached:
            found.extend(attached.process().pid for _ in range(20))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [HERE] * 80


# ---- systems without sockets in files


def test_a_port_of_this_machine_takes_the_place_of_a_file(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket_dir, "has_unix_sockets", lambda: False)
    assert server.offer()
    file = place / f"{HERE}.port"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [one.pid for one in offers()] == [HERE]
    assert answers()
    port = json.loads(file.read_text())["port"]
    for said in (b'{"ask": "process"}\n', b'{"secret": "guessed"}\n{"ask": "process"}\n'):
        with socket.create_connection(("127.0.0.1", port), timeout=300) as reader:
            reader.sendall(said)
            assert is_dropped(reader)
    server.withdraw()
    assert not file.exists()


# ---- when a process begins and ends


def test_a_process_offers_itself_when_it_makes_a_pool_and_cleans_up_when_it_ends(
    place: Path,
) -> None:
    with child(A_POOL) as process:
        assert [one.pid for one in offers()] == [process.pid]
        process.communicate("\n")
        assert process.returncode == 0
        assert list(place.iterdir()) == []


def test_nothing_is_imported_for_it_before_the_first_question(place: Path) -> None:
    program = (
        "import sys\nbefore = set(sys.modules)\n"
        f"{A_POOL}\n"
        "heavy = ('holdfast.dashboard.snapshot.process', 'psutil', 'numpy', 'torch', 'aiohttp')\n"
        "print([name for name in heavy if name in sys.modules],\n"
        "    'holdfast.dashboard.ipc.server' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert done.stdout == b"[] True\n"


def test_a_process_whose_offer_fails_works_on(place: Path) -> None:
    nowhere = "/proc/nowhere"
    program = A_POOL + (
        "import tempfile\n"
        "from holdfast.base import announce as offering\n"
        f"tempfile.tempdir = {nowhere!r}\n"
        "offering._process.started = False\n"
        "offering.offer_once()\n"
    )
    with child(program, HOLDFAST_RUNTIME_DIR=nowhere, TMPDIR=str(place)) as process:
        assert process.poll() is None
        assert offers() == ()


def test_the_file_of_a_process_that_was_killed_is_removed_by_who_finds_it(place: Path) -> None:
    with child(A_POOL) as process:
        process.kill()
        process.wait()
        assert [one.name for one in place.iterdir()] == [f"{process.pid}.sock"]
        assert offers() == ()
        assert list(place.iterdir()) == []


def test_a_file_whose_number_another_process_has_now_is_removed(place: Path) -> None:
    with child("") as process:  # it offers nothing
        place.mkdir(mode=0o700)
        old = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        old.bind(str(place / f"{process.pid}.sock"))
        old.close()
        assert offers() == ()
        assert list(place.iterdir()) == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system cannot fork")
def test_the_child_of_a_fork_offers_itself_under_its_own_number(place: Path) -> None:
    program = A_POOL + (
        "import os, sys\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    pool = MemoryPool('cpu', name='the child')\n"
        "    print(os.getpid(), flush=True)\n"
        "    sys.stdin.readline()\n"
        "    os._exit(0)\n"
        "while not os.path.exists(os.environ['HOLDFAST_RUNTIME_DIR'] + f'/{pid}.sock'):\n"
        "    pass\n"
    )
    forking = subprocess.Popen(
        [sys.executable, "-c", program + "sys.stdin.readline()\nos.waitpid(pid, 0)\n"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert forking.stdout is not None
    forked = int(forking.stdout.readline())
    assert {one.pid for one in offers()} == {forking.pid, forked}
    with Attached(forked) as attached:
        assert {pool.name for pool in attached.process().pools} == {"mine", "the child"}
    with Attached(forking.pid) as attached:
        assert {pool.name for pool in attached.process().pools} == {"mine"}
    forking.communicate("\n\n")
    assert forking.returncode == 0
    assert f"{forking.pid}.sock" not in [one.name for one in place.iterdir()]


def made_a_pool() -> bool:
    """For a process that helps another."""
    from holdfast.memory import MemoryPool

    MemoryPool("cpu")
    return server.is_offered()


def test_a_process_that_helps_another_is_not_looked_at(place: Path) -> None:
    assert isolate.call(f"{__name__}:made_a_pool", [], timeout_s=60) is False


def test_offering_once_costs_a_comparison_from_the_second_time_on(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    monkeypatch.setattr(base._process, "started", False)
    monkeypatch.setitem(base._SERVER._loaded, "offer", lambda: bool(calls.append(1)))
    for _ in range(3):
        base.offer_once()
    assert calls == [1]

"""Where processes meet: folders that cannot be used, files of processes that are gone."""

from __future__ import annotations

import multiprocessing
import os
import socket
import sys
import tempfile
import threading
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest

from holdfast.base.config import Config
from holdfast.dashboard.ipc import socket_dir
from holdfast.dashboard.snapshot import models

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="sockets are files here")


def gone() -> int:
    """The number of a process that has ended."""
    child = multiprocessing.get_context("fork").Process(target=int)
    child.start()
    child.join()
    assert child.pid is not None
    return child.pid


def listening(file: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(file))
    listener.listen(1)
    return listener


@pytest.fixture
def own(place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that is the second choice; the first is the system's for this."""
    monkeypatch.delenv("HOLDFAST_RUNTIME_DIR")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(place.parent))
    return place.parent / f"holdfast-{os.getuid()}"


def test_without_temporary_files_the_folder_of_the_settings_will_do(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nowhere() -> NoReturn:
        raise FileNotFoundError("no usable temporary folder")

    monkeypatch.setattr(tempfile, "gettempdir", nowhere)
    opened = socket_dir.open_here()
    assert opened is not None
    assert [pid for pid, _ in socket_dir.socket_files()] == [os.getpid()]
    opened.close()
    without = replace(Config.load(), runtime_dir=None)
    assert socket_dir.open_here(without) is None
    assert list(socket_dir.socket_files(without)) == []


def test_a_folder_that_another_made_keeps_nobody_from_the_folder_of_the_system(own: Path) -> None:
    own.mkdir()
    own.chmod(0o777)
    opened = socket_dir.open_here()
    assert opened is not None
    assert opened.file.parent == own.parent / "holdfast"
    assert [pid for pid, _ in socket_dir.socket_files()] == [os.getpid()]
    opened.close()


def test_without_a_setting_who_began_with_other_variables_is_met_too(
    own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as elsewhere:  # as by sudo or cron
        elsewhere.delenv("XDG_RUNTIME_DIR")
        opened = socket_dir.open_here()
        assert opened is not None
        assert opened.file.parent == own
    assert [pid for pid, _ in socket_dir.socket_files()] == [os.getpid()]
    opened.close()


def test_in_a_folder_that_the_settings_name_nobody_else_is_met(
    place: Path, own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = socket_dir.open_here()  # in the system's
    assert opened is not None
    monkeypatch.setenv("HOLDFAST_RUNTIME_DIR", str(place))
    assert list(socket_dir.socket_files()) == []
    here = socket_dir.open_here()
    assert here is not None
    assert (
        [file for _, file in socket_dir.socket_files()] == [here.file] == [place / here.file.name]
    )
    here.close()
    opened.close()


def test_who_opens_a_socket_removes_those_of_the_dead_alone(place: Path) -> None:
    place.mkdir(mode=0o700, exist_ok=True)
    killed, elsewhere = place / f"{gone()}.sock", place / f"{gone()}.sock"
    listening(killed).close()
    with listening(elsewhere):  # as a process of a container that shares the folder
        opened = socket_dir.open_here()
        assert opened is not None
        assert (killed.exists(), elsewhere.exists()) == (False, True)
        opened.close()


def test_a_folder_is_found_again_after_a_change_of_folder(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place.parent)
    opened = socket_dir.open_here(replace(Config.load(), runtime_dir=Path(place.name)))
    assert opened is not None
    monkeypatch.chdir(tmp_path)
    opened.close()
    assert not list(place.iterdir())


def test_all_who_look_at_once_hear_the_same_name() -> None:
    class Thing:
        pass

    for _ in range(50):
        thing, start, names = Thing(), threading.Barrier(4), list[str]()

        def look(
            thing: Thing = thing, start: threading.Barrier = start, names: list[str] = names
        ) -> None:
            start.wait()
            names.append(models.request_id(thing, "thing"))

        threads = [threading.Thread(target=look) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(names) == 4
        assert len(set(names)) == 1

"""The API of a live server, over a real process."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from holdfast.base.codec import decode
from holdfast.base.errors import OutOfTime
from holdfast.dashboard.ipc.watching import Watcher
from holdfast.dashboard.snapshot.snapshot import (
    Freed,
    LeakState,
    ModelUse,
    Process,
    Snapshot,
)
from holdfast.dashboard.web import Server, serving
from holdfast.dashboard.web.answers import Holders, Leaks, MachinePicture
from holdfast.dashboard.web.history import Points
from holdfast.pipeline.output import history
from tests.dashboard.web.api_stage import PATIENCE_S, ask, error, guest, machine, served
from tests.dashboard.web.test_openapi import a_frame, a_run

pytestmark = pytest.mark.slow

__all__ = ["guest", "served"]


def _process(server: Server) -> Process:
    (process,) = decode(Snapshot, ask(server, "/api/v1/snapshot").json).processes
    return process


# ---- looking


def test_a_snapshot_holds_the_process_with_its_pool_and_model(served: Server, guest: int) -> None:
    process = _process(served)
    assert process.pid == guest
    assert [pool.name for pool in process.pools if pool.device == "cpu"] == ['say "pool"']
    (model,) = process.models
    assert model.budget_bytes == 3_000_000
    assert model.passes >= 3


def test_the_past_grows_and_can_be_cut(served: Server) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while len(points := _past(served, 60)) < 3 and time.monotonic() < deadline:
        ask(served, "/api/v1/snapshot")
        time.sleep(0.06)
    assert [one.at_s for one in points] == sorted(one.at_s for one in points)
    assert len(points) >= 3
    (process,) = points[-1].processes
    assert process.pools['say "pool"'] >= 6_000_000
    time.sleep(1.1)
    ask(served, "/api/v1/snapshot")
    assert len(_past(served, 1)) < len(_past(served, 60))


def _past(server: Server, seconds: int) -> Any:
    return decode(Points, ask(server, f"/api/v1/history?seconds={seconds}").json).points


def test_the_picture_of_the_machine_names_its_parts(served: Server) -> None:
    told = decode(MachinePicture, ask(served, "/api/v1/topology").json)
    assert told.topology == machine().replace(discovered_at=told.topology.discovered_at)
    shapes = [shape.attrib for shape in ElementTree.fromstring(told.svg).iter()]
    parts = {(s.get("data-node"), s.get("data-gpu"), s.get("data-part")) for s in shapes}
    assert {("0", None, "card"), ("0", None, "bar"), ("1", None, "bar")} <= parts
    assert {(None, "0", "card"), (None, "0", "bar"), (None, "0", "link")} <= parts
    assert (None, None, "between") in parts
    assert [one.place for one in told.places] == ["node:0", "node:1", "gpu:0", "gpu:1"]


def test_the_largest_holders_come_first(served: Server, guest: int) -> None:
    found = decode(Holders, ask(served, f"/api/v1/processes/{guest}/holders?most=2").json).holders
    assert len(found) == 2
    assert found[0].nbytes >= found[1].nbytes


def test_runs_are_listed_found_and_have_pictures(
    served: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOLDFAST_HISTORY_DIR", str(tmp_path))
    history.keep(a_run(), [a_frame()])
    (listed,) = ask(served, "/api/v1/runs").json["runs"]
    assert decode(history.RunRecord, listed) == a_run()
    assert ask(served, f"/api/v1/runs/{a_run().id}").json == listed
    picture = ask(served, f"/api/v1/runs/{a_run().id}/picture")
    assert picture.headers["Content-Type"] == "image/png"
    assert picture.body.startswith(b"\x89PNG\r\n")


def test_a_run_that_is_not_there_has_neither_record_nor_picture(served: Server) -> None:
    expected = (404, "there is no run '../x' in the history", "an id of /api/v1/runs")
    assert error(ask(served, "/api/v1/runs/..%2Fx")) == expected
    assert error(ask(served, "/api/v1/runs/..%2Fx/picture")) == expected


# ---- acting


def test_a_budget_acts_in_the_process(served: Server, guest: int) -> None:
    model = _process(served).models[0]
    path = f"/api/v1/processes/{guest}/models/{model.id}/budget"
    told = decode(ModelUse, ask(served, path, "PUT", {"budget": "4 MB"}).json)
    assert told.budget_bytes == 4_000_000
    time.sleep(0.06)
    assert _process(served).models[0].budget_bytes == 4_000_000
    assert ask(served, path, "PUT", {"budget": None}).json["budget_bytes"] is None
    assert ask(served, path, "PUT", {"budget": 3_000_000.0}).json["budget_bytes"] == 3_000_000


def test_a_budget_that_is_too_small_is_refused_in_the_words_of_the_process(
    served: Server, guest: int
) -> None:
    model = _process(served).models[0]
    path = f"/api/v1/processes/{guest}/models/{model.id}/budget"
    refused = ask(served, path, "PUT", {"budget": "1kB"})
    assert refused.status == 409
    assert refused.json["error"]["kind"] == "BadInput"
    assert "1.0 KB" in refused.json["error"]["what"]
    assert _process(served).models[0].budget_bytes == 3_000_000


@pytest.mark.parametrize("body", [{}, [], {"budget": -1}, {"budget": True}, {"budget": "six"}])
def test_a_budget_that_is_none_is_refused(served: Server, guest: int, body: Any) -> None:
    path = f"/api/v1/processes/{guest}/models/x/budget"
    assert ask(served, path, "PUT", body).status == 422


def test_a_model_that_is_not_there_is_not_found(served: Server, guest: int) -> None:
    path = f"/api/v1/processes/{guest}/models/a%2Fb/budget"
    told = error(ask(served, path, "PUT", {"budget": "1GB"}))
    assert told[:2] == (404, f"process {guest} has no model 'a/b'")


def test_leaks_are_found_once_debugging_is_on(served: Server, guest: int) -> None:
    path = f"/api/v1/processes/{guest}"
    assert ask(served, f"{path}/debugging", "POST", {"on": False}).status == 200
    assert ask(served, f"{path}/leaks", "POST", {}).status == 409
    on = decode(LeakState, ask(served, f"{path}/debugging", "POST", {"on": True}).json)
    assert on.debugging
    deadline = time.monotonic() + PATIENCE_S
    leaks: tuple[Any, ...] = ()
    while not leaks and time.monotonic() < deadline:
        leaks = decode(Leaks, ask(served, f"{path}/leaks", "POST", {}).json).leaks
    assert [leak.nbytes for leak in leaks] == [4_000_000]
    assert "in remember" in leaks[0].location


def test_freeing_tells_what_it_gave_back(served: Server, guest: int) -> None:
    body = {"caches": True, "garbage": False}
    freed = decode(Freed, ask(served, f"/api/v1/processes/{guest}/free", "POST", body).json)
    assert (freed.pid, freed.models) == (guest, 0)


def test_there_is_no_run_to_interrupt(served: Server, guest: int) -> None:
    told = ask(served, f"/api/v1/processes/{guest}/interrupt", "POST", {})
    assert told.json == {"interrupted": False}


# ---- what is refused


@pytest.mark.parametrize("pid", ["0", "-1", "x", "%00", "99999999999999999999", "2147483647"])
def test_a_process_that_is_not_there_is_not_found(served: Server, pid: str) -> None:
    assert ask(served, f"/api/v1/processes/{pid}/holders").status == 404


def test_a_process_that_is_not_watched_is_not_found(served: Server) -> None:
    assert error(ask(served, "/api/v1/processes/1/holders")) == (
        404,
        "process 1 is not watched",
        "one of the processes that are shown",
    )


def test_parameters_that_cannot_be_used_are_refused(served: Server) -> None:
    numbers = "an integer from 1 to 86400"
    for query, what, expected in [
        ("seconds=0", "cannot use seconds='0'", numbers),
        ("seconds=1e3", "cannot use seconds='1e3'", numbers),
        ("second=1", "the parameter 'second' is unknown", "seconds"),
        ("seconds=1&seconds=2", "the parameter 'seconds' comes twice", "seconds"),
    ]:
        assert error(ask(served, f"/api/v1/history?{query}")) == (400, what, expected)


def test_bodies_that_cannot_be_used_are_refused(served: Server, guest: int) -> None:
    path = f"/api/v1/processes/{guest}/free"
    for body, status, what in [
        (b"{", 400, "cannot read the body as JSON"),
        (b"", 400, "cannot read the body as JSON"),
        (b"[" * 60_000, 400, "cannot read the body as JSON"),
        (b"\xff", 400, "cannot read the body as JSON"),
        (b" " * 65_537, 413, "the body is too long"),
        (b'{"models": 1}', 422, "models is 1"),
        (b'{"all": true}', 422, "unknown field 'all'"),
    ]:
        assert error(ask(served, path, "POST", body))[:2] == (status, what)


def test_what_is_not_there_and_what_is_asked_wrongly(served: Server) -> None:
    assert error(ask(served, "/api/v2"))[:2] == (404, "there is nothing at '/api/v2'")
    wrong = ask(served, "/api/v1/snapshot", "DELETE")
    assert error(wrong) == (405, "cannot DELETE '/api/v1/snapshot'", "GET")
    assert wrong.headers["Allow"] == "GET"


class Slow:
    """A watcher whose processes take their time."""

    def __init__(self, watcher: Watcher) -> None:
        self._watcher = watcher
        self.go_on = threading.Event()

    def look(self) -> Snapshot:
        return self._watcher.look()

    @contextmanager
    def attached(self, pid: int) -> Iterator[Any]:
        self.go_on.wait(PATIENCE_S)
        raise OutOfTime(f"process {pid} did not answer within 5 s")
        yield


def test_processes_that_hang_do_not_keep_others_from_looking() -> None:
    with Watcher([]) as watcher:
        slow = Slow(watcher)
        answers: list[Any] = []
        with serving(slow, interval_s=0.05, machine=machine) as server:
            asking = [
                threading.Thread(
                    target=lambda: answers.append(ask(server, "/api/v1/processes/7/holders"))
                )
                for _ in range(48)
            ]
            for thread in asking:
                thread.start()
            deadline = time.monotonic() + PATIENCE_S
            while len(answers) < 12 and time.monotonic() < deadline:
                assert ask(server, "/api/v1/snapshot").status == 200
            slow.go_on.set()
            for thread in asking:
                thread.join()
    told = sorted(error(answer)[1] for answer in answers)
    assert {answer.status for answer in answers} == {503}
    assert told == ["process 7 did not answer within 5 s"] * 36 + [
        "too many requests wait for other processes"
    ] * (len(told) - 36)
    assert len(told) == 48


# ---- the page's files


def test_the_page_and_its_files_are_served_with_their_types(served: Server) -> None:
    page = ask(served, "/")
    assert (page.status, page.headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    script = ask(served, "/static/main.js")
    assert script.headers["Content-Type"] == "text/javascript; charset=utf-8"
    assert script.headers["Cache-Control"] == "no-cache"
    again = ask(served, "/static/main.js", headers={"If-None-Match": script.headers["ETag"]})
    assert (again.status, again.body) == (304, b"")


@pytest.mark.parametrize(
    "path", ["../server.py", "%2e%2e/server.py", "..%2fserver.py", "/etc/passwd", "views", "."]
)
def test_nothing_but_the_page_is_served(served: Server, path: str) -> None:
    assert ask(served, f"/static/{path}").status == 404

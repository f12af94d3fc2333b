"""The stream of events, the past that is kept, and that neither grows."""

from __future__ import annotations

import asyncio
import gc
import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any

import jsonschema
import psutil
import pytest

from holdfast.base.errors import Unsupported
from holdfast.dashboard.ipc.watching import Watcher
from holdfast.dashboard.snapshot.snapshot import Snapshot
from holdfast.dashboard.web import Server, feed, openapi, serving
from holdfast.dashboard.web.feed import Feed
from holdfast.dashboard.web.history import MOST, History, Point, PointProcess, merge
from tests.dashboard.web.api_stage import PATIENCE_S, ask, error, machine, plain_guest

pytestmark = pytest.mark.slow

__all__ = ["plain_guest"]
UPDATES = 20_000


@contextmanager
def _listening(server: Server) -> Iterator[http.client.HTTPResponse]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE_S)
    with closing(connection):
        connection.request("GET", "/api/v1/events")
        with closing(connection.getresponse()) as answer:
            yield answer


def _events(answer: http.client.HTTPResponse) -> Iterator[dict[str, str]]:
    """Events as they come; the end of the stream ends it."""
    event: dict[str, str] = {}
    for line in iter(answer.readline, b""):
        name, _, value = line.decode().rstrip("\n").partition(": ")
        if name:
            event[name] = value
        elif event:
            yield event
            event = {}


def _sound(name: str, data: str) -> Any:
    """What an event says, checked by the description of the API."""
    document = openapi.document("1", token=False)
    value = json.loads(data)
    schema = {"$ref": f"#/components/schemas/{name}", "components": document["components"]}
    jsonschema.Draft202012Validator(schema).validate(value)
    return value


def test_a_stream_begins_with_hello_and_the_past_and_goes_on(plain_guest: int) -> None:
    with (
        Watcher([plain_guest]) as watcher,
        serving(watcher, interval_s=0.05, machine=machine) as server,
    ):
        ask(server, "/api/v1/snapshot")  # so that there is a past
        hello, past, *looks = _first_events(server)
    assert hello["event"] == "hello"
    assert _sound("Hello", hello["data"])["interval_s"] == 0.05
    assert past["event"] == "history"
    assert _sound("Points", past["data"])["points"]
    assert [look["event"] for look in looks] == ["snapshot"] * 3
    first, second, third = (int(look["id"]) for look in looks)
    assert (second, third) == (first + 1, first + 2)
    assert _sound("Snapshot", looks[0]["data"])["processes"][0]["pid"] == plain_guest


def _first_events(server: Server) -> list[dict[str, str]]:
    with _listening(server) as answer:
        assert answer.headers["Content-Type"] == "text/event-stream; charset=utf-8"
        events = _events(answer)
        assert next(events) == {"retry": "1000"}
        return [next(events) for _ in range(5)]


class Counting:
    """A watcher that looks at once and counts; looking may fail."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.looks = 0
        self.fails = False

    def look(self) -> Snapshot:
        if self.fails:
            raise Unsupported("cannot look")
        self.looks += 1
        return replace(self.snapshot, at_s=self.snapshot.at_s + self.looks * 0.5)

    def attached(self, pid: int) -> Any:
        raise NotImplementedError


@pytest.fixture
def counting(plain_guest: int) -> Counting:
    """Looks of the real guest, again and again."""
    with Watcher([plain_guest]) as watcher:
        return Counting(watcher.look())


def test_one_look_serves_all_who_listen(counting: Counting) -> None:
    with (
        serving(counting, interval_s=0.05, machine=machine) as server,
        _listening(server) as one,
        _listening(server) as other,
    ):
        first, second = _numbers(one, 5), _numbers(other, 5)
        assert set(first) & set(second)
        assert max(first + second) <= counting.looks


def _numbers(answer: http.client.HTTPResponse, most: int) -> list[int]:
    events = (int(one["id"]) for one in _events(answer) if one.get("event") == "snapshot")
    return [next(events) for _ in range(most)]


def test_while_nobody_listens_it_looks_seldom(
    counting: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed, "IDLE_S", 60.0)
    with serving(counting, interval_s=0.001, machine=machine) as server:
        assert ask(server, "/healthz").status == 200
        time.sleep(0.2)
        assert counting.looks == 1
        with _listening(server) as answer:
            events = (one for one in _events(answer) if one.get("event") == "snapshot")
            assert int(next(events)["id"]) == 2  # at once, not when the pause is over


def test_a_look_that_fails_is_told_and_tried_again(counting: Counting) -> None:
    with (
        serving(counting, interval_s=0.01, machine=machine) as server,
        _listening(server) as answer,
    ):
        counting.fails = True
        _until(lambda: ask(server, "/healthz").status == 503)
        _until(lambda: ask(server, "/api/v1/snapshot").status == 409)
        assert error(ask(server, "/api/v1/snapshot")) == (409, "cannot look", None)
        counting.fails = False
        _until(lambda: ask(server, "/healthz").status == 200)
        events = (one for one in _events(answer) if one.get("event") == "snapshot")
        assert int(next(events)["id"]) >= 1


def _until(true: Any) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_no_more_pages_than_allowed(counting: Counting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed, "LISTENERS", 2)
    with serving(counting, interval_s=0.01, machine=machine) as server:
        with _listening(server), _listening(server):
            assert error(ask(server, "/api/v1/events")) == (
                503,
                "2 pages are open already",
                "at most 2 at once",
            )
        _until(lambda: _is_open(server))


def _is_open(server: Server) -> bool:
    with _listening(server) as answer:
        return answer.status == 200


def test_whoever_does_not_read_is_dropped_and_others_go_on(
    counting: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed, "LISTENERS", 2)
    with (
        serving(counting, interval_s=0, machine=machine) as server,
        closing(socket.create_connection(("127.0.0.1", server.port))) as sleeper,
    ):
        sleeper.sendall(b"GET /api/v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert sleeper.recv(15) == b"HTTP/1.1 200 OK"  # and reads no more
        with _listening(server) as answer:
            events = _events(answer)
            assert not _is_open(server)
            _until(lambda: [next(events) for _ in range(500)] and _is_open(server))
            assert next(events)["event"] == "snapshot"


def test_ending_the_server_ends_every_stream_at_once(counting: Counting) -> None:
    with (
        serving(counting, interval_s=0.01, machine=machine) as server,
        _listening(server) as answer,
    ):
        events = _events(answer)
        next(events)
        server.stop()
        assert [*events][-1]["event"] in ("snapshot", "history")  # and then the end, whole
    assert not [one for one in threading.enumerate() if one.name == "holdfast-serve"]


def test_a_server_ends_whenever_it_is_told_to(counting: Counting) -> None:
    """Also in the middle of a look, or between its end and the moment that it is taken."""
    before = set(threading.enumerate())  # other tests' threads may live as long as the process
    for number in range(60):
        with serving(counting, interval_s=0.0001, machine=machine):
            time.sleep(number * 1e-4)
        _until(
            lambda: (
                not any(
                    one.name.startswith("holdfast-") for one in set(threading.enumerate()) - before
                )
            )
        )


@pytest.mark.slow
def test_an_hour_of_updates_and_more_leaves_memory_flat(counting: Counting) -> None:
    """As many as come in 2.8 hours; the first 4000 fill caches, buffers and the past."""
    with serving(counting, interval_s=0, machine=machine) as server, _listening(server) as answer:
        before, seen = (0, 0), 0
        for event in _events(answer):
            if event.get("event") != "snapshot":
                continue
            seen = int(event["id"])
            if before == (0, 0) and seen >= 4000:
                before = _taken()
            if seen >= UPDATES:
                break
        after = _taken()
        points = ask(server, "/api/v1/history?seconds=86400").json["points"]
    assert seen >= UPDATES
    assert after[0] - before[0] < 2000, "objects"
    assert after[1] - before[1] < 8 * 2**20, "bytes"
    assert MOST * 0.7 < len(points) <= MOST


def _taken() -> tuple[int, int]:
    gc.collect()
    return len(gc.get_objects()), psutil.Process().memory_info().rss


# ---- the past


def _point(at_s: float, used: int, **pools: int) -> Point:
    return Point(at_s, used, (used, None), (PointProcess(1, "one", used, {}, {}, dict(pools)),))


def test_the_past_is_bounded_and_reaches_back() -> None:
    past = History(0.5)
    for number in range(60_000):
        past.add(_point(number * 0.5, number))
    points = past.points()
    assert len(points) == len(past) == MOST
    times = [one.at_s for one in points]
    assert times == sorted(times)
    assert times[-1] == 29_999.5
    assert times[-1] - times[0] > 4 * 3600
    assert len(past.points(since_s=times[-1] - 60)) == 121


def test_no_peak_is_thinned_away() -> None:
    past = History(0.5)
    for number in range(20_000):
        past.add(_point(number * 0.5, 7 if number == 5000 else 1, peak=number == 5000))
    peak = max(past.points(), key=lambda one: one.ram_used_bytes)
    assert (peak.ram_used_bytes, peak.gpus, peak.processes[0].pools["peak"]) == (7, (7, None), 1)
    assert abs(peak.at_s - 2500) < 60


def test_of_two_points_the_higher_value_of_each_figure_stays() -> None:
    first = replace(_point(1, 5, a=1, b=9), gpus=(1, None))
    second = replace(_point(2, 3, a=2, c=4), gpus=(None, None))
    other = PointProcess(2, "two", 1, {}, {}, {})
    both = merge(first, replace(second, processes=(*second.processes, other)))
    assert both == Point(
        2, 5, (1, None), (PointProcess(1, "one", 5, {}, {}, {"a": 2, "b": 9, "c": 4}), other)
    )


def test_a_past_of_other_gpus_is_not_mixed() -> None:
    assert merge(replace(_point(1, 5), gpus=(9,)), _point(2, 3)).gpus == (3, None)


def test_a_figure_that_is_no_number_is_an_error_and_not_the_end(counting: Counting) -> None:
    (process,) = counting.snapshot.processes
    counting.snapshot = replace(
        counting.snapshot, processes=(replace(process, look_us=float("inf")),)
    )

    async def look() -> Any:
        return await Feed(counting.look, 0.5).latest()

    with pytest.raises(ValueError, match="a figure of the snapshot is infinite or no number"):
        asyncio.run(look())

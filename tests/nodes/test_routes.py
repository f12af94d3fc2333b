"""What the routes of the pack answer; over HTTP they are tested in tests/comfyui."""

from __future__ import annotations

import json
import sys
import threading
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.base.errors import BadInput, NotFound, OutOfMemory
from holdfast.nodes import routes
from holdfast.nodes.host import server as host
from holdfast.nodes.host.server import Answer, Request
from holdfast.nodes.live import Live


class Routes:
    """A table of routes, as aiohttp's."""

    def __init__(self) -> None:
        self.added: list[Any] = []

    def __iter__(self) -> Iterator[Any]:
        return iter(self.added)

    def route(self, method: str, path: str) -> Callable[[Any], Any]:
        def add(handler: Any) -> Any:
            self.added.append(_Route(method, path, handler))
            return handler

        return add


class _Route:
    def __init__(self, method: str, path: str, handler: Any) -> None:
        self.method, self.path, self.handler = method, path, handler


class Server:
    """As much of ComfyUI's server as registering needs."""

    def __init__(self) -> None:
        self.routes = Routes()
        self.handlers: list[Any] = []
        self.sockets: dict[str, Any] = {}

    def add_on_prompt_handler(self, handler: Any) -> None:
        self.handlers.append(handler)


@pytest.fixture
def live() -> Iterator[Live]:
    one = Live(lease_s=1)
    yield one
    one.close()


def _error(body: bytes) -> str:
    with pytest.raises(BadInput) as caught:
        routes.parse_options(body)
    return str(caught.value)


def test_without_comfyui_nothing_is_registered() -> None:
    assert routes.register() is False


def test_registering_adds_four_routes_and_starts_nothing() -> None:
    server, threads = Server(), threading.active_count()
    assert routes.register(server) is True
    assert [(one.method, one.path) for one in server.routes] == [
        ("GET", "/holdfast/live"),
        ("GET", "/holdfast/peaks"),
        ("POST", "/holdfast/free"),
        ("GET", "/holdfast/page"),
    ]
    assert threading.active_count() == threads


def test_registering_twice_is_registering_once() -> None:
    server = Server()
    routes.register(server)
    handlers = len(server.handlers)
    assert routes.register(server) is False
    assert len(server.routes.added) == 4
    assert len(server.handlers) == handlers


def test_live_answers_with_a_snapshot(live: Live) -> None:
    found = routes.look(live, Request())
    assert found.status == 200
    assert found.body["ram"]["process_bytes"] > 0
    assert found.body["recent"] == []
    later = routes.look(live, Request({"since": "0"}))
    assert later.body["recent"]


def test_peaks_answers_with_the_last_prompt(live: Live) -> None:
    assert routes.peaks(live, Request()) == Answer({"prompt": None, "nodes": []})


PAGE = "holdfast_memory_20260101_120000_0123abcd.html"


@pytest.fixture
def temp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """ComfyUI's temp folder, with a page in it, one outside, and a link to that one."""
    folder = tmp_path / "temp"
    folder.mkdir()
    (folder / PAGE).write_text("<p>a page</p>")
    (folder / "somebody.html").write_text("<p>another's</p>")
    (tmp_path / PAGE).write_text("<p>outside</p>")
    (folder / PAGE.replace("2026", "2025")).symlink_to(tmp_path / PAGE)
    paths = types.SimpleNamespace(get_temp_directory=lambda: str(folder))
    monkeypatch.setitem(sys.modules, "folder_paths", paths)
    return folder


def test_a_page_that_a_node_made_is_shown(temp: Path) -> None:
    assert routes.page(Request({"name": PAGE})).page == "<p>a page</p>"


@pytest.mark.parametrize(
    "name",
    [
        *("", "somebody.html", f"../{PAGE}", f"/etc/{PAGE}", f"{PAGE}\0", f"x{PAGE}", f"{PAGE}\n"),
        *(PAGE.replace("2026", "2024"), PAGE.replace("2026", "2025"), PAGE.upper()),
    ],
)
def test_no_other_file_is_shown(temp: Path, name: str) -> None:
    with pytest.raises(NotFound) as caught:
        routes.page(Request({"name": name}))
    assert str(caught.value) == (
        f"there is no page {name!r}\n"
        "  expected: a page of this session\n"
        "  try: the report_link of Memory Timeline, or run it again"
    )


@pytest.mark.parametrize("text", ["soon", "nan", "inf", "-inf", "", "1e999"])
def test_a_time_that_is_none_is_refused(live: Live, text: str) -> None:
    with pytest.raises(BadInput) as caught:
        routes.look(live, Request({"since": text}))
    assert str(caught.value) == (
        f"since is {text!r}\n  expected: seconds as a number\n  try: the at_s of an earlier answer"
    )


def test_an_unknown_query_is_refused(live: Live) -> None:
    with pytest.raises(BadInput) as caught:
        routes.look(live, Request({"path": "/etc/passwd"}))
    assert str(caught.value) == (
        "unknown option 'path'\n  expected: since\n  try: ?since=12.5, or nothing"
    )
    with pytest.raises(BadInput) as caught:
        routes.peaks(live, Request({"x": "1"}))
    assert str(caught.value) == "unknown option 'x'\n  expected: nothing\n  try: no query"


def test_models_and_caches_are_freed_where_nothing_is_said() -> None:
    usual = {"models": True, "caches": True, "forget_outputs": False}
    assert routes.parse_options(b"") == routes.parse_options(b"{}") == usual
    assert routes.parse_options(b'{"models": false}') == usual | {"models": False}


def test_a_body_that_cannot_be_used_is_refused() -> None:
    hint = '\n  try: {"models": true, "caches": true}'
    assert _error(b'{"all": true}') == (
        "unknown option 'all'\n  expected: models or caches or forget_outputs" + hint
    )
    assert _error(b'{"models": 1}') == "models is 1\n  expected: true or false" + hint
    assert _error(b"[]") == "the request is of type list\n  expected: an object" + hint
    for broken in (b"{", b"\xff", b"[" * 100_000):
        assert _error(broken) == "the request is not JSON\n  expected: an object" + hint


def test_freeing_tells_what_was_freed() -> None:
    found = routes.free(threading.Lock(), Request(body=b"{}"))
    assert found.status == 200
    assert json.loads(json.dumps(found.body)) == found.body | {"held": found.body["held"]}
    assert found.body["freed_bytes"] >= 0
    assert found.body["text"].startswith("freed: ")
    assert found.body["later"] is False


def test_two_do_not_free_at_once() -> None:
    lock = threading.Lock()
    with lock:
        found = routes.free(lock, Request(body=b"{}"))
    assert found.status == 409
    assert found.body["error"] == "memory is being freed already\n  try: wait a little"


def test_a_prompt_of_an_open_window_begins_to_be_sampled(live: Live) -> None:
    server = Server()
    routes.begin(live, server, {"client_id": "someone", "prompt": {}})
    routes.begin(live, server, {"prompt": {}})
    routes.begin(live, server, {"client_id": ["a list"]})
    assert not live.watching
    server.sockets["window"] = object()
    routes.begin(live, server, {"client_id": "window"})
    assert live.watching


def test_an_error_is_answered_in_its_three_parts() -> None:
    def fail(_: Request) -> Answer:
        raise OutOfMemory("all is full", expected="room", hint="close something")

    assert host.answer_request(fail, Request()) == Answer(
        {
            "error": "all is full\n  expected: room\n  try: close something",
            "what": "all is full",
            "expected": "room",
            "try": "close something",
        },
        500,
    )


def test_a_bad_request_is_answered_with_status_400(live: Live) -> None:
    found = host.answer_request(lambda request: routes.look(live, request), Request({"since": "x"}))
    assert found.status == 400
    assert found.body["what"] == "since is 'x'"


class _Asked:
    """A request as aiohttp gives it."""

    def __init__(self, kind: str, length: int | None) -> None:
        self.content_type, self.content_length = kind, length


@pytest.mark.parametrize(
    ("kind", "length", "status", "text"),
    [
        (
            "text/plain",
            2,
            415,
            "cannot read a request of type text/plain\n  expected: application/json",
        ),
        (
            "application/json",
            None,
            413,
            "the request has no length\n  expected: at most 4096 bytes",
        ),
        (
            "application/json",
            5000,
            413,
            "the request has 5000 bytes\n  expected: at most 4096 bytes",
        ),
    ],
)
def test_a_body_of_another_kind_or_size_is_not_read(
    kind: str, length: int | None, status: int, text: str
) -> None:
    refused = host._reject("POST", _Asked(kind, length))
    assert refused is not None
    assert refused.status == status
    assert refused.body["error"] == (
        f"{text}\n  try: send a small JSON object, such as {{}}, with Content-Type: "
        "application/json"
    )
    assert host._reject("GET", _Asked(kind, length)) is None
    assert host._reject("POST", _Asked("application/json", 2)) is None

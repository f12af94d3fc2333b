"""Who may come in, and what every answer carries."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from holdfast.base.errors import BadInput
from holdfast.dashboard.ipc.watching import Watcher
from holdfast.dashboard.web import Server, serving
from holdfast.dashboard.web.guard import Guard, Visit, check_token
from holdfast.dashboard.web.refusals import Forbidden
from tests.dashboard.web.api_stage import ask, error, machine

pytestmark = pytest.mark.slow

TOKEN = "a-token-of-tests"
PATHS = (
    "/",
    "/static/main.js",
    "/api/v1/snapshot",
    "/api/v1/events",
    "/openapi.json",
    "/metrics",
    "/nothing",
)


@pytest.fixture(scope="module")
def opened() -> Iterator[Server]:
    """A server for this machine alone, without a token."""
    with Watcher([]) as watcher, serving(watcher, interval_s=0.05, machine=machine) as server:
        yield server


@pytest.fixture(scope="module")
def locked() -> Iterator[Server]:
    """The same with a token."""
    with (
        Watcher([]) as watcher,
        serving(watcher, interval_s=0.05, token=TOKEN, machine=machine) as server,
    ):
        yield server


# ---- the token


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("authorization", [None, "Bearer wrong-token", "Basic a-token-of-tests"])
def test_without_the_token_nothing_is_told(
    locked: Server, path: str, authorization: str | None
) -> None:
    headers = {} if authorization is None else {"Authorization": authorization}
    refused = ask(locked, path, headers=headers)
    assert refused.status == 401
    assert refused.headers["WWW-Authenticate"] == 'Bearer realm="holdfast"'
    assert TOKEN.encode() not in refused.body


def test_the_refusal_says_what_to_do(locked: Server) -> None:
    assert ask(locked, "/api/v1/snapshot").json == {
        "error": {
            "kind": "Unauthorized",
            "what": "this server needs its token, which the request does not have",
            "expected": "Authorization: Bearer TOKEN, or the cookie that /?token=TOKEN sets",
            "hint": "open the whole address that holdfast serve printed",
        }
    }
    page = ask(locked, "/")
    assert page.headers["Content-Type"] == "text/plain; charset=utf-8"
    assert page.body.startswith(b"this server needs its token")


def test_nothing_is_done_without_the_token(locked: Server) -> None:
    assert ask(locked, "/api/v1/processes/1/free", "POST", {}).status == 401
    assert ask(locked, "/api/v1/processes/1/models/x/budget", "PUT", b"{").status == 401


def test_health_is_told_to_everybody(locked: Server) -> None:
    assert ask(locked, "/healthz").json == {"status": "ok"}


def test_the_token_opens_the_api(locked: Server) -> None:
    headers = {"Authorization": f"bearer {TOKEN}"}
    assert ask(locked, "/api/v1/snapshot", headers=headers).status == 200
    assert ask(locked, "/metrics", headers=headers).status == 200


def test_the_address_with_the_token_sets_a_cookie_and_leads_to_the_page(locked: Server) -> None:
    let_in = ask(locked, f"/?token={TOKEN}")
    assert (let_in.status, let_in.headers["Location"]) == (303, "/")
    cookie = let_in.headers["Set-Cookie"]
    assert cookie.startswith(f"holdfast_{locked.port}={TOKEN};")
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    headers = {"Cookie": cookie.partition(";")[0]}
    for path in ("/", "/static/main.js", "/api/v1/snapshot"):
        assert ask(locked, path, headers=headers).status == 200


def test_the_address_with_a_wrong_token_sets_none(locked: Server) -> None:
    refused = ask(locked, "/?token=wrong-token")
    assert refused.status == 401
    assert "Set-Cookie" not in refused.headers
    headers = {"Cookie": f"holdfast_{locked.port}=wrong-token"}
    assert ask(locked, "/api/v1/snapshot", headers=headers).status == 401


def test_the_token_in_another_address_opens_nothing(locked: Server) -> None:
    assert ask(locked, f"/api/v1/snapshot?token={TOKEN}").status == 401
    assert ask(locked, f"/metrics?token={TOKEN}").status == 401


def test_a_wrong_token_is_not_mended_by_a_right_cookie(locked: Server) -> None:
    headers = {"Authorization": "Bearer wrong", "Cookie": f"holdfast_{locked.port}={TOKEN}"}
    assert ask(locked, "/api/v1/snapshot", headers=headers).status == 401


@pytest.mark.parametrize(
    "token", ["", "short", "with blank in it", "semi;colon;", "x" * 129, "ä" * 9]
)
def test_a_token_that_is_none_is_refused(token: str) -> None:
    with pytest.raises(BadInput) as caught:
        check_token(token)
    assert str(caught.value) == (
        f"cannot use a token of {len(token)} characters such as this one\n"
        "  expected: 8 to 128 letters, digits and . _ ~ -\n"
        "  try: --token auto"
    )


def test_a_server_for_others_has_a_token_of_its_own_each_time() -> None:
    with Watcher([]) as watcher:
        one, other = (Server(watcher, host="0.0.0.0").token for _ in range(2))
        assert Server(watcher, host="127.0.0.1").token is None
        assert Server(watcher, host="localhost").token is None
    assert one is not None
    assert len(one) == 32
    assert one != other


# ---- the host


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:{port}",
        "127.0.0.1.evil.example",
        "localhost.evil",
        "192.0.2.7",
        "",
    ],
)
def test_another_host_is_refused(opened: Server, host: str) -> None:
    said = host.format(port=opened.port)
    refused = ask(opened, "/api/v1/snapshot", headers={"Host": said})
    assert error(refused) == (
        403,
        f"this server does not answer for the host {said!r}",
        "one of 127.0.0.1, [::1], localhost",
    )


@pytest.mark.parametrize(
    "host", ["localhost:{port}", "127.0.0.1", "[::1]:{port}", "LOCALHOST:9000"]
)
def test_names_of_this_machine_are_taken(opened: Server, host: str) -> None:
    headers = {"Host": host.format(port=opened.port)}
    assert ask(opened, "/api/v1/snapshot", headers=headers).status == 200


def test_a_name_is_no_way_in_where_all_addresses_are_listened_on() -> None:
    guard = Guard("0.0.0.0", 8765, None)
    for host in ("192.0.2.7:8765", "10.0.0.1", "localhost", socket.gethostname(), "[2001:db8::1]"):
        guard.check(Visit("GET", "/", {"Host": host}, {}))
    for host in ("evil.example:8765", "0.0.0.0.evil.example", "x" * 300):
        with pytest.raises(Forbidden):
            guard.check(Visit("GET", "/", {"Host": host}, {}))


def test_one_address_answers_for_itself_alone() -> None:
    guard = Guard("192.0.2.7", 8765, None)
    guard.check(Visit("GET", "/", {"Host": "192.0.2.7:8765"}, {}))
    for host in ("192.0.2.8:8765", "127.0.0.1:8765", "localhost"):
        with pytest.raises(Forbidden):
            guard.check(Visit("GET", "/", {"Host": host}, {}))


# ---- the origin


@pytest.mark.parametrize(
    "origin",
    [
        "http://evil.example",
        "null",
        "http://localhost:1",
        "https://127.0.0.1:{port}",
        "http://127.0.0.1",
    ],
)
@pytest.mark.parametrize("path", ["/api/v1/snapshot", "/api/v1/events", "/"])
def test_a_page_of_another_origin_is_refused(opened: Server, origin: str, path: str) -> None:
    said = origin.format(port=opened.port)
    refused = ask(opened, path, headers={"Origin": said})
    assert refused.status == 403
    assert f"this server does not answer pages of {said!r}".encode() in refused.body


def test_our_own_page_is_answered(opened: Server) -> None:
    own = {"Origin": opened.url, "Sec-Fetch-Site": "same-origin"}
    assert ask(opened, "/api/v1/snapshot", headers=own).status == 200
    answer = ask(opened, "/api/v1/snapshot")
    assert not [name for name in answer.headers if name.startswith("Access-Control-")]


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_another_site_is_refused(opened: Server, site: str) -> None:
    headers = {"Sec-Fetch-Site": site}
    told = f"this server does not answer other sites (Sec-Fetch-Site: {site})"
    refused = error(ask(opened, "/api/v1/snapshot", headers=headers))
    assert refused == (403, told, "requests of its own page")
    assert ask(opened, "/api/v1/processes/1/free", "POST", {}, headers).status == 403


def test_a_link_to_the_page_may_be_followed_and_nothing_else(opened: Server) -> None:
    headers = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    followed = {**headers, "Sec-Fetch-Dest": "document"}
    assert ask(opened, "/", headers=followed).status == 200
    assert ask(opened, "/", headers={**headers, "Sec-Fetch-Dest": "iframe"}).status == 403
    assert ask(opened, "/api/v1/snapshot", headers=followed).status == 403


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""]
)
def test_what_a_form_can_send_is_refused(opened: Server, kind: str) -> None:
    for method, path in (("POST", "1/free"), ("POST", "1/interrupt"), ("PUT", "1/models/x/budget")):
        refused = ask(opened, f"/api/v1/processes/{path}", method, b"{}", {"Content-Type": kind})
        assert error(refused) == (
            415,
            f"cannot take a body of the type {kind!r}",
            "Content-Type: application/json",
        )


def test_preflights_are_refused(opened: Server) -> None:
    asked = {"Origin": "http://evil.example", "Access-Control-Request-Method": "PUT"}
    assert ask(opened, "/api/v1/snapshot", "OPTIONS", headers=asked).status == 403
    assert ask(opened, "/api/v1/snapshot", "OPTIONS").status == 405


# ---- headers


@pytest.mark.parametrize("path", [*PATHS[:3], *PATHS[4:], "/healthz"])
def test_every_answer_has_the_strict_headers(opened: Server, path: str) -> None:
    headers = ask(opened, path).headers
    policy = headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'self'; ")
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Referrer-Policy"] == "no-referrer"
    assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
    assert headers["Server"] == "holdfast"

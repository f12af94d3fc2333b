"""What the pack adds to ComfyUI's web server.

    GET  /holdfast/live    memory now: `Snapshot` of live as JSON; ?since=SECONDS adds what there
                           was since an earlier answer's `at_s`
    GET  /holdfast/peaks   the peaks of the nodes of the last prompt
    POST /holdfast/free    as the node Free Memory: {"models": true, "caches": true,
                           "forget_outputs": false} or less of it
    GET  /holdfast/page    ?name=… a page that Memory Timeline made in this session

Covers: what may be asked and what is answered.  Leaves to others: HTTP (host.server), looking
(live), freeing (memory).
Promise: `register` works once, and starts nothing but the socket on which `holdfast top` looks;
every value of a request is checked, and one that cannot be used is answered with status 400 and an
error in three parts.
"""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Mapping
from typing import Any

from holdfast.base.codec import encode
from holdfast.base.errors import BadInput, NotFound, Unsupported
from holdfast.base.offering import offer_once
from holdfast.nodes import memory
from holdfast.nodes.host import following, models
from holdfast.nodes.host import server as host
from holdfast.nodes.host.server import Answer, Request
from holdfast.nodes.live import Live
from holdfast.nodes.memory.words import freed_text

LIVE, PEAKS, FREE = "/holdfast/live", "/holdfast/peaks", "/holdfast/free"
_DEFAULTS = {"models": True, "caches": True, "forget_outputs": False}
_EXAMPLE = '{"models": true, "caches": true}'


def register(server: Any = None) -> bool:
    """Add the routes to ComfyUI's server, and follow its prompts; False where that is done or
    there is no ComfyUI.
    """
    server = following.server() if server is None else server
    if server is None or host.has_route(server, LIVE):
        return False
    offer_once()
    live, freeing = Live(), threading.Lock()
    host.add_route(server, "GET", LIVE, lambda request: look(live, request))
    host.add_route(server, "GET", PEAKS, lambda request: peaks(live, request))
    host.add_route(server, "POST", FREE, lambda request: free(freeing, request))
    host.add_route(server, "GET", models.PAGE, page)
    following.watch(lambda prompt: begin(live, server, prompt), server)
    memory.watch_prompts(server)
    return True


def begin(live: Live, server: Any, prompt: Mapping[str, Any]) -> None:
    """A window queues a prompt: begin to sample, so that its first nodes are seen too.

    The window looks while its prompt runs; if it does not, the sampler ends after a few seconds.
    """
    if host.is_open(server, prompt.get("client_id")):
        live.begin()


def look(live: Live, request: Request) -> Answer:
    """Memory now. Raises BadInput for a query that cannot be read."""
    _only(request.query, ("since",), "?since=12.5, or nothing")
    return Answer(live.look(_seconds(request.query.get("since"))).to_dict())


def peaks(live: Live, request: Request) -> Answer:
    """The peaks of the nodes of the last prompt. Raises BadInput for any query."""
    _only(request.query, (), "no query")
    return Answer(encode(live.peaks()))


def page(request: Request) -> Answer:
    """The page of a recording. Raises NotFound for any name that is not one of a page of ours."""
    _only(request.query, ("name",), "the report_link of Memory Timeline")
    name = request.query.get("name", "")
    found = models.page(name)
    if found is None:
        raise NotFound(
            f"there is no page {name[:80]!r}",
            expected="a page of this session",
            hint="the report_link of Memory Timeline, or run it again",
        )
    return Answer({}, page=found)


def free(freeing: threading.Lock, request: Request) -> Answer:
    """What was freed: the fields of `Freed`, all of it as `freed_bytes`, and a text.

    Raises BadInput for a body that cannot be read.
    """
    _only(request.query, (), "no query")
    asked = options(request.body)
    if not freeing.acquire(blocking=False):
        return host.error(Unsupported("memory is being freed already", hint="wait a little"), 409)
    try:
        freed = memory.free(asked["models"], asked["caches"], asked["forget_outputs"])
    finally:
        freeing.release()
    return Answer(encode(freed) | {"freed_bytes": freed.freed_bytes, "text": freed_text(freed)})


def options(body: bytes) -> dict[str, bool]:
    """What to free, from a JSON object; models and caches where it is empty. Raises BadInput."""
    asked = _object(body)
    _only(asked, tuple(_DEFAULTS), _EXAMPLE)
    for name, value in asked.items():
        if not isinstance(value, bool):
            raise BadInput(
                f"{name} is {json.dumps(value)[:40]}", expected="true or false", hint=_EXAMPLE
            )
    return _DEFAULTS | asked


def _object(body: bytes) -> dict[str, Any]:
    try:
        found = json.loads(body or b"{}")
    except (ValueError, RecursionError) as exc:
        raise BadInput("the request is not JSON", expected="an object", hint=_EXAMPLE) from exc
    if not isinstance(found, dict):
        kind = type(found).__name__
        raise BadInput(f"the request is of type {kind}", expected="an object", hint=_EXAMPLE)
    return found


def _only(given: Any, known: tuple[str, ...], hint: str) -> None:
    """Refuse what is not known, rather than leave it out."""
    for name in given:
        if name not in known:
            expected = " or ".join(known) if known else "nothing"
            raise BadInput(f"unknown option {name[:40]!r}", expected=expected, hint=hint)


def _seconds(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not math.isfinite(seconds):
        raise BadInput(
            f"since is {text[:40]!r}",
            expected="seconds as a number",
            hint="the at_s of an earlier answer",
        )
    return seconds

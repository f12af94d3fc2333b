"""HTTP routes that the pack adds to ComfyUI's web server.

    GET  /holdfast/live    memory now: `live.Snapshot` as JSON; ?since=SECONDS adds the samples
                           since the `at_s` of an earlier answer
    GET  /holdfast/peaks   the peaks of the nodes of the last prompt
    POST /holdfast/free    like the node Free Memory: {"models": true, "caches": true,
                           "forget_outputs": false}, or some of these
    GET  /holdfast/page    ?name=… a page that Memory Timeline made in this session

`register` works once; besides the routes it opens the socket for `holdfast top`. A bad request gets
status 400 with an error.
"""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Mapping
from typing import Any

from holdfast.base.announce import offer_once
from holdfast.base.codec import encode
from holdfast.base.errors import BadInput, NotFound, Unsupported
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
    """Add the routes to ComfyUI's server and watch its prompts.

    False without ComfyUI, or if it was done before.
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
    """Start sampling when an open window queues a prompt, so that its first nodes are included.

    The window then polls; if it does not, the sampler ends after a few seconds.
    """
    if host.is_open(server, prompt.get("client_id")):
        live.begin()


def look(live: Live, request: Request) -> Answer:
    """Memory now. Raises BadInput for a bad query."""
    _check_known(request.query, ("since",), "?since=12.5, or nothing")
    return Answer(live.look(_parse_seconds(request.query.get("since"))).to_dict())


def peaks(live: Live, request: Request) -> Answer:
    """The peaks of the nodes of the last prompt. Raises BadInput for any query."""
    _check_known(request.query, (), "no query")
    return Answer(encode(live.peaks()))


def page(request: Request) -> Answer:
    """The page of a recording. Raises NotFound for any other name."""
    _check_known(request.query, ("name",), "the report_link of Memory Timeline")
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
    """Free memory. The answer has the fields of `Freed`, the total as `freed_bytes`, and a text.

    Raises BadInput for a bad body.
    """
    _check_known(request.query, (), "no query")
    chosen = parse_options(request.body)
    if not freeing.acquire(blocking=False):
        return host.error(Unsupported("memory is being freed already", hint="wait a little"), 409)
    try:
        freed = memory.free(chosen["models"], chosen["caches"], chosen["forget_outputs"])
    finally:
        freeing.release()
    return Answer(encode(freed) | {"freed_bytes": freed.freed_bytes, "text": freed_text(freed)})


def parse_options(body: bytes) -> dict[str, bool]:
    """What to free, from a JSON object; by default models and caches. Raises BadInput."""
    chosen = _parse_object(body)
    _check_known(chosen, tuple(_DEFAULTS), _EXAMPLE)
    for name, value in chosen.items():
        if not isinstance(value, bool):
            raise BadInput(
                f"{name} is {json.dumps(value)[:40]}", expected="true or false", hint=_EXAMPLE
            )
    return _DEFAULTS | chosen


def _parse_object(body: bytes) -> dict[str, Any]:
    try:
        found = json.loads(body or b"{}")
    except (ValueError, RecursionError) as exc:
        raise BadInput("the request is not JSON", expected="an object", hint=_EXAMPLE) from exc
    if not isinstance(found, dict):
        kind = type(found).__name__
        raise BadInput(f"the request is of type {kind}", expected="an object", hint=_EXAMPLE)
    return found


def _check_known(given: Any, known: tuple[str, ...], hint: str) -> None:
    """Raise BadInput for unknown options, rather than ignore them."""
    for name in given:
        if name not in known:
            expected = " or ".join(known) if known else "nothing"
            raise BadInput(f"unknown option {name[:40]!r}", expected=expected, hint=hint)


def _parse_seconds(text: str | None) -> float | None:
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

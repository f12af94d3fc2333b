"""Everything as it happens: server-sent events.

Covers: the wire.  Leaves to others: what is told when (feed).
Promise: an event is complete or not there; a browser that goes away ends its stream alone.
"""

from __future__ import annotations

import contextlib
import json
from typing import Any

from aiohttp import web

from holdfast.base.codec import encode
from holdfast.dashboard.snapshot import VERSION
from holdfast.dashboard.web.answers import Hello
from holdfast.dashboard.web.feed import Listener
from holdfast.dashboard.web.history import Points
from holdfast.dashboard.web.sources import Sources

QUIET_S = 15.0  # then a comment shows proxies and browsers that the line is alive
_HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-store",
    "X-Accel-Buffering": "no",
}


def event(name: str, data: bytes, number: int | None = None) -> bytes:
    """One event; its data has no line break, as JSON has none."""
    identity = b"" if number is None else f"id: {number}\n".encode()
    return identity + f"event: {name}\ndata: ".encode() + data + b"\n\n"


async def stream(request: web.Request, sources: Sources) -> web.StreamResponse:
    """Tell everything until the browser goes or the server ends. Raises Busy."""
    listener = sources.feed.join(drop=lambda: _hang_up(request))
    response = web.StreamResponse(headers=_HEADERS)
    try:
        with contextlib.suppress(ConnectionResetError):  # it went away
            await response.prepare(request)
            await response.write(b"retry: 1000\n\n" + _opening(sources))
            await _tell(response, listener)
    finally:
        sources.feed.leave(listener)
    return response


async def _tell(response: web.StreamResponse, listener: Listener) -> None:
    async for look in listener.looks(QUIET_S):
        if look is None:
            await response.write(b": still here\n\n")
        else:
            await response.write(event("snapshot", look.text, look.number))


def _opening(sources: Sources) -> bytes:
    hello = Hello(VERSION, sources.feed.interval_s, sources.server)
    return event("hello", _json(hello)) + event("history", _json(Points(sources.feed.past())))


def _json(value: Any) -> bytes:
    return json.dumps(encode(value), separators=(",", ":")).encode()


def _hang_up(request: web.Request) -> None:
    if request.transport is not None:
        request.transport.abort()

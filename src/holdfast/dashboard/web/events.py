"""Server-sent events.

An event is sent whole or not at all; a browser that leaves ends only its own stream.
"""

from __future__ import annotations

import contextlib
import json
from typing import Any

from aiohttp import web

from holdfast.base.codec import encode
from holdfast.dashboard.snapshot.snapshot import VERSION
from holdfast.dashboard.web.answers import Hello
from holdfast.dashboard.web.feed import Listener
from holdfast.dashboard.web.history import Points
from holdfast.dashboard.web.sources import Sources

QUIET_S = 15.0  # then a comment keeps the connection alive
_HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-store",
    "X-Accel-Buffering": "no",
}


def event(name: str, data: bytes, number: int | None = None) -> bytes:
    """Encode an event; JSON data has no line breaks."""
    identity = b"" if number is None else f"id: {number}\n".encode()
    return identity + f"event: {name}\ndata: ".encode() + data + b"\n\n"


async def stream(request: web.Request, sources: Sources) -> web.StreamResponse:
    """Stream snapshots until the browser leaves or the server ends. Raises Busy."""

    def hang_up() -> None:
        if request.transport is not None:
            request.transport.abort()

    feed = sources.feed
    listener = feed.join(drop=hang_up)
    response = web.StreamResponse(headers=_HEADERS)
    try:
        with contextlib.suppress(ConnectionResetError):  # disconnected
            await response.prepare(request)
            hello = _json(Hello(VERSION, feed.interval_s, sources.server))
            opening = event("hello", hello) + event("history", _json(Points(feed.past())))
            await response.write(b"retry: 1000\n\n" + opening)
            await _tell(response, listener)
    finally:
        feed.leave(listener)
    return response


async def _tell(response: web.StreamResponse, listener: Listener) -> None:
    async for look in listener.looks(QUIET_S):
        if look is None:
            await response.write(b": still here\n\n")
        else:
            await response.write(event("snapshot", look.text, look.number))


def _json(value: Any) -> bytes:
    return json.dumps(encode(value), separators=(",", ":")).encode()

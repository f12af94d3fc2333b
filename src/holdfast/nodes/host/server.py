"""ComfyUI's web server: adding routes, length of the queue, names of devices.

Patches nothing. Handlers run in a thread, so they never block ComfyUI's event loop. A body longer
than `MOST_BODY_BYTES` is not read.
"""

from __future__ import annotations

import asyncio
import importlib
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from holdfast.base.errors import BadInput, HoldfastError, NotFound

MOST_BODY_BYTES = 4096
_JSON = "application/json"


@dataclass(frozen=True)
class Request:
    """Query and body of a request to a route."""

    query: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""


@dataclass(frozen=True)
class Answer:
    """The response of a route."""

    body: dict[str, Any]
    status: int = 200
    page: str | None = None  # HTML, in place of `body`


Handler = Callable[[Request], Answer]


# ---- routes


def has_route(server: Any, path: str) -> bool:
    """Whether there is a route with this path."""
    return any(getattr(route, "path", None) == path for route in server.routes)


def add_route(server: Any, method: str, path: str, handler: Handler) -> None:
    """Serve `path` with `handler`; ComfyUI serves it below /api too.

    A HoldfastError becomes a response with its parts: status 400 for BadInput, 404 for NotFound,
    else 500.
    """

    async def answer(request: Any) -> Any:
        found = _reject(method, request)
        if found is None:
            body = await request.read() if method == "POST" else b""
            found = await asyncio.to_thread(
                answer_request, handler, Request(dict(request.query), body)
            )
        web = importlib.import_module("aiohttp.web")
        headers = {"Cache-Control": "no-store"}
        if found.page is not None:  # sandboxed: it can neither read nor call ComfyUI
            headers["Content-Security-Policy"] = "sandbox allow-scripts allow-downloads"
            return web.Response(text=found.page, content_type="text/html", headers=headers)
        return web.json_response(found.body, status=found.status, headers=headers)

    server.routes.route(method, path)(answer)


def answer_request(handler: Handler, request: Request) -> Answer:
    """Call a handler; its error becomes an answer."""
    try:
        return handler(request)
    except HoldfastError as exc:
        status = 400 if isinstance(exc, BadInput) else 404 if isinstance(exc, NotFound) else 500
        return error(exc, status)


def error(exc: HoldfastError, status: int) -> Answer:
    """An error as an answer: its parts, and the whole text."""
    parts = {"error": str(exc), "what": exc.what, "expected": exc.expected, "try": exc.hint}
    return Answer(parts, status)


def _reject(method: str, request: Any) -> Answer | None:
    """The answer to a request whose body is not even read; None if it is fine.

    JSON is required, since another site can send us a form without a CORS preflight.
    """
    if method != "POST":
        return None
    if request.content_type != _JSON:
        what = f"cannot read a request of type {request.content_type}"
        return error(BadInput(what, expected=_JSON, hint=_hint_json()), 415)
    length = request.content_length
    if length is None or length > MOST_BODY_BYTES:
        what = f"the request has {'no length' if length is None else f'{length} bytes'}"
        exc = BadInput(what, expected=f"at most {MOST_BODY_BYTES} bytes", hint=_hint_json())
        return error(exc, 413)
    return None


def _hint_json() -> str:
    return "send a small JSON object, such as {}, with Content-Type: application/json"


# ---- queue and devices


def prompts(server: Any) -> int:
    """How many prompts run or wait."""
    queue = getattr(server, "prompt_queue", None)
    return queue.get_tasks_remaining() if queue is not None else 0


def is_open(server: Any, client: object) -> bool:
    """Whether a window of ComfyUI with this id is open."""
    return isinstance(client, str) and client in getattr(server, "sockets", ())


def device_name(device: str) -> str | None:
    """The vendor's name of a device ("NVIDIA H200"); None if torch has not initialized it."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    if cuda is None or not device.startswith("cuda") or not cuda.is_initialized():
        return None
    return str(cuda.get_device_name(device))

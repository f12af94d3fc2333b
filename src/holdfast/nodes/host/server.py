"""ComfyUI's web server, as far as the pack uses it: routes of ours, progress, its queue.

Covers: adding routes, how far the running node is, how many prompts there are.
Leaves to others: what a route answers (routes), which node runs (following), freeing (models).
Promise: only what ComfyUI registers or offers to others is used and nothing of it is patched. A
route's answer is worked out in a thread of its own, so ComfyUI's loop never waits for it; a body
longer than `MOST_BODY_BYTES` is not read.
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
    """What somebody asks of a route."""

    query: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""


@dataclass(frozen=True)
class Answer:
    """What a route says to it."""

    body: dict[str, Any]
    status: int = 200
    page: str | None = None  # HTML, in place of `body`


Handler = Callable[[Request], Answer]


# ---- routes


def has_route(server: Any, path: str) -> bool:
    """Whether somebody has added a route with this path."""
    return any(getattr(route, "path", None) == path for route in server.routes)


def add_route(server: Any, method: str, path: str, handler: Handler) -> None:
    """Have `handler` answer; ComfyUI serves it below /api too.

    An error of Holdfast is answered as its three parts: status 400 for a bad request, 404 for
    what is not there, else 500.
    """

    async def answer(request: Any) -> Any:
        found = _refused(method, request)
        if found is None:
            body = await request.read() if method == "POST" else b""
            asked = Request(dict(request.query), body)
            found = await asyncio.to_thread(answered, handler, asked)
        web = importlib.import_module("aiohttp.web")
        headers = {"Cache-Control": "no-store"}
        if found.page is not None:  # apart from ComfyUI: it can neither read nor ask it anything
            headers["Content-Security-Policy"] = "sandbox allow-scripts allow-downloads"
            return web.Response(text=found.page, content_type="text/html", headers=headers)
        return web.json_response(found.body, status=found.status, headers=headers)

    server.routes.route(method, path)(answer)


def answered(handler: Handler, request: Request) -> Answer:
    """The handler's answer, or its error as an answer."""
    try:
        return handler(request)
    except HoldfastError as exc:
        status = 400 if isinstance(exc, BadInput) else 404 if isinstance(exc, NotFound) else 500
        return error(exc, status)


def error(exc: HoldfastError, status: int) -> Answer:
    """An error in its three parts, and as one text."""
    parts = {"error": str(exc), "what": exc.what, "expected": exc.expected, "try": exc.hint}
    return Answer(parts, status)


def _refused(method: str, request: Any) -> Answer | None:
    """Why a request is not even read.

    A form of another site can be sent to us without the browser asking first, but not as JSON.
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


# ---- what it is doing


def step() -> tuple[float, float] | None:
    """(done, total) of the node that runs, of several the one that began last; None if none."""
    ask = getattr(sys.modules.get("comfy_execution.progress"), "get_progress_state", None)
    entries = ask().nodes.copy() if ask is not None else {}
    for entry in reversed(entries.values()):
        if getattr(entry["state"], "value", None) == "running":
            return float(entry["value"]), float(entry["max"])
    return None


def prompts(server: Any) -> int:
    """How many prompts run or wait."""
    queue = getattr(server, "prompt_queue", None)
    return queue.get_tasks_remaining() if queue is not None else 0


def is_open(server: Any, client: object) -> bool:
    """Whether a window of ComfyUI with this id is open."""
    return isinstance(client, str) and client in getattr(server, "sockets", ())


def device_name(device: str) -> str | None:
    """What the maker calls a device, such as "NVIDIA H200"; None where torch does not say."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    if cuda is None or not device.startswith("cuda") or not cuda.is_initialized():
        return None
    return str(cuda.get_device_name(device))

"""The web application: routes, access checks, headers, errors and static files.

Every answer has the strict security headers. Every error is JSON in three parts, or text where a
person opens the page. Files are looked up in a list, so nothing outside of their folder is served.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

from aiohttp import web

from holdfast.base.codec import encode
from holdfast.base.errors import HoldfastError
from holdfast.dashboard.web import openapi
from holdfast.dashboard.web.endpoints import BODY_BYTES, ApiCall, Endpoint, body, numbers
from holdfast.dashboard.web.events import stream
from holdfast.dashboard.web.guard import Guard, Visit, check_type
from holdfast.dashboard.web.refusals import (
    NoSuchPage,
    TooLarge,
    Unauthorized,
    Unreadable,
    WrongMethod,
    failure,
    status_of,
)
from holdfast.dashboard.web.sources import Sources
from holdfast.dashboard.web.table import ENDPOINTS

BODY_S = 10.0
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'self'; img-src 'self' data: blob:; object-src 'none'; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Server": "holdfast",
}
FOLDER = Path(__file__).parent / "static"
TYPES = {
    ".html": "text/html",
    ".js": "text/javascript",
    ".css": "text/css",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".json": "application/json",
    ".woff2": "font/woff2",
}
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def application(sources: Sources, guard: Guard) -> web.Application:
    """The application for one server."""
    app = web.Application(middlewares=[_middleware(guard)], client_max_size=BODY_BYTES)
    app.on_response_prepare.append(_strict)
    pages = Pages()
    description = json.dumps(openapi.document(sources.server.version, guard.token is not None))

    async def page(request: web.Request) -> web.StreamResponse:
        if "token" in request.query:
            return _set_cookie(guard)
        return pages.answer(request, "index.html")

    async def file(request: web.Request) -> web.StreamResponse:
        return pages.answer(request, request.match_info["name"])

    async def described(request: web.Request) -> web.StreamResponse:
        numbers((), list(request.query.items()))
        return _json(description)

    async def events(request: web.Request) -> web.StreamResponse:
        numbers((), list(request.query.items()))
        return await stream(request, sources)

    app.router.add_get("/", page)
    app.router.add_get("/static/{name:.+}", file)
    app.router.add_get("/openapi.json", described, allow_head=False)
    app.router.add_get("/api/v1/events", events, allow_head=False)
    for one in ENDPOINTS:
        app.router.add_route(one.method, one.path, _handler(one, sources))
    return app


def _handler(one: Endpoint, sources: Sources) -> Handler:
    async def handler(request: web.Request) -> web.StreamResponse:
        call = ApiCall(
            sources,
            request.match_info,
            numbers(one.query, list(request.query.items())),
            None if one.body is None else body(one.body, await _read(request)),
        )
        answer = await one.does(call)
        if isinstance(one.answer, str):
            headers = {"Content-Type": one.answer, "Cache-Control": "no-store"}
            return web.Response(body=answer, headers=headers)
        return _json(json.dumps(encode(answer), allow_nan=False))

    return handler


async def _read(request: web.Request) -> bytes:
    check_type(request.headers.get("Content-Type", ""))
    try:
        return await asyncio.wait_for(request.read(), BODY_S)
    except TimeoutError:
        raise Unreadable(f"the body did not come within {BODY_S:g} s") from None


def _json(text: str, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    kept = {"Cache-Control": "no-store", **(headers or {})}
    return web.Response(text=text, status=status, content_type="application/json", headers=kept)


def _set_cookie(guard: Guard) -> web.Response:
    """Move the token from the URL, where others may see it, into a cookie."""
    answer = web.Response(status=303, headers={"Location": "/", "Cache-Control": "no-store"})
    if guard.token is not None:
        answer.set_cookie(guard.cookie, guard.token, httponly=True, samesite="Strict", path="/")
    return answer


# ---- middleware


def _middleware(guard: Guard) -> Any:
    @web.middleware
    async def door(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            guard.check(_visit(request))
            return await handler(request)
        except web.HTTPException as exc:
            return _refuse(request, _translate_http_error(request, exc), exc)
        except HoldfastError as exc:
            return _refuse(request, exc)

    return door


def _visit(request: web.Request) -> Visit:
    if len(request.headers.getall("Host", ())) > 1:
        raise Unreadable("the request names several hosts")
    token = request.query.get("token")
    return Visit(request.method, request.path, request.headers, request.cookies, token)


def _translate_http_error(request: web.Request, exc: web.HTTPException) -> HoldfastError:
    if isinstance(exc, web.HTTPNotFound):
        return NoSuchPage(f"there is nothing at {request.path[:80]!r}", hint="/openapi.json")
    if isinstance(exc, web.HTTPMethodNotAllowed):
        allowed = ", ".join(sorted(exc.allowed_methods))
        return WrongMethod(f"cannot {request.method[:20]} {request.path[:80]!r}", expected=allowed)
    if isinstance(exc, web.HTTPRequestEntityTooLarge):
        return TooLarge("the body is too long", expected=f"at most {BODY_BYTES} bytes")
    return Unreadable(f"cannot read the request: {exc.reason}")


def _refuse(
    request: web.Request, error: HoldfastError, exc: web.HTTPException | None = None
) -> web.Response:
    headers = {}
    if isinstance(exc, web.HTTPMethodNotAllowed):
        headers["Allow"] = exc.headers["Allow"]
    if isinstance(error, Unauthorized):
        headers["WWW-Authenticate"] = 'Bearer realm="holdfast"'
    if request.path == "/" and request.method == "GET":  # a person looks at it
        return web.Response(text=f"{error}\n", status=status_of(error), headers=headers)
    return _json(json.dumps(encode(failure(error))), status_of(error), headers)


async def _strict(request: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(HEADERS)


# ---- static files


class _Kept(NamedTuple):
    stamp: tuple[int, int]
    tag: str
    data: bytes


class Pages:
    """Files of a folder, read again when they change."""

    def __init__(self, folder: Path = FOLDER) -> None:
        self._folder = folder
        self._kept: dict[str, _Kept] = {}

    def answer(self, request: web.Request, name: str) -> web.Response:
        """Serve a file; 304 if the browser has it. Raises NoSuchPage."""
        kept = self._file(name)
        headers = {"ETag": kept.tag, "Cache-Control": "no-cache"}
        if request.headers.get("If-None-Match") == kept.tag:
            return web.Response(status=304, headers=headers)
        kind = TYPES[Path(name).suffix]
        charset = None if kind.startswith(("image/png", "font/")) else "utf-8"
        return web.Response(body=kept.data, content_type=kind, charset=charset, headers=headers)

    def names(self) -> dict[str, Path]:
        """What is served, by its path below the folder."""
        files = (path for path in self._folder.rglob("*") if path.suffix in TYPES)
        return {path.relative_to(self._folder).as_posix(): path for path in files if path.is_file()}

    def _file(self, name: str) -> _Kept:
        path = self.names().get(name)
        if path is None:
            raise NoSuchPage(f"there is no page {name[:80]!r}", hint="/")
        seen = path.stat()
        stamp = (seen.st_mtime_ns, seen.st_size)
        kept = self._kept.get(name)
        if kept is None or kept.stamp != stamp:
            data = path.read_bytes()
            kept = _Kept(stamp, f'"{hashlib.sha256(data).hexdigest()[:32]}"', data)
            self._kept[name] = kept
        return kept

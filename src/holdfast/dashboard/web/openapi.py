"""The OpenAPI 3.1 document of the API, made from the table of endpoints and the dataclasses."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from holdfast.base.codec import json_schema
from holdfast.dashboard.snapshot.snapshot import Snapshot
from holdfast.dashboard.web.answers import FreeWhat, Hello, Nothing, Switch
from holdfast.dashboard.web.endpoints import MOST_PID, Endpoint
from holdfast.dashboard.web.history import Points
from holdfast.dashboard.web.refusals import Failure
from holdfast.dashboard.web.table import ENDPOINTS

_SAYS = {
    400: "The request cannot be read: its JSON, its parameters.",
    401: "The token is missing or wrong.",
    403: "The request is for another host, or comes from another site.",
    404: "There is no such process, model or run.",
    405: "That path is asked in another way.",
    409: "The process cannot do that as it is now; the text says why.",
    413: "The body is longer than 64 KiB.",
    415: "The body is not said to be JSON.",
    422: "The fields of the body cannot be used.",
    503: "Too many ask at once, or the process does not answer in time.",
}
_PATH = {
    "pid": ("the number of a process", {"type": "integer", "minimum": 1, "maximum": MOST_PID}),
    "id": ("its id, as the list of them says", {"type": "string", "minLength": 1}),
}
_BODIES, _MISSING = (Nothing, Switch, FreeWhat), dataclasses.MISSING
_INTRODUCTION = """\
What Holdfast's processes on this machine do, and a few ways to change it. Every error is an object
with what happened, what was expected and what to try. The page itself is at `/`."""


def document(version: str, token: bool) -> dict[str, Any]:
    """The whole document, for a server with a token or without."""
    made: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "Holdfast", "version": version, "description": _INTRODUCTION},
        "servers": [{"url": "/"}],
        "paths": _paths(token),
        "components": {"schemas": _schemas()},
    }
    if token:
        made["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        made["security"] = [{"token": []}]
    return made


def _paths(token: bool) -> dict[str, Any]:
    paths: dict[str, Any] = {}
    for one in ENDPOINTS:
        paths.setdefault(one.path, {})[one.method.lower()] = _operation(one, token)
    paths["/api/v1/events"] = {"get": _events(token)}
    paths["/openapi.json"] = {"get": _itself(token)}
    return paths


def _operation(one: Endpoint, token: bool) -> dict[str, Any]:
    statuses = {400, 403, 405, *one.errors}
    if token and not one.open:
        statuses.add(401)
    if one.body is not None:
        statuses |= {413, 415, 422}
    operation: dict[str, Any] = {
        "operationId": one.name,
        "summary": one.about,
        "parameters": [*_in_path(one), *_in_query(one)],
        "responses": _responses(one.about, _answer(one), statuses),
    }
    if one.body is not None:
        operation["requestBody"] = {"required": True, "content": _json(one.body.schema)}
    if one.open:
        operation["security"] = []
    return operation


def _in_path(one: Endpoint) -> Iterator[dict[str, Any]]:
    for name in one.in_path:
        about, schema = _PATH[name]
        yield {
            "name": name,
            "in": "path",
            "required": True,
            "description": about,
            "schema": schema,
        }


def _in_query(one: Endpoint) -> Iterator[dict[str, Any]]:
    for number in one.query:
        bounds = {"default": number.default, "minimum": number.least, "maximum": number.most}
        yield {
            "name": number.name,
            "in": "query",
            "description": number.about,
            "schema": {"type": "integer", **bounds},
        }


def _answer(one: Endpoint) -> dict[str, Any]:
    if isinstance(one.answer, str):
        return {one.answer.partition(";")[0]: {"schema": {"type": "string"}}}
    return _json({"$ref": _place(one.answer.__name__)})


def _responses(about: str, content: dict[str, Any], statuses: Iterable[int]) -> dict[str, Any]:
    failed = _json({"$ref": _place("Failure")})
    errors = {str(n): {"description": _SAYS[n], "content": failed} for n in sorted(statuses)}
    return {"200": {"description": about, "content": content}, **errors}


def _events(token: bool) -> dict[str, Any]:
    text = (
        "Server-sent events: one `hello` (Hello), one `history` (Points), then a `snapshot` "
        "(Snapshot) in every interval. The connection stays open."
    )
    stream = {"text/event-stream": {"schema": {"type": "string"}}}
    return {
        "operationId": "events",
        "summary": "Everything, as it happens.",
        "description": text,
        "responses": _responses(text, stream, {400, 403, 405, 503} | ({401} if token else set())),
    }


def _itself(token: bool) -> dict[str, Any]:
    about, statuses = "This description.", {400, 403, 405} | ({401} if token else set())
    responses = _responses(about, _json({"type": "object"}), statuses)
    return {"operationId": "openapi", "summary": about, "responses": responses}


def _json(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


# ---- schemas


def _schemas() -> dict[str, Any]:
    answered = {one.answer for one in ENDPOINTS if isinstance(one.answer, type)}
    found: dict[str, Any] = {}
    for cls in [*answered, Failure, Hello, Points, Snapshot, *_BODIES]:
        found |= _components(cls)
    for cls in _BODIES:
        required = [one.name for one in dataclasses.fields(cls) if one.default is _MISSING]
        found[cls.__name__]["required"] = required
    return dict(sorted(found.items()))


def _components(cls: type) -> dict[str, Any]:
    """Schemas of a dataclass and of its fields' dataclasses, by name."""
    schema = json_schema(cls, cls.__name__, "")
    inner = schema.pop("$defs")
    for name in ("$schema", "$id", "title"):
        del schema[name]
    return {name: _rewrite_refs(one) for name, one in {**inner, cls.__name__: schema}.items()}


def _rewrite_refs(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            key: inner.replace("#/$defs/", "#/components/schemas/")
            if key == "$ref" and isinstance(inner, str)
            else _rewrite_refs(inner)
            for key, inner in value.items()
        }
    return [_rewrite_refs(inner) for inner in value] if isinstance(value, list) else value


def _place(name: str) -> str:
    return f"#/components/schemas/{name}"

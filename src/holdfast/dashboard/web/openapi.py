"""The OpenAPI 3.1 document of the API, made from the table of endpoints and the dataclasses."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
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
    operation: dict[str, Any] = {
        "operationId": one.name,
        "summary": one.about,
        "parameters": [*_in_path(one), *_in_query(one)],
        "responses": {"200": _answer(one), **_errors(_statuses(one, token))},
    }
    if one.body is not None:
        content = {"application/json": {"schema": one.body.schema}}
        operation["requestBody"] = {"required": True, "content": content}
    if one.open:
        operation["security"] = []
    return operation


def _in_path(one: Endpoint) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "in": "path",
            "required": True,
            "description": _PATH[name][0],
            "schema": _PATH[name][1],
        }
        for name in one.in_path
    ]


def _in_query(one: Endpoint) -> list[dict[str, Any]]:
    return [
        {
            "name": number.name,
            "in": "query",
            "description": number.about,
            "schema": {
                "type": "integer",
                "default": number.default,
                "minimum": number.least,
                "maximum": number.most,
            },
        }
        for number in one.query
    ]


def _answer(one: Endpoint) -> dict[str, Any]:
    if isinstance(one.answer, str):
        kind = one.answer.partition(";")[0]
        return {"description": one.about, "content": {kind: {"schema": {"type": "string"}}}}
    return {"description": one.about, "content": _json({"$ref": _place(one.answer.__name__)})}


def _statuses(one: Endpoint, token: bool) -> list[int]:
    own = {400, 403, 405, *one.errors}
    if token and not one.open:
        own.add(401)
    if one.body is not None:
        own |= {413, 415, 422}
    return sorted(own)


def _errors(statuses: Iterable[int]) -> dict[str, Any]:
    content = _json({"$ref": _place("Failure")})
    return {str(one): {"description": _SAYS[one], "content": content} for one in statuses}


def _events(token: bool) -> dict[str, Any]:
    text = (
        "Server-sent events: one `hello` (Hello), one `history` (Points), then a `snapshot` "
        "(Snapshot) in every interval. The connection stays open."
    )
    stream = {"text/event-stream": {"schema": {"type": "string"}}}
    statuses = [400, *([401] if token else []), 403, 405, 503]
    return {
        "operationId": "events",
        "summary": "Everything, as it happens.",
        "description": text,
        "responses": {"200": {"description": text, "content": stream}, **_errors(statuses)},
    }


def _itself(token: bool) -> dict[str, Any]:
    about = "This description."
    statuses = [400, *([401] if token else []), 403, 405]
    return {
        "operationId": "openapi",
        "summary": about,
        "responses": {
            "200": {"description": about, "content": _json({"type": "object"})},
            **_errors(statuses),
        },
    }


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


# ---- schemas


def _schemas() -> dict[str, Any]:
    answered = {one.answer for one in ENDPOINTS if isinstance(one.answer, type)}
    found: dict[str, Any] = {}
    for cls in [*answered, Failure, Hello, Points, Snapshot]:
        found |= _components(cls)
    for cls in (Nothing, Switch, FreeWhat):
        found |= _components(cls)
        found[cls.__name__]["required"] = _required(cls)
    return dict(sorted(found.items()))


def _components(cls: type) -> dict[str, Any]:
    """Schemas of a dataclass and of its fields' dataclasses, by name."""
    schema = json_schema(cls, cls.__name__, "")
    inner = schema.pop("$defs")
    for name in ("$schema", "$id", "title"):
        del schema[name]
    return {name: _rewrite_refs(one) for name, one in {**inner, cls.__name__: schema}.items()}


def _rewrite_refs(value: Any) -> Any:
    """Rewrite references to point to the components of this document."""
    if isinstance(value, dict):
        return {
            key: inner.replace("#/$defs/", "#/components/schemas/")
            if key == "$ref" and isinstance(inner, str)
            else _rewrite_refs(inner)
            for key, inner in value.items()
        }
    return [_rewrite_refs(inner) for inner in value] if isinstance(value, list) else value


def _required(cls: Any) -> list[str]:
    missing = dataclasses.MISSING
    return [field.name for field in dataclasses.fields(cls) if field.default is missing]


def _place(name: str) -> str:
    return f"#/components/schemas/{name}"

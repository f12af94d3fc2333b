"""The API's description: that it is sound, and that the server does what it says."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.core.parameters import ParameterLocation

from holdfast.dashboard.ipc.watching import Watcher
from holdfast.dashboard.snapshot.snapshot import Snapshot
from holdfast.dashboard.web import Server, openapi, serving
from holdfast.dashboard.web.table import ENDPOINTS
from holdfast.pipeline.output import history
from tests.dashboard.web.api_stage import ask, guest, machine

__all__ = ["guest"]
TOKEN = "a-token-of-tests"


def _document(token: bool = True) -> dict[str, Any]:
    return openapi.document("1.2.3", token)


def test_every_endpoint_is_described_with_its_errors() -> None:
    paths = _document()["paths"]
    described = {(path, method) for path, ways in paths.items() for method in ways}
    assert described == {(one.path, one.method.lower()) for one in ENDPOINTS} | {
        ("/api/v1/events", "get"),
        ("/openapi.json", "get"),
    }
    told = paths["/api/v1/processes/{pid}/models/{id}/budget"]["put"]["responses"]
    assert [*told] == ["200", "400", "401", "403", "404", "405", "409", "413", "415", "422", "503"]
    assert "401" not in paths["/healthz"]["get"]["responses"]


def test_a_server_without_a_token_asks_for_none() -> None:
    document = _document(token=False)
    assert "security" not in document
    assert "securitySchemes" not in document["components"]
    assert not any(
        "401" in way["responses"] for ways in document["paths"].values() for way in ways.values()
    )


def test_every_schema_is_one_and_every_reference_leads_somewhere() -> None:
    document = _document()
    schemas = document["components"]["schemas"]
    for schema in schemas.values():
        jsonschema.Draft202012Validator.check_schema(schema)
    for reference in _references(document):
        place, _, name = reference.rpartition("/")
        assert place == "#/components/schemas"
        assert name in schemas
    assert schemas["Snapshot"]["required"] == [*Snapshot.__dataclass_fields__]
    assert schemas["FreeWhat"]["required"] == []


def _references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        yield from (inner for key, inner in value.items() if key == "$ref")
        for inner in value.values():
            yield from _references(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _references(inner)


# ---- the server against its description

CONFIG = schemathesis.Config.from_dict(
    {"generation": {"max-examples": 20, "deterministic": True, "database": "none"}}
)
api = schemathesis.openapi.from_dict(openapi.document("1.2.3", token=True), config=CONFIG).exclude(
    path="/api/v1/events"  # which does not end; test_events reads it
)


@pytest.fixture
def locked(guest: int) -> Iterator[Server]:
    """A server with a token, which watches the guest alone, and a run in the history."""
    history.keep(a_run(), [a_frame()])
    with (
        Watcher([guest]) as watcher,
        serving(watcher, interval_s=0.05, token=TOKEN, machine=machine) as server,
    ):
        ask(server, f"/api/v1/processes/{guest}/debugging", "POST", {"on": True}, _allowed())
        yield server


@pytest.fixture
def seen() -> Iterator[set[int]]:
    """The statuses of a test: some requests came through, others with a wrong method did not."""
    statuses: set[int] = set()
    yield statuses
    assert {200, 405} <= statuses


def _allowed() -> dict[str, str]:
    return {"Authorization": f"Bearer {TOKEN}"}


def a_run() -> history.RunRecord:
    """A run as it is written down."""
    return history.RunRecord(
        id="0123456789abc-1-1",
        pid=1,
        began_s=1.5e9,
        took_s=2.5,
        model="tiny-flux",
        prompt="a <b>seven</b>",
        status="done",
        error=None,
        device="cpu",
        seed=6,
        width=64,
        height=64,
        steps=4,
        frames=1,
        load_s=None,
        text_ms=1.5,
        step_ms=20.0,
        decode_ms=None,
        peak_bytes=None,
        saved_to=None,
    )


def a_frame() -> Any:
    import numpy as np

    return np.zeros((8, 8, 3), np.uint8)


@pytest.mark.slow
@api.parametrize()
@settings(max_examples=20, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
def test_the_server_does_what_its_description_says(
    case: schemathesis.Case, locked: Server, guest: int, seen: set[int]
) -> None:
    if not _is_wrong(case, ParameterLocation.PATH):
        _make_it_lead_somewhere(case, locked, guest)
    headers = {} if _is_wrong(case, ParameterLocation.HEADER) else _allowed()
    answer = case.call_and_validate(base_url=locked.url, headers=headers)
    assert answer.status_code != 503
    seen.add(answer.status_code)


def _is_wrong(case: schemathesis.Case, where: ParameterLocation) -> bool:
    """Whether that part of a request is wrong on purpose."""
    part = case.meta.components.get(where)
    return part is not None and part.mode.is_negative


def _make_it_lead_somewhere(case: schemathesis.Case, server: Server, guest: int) -> None:
    """Names in a path become those of what is there."""
    real = {"pid": guest, "id": a_run().id}
    if "models" in case.path:
        snapshot = ask(server, "/api/v1/snapshot", headers=_allowed()).json
        real["id"] = snapshot["processes"][0]["models"][0]["id"]
    case.path_parameters.update({name: real[name] for name in case.path_parameters or {}})

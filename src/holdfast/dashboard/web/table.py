"""All endpoints of the API: paths, parameters, answers, errors, and what is done.

A function below is an endpoint: its name, its docstring and its return type are those of the API.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, get_type_hints

from holdfast.base.codec import decode, encode
from holdfast.base.errors import BadInput
from holdfast.base.units import parse_bytes
from holdfast.dashboard.snapshot.snapshot import Freed, LeakState, ModelUse, Snapshot
from holdfast.dashboard.web import metrics as exposition
from holdfast.dashboard.web.answers import (
    FreeWhat,
    Health,
    Holders,
    Interrupted,
    Leaks,
    MachinePicture,
    Nothing,
    Runs,
    Switch,
)
from holdfast.dashboard.web.endpoints import ApiCall, Body, Endpoint, Method, Number
from holdfast.dashboard.web.history import Points
from holdfast.dashboard.web.refusals import Busy
from holdfast.pipeline.output.history import RunRecord

MOST_BUDGET = 2**63 - 1
_SIZE = r"^[0-9]{1,12}(\.[0-9]{1,6})? ?([kKMGTP]i?B|[kKMGTP]|B)?$"


def read_budget(value: Any) -> int | None:
    """The budget in a body. Raises BadInput."""
    if not isinstance(value, Mapping) or set(value) != {"budget"}:
        raise BadInput("cannot use the body", expected='an object {"budget": SIZE}')
    budget = value["budget"]
    if budget is None:
        return None
    if isinstance(budget, str) and re.fullmatch(_SIZE, budget):
        return min(parse_bytes(budget), MOST_BUDGET)
    if isinstance(budget, float) and budget.is_integer():
        budget = int(budget)  # JSON may send an integer as a float
    if isinstance(budget, int) and not isinstance(budget, bool) and 0 <= budget <= MOST_BUDGET:
        return budget
    raise BadInput(
        f"cannot use the budget {str(budget)[:80]!r}",
        expected='a size such as "6GB", a number of bytes, or null for all there is',
    )


BUDGET_SCHEMA = {
    "type": "object",
    "description": "What a model and its group may take on the device.",
    "properties": {
        "budget": {
            "description": 'a size such as "6GB", a number of bytes, or null for all there is',
            "anyOf": [
                {"type": "string", "pattern": _SIZE},
                {"type": "integer", "minimum": 0, "maximum": MOST_BUDGET},
                {"type": "null"},
            ],
        }
    },
    "required": ["budget"],
    "additionalProperties": False,
}

_API = "/api/v1"
_PROCESS = f"{_API}/processes/{{pid}}"
_BUSY, _LOST = (409, 503), (404, 409, 503)
_MOST = Number("most", "how many at most", 50, 1, 1000)
_MOST_RUNS = Number("most", "how many at most", 100, 1, 1000)
_SECONDS = Number("seconds", "how far back, in seconds", 3600, 1, 86_400)
_listed: list[Endpoint] = []
Does = Callable[[ApiCall], Awaitable[Any]]


def _endpoint(
    method: Method,
    path: str,
    errors: tuple[int, ...],
    *query: Number,
    body: Body | type | None = None,
    media: str | None = None,  # of an answer that is not JSON
    is_open: bool = False,
) -> Callable[[Does], Does]:
    """List the function below as an endpoint."""
    if isinstance(body, type):
        body = Body({"$ref": f"#/components/schemas/{body.__name__}"}, partial(decode, body))

    def add(does: Does) -> Does:
        name, about = does.__name__, does.__doc__ or ""
        answer = media or get_type_hints(does)["return"]
        _listed.append(
            Endpoint(name, method, path, about, answer, does, query, body, errors, is_open)
        )
        return does

    return add


@_endpoint("GET", f"{_API}/snapshot", _BUSY)
async def snapshot(call: ApiCall) -> Snapshot:
    """This machine and Holdfast's processes now."""
    return (await call.sources.feed.latest()).snapshot


@_endpoint("GET", f"{_API}/history", (), _SECONDS)
async def history(call: ApiCall) -> Points:
    """What was used when, as far back as is kept; older points are fewer and hold the peaks."""
    return Points(call.sources.feed.past(call.numbers["seconds"]))


@_endpoint("GET", f"{_API}/topology", _BUSY)
async def topology(call: ApiCall) -> MachinePicture:
    """What the machine is, with a picture."""
    return await call.sources.picture()


@_endpoint("GET", f"{_PROCESS}/holders", _LOST, _MOST)
async def holders(call: ApiCall) -> Holders:
    """The largest blocks that a process holds."""
    most = call.numbers["most"]
    return Holders(await call.sources.ask(call.pid, lambda process: process.holders(most)))


@_endpoint("GET", f"{_API}/runs", _BUSY, _MOST_RUNS)
async def runs(call: ApiCall) -> Runs:
    """Runs that are over, of all processes of this user."""
    return Runs(await call.sources.runs(call.numbers["most"]))


@_endpoint("GET", f"{_API}/runs/{{id}}", _LOST)
async def run(call: ApiCall) -> RunRecord:
    """One of them."""
    return await call.sources.run(call.path["id"])


@_endpoint("GET", f"{_API}/runs/{{id}}/picture", _LOST, media="image/png")
async def picture(call: ApiCall) -> bytes:
    """What it drew, small."""
    return await call.sources.run_picture(call.path["id"])


@_endpoint("GET", "/metrics", _BUSY, media=exposition.CONTENT_TYPE)
async def metrics(call: ApiCall) -> bytes:
    """The snapshot as Prometheus reads it."""
    return exposition.text((await call.sources.feed.latest()).snapshot).encode()


@_endpoint("GET", "/healthz", (503,), is_open=True)
async def health(call: ApiCall) -> Health:
    """Whether the server does its work."""
    if call.sources.feed.trouble is not None:
        raise Busy("this server cannot look at the machine now")
    return Health("ok")


@_endpoint("POST", f"{_PROCESS}/leaks", _LOST, body=Nothing)
async def find_leaks(call: ApiCall) -> Leaks:
    """Look for leaks now; debugging has to be on."""
    return Leaks(await call.sources.ask(call.pid, lambda process: process.leaks()))


@_endpoint("POST", f"{_PROCESS}/debugging", _LOST, body=Switch)
async def set_debugging(call: ApiCall) -> LeakState:
    """Record blocks from now on, so that leaks can be found, or no longer."""
    return await call.sources.ask(call.pid, lambda process: process.set_debugging(call.body.on))


@_endpoint("POST", f"{_PROCESS}/free", _LOST, body=FreeWhat)
async def free(call: ApiCall) -> Freed:
    """Give memory back that is not in use."""
    return await call.sources.ask(call.pid, lambda process: process.free(**encode(call.body)))


@_endpoint("PUT", f"{_PROCESS}/models/{{id}}/budget", _LOST, body=Body(BUDGET_SCHEMA, read_budget))
async def set_budget(call: ApiCall) -> ModelUse:
    """Change what a model and its group may take on the device, while it runs too."""
    model, budget = call.path["id"], call.body
    return await call.sources.ask(call.pid, lambda process: process.set_budget(model, budget))


@_endpoint("POST", f"{_PROCESS}/interrupt", _LOST, body=Nothing)
async def interrupt(call: ApiCall) -> Interrupted:
    """Stop the run under way."""
    return Interrupted(await call.sources.ask(call.pid, lambda process: process.interrupt()))


ENDPOINTS = tuple(_listed)

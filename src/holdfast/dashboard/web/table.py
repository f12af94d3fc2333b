"""All endpoints of the API: paths, parameters, answers, errors, and what is done."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from holdfast.base.errors import BadInput
from holdfast.base.units import parse_bytes
from holdfast.dashboard.snapshot.snapshot import Freed, LeakState, ModelUse, Snapshot
from holdfast.dashboard.web import metrics
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
from holdfast.dashboard.web.endpoints import ApiCall, Body, Endpoint, Number, fields_of
from holdfast.dashboard.web.history import Points
from holdfast.dashboard.web.refusals import Busy
from holdfast.pipeline.output.history import RunRecord

MOST_BUDGET = 2**63 - 1
_SIZE = r"^[0-9]{1,12}(\.[0-9]{1,6})? ?([kKMGTP]i?B|[kKMGTP]|B)?$"


async def _snapshot(call: ApiCall) -> Snapshot:
    return (await call.sources.feed.latest()).snapshot


async def _history(call: ApiCall) -> Points:
    return Points(call.sources.feed.past(call.numbers["seconds"]))


async def _topology(call: ApiCall) -> MachinePicture:
    return await call.sources.picture()


async def _holders(call: ApiCall) -> Holders:
    most = call.numbers["most"]
    return Holders(await call.sources.ask(call.pid, lambda process: process.holders(most)))


async def _leaks(call: ApiCall) -> Leaks:
    return Leaks(await call.sources.ask(call.pid, lambda process: process.leaks()))


async def _debugging(call: ApiCall) -> LeakState:
    on: bool = call.body.on
    return await call.sources.ask(call.pid, lambda process: process.set_debugging(on))


async def _free(call: ApiCall) -> Freed:
    what: FreeWhat = call.body
    return await call.sources.ask(
        call.pid,
        lambda process: process.free(caches=what.caches, models=what.models, garbage=what.garbage),
    )


async def _budget(call: ApiCall) -> ModelUse:
    model, budget = call.path["id"], call.body
    return await call.sources.ask(call.pid, lambda process: process.set_budget(model, budget))


async def _interrupt(call: ApiCall) -> Interrupted:
    return Interrupted(await call.sources.ask(call.pid, lambda process: process.interrupt()))


async def _runs(call: ApiCall) -> Runs:
    return Runs(await call.sources.runs(call.numbers["most"]))


async def _run(call: ApiCall) -> RunRecord:
    return await call.sources.run(call.path["id"])


async def _run_picture(call: ApiCall) -> bytes:
    return await call.sources.run_picture(call.path["id"])


async def _metrics(call: ApiCall) -> bytes:
    return metrics.text((await call.sources.feed.latest()).snapshot).encode()


async def _health(call: ApiCall) -> Health:
    if call.sources.feed.trouble is not None:
        raise Busy("this server cannot look at the machine now")
    return Health("ok")


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

_SECONDS = Number("seconds", "how far back, in seconds", 3600, 1, 86_400)
_MOST = Number("most", "how many at most", 50, 1, 1000)
_MOST_RUNS = Number("most", "how many at most", 100, 1, 1000)
_API = "/api/v1"
_PROCESS = f"{_API}/processes/{{pid}}"


def _brings(cls: type) -> Body:
    return Body({"$ref": f"#/components/schemas/{cls.__name__}"}, fields_of(cls))


READING = (
    Endpoint(
        "snapshot",
        "GET",
        f"{_API}/snapshot",
        "This machine and Holdfast's processes now.",
        Snapshot,
        _snapshot,
        errors=(409, 503),
    ),
    Endpoint(
        "history",
        "GET",
        f"{_API}/history",
        "What was used when, as far back as is kept; older points are fewer and hold the peaks.",
        Points,
        _history,
        query=(_SECONDS,),
    ),
    Endpoint(
        "topology",
        "GET",
        f"{_API}/topology",
        "What the machine is, with a picture.",
        MachinePicture,
        _topology,
        errors=(409, 503),
    ),
    Endpoint(
        "holders",
        "GET",
        f"{_PROCESS}/holders",
        "The largest blocks that a process holds.",
        Holders,
        _holders,
        query=(_MOST,),
        errors=(404, 409, 503),
    ),
    Endpoint(
        "runs",
        "GET",
        f"{_API}/runs",
        "Runs that are over, of all processes of this user.",
        Runs,
        _runs,
        query=(_MOST_RUNS,),
        errors=(409, 503),
    ),
    Endpoint(
        "run",
        "GET",
        f"{_API}/runs/{{id}}",
        "One of them.",
        RunRecord,
        _run,
        errors=(404, 409, 503),
    ),
    Endpoint(
        "picture",
        "GET",
        f"{_API}/runs/{{id}}/picture",
        "What it drew, small.",
        "image/png",
        _run_picture,
        errors=(404, 409, 503),
    ),
    Endpoint(
        "metrics",
        "GET",
        "/metrics",
        "The snapshot as Prometheus reads it.",
        metrics.CONTENT_TYPE,
        _metrics,
        errors=(409, 503),
    ),
    Endpoint(
        "health",
        "GET",
        "/healthz",
        "Whether the server does its work.",
        Health,
        _health,
        errors=(503,),
        open=True,
    ),
)

ACTING = (
    Endpoint(
        "find_leaks",
        "POST",
        f"{_PROCESS}/leaks",
        "Look for leaks now; debugging has to be on.",
        Leaks,
        _leaks,
        body=_brings(Nothing),
        errors=(404, 409, 503),
    ),
    Endpoint(
        "set_debugging",
        "POST",
        f"{_PROCESS}/debugging",
        "Record blocks from now on, so that leaks can be found, or no longer.",
        LeakState,
        _debugging,
        body=_brings(Switch),
        errors=(404, 409, 503),
    ),
    Endpoint(
        "free",
        "POST",
        f"{_PROCESS}/free",
        "Give memory back that is not in use.",
        Freed,
        _free,
        body=_brings(FreeWhat),
        errors=(404, 409, 503),
    ),
    Endpoint(
        "set_budget",
        "PUT",
        f"{_PROCESS}/models/{{id}}/budget",
        "Change what a model and its group may take on the device, while it runs too.",
        ModelUse,
        _budget,
        body=Body(BUDGET_SCHEMA, read_budget),
        errors=(404, 409, 503),
    ),
    Endpoint(
        "interrupt",
        "POST",
        f"{_PROCESS}/interrupt",
        "Stop the run under way.",
        Interrupted,
        _interrupt,
        body=_brings(Nothing),
        errors=(404, 409, 503),
    ),
)
ENDPOINTS = (*READING, *ACTING)

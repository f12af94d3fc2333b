"""One frozen description of everything that is live, and its JSON."""

from __future__ import annotations

import dataclasses
import json

import jsonschema
import pytest

from holdfast.base.errors import BadInput
from holdfast.dashboard.snapshot import process
from holdfast.dashboard.snapshot.machine import MachineLooker
from holdfast.dashboard.snapshot.snapshot import (
    VERSION,
    DeviceUse,
    GpuUse,
    LinkUse,
    ModelUse,
    RunNow,
    Snapshot,
    TagUse,
    schema,
)


@pytest.fixture(scope="module")
def snapshot() -> Snapshot:
    """This machine and this process, with one of everything added."""
    machine = MachineLooker().look()
    gpu = GpuUse(0, "A GPU", 80 << 30, 1 << 30, 0.5, 55.0)
    mine = process.take()
    model = ModelUse(
        *("managed-1", "Flux", "cuda:0", "residency", 24, 6, 18, 12, 8, 2, True, "group-1", 3),
        *(True, 1.5),
    )
    run = RunNow("id", "flux", "a cat", "denoise", 1, 4, None, 1.0, 2.0, 3.0)
    full = dataclasses.replace(
        mine,
        devices=(DeviceUse("cuda:0", 80, 10, 5, 6),),
        tags=(TagUse("vae", 1, 2),),
        models=(model,),
        links=(LinkUse("cuda:0", 100, None),),
        run=run,
    )
    return Snapshot(VERSION, 1.5, dataclasses.replace(machine, gpus=(gpu,)), (full,))


def test_a_snapshot_comes_back_from_json_as_it_was(snapshot: Snapshot) -> None:
    assert Snapshot.from_dict(json.loads(json.dumps(snapshot.to_dict()))) == snapshot


def test_the_schema_describes_it(snapshot: Snapshot) -> None:
    jsonschema.validate(snapshot.to_dict(), schema())
    wrong = snapshot.to_dict()
    wrong["machine"]["ram_total_bytes"] = "much"
    with pytest.raises(jsonschema.ValidationError, match="'much' is not of type 'integer'"):
        jsonschema.validate(wrong, schema())


def test_every_field_says_what_it_is() -> None:
    described = schema()
    for part in (described, *described["$defs"].values()):
        assert all(field["description"] for field in part["properties"].values()), part


def test_data_that_is_no_snapshot_is_refused_by_its_place(snapshot: Snapshot) -> None:
    wrong = snapshot.to_dict()
    wrong["processes"][0]["models"][0]["keeper"] = "nobody"
    with pytest.raises(BadInput) as caught:
        Snapshot.from_dict(wrong)
    assert str(caught.value) == (
        "processes[0].models[0].keeper is 'nobody'\n"
        "  expected: one of 'residency', 'manager', 'pipeline', 'xla', 'comfyui'"
    )


def test_a_process_is_found_by_its_number(snapshot: Snapshot) -> None:
    (only,) = snapshot.processes
    assert snapshot.process(only.pid) is only
    assert snapshot.process(only.pid + 1) is None

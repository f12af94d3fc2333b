from __future__ import annotations

import json
from importlib import resources

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.base.errors import BadInput
from holdfast.topology import (
    Cache,
    Cpu,
    Gpu,
    HugePages,
    Link,
    Measurement,
    Node,
    OpenclDevice,
    PcieLink,
    Performance,
    ProbeReport,
    Topology,
    TorchDevice,
    schema,
    simulate,
)
from tests.needs import ALL

SHIPPED = json.loads(resources.files("holdfast.topology").joinpath("schema.json").read_text())
PARTS = (
    *(Topology, Node, Cpu, Cache, Gpu, Link, Measurement, OpenclDevice, TorchDevice),
    *(HugePages, PcieLink, Performance, ProbeReport),
)


def test_the_shipped_schema_is_the_one_the_code_describes() -> None:
    assert schema() == SHIPPED, "run: holdfast topo --schema > src/holdfast/topology/schema.json"
    jsonschema.Draft202012Validator.check_schema(SHIPPED)


def test_every_field_of_the_schema_is_described() -> None:
    parts = [SHIPPED, *SHIPPED["$defs"].values()]
    fields = {name: field for part in parts for name, field in part["properties"].items()}
    assert [name for name, field in fields.items() if not field["description"]] == []
    assert len(SHIPPED["$defs"]) == len(PARTS) - 1


# JSON has no word for NaN or infinity, and no fact is either.
st.register_type_strategy(float, st.floats(allow_nan=False, allow_infinity=False))


@pytest.mark.slow
@settings(max_examples=50 if ALL else 10, deadline=None)
@given(st.from_type(Topology))
def test_json_and_back_loses_nothing_and_the_schema_agrees(machine: Topology) -> None:
    machine = machine.replace(schema_version=1)
    text = machine.to_json()
    assert Topology.from_json(text) == machine
    jsonschema.validate(json.loads(text), SHIPPED)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "{",
            "this is not JSON: Expecting property name enclosed in double quotes: "
            "line 1 column 2 (char 1)\n"
            "  expected: a topology document\n"
            "  try: write the file again with: holdfast topo --json",
        ),
        (
            "[]",
            "this is not a topology document of version 1: its schema_version is None\n"
            "  expected: schema_version 1\n"
            "  try: write the file again with: holdfast topo --json",
        ),
        (
            '{"schema_version": 99}',
            "this is not a topology document of version 1: its schema_version is 99\n"
            "  expected: schema_version 1\n"
            "  try: write the file again with: holdfast topo --json",
        ),
        (
            '{"schema_version": 1, "nodes": [{"id": 0}, {"id": "one"}]}',
            "nodes[1].id is 'one'\n  expected: a value of type integer",
        ),
    ],
)
def test_a_document_that_is_none_is_refused(text: str, message: str) -> None:
    with pytest.raises(BadInput) as caught:
        Topology.from_json(text)
    assert str(caught.value) == message


def test_values_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        simulate("1x1GB").nodes[0].id = 7  # type: ignore[misc]


def test_distances_are_asked_by_node_number() -> None:
    machine = simulate("2x1GB,1x1GB:far")
    assert (machine.distance(0, 1), machine.distance(1, 2), machine.distance(2, 2)) == (20, 30, 10)
    assert machine.distance(0, 9) is None
    assert machine.distance(9, 0) is None


@pytest.mark.parametrize(
    ("speed", "width", "rate"),
    [(2.5, 16, 4.0), (8.0, 16, 15.75), (16.0, 16, 31.51), (32.0, 16, 63.02), (64.0, 16, 121.0)],
)
def test_pcie_bandwidth_counts_the_encoding(speed: float, width: int, rate: float) -> None:
    assert PcieLink(max_speed_gt_s=speed, width=width).bandwidth_gb_s == rate


def test_pcie_bandwidth_is_unknown_without_speed_or_width() -> None:
    assert PcieLink(width=16).bandwidth_gb_s is None
    assert PcieLink(max_speed_gt_s=8.0).bandwidth_gb_s is None


def test_a_cpu_that_does_not_tell_its_core_is_one_of_its_own() -> None:
    machine = Topology(cpus=(Cpu(id=0), Cpu(id=1), Cpu(id=2, core=1), Cpu(id=3, core=1)))
    assert [[c.id for c in core] for core in machine.cores] == [[0], [1], [2, 3]]

"""Where parts are built on machines that are not at hand; test_decisions has ComfyUI's answers."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from holdfast.residency.model_management.rules import placing
from holdfast.residency.model_management.rules.options import Options
from tests.residency.made_up import GIB, MACHINES

DEFAULT = Options()


@pytest.mark.parametrize(
    ("fields", "free", "host_free", "parameters", "expected"),
    [
        ({}, 80, 60, 12 * 10**9, "cuda:0"),
        ({}, 80, 90, 12 * 10**9, "cpu"),  # the host has more room
        ({}, 80, 60, 50 * 10**9, "cpu"),  # does not fit
        ({"highvram": True}, 1, 60, 50 * 10**9, "cuda:0"),
        ({"novram": True}, 80, 60, 10**9, "cpu"),
        ({"disable_smart_memory": True}, 80, 60, 10**9, "cpu"),
        ({"lowvram": True}, 80, 60, 12 * 10**9, "cuda:0"),
        ({"cpu": True}, 80, 60, 10**9, "cpu"),
        ({}, None, 60, 10**9, "cpu"),  # nobody knows what is free
    ],
)
def test_where_a_diffusion_model_is_built(
    fields: dict[str, Any], free: int | None, host_free: int, parameters: int, expected: str
) -> None:
    machine = dataclasses.replace(
        MACHINES["h200"],
        free_bytes=None if free is None else free * GIB,
        ram_free_bytes=host_free * GIB,
    )
    found = placing.unet_inital_load_device(machine, Options(**fields), parameters, "bfloat16")
    assert found == expected


def test_on_a_mac_a_diffusion_model_is_built_on_the_gpu() -> None:
    found = placing.unet_inital_load_device(MACHINES["mac"], DEFAULT, 10**12, "float16")
    assert found == "mps"


@pytest.mark.parametrize(
    ("load", "offload", "gib", "free", "host_free", "expected"),
    [
        ("cuda:0", "cpu", 1, 20, 30, "cpu"),  # small
        ("cuda:0", "cpu", 10, 20, 30, "cuda:0"),
        ("cuda:0", "cpu", 10, 15, 30, "cpu"),  # less than half of what the host has
        ("cuda:0", "cpu", 10, 12, 10, "cpu"),  # needs a fifth more than its size
        ("cuda:0", "cuda:0", 10, 20, 30, "cuda:0"),
        ("cpu", "cpu", 10, 20, 30, "cpu"),
        ("mps", "cpu", 10, 1, 30, "mps"),
    ],
)
def test_where_a_text_encoder_is_built(
    load: str, offload: str, gib: int, free: int, host_free: int, expected: str
) -> None:
    machine = dataclasses.replace(
        MACHINES["rtx4090-24g"], free_bytes=free * GIB, ram_free_bytes=host_free * GIB
    )
    found = placing.text_encoder_initial_device(machine, DEFAULT, load, offload, gib * GIB)
    assert found == expected

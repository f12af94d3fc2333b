"""Attention on machines that are not at hand; test_decisions has ComfyUI's answers."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from holdfast.base.errors import MissingDependency
from holdfast.residency.model_management.rules import attention
from holdfast.residency.model_management.rules.machine import Machine
from holdfast.residency.model_management.rules.options import Options
from tests.residency.made_up import MACHINES, only

DEFAULT = Options()


def _with(name: str, *packages: str, **changes: Any) -> Machine:
    return dataclasses.replace(MACHINES[name], packages=frozenset(packages), **changes)


@pytest.mark.parametrize(
    ("machine", "fields", "expected"),
    [
        (_with("h200", "sageattention", "xformers"), {"use_sage_attention": True}, "sage"),
        (_with("h200", "flash_attn", "xformers"), {"use_flash_attention": True}, "xformers"),
        (_with("h200", "flash_attn"), {"use_flash_attention": True}, "flash"),
        (_with("h200", "xformers"), {"use_split_cross_attention": True}, "xformers"),
        (_with("h200", "xformers"), {"use_pytorch_cross_attention": True}, "pytorch"),
        (_with("h200"), {"use_split_cross_attention": True}, "split"),
        (_with("h200"), {"use_quad_cross_attention": True}, "sub_quad"),
        (_with("h200", torch_version=(1, 13)), {}, "sub_quad"),
        (_with("rx7900xtx", "triton"), {}, "pytorch"),
        (_with("rx7900xtx"), {}, "sub_quad"),
        (_with("rx7900xtx", "triton", torch_version=(2, 6)), {}, "sub_quad"),
        (_with("rx9070xt", "triton", rocm_version=(6, 4)), {}, "sub_quad"),
        (_with("rx6800", "xformers"), {}, "xformers"),
        (_with("arc-a770", "xformers"), {}, "pytorch"),
        (_with("ascend", "xformers"), {"use_split_cross_attention": True}, "split"),
        (_with("mac", "xformers"), {}, "sub_quad"),
        (_with("cpu-only"), {"use_pytorch_cross_attention": True}, "pytorch"),
    ],
)
def test_which_attention_is_used(machine: Machine, fields: dict[str, Any], expected: str) -> None:
    assert attention.choose_attention(machine, Options(**fields)) == expected


def test_attention_on_the_cpu_of_a_machine_with_a_card_is_sub_quadratic() -> None:
    assert attention.choose_attention(MACHINES["h200"], DEFAULT, "cpu") == "sub_quad"
    assert attention.choose_attention(MACHINES["h200"], DEFAULT, "cuda:0") == "pytorch"


def test_an_xformers_that_breaks_vaes_is_not_used_for_them() -> None:
    machine = _with("rtx3060-12g", "xformers", xformers_version="0.0.18.dev")
    assert attention.choose_attention(machine, DEFAULT) == "xformers"
    assert attention.choose_attention_vae(machine, DEFAULT) == "pytorch"


def test_torch_attention_saves_memory_on_accelerators_alone() -> None:
    asked = Options(use_pytorch_cross_attention=True)
    saving = [
        name
        for name, machine in MACHINES.items()
        if not attention.pytorch_attention_flash_attention(machine, asked)
    ]
    assert saving == ["mac", "old-mac", "directml", "cpu-only"]


@pytest.mark.parametrize(
    ("field", "text"),
    [
        (
            "use_sage_attention",
            "cannot use --use-sage-attention: the package 'sageattention' cannot be imported\n"
            "  expected: an installation of sageattention that works with this torch\n"
            "  try: pip install sageattention, or leave out --use-sage-attention",
        ),
        (
            "use_flash_attention",
            "cannot use --use-flash-attention: the package 'flash_attn' cannot be imported\n"
            "  expected: an installation of flash-attn that works with this torch\n"
            "  try: pip install flash-attn, or leave out --use-flash-attention",
        ),
    ],
)
def test_an_attention_that_is_not_installed_is_refused(field: str, text: str) -> None:
    with pytest.raises(MissingDependency) as caught:
        attention.choose_attention(MACHINES["h200"], only(field))
    assert str(caught.value) == text


@pytest.mark.parametrize(
    ("macos", "fields", "expected"),
    [
        (None, {}, None),
        ((14, 4), {}, None),
        ((14, 5), {}, {"float16": "float32"}),
        ((26, 0), {"dont_upcast_attention": True}, None),
        (None, {"force_upcast_attention": True}, {"float16": "float32"}),
    ],
)
def test_when_attention_is_computed_in_fp32(
    macos: tuple[int, ...] | None, fields: dict[str, Any], expected: dict[str, str] | None
) -> None:
    machine = dataclasses.replace(MACHINES["mac"], macos=macos)
    assert attention.force_upcast_attention_dtype(machine, Options(**fields)) == expected

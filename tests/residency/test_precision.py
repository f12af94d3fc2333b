"""Number formats on machines that are not at hand; test_decisions has ComfyUI's answers."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from holdfast.residency.model_management.rules import precision, reserve
from holdfast.residency.model_management.rules.options import Options
from tests.residency.made_up import MACHINES, nvidia, only

DEFAULT = Options()
BF16_MODEL = ("bfloat16", "float32")
FP8 = "float8_e4m3fn"


@pytest.mark.parametrize(
    ("card", "capability", "windows", "manual_cast", "expected"),
    [
        ("NVIDIA A100-SXM4-80GB", (8, 0), False, False, True),
        ("NVIDIA GeForce GTX 980", (5, 2), False, False, False),
        ("NVIDIA GeForce GTX 980", (5, 2), True, True, False),
        ("NVIDIA GeForce GTX 1080 Ti", (6, 1), False, False, False),
        ("NVIDIA GeForce GTX 1080 Ti", (6, 1), True, False, True),
        ("NVIDIA GeForce GTX 1080 Ti", (6, 1), False, True, True),
        ("Tesla P100-PCIE-16GB", (6, 0), False, False, False),
        ("NVIDIA GeForce MX150", (6, 1), True, False, False),
        ("Tesla T4", (7, 5), False, False, True),
        ("NVIDIA TITAN V", (7, 0), False, False, True),
        ("NVIDIA GeForce GTX 1650", (7, 5), True, False, False),
        ("NVIDIA T1000 8GB", (7, 5), False, False, False),
        ("CMP 30HX", (7, 5), False, False, False),
        ("NVIDIA GeForce MX450", (7, 5), False, False, False),
    ],
)
def test_which_nvidia_cards_compute_with_fp16(
    card: str, capability: tuple[int, int], windows: bool, manual_cast: bool, expected: bool
) -> None:
    machine = nvidia(card, 8, capability, windows=windows)
    assert precision.should_use_fp16(machine, DEFAULT, manual_cast=manual_cast) is expected


def test_a_16_series_card_keeps_fp16_weights_when_fp32_ones_do_not_fit() -> None:
    machine = MACHINES["gtx1660-6g"]  # weights could take 4.39e9 bytes

    def kept(params: int) -> bool:
        return precision.should_use_fp16(machine, DEFAULT, model_params=params, manual_cast=True)

    room = reserve.maximum_vram_for_weights(machine, DEFAULT)
    assert room == 4390932971
    assert [kept(room // 4), kept(room // 4 + 1)] == [False, True]


def test_a_turing_card_keeps_bf16_weights_when_fp32_ones_do_not_fit() -> None:
    machine = MACHINES["rtx2070-8g"]
    room = reserve.maximum_vram_for_weights(machine, DEFAULT)

    def kept(params: int, **more: Any) -> bool:
        return precision.should_use_bf16(machine, DEFAULT, model_params=params, **more)

    fitting, larger = room // 4, room // 4 + 1
    assert [kept(fitting, manual_cast=True), kept(larger, manual_cast=True)] == [False, True]
    assert kept(larger) is False
    assert kept(0, manual_cast=True, prioritize_performance=False) is True


def test_a_card_on_which_bf16_does_not_work_never_uses_it() -> None:
    machine = nvidia("NVIDIA GeForce RTX 2070", 8, (7, 5))
    without = dataclasses.replace(machine, bf16=False)
    large: dict[str, Any] = {"model_params": 10**12, "manual_cast": True}
    assert precision.should_use_bf16(machine, DEFAULT, **large) is True
    assert precision.should_use_bf16(without, DEFAULT, **large) is False


@pytest.mark.parametrize(
    ("name", "manual_cast", "expected"),
    [
        ("rx6800", False, False),
        ("rx6800", True, True),
        ("rx7900xtx", False, True),
        ("mi210", False, True),
        ("mac", False, True),
        ("old-mac", True, False),
        ("arc-a770", False, True),
        ("old-xpu", True, False),
        ("ascend", False, True),
        ("mlu370", False, False),
        ("mlu590", False, True),
        ("directml", True, False),
        ("cpu-only", True, False),
    ],
)
def test_who_computes_with_bf16(name: str, manual_cast: bool, expected: bool) -> None:
    assert precision.should_use_bf16(MACHINES[name], DEFAULT, manual_cast=manual_cast) is expected


def test_the_cpu_of_a_machine_with_a_card_uses_neither() -> None:
    for rule in (precision.should_use_fp16, precision.should_use_bf16):
        assert rule(MACHINES["h200"], DEFAULT, device="cpu") is False
        assert rule(MACHINES["h200"], Options(force_fp16=True), device="cpu") is False


def test_old_torch_is_trusted_about_intel_cards() -> None:
    machine = dataclasses.replace(MACHINES["old-xpu"], torch_version=(2, 1), fp16=False)
    assert precision.should_use_fp16(machine, DEFAULT) is True
    assert precision.should_use_bf16(machine, DEFAULT) is True


@pytest.mark.parametrize(
    ("name", "changes", "expected"),
    [
        ("rtx3060-12g", {}, False),
        ("rtx4090-24g", {}, True),
        ("rtx4090-24g", {"torch_version": (2, 2)}, False),
        ("windows-rtx4080-16g", {"torch_version": (2, 3)}, False),
        ("windows-rtx4080-16g", {"torch_version": (2, 4)}, True),
        ("h200", {"torch_version": (2, 2)}, True),
        ("rtx5090-32g", {}, True),
        ("rx9070xt", {}, True),
        ("rx9070xt", {"rocm_version": (6, 3)}, False),
        ("rx9070xt", {"torch_version": (2, 6)}, False),
        ("rx7900xtx", {}, False),
        ("ascend", {}, False),
        ("cpu-only", {}, False),
    ],
)
def test_who_multiplies_fp8(name: str, changes: dict[str, Any], expected: bool) -> None:
    machine = dataclasses.replace(MACHINES[name], **changes)
    assert precision.supports_fp8_compute(machine, DEFAULT) is expected
    assert precision.supports_fp8_compute(machine, DEFAULT, "cpu") is False
    assert precision.supports_fp8_compute(machine, Options(supports_fp8_compute=True)) is True


def test_an_fp8_file_stays_fp8_where_16_bits_would_not_fit() -> None:
    machine = MACHINES["rtx3060-12g"]  # does not multiply fp8
    room = reserve.maximum_vram_for_weights(machine, DEFAULT)

    def kept(params: int) -> str:
        return precision.unet_dtype(machine, DEFAULT, model_params=params, weight_dtype=FP8)

    assert [kept(room // 2), kept(room // 2 + 1), kept(-1)] == ["float16", FP8, FP8]


def test_a_model_gets_the_first_format_it_prefers() -> None:
    machine = MACHINES["rtx3060-12g"]
    prefers = ("bfloat16", "float16", "float32")

    def kept(asked: Options = DEFAULT, **more: Any) -> str:
        return precision.unet_dtype(machine, asked, supported_dtypes=prefers, **more)

    assert kept() == "bfloat16"
    assert kept(weight_dtype="float16") == "float16"
    assert kept(Options(fast=("fp16_accumulation",))) == "float16"
    assert precision.unet_dtype(machine, DEFAULT, supported_dtypes=("float32",)) == "float32"


@pytest.mark.parametrize(
    ("field", "expected"),
    [
        ("fp32_unet", "float32"),
        ("fp64_unet", "float64"),
        ("bf16_unet", "bfloat16"),
        ("fp16_unet", "float16"),
        ("fp8_e4m3fn_unet", "float8_e4m3fn"),
        ("fp8_e5m2_unet", "float8_e5m2"),
        ("fp8_e8m0fnu_unet", "float8_e8m0fnu"),
    ],
)
def test_a_format_that_was_asked_for_is_used_everywhere(field: str, expected: str) -> None:
    for machine in MACHINES.values():
        assert precision.unet_dtype(machine, only(field)) == expected


@pytest.mark.parametrize(
    ("name", "weights", "supported", "expected"),
    [
        ("rtx3060-12g", "float32", precision.USUAL, None),
        ("rtx3060-12g", "float64", precision.USUAL, None),
        ("rtx3060-12g", "bfloat16", precision.USUAL, None),
        ("rtx3060-12g", FP8, BF16_MODEL, "bfloat16"),
        ("rtx2070-8g", "bfloat16", precision.USUAL, "float16"),
        ("rtx2070-8g", "bfloat16", BF16_MODEL, "float32"),
        ("gtx1660-6g", "float16", precision.USUAL, "float32"),
        ("cpu-only", "bfloat16", precision.USUAL, "float32"),
    ],
)
def test_what_is_computed_with(
    name: str, weights: str, supported: tuple[str, ...], expected: str | None
) -> None:
    machine = MACHINES[name]
    found = precision.unet_manual_cast(machine, DEFAULT, weights, machine.device, supported)
    assert found == expected


@pytest.mark.parametrize(
    ("name", "device", "dtype", "expected"),
    [
        ("h200", "cuda:0", FP8, True),
        ("h200", "cuda:0", "float8_e5m2fnuz", False),
        ("mac", "mps", "bfloat16", True),
        ("mac", "mps", FP8, False),
        ("directml", "privateuseone:0", "float16", True),
        ("directml", "privateuseone:0", "bfloat16", False),
    ],
)
def test_which_formats_can_be_cast(name: str, device: str, dtype: str, expected: bool) -> None:
    assert precision.supports_cast(MACHINES[name], DEFAULT, device, dtype) is expected
    picked = precision.pick_weight_dtype(MACHINES[name], DEFAULT, dtype, "float16", device)
    assert picked == (dtype if expected else "float16")


def test_weights_are_never_kept_larger_than_the_fallback() -> None:
    machine = MACHINES["h200"]
    assert precision.pick_weight_dtype(machine, DEFAULT, "float32", "bfloat16") == "bfloat16"
    assert precision.pick_weight_dtype(machine, DEFAULT, None, "bfloat16") == "bfloat16"


def test_the_cpu_computes_with_fp32_alone() -> None:
    found = [precision.supports_dtype("cpu", d) for d in ("float32", "float16", "bfloat16")]
    assert found == [True, False, False]
    found = [precision.supports_dtype("cuda:0", d) for d in ("float32", "bfloat16", FP8)]
    assert found == [True, True, False]

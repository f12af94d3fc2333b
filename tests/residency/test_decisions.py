"""Decisions on machines that are not at hand: state, reserve, precision, placement, attention.

Expected values are ComfyUI's (comfyui_answers.txt), or written out here for what that has not.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.base.errors import MissingDependency
from holdfast.residency import attention, options, placing, precision, reserve
from holdfast.residency.machine import Machine, in_use
from holdfast.residency.options import Options
from holdfast.residency.states import CPUState, VRAMState
from tests.residency.made_up import GIB, MACHINES, MIB, nvidia

DEFAULT = Options()
ANSWERS = Path(__file__).with_name("comfyui_answers.txt")
BF16_MODEL = ("bfloat16", "float32")
FP8 = "float8_e4m3fn"


def _cases() -> dict[tuple[str, str], dict[str, str]]:
    """(machine, option) to answers, each row filled up from the machine's row without option."""
    found: dict[tuple[str, str], dict[str, str]] = {}
    for line in ANSWERS.read_text().splitlines():
        if line.startswith("#"):
            continue
        case, _, answers = line.partition("|")
        name, option = case.split()
        changed = dict(word.split("=", 1) for word in answers.split())
        found[name, option] = found.get((name, "-"), {}) | changed
    return found


CASES = _cases()


def _decide(machine: Machine, o: Options) -> dict[str, str]:
    """Our answers, under the names of the table."""
    device = placing.torch_device(machine, o)

    def unet(params: int, **more: Any) -> str:
        return precision.unet_dtype(machine, o, device=device, model_params=params, **more)

    def cast(dtype: str) -> str | None:
        return precision.unet_manual_cast(machine, o, dtype, device)

    upcast = attention.force_upcast_attention_dtype(machine, o)
    flux: dict[str, Any] = {"params": 12 * 10**9, "supported_dtypes": BF16_MODEL}
    vae = precision.vae_dtype(machine, o, device=device, allowed_dtypes=BF16_MODEL)
    answers = {
        "vram_state": reserve.vram_state(machine, o).name,
        "reserve_mib": reserve.extra_reserved_memory(machine, o) // MIB,
        "unet_0.9e9": unet(9 * 10**8),
        "unet_2.6e9": unet(26 * 10**8),
        "unet_12e9": unet(12 * 10**9),
        "unet_bf16_model_12e9": unet(**flux),
        "unet_fp8_file_12e9": unet(**flux, weight_dtype=FP8),
        "cast_of_fp8": cast(FP8),
        "cast_of_fp16": cast("float16"),
        "vae_bf16_or_fp32": vae,
        "text_encoder_dtype": precision.text_encoder_dtype(o),
        "text_encoder": placing.text_encoder_device(machine, o),
        "text_encoder_offload": placing.text_encoder_offload_device(machine, o),
        "unet_offload": placing.unet_offload_device(machine, o),
        "vae": placing.vae_device(machine, o),
        "intermediate": placing.intermediate_device(machine, o),
        "attention": attention.choose_attention(machine, o),
        "attention_vae": attention.choose_attention_vae(machine, o),
        "streams": reserve.offload_streams(machine, o),
        "pinned_mib": reserve.maximum_pinned_memory(machine, o) // MIB,
        "upcast": "no" if upcast is None else "yes",
    }
    return {name: str(answer) for name, answer in answers.items()}


@pytest.mark.parametrize("name", MACHINES)
def test_decisions_are_those_of_comfyui(name: str) -> None:
    expected = {option: answers for (machine, option), answers in CASES.items() if machine == name}
    words = {option: [] if option == "-" else option.split("=") for option in expected}
    found = {o: _decide(MACHINES[name], options.parse(words[o])) for o in expected}
    assert found == expected


def test_the_table_has_every_machine_and_every_column() -> None:
    assert {name for name, option in CASES if option == "-"} == set(MACHINES)
    columns = set(_decide(MACHINES["h200"], DEFAULT))
    assert all(set(answers) == columns for answers in CASES.values())


# States


def test_the_values_of_the_states_are_those_of_the_document() -> None:
    values = {s.name: s.value for s in VRAMState}
    graded = {"DISABLED": 0, "NO_VRAM": 1, "LOW_VRAM": 2, "NORMAL_VRAM": 3, "HIGH_VRAM": 4}
    assert values == graded | {"SHARED": 5}
    assert {s.name: s.value for s in CPUState} == {"GPU": 0, "CPU": 1, "MPS": 2}


@pytest.mark.parametrize(
    ("name", "fields", "expected"),
    [
        ("h200", {}, CPUState.GPU),
        ("directml", {}, CPUState.GPU),
        ("mac", {}, CPUState.MPS),
        ("mac", {"cpu": True}, CPUState.CPU),
        ("cpu-only", {}, CPUState.CPU),
        ("ascend", {"cpu": True}, CPUState.CPU),
    ],
)
def test_who_computes(name: str, fields: dict[str, Any], expected: CPUState) -> None:
    assert reserve.cpu_state(MACHINES[name], Options(**fields)) is expected


@pytest.mark.parametrize("flag", ["lowvram", "novram", "highvram", "gpu_only", "normalvram"])
def test_no_option_gives_a_cpu_or_a_mac_another_state(flag: str) -> None:
    asked = Options(**{flag: True})
    assert reserve.vram_state(MACHINES["cpu-only"], asked) is VRAMState.DISABLED
    assert reserve.vram_state(MACHINES["mac"], asked) is VRAMState.SHARED


def test_directml_loads_in_part_only_when_told_to() -> None:
    machine = MACHINES["directml"]
    assert reserve.vram_state(machine, Options(novram=True)) is VRAMState.NORMAL_VRAM
    assert reserve.vram_state(machine, Options(lowvram=True)) is VRAMState.LOW_VRAM
    assert reserve.weight_budget(machine, DEFAULT, free_bytes=GIB) is None
    assert reserve.weight_budget(machine, Options(lowvram=True), free_bytes=2 * GIB) == 659344589


def test_under_cpu_the_host_is_the_device() -> None:
    machine = in_use(MACHINES["rtx4090-24g"], Options(cpu=True))
    seen = (machine.kind, machine.device, machine.total_bytes, machine.free_bytes)
    assert seen == ("cpu", "cpu", 32 * GIB, 24 * GIB)
    assert (machine.name, machine.capability) == (None, None)


# Reserve and weight budget


@pytest.mark.parametrize(
    ("gib", "windows", "fields", "expected_mib"),
    [
        (24, False, {}, 400),
        (8, True, {}, 600),
        (15, True, {}, 600),
        (15.01, True, {}, 700),
        (16, True, {"reserve_vram": 0}, 0),
        (16, False, {"reserve_vram": 1.5}, 1536),
        (8, True, {"cpu": True}, 700),  # the host's 32 GiB count
    ],
)
def test_memory_left_to_others(
    gib: float, windows: bool, fields: dict[str, Any], expected_mib: int
) -> None:
    machine = nvidia("card", gib, (8, 6), windows=windows)
    assert reserve.extra_reserved_memory(machine, Options(**fields)) == expected_mib * MIB


def test_computing_needs_0_8_gib_and_the_reserve() -> None:
    assert reserve.minimum_inference_memory(MACHINES["h200"], DEFAULT) == 1278423859
    windows = MACHINES["windows-rtx4080-16g"]
    assert reserve.minimum_inference_memory(windows, DEFAULT) == 1592996659


@pytest.mark.parametrize(
    ("name", "device", "expected"),
    [
        ("gtx1050-2g", None, 611361751),
        ("rtx3060-12g", None, 10060289802),
        ("rtx3060-12g", "cpu", 28958145904),
        ("directml", None, -543246253),
    ],
)
def test_what_weights_could_take(name: str, device: str | None, expected: int) -> None:
    assert reserve.maximum_vram_for_weights(MACHINES[name], DEFAULT, device) == expected


BUDGETS = [
    # machine, options, free GiB, loaded GiB, required GiB, minimum required GiB -> bytes
    ("rtx3060-12g", {}, 10, 0, 0, None, 9458994381),
    ("rtx3060-12g", {}, 10, 0, 4, None, 6023020544),
    ("rtx3060-12g", {}, 10, 0, 4, 2, 8170504192),
    ("rtx3060-12g", {}, 10, 2, 4, 2, 10317987840),
    ("rtx3060-12g", {}, 1, 0, 0, None, 0),
    ("rtx3060-12g", {"lowvram": True}, 10, 0, 0, None, 9458994381),
    ("rtx3060-12g", {"reserve_vram": 4}, 10, 0, 0, None, 5583457485),
    ("rtx3060-12g", {"novram": True}, 10, 0, 0, None, 0),
    ("rtx3060-12g", {"highvram": True}, 10, 0, 0, None, None),
    ("rtx3060-12g", {"cpu": True}, 10, 0, 0, None, None),
    ("rx7900xtx", {}, 10, 0, 9, None, 4294967296),  # 0.4 of what is free
    ("rx7900xtx", {}, 2, 0, 9, None, 858993459),
    ("rx7900xtx", {}, 1.5, 0, 9, None, 332188877),  # what computing leaves is less
    ("mac", {}, 10, 0, 0, None, None),
    ("cpu-only", {}, 10, 0, 0, None, None),
]


@pytest.mark.parametrize(
    ("name", "fields", "free", "loaded", "required", "minimum", "expected"), BUDGETS
)
def test_bytes_of_weights_that_may_be_on_the_device(
    name: str,
    fields: dict[str, Any],
    free: float,
    loaded: int,
    required: int,
    minimum: int | None,
    expected: int | None,
) -> None:
    budget = reserve.weight_budget(
        MACHINES[name],
        Options(**fields),
        free_bytes=int(free * GIB),
        loaded_bytes=loaded * GIB,
        memory_required=required * GIB,
        minimum_memory_required=None if minimum is None else minimum * GIB,
    )
    assert budget == expected


def test_a_full_load_or_a_model_on_the_cpu_has_no_budget() -> None:
    machine = MACHINES["rtx3060-12g"]
    full = reserve.weight_budget(machine, DEFAULT, free_bytes=GIB, force_full_load=True)
    on_cpu = reserve.weight_budget(machine, Options(novram=True), free_bytes=GIB, device="cpu")
    assert (full, on_cpu) == (None, None)


@given(
    name=st.sampled_from([n for n, m in MACHINES.items() if m.kind in ("cuda", "rocm", "xpu")]),
    free=st.integers(0, 200 * GIB),
    loaded=st.integers(0, 50 * GIB),
    required=st.integers(0, 50 * GIB),
)
def test_a_weight_budget_leaves_what_computing_needs_at_least(
    name: str, free: int, loaded: int, required: int
) -> None:
    machine = MACHINES[name]
    numbers = {"free_bytes": free, "loaded_bytes": loaded, "memory_required": required}
    budget = reserve.weight_budget(machine, DEFAULT, **numbers)
    least = reserve.minimum_inference_memory(machine, DEFAULT)
    assert budget is not None
    assert 0 <= budget <= max(0, free + loaded - least)


def test_what_to_free_before_a_load() -> None:
    machine = MACHINES["rtx3060-12g"]
    assert reserve.memory_to_free(machine, DEFAULT, 10 * GIB) == 11811160064 + 1278423859
    asked = reserve.memory_to_free(machine, DEFAULT, 10 * GIB, 4 * GIB)
    assert asked == 11811160064 + 4 * GIB + 400 * MIB


@pytest.mark.parametrize(
    ("name", "fields", "device", "expected"),
    [
        ("h200", {}, "cuda:0", True),
        ("h200", {"deterministic": True}, "cuda:0", False),
        ("h200", {"deterministic": True, "force_non_blocking": True}, "cuda:0", True),
        ("mac", {}, "mps", False),
        ("arc-a770", {}, "xpu:0", False),
        ("directml", {}, "privateuseone:0", False),
        ("rx6800", {}, "cuda:0", True),
    ],
)
def test_where_copies_may_go_on_by_themselves(
    name: str, fields: dict[str, Any], device: str, expected: bool
) -> None:
    assert reserve.supports_non_blocking(MACHINES[name], Options(**fields), device) is expected


# Precision


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

    def kept(params: int, **more: bool) -> bool:
        return precision.should_use_bf16(machine, DEFAULT, model_params=params, **more)

    fitting, larger = room // 4, room // 4 + 1
    assert [kept(fitting, manual_cast=True), kept(larger, manual_cast=True)] == [False, True]
    assert kept(larger) is False
    assert kept(0, manual_cast=True, prioritize_performance=False) is True


def test_a_card_on_which_bf16_does_not_work_never_uses_it() -> None:
    machine = nvidia("NVIDIA GeForce RTX 2070", 8, (7, 5))
    without = dataclasses.replace(machine, bf16=False)
    large = {"model_params": 10**12, "manual_cast": True}
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
        assert precision.unet_dtype(machine, Options(**{field: True})) == expected


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


# Placement


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


# Attention


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


def test_short_sequences_use_torch_where_it_is_good() -> None:
    assert attention.choose_attention_small(MACHINES["h200"], DEFAULT) == "pytorch"
    assert attention.choose_attention_small(MACHINES["rx6800"], DEFAULT) == "basic"


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
        attention.choose_attention(MACHINES["h200"], Options(**{field: True}))
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

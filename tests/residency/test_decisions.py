"""Decisions on machines that are not at hand, against ComfyUI's; then states and the reserve.

Expected values are ComfyUI's (comfyui_answers.txt), or written out for what that has not, here and
in test_precision, test_placing and test_attention.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.residency.model_management.rules import (
    attention,
    options,
    placing,
    precision,
    reserve,
)
from holdfast.residency.model_management.rules.machine import Machine, in_use
from holdfast.residency.model_management.rules.options import Options
from holdfast.residency.model_management.rules.states import CPUState, VRAMState
from tests.residency.made_up import GIB, MACHINES, MIB, nvidia, only

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
        "text_encoder_dtype": precision.text_encoder_dtype(machine, o),
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
    asked = only(flag)
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
    numbers: dict[str, Any] = {
        "free_bytes": free,
        "loaded_bytes": loaded,
        "memory_required": required,
    }
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

"""The specification's functions on a machine that was set, in torch's own words."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import psutil
import pytest
import torch

from holdfast.residency.model_management.rules import current, process
from holdfast.residency.model_management.rules.machine import Machine
from holdfast.residency.model_management.rules.options import Options
from holdfast.residency.model_management.rules.states import CPUState, VRAMState
from tests.residency.made_up import GIB, MACHINES, nvidia

CPU, CUDA = torch.device("cpu"), torch.device("cuda:0")


@pytest.fixture(autouse=True)
def nothing_is_left_set() -> Iterator[None]:
    before = current.options()
    yield
    assert process.given_machine() is None
    assert current.options() == before


def _on(name: str, **fields: Any) -> Any:
    return current.running_as(MACHINES[name], Options(**fields))


@pytest.mark.slow
def test_importing_asks_nothing_of_the_machine() -> None:
    code = (
        "import torch\n"
        "def never(*a): raise SystemExit('asked')\n"
        "torch.cuda.is_available = torch.xpu.is_available = never\n"
        "torch.backends.mps.is_available = never\n"
        "import psutil; psutil.virtual_memory = never\n"
        "import holdfast.residency.model_management.rules.current\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_rules_need_no_torch() -> None:
    code = (
        "import sys\n"
        "from holdfast.residency.model_management.rules import attention, detect, queries\n"
        "from holdfast.residency.model_management.rules import options, placing, precision\n"
        "from holdfast.residency.model_management.rules import machine, process, reserve, states\n"
        "sys.exit('torch' in sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_names_of_the_states_say_what_holds_now() -> None:
    with _on("rtx3060-12g"):
        assert current.vram_state is VRAMState.NORMAL_VRAM
        assert current.cpu_state is CPUState.GPU
        assert current.lowvram_available is True
        assert (current.total_vram, current.total_ram) == (12 * 1024, 32 * 1024)
    with _on("rtx3060-12g", novram=True):
        assert current.vram_state is VRAMState.NO_VRAM
    with _on("rtx3060-12g", cpu=True):
        assert current.vram_state is VRAMState.DISABLED
        assert current.total_vram == 32 * 1024


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"^module .*current' has no attribute 'vram_stat'$"):
        _ = getattr(current, "vram_" + "stat")


@pytest.mark.parametrize(
    ("name", "fields", "expected"),
    [
        ("rtx3060-12g", {}, "cuda:0"),
        ("rx6800", {}, "cuda:0"),
        ("arc-a770", {}, "xpu:0"),
        ("mac", {}, "mps"),
        ("cpu-only", {}, "cpu"),
        ("rtx3060-12g", {"cpu": True}, "cpu"),
        ("directml", {}, "privateuseone:0"),
    ],
)
def test_the_device_that_computes(name: str, fields: dict[str, Any], expected: str) -> None:
    with _on(name, **fields):
        assert current.get_torch_device() == torch.device(expected)


KINDS: dict[str, Callable[[], bool]] = {
    "cuda": current.is_nvidia,
    "rocm": current.is_amd,
    "xpu": current.is_intel_xpu,
    "npu": current.is_ascend_npu,
    "mlu": current.is_mlu,
    "directml": current.is_directml_enabled,
    "mps": current.mps_mode,
    "cpu": current.cpu_mode,
}


@pytest.mark.parametrize("name", MACHINES)
def test_a_machine_is_of_one_kind(name: str) -> None:
    with _on(name):
        assert [kind for kind, holds in KINDS.items() if holds()] == [MACHINES[name].kind]
    with _on(name, cpu=True):
        assert [kind for kind, holds in KINDS.items() if holds()] == ["cpu"]


def test_devices_are_told_apart() -> None:
    mps, xpu = torch.device("mps"), torch.device("xpu")
    rules = (
        current.is_device_cpu,
        current.is_device_mps,
        current.is_device_xpu,
        current.is_device_cuda,
    )
    for number, device in enumerate((CPU, mps, xpu, CUDA)):
        assert [rule(device) for rule in rules] == [n == number for n in range(4)]
    assert current.is_device_cpu(None) is False


def test_memory_of_a_machine_that_was_set_is_what_it_says() -> None:
    with _on("rtx3060-12g"):
        assert current.get_total_memory() == 12 * GIB
        assert current.get_total_memory("cpu") == 32 * GIB
        assert current.get_total_memory(CPU, torch_total_too=True) == (32 * GIB, 32 * GIB)
        assert current.get_free_memory(CUDA, torch_free_too=True) == (12 * GIB - 2**28, 0)
        assert current.get_free_memory(CPU) == 24 * GIB


def test_memory_of_the_real_host() -> None:
    memory = psutil.virtual_memory()
    assert current.get_total_memory(CPU) == memory.total
    assert abs(current.get_free_memory(CPU) - memory.available) < memory.total // 4
    total, of_torch = current.get_free_memory(CPU, torch_free_too=True)
    assert total == of_torch


def test_free_memory_is_asked_anew() -> None:
    seen = current.machine_now()
    assert seen.ram_free_bytes is not None
    assert 0 < seen.ram_free_bytes <= seen.ram_total_bytes


def test_reserve_in_the_documents_form() -> None:
    with _on("windows-rtx4080-16g"):
        assert current.extra_reserved_memory() == 700 * 2**20
        assert current.minimum_inference_memory() == int(0.8 * GIB) + 700 * 2**20
    with _on("rtx3060-12g", reserve_vram=2):
        assert current.extra_reserved_memory() == 2 * GIB
        assert current.maximum_vram_for_weights() == 8332236554
        assert current.maximum_vram_for_weights(CPU) == 27230092656
        assert current.device_supports_non_blocking(CUDA) is True


def test_precision_in_the_documents_form() -> None:
    with _on("rtx3060-12g"):
        assert current.should_use_fp16() is True
        assert current.should_use_fp16(CPU) is False
        assert current.should_use_bf16(CUDA, model_params=10**9) is True
        assert current.supports_fp8_compute() is False
        assert current.unet_dtype(model_params=12 * 10**9) is torch.float16
        fp8 = torch.float8_e4m3fn
        assert current.unet_dtype(CUDA, 12 * 10**9, weight_dtype=fp8) is fp8
        supported = [torch.bfloat16, torch.float32]
        assert current.unet_dtype(supported_dtypes=supported) is torch.bfloat16
        assert current.unet_manual_cast(fp8, CUDA) is torch.float16
        assert current.unet_manual_cast(torch.float16, CUDA) is None
        assert current.text_encoder_dtype() is torch.float16
        assert current.vae_dtype(allowed_dtypes=supported) is torch.bfloat16
        assert current.vae_dtype() is torch.float32
        assert current.supports_dtype(CPU, torch.float16) is False
        assert current.supports_cast(CUDA, fp8) is True
        assert current.pick_weight_dtype(None, torch.float16) is torch.float16
        assert current.pick_weight_dtype(fp8, torch.float16, CUDA) is fp8
    with _on("rtx3060-12g", fp8_e4m3fn_unet=True):
        assert current.unet_dtype() is torch.float8_e4m3fn


def test_our_sizes_of_formats_are_those_of_torch() -> None:
    from holdfast.residency.model_management.rules.precision import ITEM_BYTES

    assert {w: current.dtype_size(getattr(torch, w)) for w in ITEM_BYTES} == ITEM_BYTES


def test_placement_in_the_documents_form() -> None:
    with _on("h200"):
        assert current.unet_offload_device() == CPU
        assert current.unet_inital_load_device(12 * 10**9, torch.bfloat16) == CUDA
        assert current.text_encoder_device() == CUDA
        assert current.text_encoder_offload_device() == CPU
        assert current.text_encoder_initial_device(CUDA, CPU, 5 * GIB) == CUDA
        assert current.intermediate_device() == CPU
        assert current.vae_device() == CUDA
        assert current.vae_offload_device() == CPU
    with _on("h200", gpu_only=True):
        everywhere = (
            current.unet_offload_device,
            current.text_encoder_offload_device,
            current.intermediate_device,
            current.vae_offload_device,
        )
        assert [place() for place in everywhere] == [CUDA] * 4
    with _on("h200", cpu_vae=True):
        assert current.vae_device() == CPU


def test_attention_in_the_documents_form() -> None:
    with _on("rtx3060-12g"):
        assert current.xformers_enabled() is True
        assert current.xformers_enabled_vae() is True
        assert current.pytorch_attention_enabled() is True
        assert current.pytorch_attention_enabled_vae() is True
        assert current.pytorch_attention_flash_attention() is True
        assert current.force_upcast_attention_dtype() is None
        assert current.chosen_attention() == "xformers"
        assert current.chosen_attention(CPU) == "sub_quad"
    with _on("rtx3060-12g", force_upcast_attention=True):
        assert current.force_upcast_attention_dtype() == {torch.float16: torch.float32}


def test_names_of_devices_for_people() -> None:
    with _on("h200"):
        assert current.get_torch_device_name(CUDA) == "cuda:0 NVIDIA H200"
        assert current.get_torch_device_name(CPU) == "cpu"
    with _on("mac"):
        assert current.get_torch_device_name(torch.device("mps")) == "mps"


def test_setting_options_returns_those_before_and_looks_at_the_machine_again() -> None:
    first = current.machine()
    before = current.set_options(Options(cpu=True))
    try:
        assert current.machine() is not first
        assert current.machine().kind == "cpu"
        assert current.set_options(Options(cpu=True, reserve_vram=1)) == Options(cpu=True)
        assert current.extra_reserved_memory() == GIB
    finally:
        current.set_options(before)


def test_what_was_set_for_a_while_goes_away_with_an_error() -> None:
    with pytest.raises(KeyError), _on("h200", lowvram=True):
        raise KeyError
    assert process.given_machine() is None


def test_the_real_machine_is_looked_at_once() -> None:
    assert current.machine() is current.machine()


def test_threads_see_the_same_machine() -> None:
    seen: list[Machine] = []
    with current.running_as(nvidia("card", 8, (8, 6))):
        threads = [threading.Thread(target=lambda: seen.append(current.machine())) for _ in "1234"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert [m.name for m in seen] == ["card"] * 4


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device here")
def test_a_real_card_is_described_and_its_memory_counted() -> None:
    machine, device = current.machine(), current.get_torch_device()
    properties = torch.cuda.get_device_properties(device)
    assert (machine.name, machine.total_bytes) == (
        properties.name,
        torch.cuda.mem_get_info(device)[1],
    )
    block = torch.empty(256 * 2**20, dtype=torch.uint8, device=device)
    _, cached_before = current.get_free_memory(torch_free_too=True)
    del block
    _, cached_after = current.get_free_memory(torch_free_too=True)
    assert cached_after - cached_before == 256 * 2**20
    assert current.get_free_memory() <= current.get_total_memory()

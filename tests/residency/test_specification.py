"""Specification 002, block by block of its document, with every name it uses.

Blocks that are code to call are run; blocks that are ComfyUI's own code say what a name does, and
that is what is looked at here, on made-up machines. The tables of machines are in test_decisions,
test_placing and their like.
"""

from __future__ import annotations

import importlib
import inspect
import threading
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch
from torch import nn

import holdfast.residency
from holdfast.residency import interrupt
from holdfast.residency.model_management.models import loaded, offload, pinned
from holdfast.residency.model_management.models.loaded import LoadedModel
from holdfast.residency.model_management.models.patcher import Patcher
from holdfast.residency.model_management.rules import current, options
from holdfast.residency.model_management.rules.machine import Machine
from holdfast.residency.model_management.rules.options import Options
from holdfast.residency.model_management.rules.states import CPUState, VRAMState
from tests.residency.cards import CPU, META, MIB, desk
from tests.residency.made_up import MACHINES

GIB = 2**30
NAMES = {
    "model_management.rules.states": ["VRAMState", "CPUState"],
    "model_management.rules.current": [
        *("get_torch_device", "get_torch_device_name", "get_total_memory", "get_free_memory"),
        *("is_nvidia", "is_amd", "is_intel_xpu", "is_ascend_npu", "is_mlu"),
        *("is_device_cpu", "is_device_mps", "is_device_cuda", "cpu_mode", "mps_mode"),
        *("vram_state", "cpu_state", "total_vram", "total_ram"),
        *("extra_reserved_memory", "minimum_inference_memory", "maximum_vram_for_weights"),
        *("unet_dtype", "unet_manual_cast", "should_use_fp16", "should_use_bf16"),
        *("supports_fp8_compute", "text_encoder_dtype", "vae_dtype", "dtype_size"),
        *("unet_offload_device", "unet_inital_load_device", "text_encoder_device"),
        *("text_encoder_offload_device", "vae_device", "vae_offload_device"),
        *("xformers_enabled", "xformers_enabled_vae", "pytorch_attention_enabled"),
        *("pytorch_attention_flash_attention", "device_supports_non_blocking", "set_options"),
    ],
    "model_management.models.loaded": [
        *("LoadedModel", "current_loaded_models", "load_models_gpu", "load_model_gpu"),
        *("free_memory", "use_more_memory", "loaded_models", "unload_all_models"),
        *("cleanup_models_gc", "cleanup_models"),
    ],
    "model_management.models.patcher": ["Patcher"],
    "model_management.models.cache": ["soft_empty_cache"],
    "interrupt": [
        *("InterruptProcessingException", "interrupt_current_processing"),
        *("processing_interrupted", "throw_exception_if_processing_interrupted"),
    ],
    "model_management.models.offload": [
        "NUM_STREAMS",
        "get_offload_stream",
        "sync_stream",
        "cast_to",
        "cast_to_device",
    ],
    "model_management.models.pinned": ["pin_memory", "unpin_memory"],
    "model_management.rules.options": ["Options", "add_arguments"],
}
PAIRS = [(home, name) for home, names in NAMES.items() for name in names]


@pytest.fixture(autouse=True)
def nothing_left():
    yield
    interrupt.interrupt_current_processing(False)
    assert loaded.current_loaded_models == []


@pytest.mark.parametrize(("home", "name"), PAIRS, ids=[name for _, name in PAIRS])
def test_every_name_is_there_and_in_the_package(home, name):
    with current.running_as(MACHINES["rtx4090-24g"]):
        found = getattr(importlib.import_module(f"holdfast.residency.{home}"), name)
        offered = getattr(holdfast.residency, name)
    assert offered is found or offered == found


# 硬件状态枚举


def test_the_states_have_the_documents_values():
    assert {state.name: state.value for state in VRAMState} == {
        "DISABLED": 0,
        "NO_VRAM": 1,
        "LOW_VRAM": 2,
        "NORMAL_VRAM": 3,
        "HIGH_VRAM": 4,
        "SHARED": 5,
    }
    assert {state.name: state.value for state in CPUState} == {"GPU": 0, "CPU": 1, "MPS": 2}


# 获取计算设备, 获取内存信息, 显存保留策略


@pytest.mark.parametrize(
    ("kind", "device", "given"),
    [
        ("cuda", "cuda:0", {}),
        ("rocm", "cuda:0", {}),
        ("xpu", "xpu:0", {}),
        ("npu", "npu:0", {}),
        ("mlu", "mlu:0", {}),
        ("mps", "mps", {}),
        ("directml", "privateuseone:0", {"directml": 0}),
        ("cpu", "cpu", {}),
        ("cuda", "cpu", {"cpu": True}),
    ],
)
def test_each_platform_has_its_device(kind, device, given):
    own = "cuda:0" if given.get("cpu") else device
    machine = Machine(kind=kind, device=own, total_bytes=8 * GIB, ram_total_bytes=GIB)
    if device == "npu:0" or device == "mlu:0":
        with current.running_as(machine, Options(**given)):
            assert current.is_ascend_npu() == (kind == "npu")
            assert current.is_mlu() == (kind == "mlu")
        return  # torch knows these names only with their packages
    with current.running_as(machine, Options(**given)):
        assert current.get_torch_device() == torch.device(device)


def test_the_memory_of_the_host_is_what_psutil_says():
    assert current.get_total_memory(CPU) == psutil.virtual_memory().total
    assert 0 < current.get_free_memory(CPU) <= psutil.virtual_memory().total


@pytest.mark.parametrize(
    ("windows", "gib", "reserve_mib"), [(False, 24, 400), (True, 8, 600), (True, 16, 700)]
)
def test_the_reserve_is_the_documents(windows, gib, reserve_mib):
    fields: dict[str, Any] = {"total_bytes": gib * GIB, "ram_total_bytes": GIB}
    with current.running_as(Machine(kind="cuda", device="cuda:0", windows=windows, **fields)):
        assert current.extra_reserved_memory() == reserve_mib * MIB
        least = int(0.8 * GIB) + reserve_mib * MIB
        assert current.minimum_inference_memory() == least


# 模型加载管理


def test_a_loaded_model_is_as_the_document_shows_it():
    with desk(4000) as d:
        model = d.model(4)
        entry = LoadedModel(model)
        assert (entry.model, entry.device) == (model, META)
        assert (entry.real_model, entry.currently_used) == (None, True)
        assert entry.model_memory() == model.model_size() == 4 * MIB
        assert entry.model_load(3 * MIB) is model.model
        assert entry.model_loaded_memory() == 2 * MIB
        assert entry.model_load(0) is model.model
        assert entry.model_loaded_memory() == 4 * MIB
        assert entry.model_unload(MIB) is False  # a part was enough
        assert 0 < entry.model_loaded_memory() < 4 * MIB
        assert entry.model_unload() is True
        assert entry.model_loaded_memory() == 0


@pytest.mark.parametrize(
    ("function", "names"),
    [
        (loaded.load_models_gpu, ["models", "memory_required", "force_patch_weights"]),
        (loaded.free_memory, ["memory_required", "device", "keep_loaded"]),
        (LoadedModel.model_load, ["self", "lowvram_model_memory", "force_patch_weights"]),
        (LoadedModel.model_unload, ["self", "memory_to_free"]),
        (current.get_total_memory, ["dev"]),
        (current.get_free_memory, ["dev"]),
        (current.unet_dtype, ["device", "model_params", "supported_dtypes"]),
        (current.should_use_fp16, ["device", "model_params", "prioritize_performance"]),
        (current.unet_inital_load_device, ["parameters", "dtype"]),
        (interrupt.interrupt_current_processing, ["value"]),
        (offload.get_offload_stream, ["device"]),
        (pinned.pin_memory, ["tensor"]),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_arguments_have_the_documents_names_and_order(function, names):
    assert list(inspect.signature(function).parameters)[: len(names)] == names


def test_loading_makes_room_loads_and_lists():
    with desk(1300) as d:
        manager = d.manager
        first, second = d.model(40), d.model(60)
        manager.load([first])
        manager.load([second], memory_required=0, force_patch_weights=False)
        assert manager.models[0].model is second
        assert second.loaded_size() == 60 * MIB
        assert first.loaded_size() < 40 * MIB
        manager.free(1e30, META, keep_loaded=[])
        assert manager.models == []


# 数据类型选择, 设备选择策略, 注意力机制选择


@pytest.mark.parametrize(
    ("given", "dtype"),
    [
        ({"fp32_unet": True}, torch.float32),
        ({"fp16_unet": True}, torch.float16),
        ({"bf16_unet": True}, torch.bfloat16),
        ({"fp8_e4m3fn_unet": True}, torch.float8_e4m3fn),
        ({}, torch.float16),
    ],
)
def test_options_come_first_in_the_choice_of_precision(given, dtype):
    with current.running_as(MACHINES["rtx4090-24g"], Options(**given)):
        assert current.unet_dtype() == dtype


def test_fp16_is_not_for_the_cpu_and_is_for_apple():
    assert not current.should_use_fp16(CPU)
    mac = Machine(kind="mps", device="mps", total_bytes=16 * GIB, ram_total_bytes=16 * GIB)
    with current.running_as(mac):
        assert current.should_use_fp16(torch.device("mps"))
    with current.running_as(MACHINES["rtx4090-24g"], Options(force_fp16=True)):
        assert current.should_use_fp16()


@pytest.mark.parametrize(
    ("given", "devices"),
    [
        ({}, ("cpu", "cuda:0", "cuda:0")),
        ({"highvram": True}, ("cuda:0", "cuda:0", "cuda:0")),
        ({"lowvram": True}, ("cpu", "cpu", "cuda:0")),
        ({"gpu_only": True}, ("cuda:0", "cuda:0", "cuda:0")),
        ({"cpu_vae": True}, ("cpu", "cuda:0", "cpu")),
    ],
)
def test_parts_of_a_pipeline_have_their_devices(given, devices):
    with current.running_as(MACHINES["rtx4090-24g"], Options(**given)):
        assert (
            str(current.unet_offload_device()),
            str(current.text_encoder_device()),
            str(current.vae_device()),
        ) == devices


def test_a_model_is_built_where_there_is_more_room():
    machine = Machine(
        kind="cuda",
        device="cuda:0",
        total_bytes=24 * GIB,
        free_bytes=20 * GIB,
        ram_total_bytes=16 * GIB,
        ram_free_bytes=8 * GIB,
    )
    with current.running_as(machine):
        assert str(current.unet_inital_load_device(10**9, torch.float16)) == "cuda:0"
        assert str(current.unet_inital_load_device(20 * 10**9, torch.float16)) == "cpu"
    with current.running_as(machine, Options(novram=True)):
        assert str(current.unet_inital_load_device(10**9, torch.float16)) == "cpu"


def test_attention_follows_platform_and_options():
    with current.running_as(MACHINES["rtx3060-12g"]):
        assert current.xformers_enabled()
        assert current.pytorch_attention_enabled()
    with current.running_as(MACHINES["rtx3060-12g"], Options(disable_xformers=True)):
        assert not current.xformers_enabled()
    host = Machine(kind="cpu", device="cpu", total_bytes=GIB, ram_total_bytes=GIB)
    with current.running_as(host):
        assert not current.xformers_enabled()


# 缓存清理, 中断处理

BEFORE_NODE = """
def before_node_execution():
    comfy.model_management.throw_exception_if_processing_interrupted()
"""


def test_the_documents_check_before_each_node_stops_the_run():
    space: dict[str, Any] = {"comfy": SimpleNamespace(model_management=interrupt)}
    exec(BEFORE_NODE, space)
    before_node_execution = space["before_node_execution"]
    before_node_execution()
    thread = threading.Thread(target=interrupt.interrupt_current_processing)
    thread.start()
    thread.join()
    with pytest.raises(interrupt.InterruptProcessingException):
        before_node_execution()
    before_node_execution()  # 已清除


def test_all_models_are_unloaded_and_dead_ones_are_cleaned_up():
    module = nn.Linear(4, 4)
    loaded.load_models_gpu([Patcher(module, CPU)])  # the patcher is gone at once
    assert loaded.current_loaded_models[0].is_dead()
    del module
    loaded.cleanup_models_gc()
    assert loaded.current_loaded_models == []
    host = Patcher(nn.Linear(4, 4), CPU)
    loaded.load_models_gpu([host])
    loaded.unload_all_models()
    assert loaded.current_loaded_models == []


# 异步卸载, Pinned Memory


def test_nvidia_has_two_streams_and_locks_memory_within_its_budget():
    fields: dict[str, Any] = {"total_bytes": 8 * GIB, "ram_total_bytes": 10 * GIB}
    with current.running_as(Machine(kind="cuda", device="cuda:0", windows=True, **fields)):
        assert offload.NUM_STREAMS == 2
        assert pinned.process_budget().limit_bytes == int(10 * GIB * 0.45)
    with current.running_as(Machine(kind="mps", device="mps", **fields)):
        assert offload.get_offload_stream(torch.device("mps")) is None
        assert pinned.pin_memory(torch.zeros(4)) is False


# 命令行参数影响


@pytest.mark.parametrize(
    ("words", "state"),
    [
        (["--cpu"], VRAMState.DISABLED),
        (["--lowvram"], VRAMState.LOW_VRAM),
        (["--novram"], VRAMState.NO_VRAM),
        (["--normalvram"], VRAMState.NORMAL_VRAM),
        (["--highvram"], VRAMState.HIGH_VRAM),
        (["--gpu-only"], VRAMState.HIGH_VRAM),
        (["--fp16-unet", "--use-pytorch-cross-attention"], VRAMState.NORMAL_VRAM),
        (["--fp8-e4m3fn-unet", "--disable-xformers"], VRAMState.NORMAL_VRAM),
    ],
    ids=str,
)
def test_options_of_the_document_set_the_state(words, state):
    with current.running_as(MACHINES["rtx4090-24g"], options.parse(words)):
        assert current.vram_state == state


def test_reserve_vram_is_left_to_others():
    with current.running_as(MACHINES["rtx4090-24g"], options.parse(["--reserve-vram", "2.5"])):
        assert current.extra_reserved_memory() == int(2.5 * GIB)

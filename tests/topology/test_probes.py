"""Probes of vendor libraries: the real ones where they are here, faked ones for the rest."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from holdfast.base.config import Config
from holdfast.base.errors import Absent
from holdfast.topology import Gpu, Link, PcieLink, TorchDevice, discover
from tests.needs import needs


def _no_opencl() -> str | None:
    machine = discover(config=Config.load({}, probes="opencl"))
    if machine.opencl:
        return None
    report = machine.probe("opencl")
    return f"no OpenCL device: {report.reason if report else 'not asked'}"


@pytest.mark.opencl
@needs(_no_opencl())
def test_pocl_is_found_with_its_shared_virtual_memory() -> None:
    devices = discover(config=Config.load({}, probes="opencl")).opencl
    [pocl] = [d for d in devices if d.platform == "Portable Computing Language"]
    assert pocl.kind == "cpu"
    assert {"coarse_buffer", "fine_buffer", "atomics"} <= set(pocl.svm)
    assert (pocl.memory_bytes or 0) > 2**30
    assert pocl.pci_address is None


@pytest.mark.slow
def test_the_real_torch_offers_the_cpu() -> None:
    machine = discover(config=Config.load({}, probes="torch"))
    assert machine.probe("torch").status == "ok"  # type: ignore[union-attr]
    assert machine.torch[-1].id == "cpu"


def test_the_real_nvml_without_a_driver_is_absent_and_says_why(monkeypatch) -> None:
    import pynvml

    def no_driver() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlInit", no_driver)
    report = discover(refresh=True, config=Config.load({}, probes="nvml")).probe("nvml")
    assert report is not None
    assert report.status == "absent"
    assert report.reason == "no NVIDIA driver answers: NVML Shared Library Not Found"


# ---- torch, faked


def _fake_torch(monkeypatch: pytest.MonkeyPatch, **parts: Any) -> Any:
    """The torch probe over a torch made of `parts`."""
    torch = ModuleType("torch")
    nothing = SimpleNamespace(is_available=lambda: False)
    torch.cuda = nothing  # type: ignore[attr-defined]
    torch.version = SimpleNamespace(hip=None)  # type: ignore[attr-defined]
    torch.backends = SimpleNamespace(  # type: ignore[attr-defined]
        mps=nothing, cpu=SimpleNamespace(get_cpu_capability=lambda: "AVX2")
    )
    for name, part in parts.items():
        setattr(torch, name, part)
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.delitem(sys.modules, "holdfast.topology.probes.torch", raising=False)
    return importlib.import_module("holdfast.topology.probes.torch").probe(Config.load({}))


@pytest.fixture(autouse=True)
def _forget_the_fake():
    yield
    sys.modules.pop("holdfast.topology.probes.torch", None)
    sys.modules.pop("holdfast.topology.probes.nvml", None)


CPU = TorchDevice(id="cpu", backend="cpu", capability="avx2")


def _like_cuda(**facts: Any) -> SimpleNamespace:
    return SimpleNamespace(
        is_available=lambda: True,
        device_count=lambda: 1,
        get_device_properties=lambda i: SimpleNamespace(**facts),
        get_device_name=lambda i: "by name",
    )


def test_torch_cuda(monkeypatch) -> None:
    facts = {"name": "H200", "total_memory": 7, "major": 9, "minor": 0}
    place = {"pci_domain_id": 0, "pci_bus_id": 0x41, "pci_device_id": 0}
    found = _fake_torch(monkeypatch, cuda=_like_cuda(**facts, **place))
    assert found.torch == (
        TorchDevice(
            id="cuda:0",
            backend="cuda",
            name="H200",
            memory_bytes=7,
            capability="9.0",
            pci_address="0000:41:00.0",
        ),
        CPU,
    )


def test_torch_rocm_is_distinguished_from_cuda(monkeypatch) -> None:
    facts = {"name": "MI300X", "total_memory": 7, "major": 9, "minor": 4, "gcnArchName": "gfx942"}
    hip = SimpleNamespace(hip="6.2")
    found = _fake_torch(monkeypatch, cuda=_like_cuda(**facts), version=hip)
    assert (found.torch[0].backend, found.torch[0].capability) == ("rocm", "gfx942")
    assert found.torch[0].pci_address is None


def test_torch_xpu(monkeypatch) -> None:
    found = _fake_torch(monkeypatch, xpu=_like_cuda(name="Arc A770", total_memory=16))
    assert found.torch[0] == TorchDevice(
        id="xpu:0", backend="xpu", name="Arc A770", memory_bytes=16
    )


def test_torch_mps(monkeypatch) -> None:
    backends = SimpleNamespace(
        mps=SimpleNamespace(is_available=lambda: True),
        cpu=SimpleNamespace(get_cpu_capability=lambda: "DEFAULT"),
    )
    mps = SimpleNamespace(recommended_max_memory=lambda: 11)
    found = _fake_torch(monkeypatch, backends=backends, mps=mps)
    assert found.torch[0] == TorchDevice(id="mps", backend="mps", name="Apple GPU", memory_bytes=11)


@pytest.mark.parametrize("name", ["npu", "mlu"])
def test_torch_with_a_plug_in(monkeypatch, name: str) -> None:
    plug_in = ModuleType(f"torch_{name}")
    plug_in.__spec__ = importlib.machinery.ModuleSpec(plug_in.__name__, None)
    monkeypatch.setitem(sys.modules, plug_in.__name__, plug_in)
    found = _fake_torch(monkeypatch, **{name: _like_cuda(total_memory=5)})
    assert found.torch[0] == TorchDevice(
        id=f"{name}:0", backend=name, name="by name", memory_bytes=5
    )


def test_torch_directml(monkeypatch) -> None:
    plug_in = ModuleType("torch_directml")
    plug_in.__spec__ = importlib.machinery.ModuleSpec("torch_directml", None)
    plug_in.device_count = lambda: 1  # type: ignore[attr-defined]
    plug_in.device_name = lambda i: "Radeon"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch_directml", plug_in)
    found = _fake_torch(monkeypatch)
    assert found.torch[0] == TorchDevice(id="privateuseone:0", backend="directml", name="Radeon")


def test_a_broken_backend_does_not_hide_the_others(monkeypatch) -> None:
    def broken() -> bool:
        raise OSError("libcuda.so.1: version mismatch")

    found = _fake_torch(monkeypatch, cuda=SimpleNamespace(is_available=broken))
    assert found.torch == (CPU,)
    assert found.probes[0].reason == "cuda: OSError: libcuda.so.1: version mismatch"


# ---- NVML, faked: two cards on an NVSwitch and one on its own


class _Refused(Exception):
    pass


def _fake_nvml(monkeypatch: pytest.MonkeyPatch, links: dict[int, list[Any]]) -> ModuleType:
    """A driver with `len(links)` cards; a link leads to a bus id or to "switch"."""

    def refuse(*_: Any) -> Any:
        raise _Refused("Not Supported")

    def state(card: int, number: int) -> int:
        return 1 if number < len(links[card]) else refuse()

    nvml = ModuleType("pynvml")
    nvml.__dict__.update(
        NVMLError=_Refused,
        NVML_SUCCESS=0,
        NVML_NVLINK_MAX_LINKS=18,
        NVML_NVLINK_DEVICE_TYPE_SWITCH=2,
        NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON=90,
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: None,
        nvmlDeviceGetCount=lambda: len(links),
        nvmlDeviceGetHandleByIndex=lambda i: i,
        nvmlDeviceGetPciInfo=lambda card: SimpleNamespace(busId=f"00000000:{card + 1}1:00.0"),
        nvmlDeviceGetName=lambda card: b"NVIDIA H100",
        nvmlDeviceGetUUID=lambda card: f"GPU-{card}",
        nvmlDeviceGetMemoryInfo=lambda card: SimpleNamespace(total=100, free=60 + card),
        nvmlDeviceGetMemoryAffinity=lambda card, words, scope: [1 << card] + [0] * 15,
        nvmlDeviceGetNumaNodeId=refuse,
        nvmlDeviceGetCurrPcieLinkGeneration=lambda card: 1,
        nvmlDeviceGetMaxPcieLinkGeneration=lambda card: 5,
        nvmlDeviceGetCurrPcieLinkWidth=lambda card: 16,
        nvmlDeviceGetMaxPcieLinkWidth=lambda card: 16,
        nvmlDeviceGetNvLinkState=state,
        nvmlDeviceGetNvLinkRemoteDeviceType=lambda card, n: 2 if links[card][n] == "switch" else 0,
        nvmlDeviceGetNvLinkRemotePciInfo=lambda card, n: SimpleNamespace(busId=links[card][n]),
        nvmlDeviceGetFieldValues=lambda card, fields: [
            SimpleNamespace(nvmlReturn=0, value=SimpleNamespace(uiVal=26562))
        ],
    )
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    monkeypatch.delitem(sys.modules, "holdfast.topology.probes.nvml", raising=False)
    return importlib.import_module("holdfast.topology.probes.nvml")


def test_nvml_tells_memory_affinity_and_links(monkeypatch) -> None:
    probe = _fake_nvml(monkeypatch, {0: ["switch"] * 18, 1: ["switch"] * 18, 2: []}).probe
    found = probe(Config.load({}))
    assert found.gpus[1] == Gpu(
        id=-1,
        pci_address="0000:21:00.0",
        vendor="NVIDIA",
        name="NVIDIA H100",
        kind="discrete",
        uuid="GPU-1",
        driver="nvidia",
        memory_bytes=100,
        free_bytes=61,
        numa_node=1,
        link=PcieLink(speed_gt_s=2.5, width=16, max_speed_gt_s=32.0, max_width=16),
    )
    assert found.links == (
        Link(
            source="pci:0000:11:00.0",
            target="pci:0000:21:00.0",
            kind="nvlink",
            via="switch",
            lanes=18,
            bandwidth_gb_s=478.1,
        ),
    )


def test_nvlink_without_a_switch_is_counted_for_the_pair(monkeypatch) -> None:
    links = {0: ["00000000:21:00.0"] * 4, 1: ["00000000:11:00.0"] * 4}
    [link] = _fake_nvml(monkeypatch, links).probe(Config.load({})).links
    assert (link.lanes, link.via) == (4, None)


def test_a_driver_that_will_not_start_is_absent(monkeypatch) -> None:
    nvml = _fake_nvml(monkeypatch, {})

    def refuse() -> None:
        raise _Refused("Driver Not Loaded")

    monkeypatch.setattr(nvml.pynvml, "nvmlInit", refuse)
    with pytest.raises(Absent, match="no NVIDIA driver answers: Driver Not Loaded"):
        nvml.probe(Config.load({}))

"""Detection and memory queries, each platform's branch with a made-up torch."""

from __future__ import annotations

import dataclasses
import sys
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch

from holdfast.base.errors import MissingDependency, Unsupported
from holdfast.residency.model_management.rules import detect as detecting
from holdfast.residency.model_management.rules import queries
from holdfast.residency.model_management.rules.detect import detect
from holdfast.residency.model_management.rules.machine import Machine
from holdfast.residency.model_management.rules.options import Options
from tests.residency.made_up import (
    GIB,
    MACHINES,
    MIB,
    loader_for,
    make_device,
    system_of,
    torch_for,
)


def _look(machine: Machine, fake: Any = None, **more: Any) -> Machine:
    given: dict[str, Any] = {"directml": -1} if machine.kind == "directml" else {}
    return detect(
        torch_for(machine) if fake is None else fake,
        more.pop("options", Options(**given)),
        system=system_of(machine),
        load=more.pop("load", loader_for(machine)),
        found=lambda name: name in machine.packages,
        **more,
    )


@pytest.mark.parametrize("name", MACHINES)
def test_a_machine_is_described_as_it_is(name: str) -> None:
    assert _look(MACHINES[name]) == MACHINES[name]


def _with_everything() -> Any:
    """A torch that sees one device of every kind."""
    fake = torch_for(MACHINES["h200"])
    for kind, name in (("xpu", "arc-a770"), ("npu", "ascend"), ("mlu", "mlu370")):
        setattr(fake, kind, getattr(torch_for(MACHINES[name]), kind))
    fake.backends.mps.is_available = lambda: True
    return fake


def _hide(fake: Any, kind: str) -> None:
    place = fake.backends.mps if kind == "mps" else getattr(fake, kind)
    place.is_available = lambda: False


def test_kinds_are_asked_for_in_the_order_of_the_document() -> None:
    fake, machine, found = _with_everything(), MACHINES["h200"], []
    for kind in ("mps", "xpu", "npu", "mlu", "cuda", "cpu"):
        found.append(_look(machine, fake).kind)
        if kind != "cpu":
            _hide(fake, kind)
    assert found == ["mps", "xpu", "npu", "mlu", "cuda", "cpu"]


def test_directml_comes_first_when_asked_for() -> None:
    load = loader_for(MACHINES["directml"])
    seen = _look(MACHINES["h200"], _with_everything(), options=Options(directml=1), load=load)
    assert (seen.kind, seen.device, seen.total_bytes) == ("directml", "privateuseone:1", GIB)


def test_the_cpu_when_asked_for_hides_everything_else() -> None:
    seen = _look(MACHINES["h200"], _with_everything(), options=Options(cpu=True))
    assert (seen.kind, seen.device) == ("cpu", "cpu")
    assert (seen.total_bytes, seen.free_bytes) == (128 * GIB, 120 * GIB)


def test_directml_that_is_not_installed_is_refused() -> None:
    with pytest.raises(MissingDependency) as caught:
        _look(MACHINES["cpu-only"], options=Options(directml=-1), load=lambda name: None)
    assert str(caught.value) == (
        "cannot use --directml: the package 'torch_directml' cannot be imported\n"
        "  expected: an installation of torch-directml that works with this torch\n"
        "  try: pip install torch-directml, or leave out --directml"
    )


@pytest.mark.parametrize("kind", ["npu", "mlu"])
def test_a_plug_in_that_does_not_import_hides_its_devices(kind: str) -> None:
    name = {"npu": "ascend", "mlu": "mlu370"}[kind]
    assert _look(MACHINES[name], load=lambda package: None).kind == "cpu"


@pytest.mark.parametrize("error", [RuntimeError, AssertionError, OSError, AttributeError])
def test_a_driver_that_raises_counts_as_no_device(error: type[Exception]) -> None:
    fake = torch_for(MACHINES["h200"])

    def broken() -> bool:
        raise error("no driver")

    fake.cuda.is_available = broken
    assert _look(MACHINES["cpu-only"], fake).kind == "cpu"


def test_an_old_torch_without_the_other_platforms_sees_cuda() -> None:
    fake = torch_for(MACHINES["gtx970-4g"])
    del fake.backends.mps
    assert _look(MACHINES["gtx970-4g"], fake) == MACHINES["gtx970-4g"]


def test_another_card_of_the_same_kind_can_be_described() -> None:
    machine = MACHINES["rtx4090-24g"]
    seen = _look(machine, device=make_device("cuda:1"))
    assert seen == dataclasses.replace(machine, device="cuda:1")


@pytest.mark.parametrize(
    ("xformers", "fields", "expected"),
    [
        (SimpleNamespace(__version__="0.0.33", _has_cpp_library=True), {}, "0.0.33"),
        (SimpleNamespace(__version__="0.0.33"), {}, "0.0.33"),
        (SimpleNamespace(__version__="0.0.33", _has_cpp_library=False), {}, None),
        (SimpleNamespace(__version__="0.0.33"), {"disable_xformers": True}, None),
        (None, {}, None),
    ],
)
def test_xformers_counts_if_it_was_built_and_is_wanted(
    xformers: Any, fields: dict[str, Any], expected: str | None
) -> None:
    packages = {"xformers": xformers}
    seen = _look(MACHINES["h200"], options=Options(**fields), load=packages.get)
    assert seen.xformers_version == expected
    assert ("xformers" in seen.packages) is (expected is not None)


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("2.13.0+cpu", (2, 13)),
        ("2.10.0a0+git1234", (2, 10)),
        ("2.9", (2, 9)),
        ("unknown", (0, 0)),
    ],
)
def test_the_version_of_torch_is_read(version: str, expected: tuple[int, int]) -> None:
    fake = torch_for(MACHINES["cpu-only"])
    fake.__version__ = version
    assert _look(MACHINES["cpu-only"], fake).torch_version == expected


def test_a_rocm_that_does_not_tell_its_version_is_taken_for_an_old_one() -> None:
    fake = torch_for(MACHINES["rx7900xtx"])
    fake.version.hip = "unreadable"
    assert _look(MACHINES["rx7900xtx"], fake).rocm_version == (6, -1)


# The real system


def test_this_machine_can_be_described() -> None:
    seen, host = detect(torch), detecting.this_system()
    assert seen.ram_total_bytes == host.ram_total_bytes <= psutil.virtual_memory().total
    assert seen.torch_version == tuple(int(n) for n in torch.__version__.split(".")[:2])
    assert seen.windows is (sys.platform == "win32")
    if not torch.cuda.is_available() and not torch.xpu.is_available():
        assert (seen.kind, seen.device, seen.total_bytes) in [
            ("cpu", "cpu", host.ram_total_bytes),
            ("mps", "mps", host.ram_total_bytes),
        ]


@pytest.mark.parametrize(
    ("limit", "left", "expected"),
    [
        (None, None, (64 * GIB, 40 * GIB)),
        (16 * GIB, 9 * GIB, (16 * GIB, 9 * GIB)),
        (128 * GIB, 100 * GIB, (64 * GIB, 40 * GIB)),
    ],
)
def test_in_a_container_ram_is_what_that_may_take(
    limit: int | None,
    left: int | None,
    expected: tuple[int, int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    memory = SimpleNamespace(total=64 * GIB, available=40 * GIB)
    monkeypatch.setattr(detecting.psutil, "virtual_memory", lambda: memory)
    monkeypatch.setattr(detecting.control_groups, "memory_limit", lambda: limit)
    monkeypatch.setattr(detecting.control_groups, "memory_left", lambda: left)
    host = detecting.this_system()
    assert (host.ram_total_bytes, host.ram_free_bytes) == expected


def test_a_package_that_is_there_is_loaded_and_one_that_is_not_is_none() -> None:
    assert detecting.load_package("json") is sys.modules["json"]
    assert detecting.load_package("no_such_package_anywhere") is None
    assert detecting.package_found("no_such_package.below") is False


def test_a_package_that_breaks_on_import_counts_as_absent(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_on_purpose_for_detect.py").write_text("raise KeyError('half built')")
    monkeypatch.syspath_prepend(tmp_path)
    assert detecting.package_found("broken_on_purpose_for_detect") is True
    assert detecting.load_package("broken_on_purpose_for_detect") is None


# Memory


@pytest.mark.parametrize("name", ["h200", "rx6800", "arc-a770", "ascend", "mlu370"])
def test_what_torch_caches_and_does_not_use_counts_as_free(name: str) -> None:
    machine = MACHINES[name]
    fake, device = torch_for(machine), make_device(machine.device)
    assert queries.free(fake, device) == queries.Bytes(machine.total_bytes - 256 * MIB, 64 * MIB)
    assert queries.total(fake, device) == queries.Bytes(machine.total_bytes, 96 * MIB)


@pytest.mark.parametrize("error", [AttributeError, RuntimeError])
def test_an_intel_driver_that_does_not_tell_has_free_what_torch_did_not_take(
    error: type[Exception],
) -> None:
    fake, device = torch_for(MACHINES["arc-a770"]), make_device("xpu:0")

    def silent(device: Any) -> Any:
        raise error("no such query")

    fake.xpu.mem_get_info = silent
    assert queries.free(fake, device) == queries.Bytes(16 * GIB - 32 * MIB, 64 * MIB)


def test_before_the_first_tensor_torch_caches_nothing() -> None:
    fake = torch_for(MACHINES["h200"])
    fake.cuda.memory_stats = lambda device: {}
    assert queries.total(fake, make_device("cuda:0")).torch == 0
    assert queries.free(fake, make_device("cuda:0")).torch == 0


def test_directml_is_taken_to_have_one_gib() -> None:
    device = make_device("privateuseone:0")
    assert queries.total(None, device) == queries.Bytes(GIB, GIB)
    assert queries.free(None, device) == queries.Bytes(GIB, GIB)


@pytest.mark.parametrize("kind", ["cpu", "mps"])
def test_what_shares_the_host_has_the_memory_of_the_host(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = SimpleNamespace(total=64 * GIB, available=40 * GIB)
    monkeypatch.setattr(queries.psutil, "virtual_memory", lambda: memory)
    assert queries.total(None, make_device(kind)) == queries.Bytes(64 * GIB, 64 * GIB)
    assert queries.free(None, make_device(kind)) == queries.Bytes(40 * GIB, 40 * GIB)


def test_a_device_nobody_counts_is_refused() -> None:
    with pytest.raises(Unsupported) as caught:
        queries.free(torch, torch.device("meta"))
    assert str(caught.value) == (
        "cannot tell the memory of device 'meta': its memory is not counted\n"
        "  expected: a device of kind cpu, mps, cuda, xpu, npu, mlu or DirectML"
    )

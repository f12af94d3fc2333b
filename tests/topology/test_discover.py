from __future__ import annotations

import sys
from pathlib import Path

import pytest

from holdfast.base.config import Config
from holdfast.base.errors import BadInput, NotFound
from holdfast.base.registry import Entry, Registry
from holdfast.topology import Topology, discover
from holdfast.topology.probes import PROBES

module = sys.modules["holdfast.topology.discover"]


def broken(config: Config) -> Topology:
    raise RuntimeError("the bus is on fire")


@pytest.fixture
def with_broken_pci(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = {name: PROBES.entry(name) for name in PROBES}
    entries["pci"] = Entry(f"{__name__}:broken")
    monkeypatch.setattr(module, "PROBES", Registry("probe", entries))


@pytest.mark.usefixtures("with_broken_pci")
def test_one_probe_failing_never_breaks_discovery() -> None:
    machine = discover(refresh=True, config=Config.load(probes="linux,pci"))
    assert machine.nodes
    report = machine.probe("pci")
    assert report is not None
    assert (report.status, report.reason) == ("failed", "RuntimeError: the bus is on fire")


def test_probes_that_were_not_asked_are_listed_as_skipped() -> None:
    machine = discover(config=Config.load(probes="linux"))
    assert {p.name: p.status for p in machine.probes} == {"linux": "ok"} | {
        name: "skipped" for name in PROBES if name != "linux"
    }


def test_an_absent_package_is_reported_with_its_extra(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "pyopencl", None)
    monkeypatch.delitem(sys.modules, "holdfast.topology.probes.opencl", raising=False)
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda name: None)
    report = discover(refresh=True, config=Config.load(probes="opencl")).probe("opencl")
    assert report is not None
    assert report.status == "absent"
    assert report.reason == (
        "cannot load probe 'opencl': the package 'pyopencl' is not installed "
        "(try: pip install 'holdfast[opencl]')"
    )


def test_an_unknown_probe_is_refused() -> None:
    with pytest.raises(NotFound) as caught:
        discover(config=Config.load(probes="linux,pcie"))
    assert str(caught.value) == (
        "unknown probe 'pcie'\n"
        "  expected: one of linux, pci, kfd, nvml, opencl, torch, psutil\n"
        "  try: pci"
    )


def test_a_root_that_is_no_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput) as caught:
        discover(config=Config.load(root=tmp_path / "gone"))
    assert str(caught.value) == (
        f"cannot read a machine below '{tmp_path}/gone': there is no such folder\n"
        "  expected: a folder that holds sys/ and proc/"
    )


def test_a_probe_that_hangs_is_given_up() -> None:
    config = Config.load(probes="linux,torch", probe_timeout_s=0.01)
    machine = discover(refresh=True, config=config)
    report = machine.probe("torch")
    assert report is not None
    assert report.status == "failed"
    assert (report.reason or "").startswith("no answer from a child process within 0.01 s")
    assert machine.nodes


def test_psutil_stands_in_where_there_is_no_sysfs() -> None:
    machine = discover(config=Config.load(probes="psutil"))
    [node] = machine.nodes
    assert machine.memory_bytes == node.total_bytes
    assert len(node.cpus) == len(machine.cpus)
    assert machine.system

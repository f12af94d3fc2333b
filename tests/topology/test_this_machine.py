"""What is discovered agrees with /sys, lscpu and psutil on the machine the tests run on."""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from holdfast.base.config import Config
from holdfast.topology import Topology, discover
from tests.needs import needs

linux = pytest.mark.skipif(platform.system() != "Linux", reason="compares with Linux's own files")


@pytest.fixture(scope="module")
def here() -> Topology:
    return discover(config=Config.load(probes="linux,pci,kfd,psutil"))


def test_it_agrees_with_psutil(here: Topology) -> None:
    assert len(here.cpus) == psutil.cpu_count(logical=True)
    assert len(here.cores) == psutil.cpu_count(logical=False)
    assert here.memory_bytes == psutil.virtual_memory().total
    assert here.available_bytes == pytest.approx(psutil.virtual_memory().available, rel=0.5)


@linux
def test_it_agrees_with_sysfs(here: Topology) -> None:
    system = Path("/sys/devices/system")
    online = sorted(int(p.name[4:]) for p in (system / "node").glob("node[0-9]*"))
    assert [node.id for node in here.nodes] == online
    for node in here.nodes:
        folder = system / f"node/node{node.id}"
        assert node.distances == tuple(map(int, (folder / "distance").read_text().split()))
        total = int((folder / "meminfo").read_text().split()[3]) * 1024
        # A virtual machine may be given memory while the tests run.
        assert node.total_bytes == pytest.approx(total, rel=0.5)
    pages = psutil.Process().memory_info()  # proves that procfs is there
    assert pages.rss > 0


@linux
@needs(None if shutil.which("lscpu") else "lscpu is not installed: util-linux")
def test_it_agrees_with_lscpu(here: Topology) -> None:
    done = subprocess.run(["lscpu", "-J"], capture_output=True, check=True, text=True)
    lscpu = {row["field"].rstrip(":"): row["data"] for row in json.loads(done.stdout)["lscpu"]}
    assert here.architecture == lscpu["Architecture"]
    assert here.cpu_model == lscpu["Model name"]
    assert len(here.cpus) == int(lscpu["CPU(s)"])
    assert len(here.packages) == int(lscpu["Socket(s)"])
    assert here.threads_per_core == int(lscpu["Thread(s) per core"])
    assert len(here.nodes) == int(lscpu["NUMA node(s)"])
    done = subprocess.run(["lscpu", "-B", "-J", "-C"], capture_output=True, check=True, text=True)
    for row in json.loads(done.stdout)["caches"]:
        mine = [c for c in here.caches if f"L{c.level}{_SUFFIX[c.kind]}" == row["name"]]
        assert {c.size_bytes for c in mine} == {int(row["one-size"])}
        assert sum(c.size_bytes or 0 for c in mine) == int(row["all-size"])


_SUFFIX = {"data": "d", "instruction": "i", "unified": ""}


@linux
def test_every_display_device_on_the_bus_is_found(here: Topology) -> None:
    bus = Path("/sys/bus/pci/devices")
    paths = bus.iterdir() if bus.is_dir() else ()
    shown = sorted(p.name for p in paths if (p / "class").read_text()[2:4] in ("03", "12"))
    assert sorted(gpu.pci_address or "" for gpu in here.gpus) == shown


def test_discovery_without_extras_starts_no_process_and_waits_for_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def slow(*_: object, **__: object) -> None:
        raise AssertionError("discovery is to be quick")

    monkeypatch.setattr(subprocess, "Popen", slow)
    monkeypatch.setattr(time, "sleep", slow)
    assert discover(refresh=True, config=Config.load(probes="linux,pci,kfd,psutil")).cpus


def test_the_first_answer_is_kept_until_a_refresh(config: Config) -> None:
    config = Config.load(probes="linux")
    first = discover(config=config)
    assert discover(config=config) is first
    assert discover(refresh=True, config=config) is not first

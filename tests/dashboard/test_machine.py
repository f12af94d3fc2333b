"""The whole machine now."""

from __future__ import annotations

import sys
from pathlib import Path

import psutil
import pytest

from holdfast.base.config import Config
from holdfast.base.errors import Absent
from holdfast.dashboard.snapshot import machine
from holdfast.dashboard.snapshot.machine import MachineLooker, link_gb_s
from holdfast.dashboard.snapshot.snapshot import GpuUse, NodeUse
from holdfast.topology import Gpu, Link, Measurement, Topology

KB = 1024


def meminfo(total: int, free: int, files: int, shared: int, slabs: int) -> str:
    lines = {"MemTotal": total, "MemFree": free, "FilePages": files, "Shmem": shared}
    lines["SReclaimable"] = slabs
    return "".join(f"Node 0 {name}:       {size} kB\n" for name, size in lines.items())


def recorded(root: Path) -> Path:
    """A machine below `root`: one node with two CPUs."""
    node = root / "sys/devices/system/node/node0"
    node.mkdir(parents=True)
    (root / "sys/devices/system/cpu").mkdir()
    (node / "cpulist").write_text("0-1\n")
    (node.parent / "online").write_text("0\n")
    (root / "proc/sys/kernel").mkdir(parents=True)
    (root / "proc/sys/kernel/hostname").write_text("recorded\n")
    (root / "proc/meminfo").write_text("MemTotal: 1000 kB\nMemAvailable: 600 kB\n")
    (node / "meminfo").write_text(meminfo(1000, 300, 250, 50, 20))
    return node


@pytest.mark.skipif(sys.platform != "linux", reason="reads /sys")
def test_this_machine_is_as_large_as_psutil_says() -> None:
    found = MachineLooker().look()
    assert 0 < found.ram_total_bytes <= psutil.virtual_memory().total
    assert 0 < found.ram_used_bytes < found.ram_total_bytes
    assert sum(node.cpus for node in found.nodes) == psutil.cpu_count()
    assert all(0 <= node.used_bytes <= node.total_bytes for node in found.nodes)


def test_figures_are_read_anew_and_caches_of_files_do_not_count(tmp_path: Path) -> None:
    node = recorded(tmp_path)
    looker = MachineLooker(Config.load(root=tmp_path, probes="linux,pci"))
    first = looker.look()
    assert first.host == "recorded"
    assert (first.ram_total_bytes, first.ram_used_bytes) == (1000 * KB, 400 * KB)
    # 250 of files, but for the 50 that programs share; 20 that the kernel can drop.
    assert first.nodes == (NodeUse(0, 1000 * KB, (1000 - 300 - 200 - 20) * KB, 2),)
    (node / "meminfo").write_text(meminfo(1000, 100, 0, 0, 0))
    assert looker.look().nodes == (NodeUse(0, 1000 * KB, 900 * KB, 2),)


def test_a_group_of_processes_that_may_take_less_is_the_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(machine, "memory_limit", lambda root: 8 << 20)
    monkeypatch.setattr(machine, "memory_left", lambda: 3 << 20)
    found = MachineLooker().look()
    assert (found.ram_total_bytes, found.ram_used_bytes) == (8 << 20, 5 << 20)


def test_a_simulated_machine_is_shown_as_it_was_described() -> None:
    found = MachineLooker(Config.load(simulate="2x16GB,1x64GB:far")).look()
    assert [node.total_bytes for node in found.nodes] == [16 * 10**9, 16 * 10**9, 64 * 10**9]
    assert all(node.used_bytes == 0 for node in found.nodes)


class Cards:
    """A driver that answers for one card of two."""

    def memory(self, pci_address: str) -> tuple[int, int] | None:
        return (30, 80) if pci_address == "0000:01:00.0" else None

    def busy(self, pci_address: str) -> float | None:
        return 0.25


def looker_with(gpus: tuple[Gpu, ...], cards: Cards | None, root: Path) -> MachineLooker:
    recorded(root)
    looker = MachineLooker(Config.load(root=root, probes="linux"))
    looker.topology = looker.topology.replace(gpus=gpus)
    looker._links = {gpu.id: None for gpu in gpus}
    looker._cards = cards
    return looker


def test_gpus_are_asked_of_their_driver_and_else_read_from_its_files(tmp_path: Path) -> None:
    nvidia = Gpu(id=0, name="H200", pci_address="0000:01:00.0", memory_bytes=81)
    amd = Gpu(id=1, vendor="AMD", pci_address="0000:02:00.0", memory_bytes=100)
    silent = Gpu(id=2, pci_address="0000:03:00.0")
    looker = looker_with((nvidia, amd, silent), Cards(), tmp_path)
    folder = tmp_path / "sys/bus/pci/devices/0000:02:00.0"
    folder.mkdir(parents=True)
    for name, figure in (("mem_info_vram_used", 7), ("mem_info_vram_total", 99)):
        (folder / name).write_text(f"{figure}\n")
    (folder / "gpu_busy_percent").write_text("60\n")
    assert looker.look().gpus == (
        GpuUse(0, "H200", 80, 30, 0.25, None),
        GpuUse(1, "AMD", 99, 7, 0.6, None),
        GpuUse(2, "GPU", None, None, None, None),
    )


def test_without_a_driver_a_card_is_as_full_as_it_was_when_it_was_found(tmp_path: Path) -> None:
    card = Gpu(id=0, vendor="NVIDIA", memory_bytes=100, free_bytes=60)
    assert looker_with((card,), None, tmp_path).look().gpus == (
        GpuUse(0, "NVIDIA", 100, 40, None, None),
    )


def test_a_driver_that_is_not_there_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    looker = MachineLooker()
    looker.topology = looker.topology.replace(gpus=(Gpu(id=0, vendor="NVIDIA"),))

    class NoDriver:
        def __init__(self) -> None:
            raise Absent("no NVIDIA driver answers")

    monkeypatch.setitem(machine.DRIVERS._loaded, "nvml", NoDriver)  # type: ignore[arg-type]
    assert looker._open_cards() is None


def test_a_link_that_was_measured_is_believed_more_than_paper() -> None:
    links = (
        Link(source="node:0", target="gpu:0", kind="pcie", bandwidth_gb_s=63.0),
        Link(source="gpu:0", target="gpu:1", kind="nvlink", bandwidth_gb_s=450.0),
    )
    on_paper = Topology(gpus=(Gpu(id=0), Gpu(id=1)), links=links)
    assert link_gb_s(on_paper, 0) == 63.0
    assert link_gb_s(on_paper, 1) is None
    timed = Measurement(source="node:0", target="gpu:0", mode="pinned", bandwidth_gb_s=55.1)
    assert link_gb_s(on_paper.replace(measurements=(timed,)), 0) == 55.1

"""Run a Python script on a machine with several NUMA nodes, made up by QEMU in software.

Covers: the machine's description, booting it, bringing the script's output back.
Leaves to others: what is on its disk (initramfs), fetching the kernel (tools/guest_kernel.sh), what
scripts look at (the tests).
Promise: run() leaves no QEMU behind, and returns only when the guest itself said how its script
ended. A guest shows where memory and devices are; it says nothing about speed.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tests.guest.initramfs import CACHE

QEMU = "qemu-system-x86_64"

# Of each file in a failure's message. A panic takes some 40, and its cause stands first.
TAIL_LINES = 90


class GuestFailed(RuntimeError):
    """The guest did not get as far as saying how its script ended."""


# --- The machine ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class GuestNode:
    """One NUMA node. Without CPUs it is plain memory, as CXL memory looks."""

    memory_mib: int
    cpus: int = 0


@dataclass(frozen=True)
class Guest:
    """A machine to make up.

    Nodes with CPUs come first. distances[from][to] is what the SLIT says. latency_ns and
    bandwidth_mib_s are [initiator][target] and become the HMAT: one row for each node with CPUs,
    one column for each node. display_on_node puts a PCI display device on that node.
    """

    nodes: tuple[GuestNode, ...]
    distances: tuple[tuple[int, ...], ...]
    latency_ns: tuple[tuple[int, ...], ...]
    bandwidth_mib_s: tuple[tuple[int, ...], ...]
    display_on_node: int | None = None

    def nearest_initiator(self, target: int) -> int:
        """The node whose CPUs reach `target` soonest; for a node with CPUs, itself."""
        return min(range(len(self.latency_ns)), key=lambda node: self.latency_ns[node][target])


# Two sockets, and memory without CPUs that hangs off the first, so is farther from the second.
# Distances are the same both ways. Every node has 512 MiB free once booted; node 0 is larger since
# the kernel and the initramfs are on it.
THREE_NODES = Guest(
    nodes=(GuestNode(1024, cpus=2), GuestNode(768, cpus=2), GuestNode(640)),
    distances=((10, 21, 28), (21, 10, 38), (28, 38, 10)),
    latency_ns=((80, 140, 250), (140, 80, 310)),
    bandwidth_mib_s=((81920, 32768, 16384), (32768, 81920, 8192)),
    display_on_node=1,
)


# --- What has to be installed ---------------------------------------------------------------------


def kernel_image() -> Path:
    """Where the guest's kernel is expected to be."""
    return Path(os.environ.get("GUEST_KERNEL") or CACHE / "vmlinuz")


def missing() -> str | None:
    """Why guests cannot run here and what to install; None when they can."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return f"guests run this machine's Python on x86-64 Linux; this is {platform.platform()}"
    if shutil.which(QEMU) is None:
        return f"no {QEMU}; apt-get install -y --no-install-recommends qemu-system-x86"
    if not kernel_image().is_file():
        return f"no guest kernel at {kernel_image()}; tools/guest_kernel.sh {CACHE}"
    return None


# --- Running it -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class GuestResult:
    """How a script ended: rc as subprocess gives it (-9 is SIGKILL), output of both its streams,
    console what the kernel had to say, elapsed_s from starting QEMU to knowing all this.
    """

    rc: int
    output: str
    console: str
    elapsed_s: float


def run(guest: Guest, initramfs: Path, *, timeout_s: float) -> GuestResult:
    """Boot `guest` and wait for its script; GuestFailed when it does not end within `timeout_s`.

    A script that fails is no failure of the guest: it is a result with another rc than 0.
    """
    if reason := missing():
        raise GuestFailed(reason)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="guest-") as folder:
        told = _Told(*(Path(folder, name) for name in _Told._fields))
        words = command(guest, initramfs, told)
        with told.qemu.open("wb") as log:
            qemu = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            rc, output = _wait(qemu, told, began, timeout_s)
        finally:
            qemu.kill()
            qemu.wait()
        return GuestResult(rc, output, _text(told.console), time.monotonic() - began)


class _Told(NamedTuple):
    """The files that what a guest tells is written to, while it runs.

    A serial port each for kernel and script, so that neither gets between the other's lines.
    """

    qemu: Path
    console: Path
    script: Path


def _wait(
    qemu: subprocess.Popen[bytes], told: _Told, began: float, timeout_s: float
) -> tuple[int, str]:
    """Only the guest's word counts. QEMU's status does not: it is 0 after a panic too."""
    while True:
        gone = qemu.poll() is not None
        ended = _ended(told.script)
        if ended is not None:
            return ended
        if gone:
            raise GuestFailed(_why(f"it went off (QEMU's status {qemu.returncode})", told))
        if time.monotonic() - began > timeout_s:
            raise GuestFailed(_why(f"not done in {timeout_s:g} s", told))
        time.sleep(0.02)


def _ended(script: Path) -> tuple[int, str] | None:
    """(rc, output) once the guest has sent both, and every byte has come."""
    sent = script.read_bytes() if script.exists() else b""
    last = re.search(rb"\nGUEST-RESULT rc=(-?\d+) bytes=(\d+)\n\Z", sent)
    if last is None or last.start() != int(last[2]):
        return None
    return int(last[1]), sent[: last.start()].decode(errors="replace")


def command(guest: Guest, initramfs: Path, told: _Told) -> list[str]:
    """QEMU's command line."""
    cpus = sum(node.cpus for node in guest.nodes)
    sockets = sum(node.cpus > 0 for node in guest.nodes)
    # Emulated even where KVM is offered: under that these guests were seen to hang.
    words = [QEMU, "-machine", "q35,hmat=on", "-accel", "tcg,thread=multi", "-cpu", "max"]
    words += ["-smp", f"{cpus},sockets={sockets},cores={cpus // sockets}"]
    words += ["-m", f"{sum(node.memory_mib for node in guest.nodes)}M"]
    words += [*_numa(guest), *_display(guest.display_on_node)]
    words += ["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"]
    words += ["-serial", f"file:{told.console}", "-serial", f"file:{told.script}"]
    words += ["-kernel", str(kernel_image()), "-initrd", str(initramfs)]
    words += ["-append", KERNEL_COMMAND_LINE]
    return words


# numa_balancing=disable: pages stay where a test put them. clearcpuid=cx16: the kernel's allocator
# does without cmpxchg16b, a weak spot of emulation on several threads; only the kernel is told so,
# since NumPy refuses to load on a CPU that lacks it.
KERNEL_COMMAND_LINE = (
    "console=ttyS0 quiet panic=-1 rdinit=/init mitigations=off nokaslr"
    " numa_balancing=disable clearcpuid=cx16"
)


def _numa(guest: Guest) -> Iterator[str]:
    first = 0
    for number, node in enumerate(guest.nodes):
        cpus = f"cpus={first}-{first + node.cpus - 1}," if node.cpus else ""
        first += node.cpus
        yield from ("-object", f"memory-backend-ram,id=m{number},size={node.memory_mib}M")
        initiator = guest.nearest_initiator(number)
        yield from ("-numa", f"node,nodeid={number},{cpus}memdev=m{number},initiator={initiator}")
    for source, row in enumerate(guest.distances):
        for target, distance in enumerate(row):
            yield from ("-numa", f"dist,src={source},dst={target},val={distance}")
    yield from _hmat("access-latency,latency", guest.latency_ns, "")
    yield from _hmat("access-bandwidth,bandwidth", guest.bandwidth_mib_s, "M")


def _hmat(kind: str, table: tuple[tuple[int, ...], ...], unit: str) -> Iterator[str]:
    for initiator, row in enumerate(table):
        for target, value in enumerate(row):
            pair = f"initiator={initiator},target={target}"
            values = f"hierarchy=memory,data-type={kind}={value}{unit}"
            yield from ("-numa", f"hmat-lb,{pair},{values}")


def _display(node: int | None) -> Iterator[str]:
    """A display device behind a host bridge of its own: what belongs to a node is the bridge."""
    if node is None:
        return
    yield from ("-device", f"pxb-pcie,id=gpuhost,bus=pcie.0,bus_nr=128,numa_node={node}")
    yield from ("-device", "pcie-root-port,id=gpuport,bus=gpuhost,chassis=1")
    yield from ("-device", "bochs-display,bus=gpuport")


def _text(path: Path) -> str:
    return path.read_bytes().decode(errors="replace") if path.exists() else ""


def _why(what: str, told: _Told) -> str:
    """The message of GuestFailed: what happened, and the end of all that was told."""
    parts = [f"the guest did not finish: {what}"]
    for path in told:
        tail = _text(path).replace("\r", "").splitlines()[-TAIL_LINES:]
        parts += [f"  {path.name}:" if tail else f"  {path.name}: nothing"]
        parts += [f"    {line}" for line in tail]
    return "\n".join(parts)

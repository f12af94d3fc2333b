"""The made-up machine is what its description says, and says so when it fails.

Covers: what a guest's kernel shows in /sys, a script's output and end, guests that do not come up.
Leaves to others: what Holdfast makes of such a machine (tests/topology, tests/memory).
Promise: nothing here depends on how fast a guest is; the limits only stop one that hangs.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.guest import machine
from tests.guest.initramfs import build_initramfs
from tests.guest.machine import THREE_NODES, GuestFailed, run
from tests.needs import needs

pytestmark = [pytest.mark.numa, needs(machine.missing())]

# Also long enough for a machine that has other things to do.
BOOT_S = 120

LOOK_AROUND = """
import json
from pathlib import Path

def told(path):
    return path.read_text().strip()

def node(path):
    access = path / "access0" / "initiators"
    return {
        "cpus": told(path / "cpulist"),
        "distances": [int(word) for word in told(path / "distance").split()],
        "memory_kib": int(told(path / "meminfo").split()[3]),
        "free_kib": int(told(path / "meminfo").split()[8]),
        "nearest": sorted(link.name for link in access.glob("node*")),
        "read_latency_ns": int(told(access / "read_latency")),
        "read_bandwidth_mib_s": int(told(access / "read_bandwidth")),
    }

nodes = Path("/sys/devices/system/node")
pci = Path("/sys/bus/pci/devices")
print(json.dumps({
    "online": told(nodes / "online"),
    "nodes": [node(path) for path in sorted(nodes.glob("node[0-9]"))],
    "displays": [
        int(told(device / "numa_node"))
        for device in pci.iterdir() if told(device / "class").startswith("0x03")
    ],
}))
"""

FAIL = """
import sys
import helper
print("to stdout", helper.WORD)
sys.stdout.flush()
raise LookupError("on purpose")
"""


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict:
    initramfs = tmp_path_factory.mktemp("guest") / "initramfs"
    build_initramfs(initramfs, packages=[], script=LOOK_AROUND)
    result = run(THREE_NODES, initramfs, timeout_s=BOOT_S)
    assert result.rc == 0, result.output
    return json.loads(result.output)


@pytest.fixture
def nothing(tmp_path: Path) -> Path:
    initramfs = tmp_path / "initramfs"
    initramfs.write_bytes(bytes(512))
    return initramfs


def test_guest_has_three_nodes_and_the_last_is_memory_alone(seen: dict) -> None:
    assert seen["online"] == "0-2"
    assert [node["cpus"] for node in seen["nodes"]] == ["0-1", "2-3", ""]


def test_guest_has_the_distances_of_its_description(seen: dict) -> None:
    assert tuple(tuple(node["distances"]) for node in seen["nodes"]) == THREE_NODES.distances


def test_guest_has_room_on_every_node_to_move_memory_about(seen: dict) -> None:
    for node, described in zip(seen["nodes"], THREE_NODES.nodes, strict=True):
        assert 0.9 * described.memory_mib < node["memory_kib"] / 1024 <= described.memory_mib
        assert node["free_kib"] >= 512 * 1024


def test_guest_tells_how_far_each_node_is_from_its_nearest_cpus(seen: dict) -> None:
    # The kernel shows a node's HMAT values for the nearest initiators only.
    for number, node in enumerate(seen["nodes"]):
        nearest = THREE_NODES.nearest_initiator(number)
        assert node["nearest"] == [f"node{nearest}"]
        assert node["read_latency_ns"] == THREE_NODES.latency_ns[nearest][number]
        assert node["read_bandwidth_mib_s"] == THREE_NODES.bandwidth_mib_s[nearest][number]


def test_guest_has_one_display_device_and_knows_its_node(seen: dict) -> None:
    assert seen["displays"] == [THREE_NODES.display_on_node]


def test_script_that_raises_gives_its_status_traceback_and_all_it_printed(tmp_path: Path) -> None:
    package = tmp_path / "helper"
    package.mkdir()
    (package / "__init__.py").write_text("WORD = 'ünïcode'\n", encoding="utf-8")
    script = tmp_path / "fail.py"
    script.write_text(FAIL)
    build_initramfs(tmp_path / "initramfs", packages=[package], script=script)
    result = run(THREE_NODES, tmp_path / "initramfs", timeout_s=BOOT_S)
    assert result.rc == 1
    assert result.output == (
        "to stdout ünïcode\n"
        "Traceback (most recent call last):\n"
        '  File "/guest/script.py", line 6, in <module>\n'
        '    raise LookupError("on purpose")\n'
        "LookupError: on purpose\n"
    )


def test_guest_without_a_kernel_fails_with_what_qemu_said(
    tmp_path: Path, nothing: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = tmp_path / "vmlinuz"
    kernel.write_bytes(b"no kernel" * 1000)
    monkeypatch.setenv("GUEST_KERNEL", str(kernel))
    with pytest.raises(GuestFailed, match="it went off") as failed:
        run(THREE_NODES, nothing, timeout_s=BOOT_S)
    assert "  qemu:\n    qemu" in str(failed.value)


def test_guest_that_is_not_done_in_time_is_stopped(nothing: Path) -> None:
    with pytest.raises(GuestFailed) as failed:
        run(THREE_NODES, nothing, timeout_s=0.1)
    assert str(failed.value) == (
        "the guest did not finish: not done in 0.1 s\n"
        "  qemu: nothing\n  console: nothing\n  script: nothing"
    )


def test_missing_names_the_kernel_and_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GUEST_KERNEL", str(tmp_path / "gone"))
    assert machine.missing() == (
        f"no guest kernel at {tmp_path / 'gone'}; tools/guest_kernel.sh {machine.CACHE}"
    )


def test_missing_names_the_package_of_qemu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert machine.missing() == (
        "no qemu-system-x86_64; apt-get install -y --no-install-recommends qemu-system-x86"
    )

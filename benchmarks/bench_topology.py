"""How long it takes to know the machine, and how fast its memory and links are.

Ours beside lscpu, lstopo and nvidia-smi for discovery; beside NumPy and a plain torch loop for
rates. All in one run.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time

import numpy as np
from report import Measured, Row, arguments, median_ms, publish

from holdfast.base.config import Config
from holdfast.topology import Topology, discover, measure

PEERS = {
    "lscpu -J": ["lscpu", "-J"],
    "lstopo --of xml": ["lstopo-no-graphics", "--of", "xml"],
    "nvidia-smi -q -x": ["nvidia-smi", "-q", "-x"],
}
FAST = "linux,pci,kfd"
CALL = f"""
from holdfast.base.config import Config
from holdfast.topology import discover
print(discover(config=Config.load(probes="{FAST}")).to_json())
"""


def discovery(subject: str = "discover, a new process") -> list[Row]:
    """Times from nothing to a description in text."""

    def run(command: list[str]) -> Measured:
        return median_ms(lambda: subprocess.run(command, capture_output=True, check=True))

    rows = [Row(subject, f"holdfast ({FAST})", run([sys.executable, "-c", CALL]), "ms")]
    for name, command in PEERS.items():
        if shutil.which(command[0]):
            rows.append(Row(subject, name, run(command), "ms"))
    config = Config.load(probes=FAST)
    again = median_ms(lambda: discover(refresh=True, config=config))
    rows.append(Row("discover, in the process", f"holdfast ({FAST})", again, "ms"))
    return rows


def host_rates(machine: Topology) -> list[Row]:
    """Rates of the first node with itself, and NumPy's on one thread for comparison."""
    length = 512 * 2**20
    array = np.ones(length // 8)
    numpy_read = length / median_ms(lambda: array.max(), 5) / 1e6
    numpy_write = length / median_ms(lambda: array.fill(1.0), 5) / 1e6
    peers = {"read": ("numpy max", numpy_read), "write": ("numpy fill", numpy_write)}
    rows = []
    for m in machine.measurements:
        if m.mode not in peers or m.bandwidth_gb_s is None:
            continue
        subject = f"{m.mode}, {m.source} to {m.target}"
        rows.append(Row(subject, "holdfast", m.bandwidth_gb_s, "GB/s", m.method))
        if m.source == m.target:
            name, rate = peers[m.mode]
            rows.append(Row(subject, name, rate, "GB/s", "1 thread"))
        if m.latency_ns is not None:
            subject = f"latency, {m.target} on {m.source}"
            rows.append(Row(subject, "holdfast", m.latency_ns, "ns", m.method))
    return rows


def gpu_rates(machine: Topology) -> list[Row]:
    """Host to GPU and back, and a plain torch loop in this process for comparison."""
    rows = []
    for m in machine.measurements:
        if m.mode not in ("pinned", "pageable") or m.bandwidth_gb_s is None:
            continue
        subject = f"{m.mode}, {m.source} to {m.target}"
        rows.append(Row(subject, "holdfast", m.bandwidth_gb_s, "GB/s", m.method))
        place = m.target if m.target.startswith("gpu") else m.source
        device = machine.gpus[int(place.partition(":")[2])].torch
        if device is not None:
            rate = _torch_rate(device, m.mode == "pinned", to_device=m.target == place)
            rows.append(Row(subject, "torch copy_, 1 GiB", rate, "GB/s"))
    return rows


def _torch_rate(device: str, pinned: bool, to_device: bool) -> float:
    import torch

    host = torch.ones(2**30, dtype=torch.uint8, pin_memory=pinned)
    card = torch.ones(2**30, dtype=torch.uint8, device=device)
    target, source = (card, host) if to_device else (host, card)

    def copy() -> None:
        target.copy_(source)
        torch.cuda.synchronize()

    return 2**30 / median_ms(copy, 5) / 1e6


def main() -> None:
    args = arguments("topology", __doc__ or "")
    config = Config.load()
    start = time.perf_counter()
    machine = discover(config=config)
    whole_ms = (time.perf_counter() - start) * 1000
    rows = discovery()
    rows.append(Row("discover, every probe", "holdfast", whole_ms, "ms"))
    machine = measure(machine, refresh=True, config=config)
    rows += [*host_rates(machine), *gpu_rates(machine)]
    more = {"quick": args.quick, "topology": json.loads(machine.to_json())}
    publish("topology", rows, machine, args.out, **more)


if __name__ == "__main__":
    main()

"""Is the simulator of torch's CUDA allocator right? Every trace through both, on a GPU.

Each trace runs in a process of its own through torch.cuda.caching_allocator_alloc and _delete, once
with torch's default settings and once with expandable segments; `reserved_bytes.all.peak` over the
most bytes alive is set beside what the simulator says. Needs torch and a GPU, nothing else:

    PYTHONPATH=src python benchmarks/validate_torch_simulator.py --out results.json
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from holdfast.memory.plan.replay import Requests, replay, requests
from holdfast.memory.plan.simulators import TorchDefault, TorchExpandable
from holdfast.memory.profile.recording import SUFFIX, Recording

TRACES = Path(__file__).parent / "traces"
SETTINGS = {
    "torch default": (TorchDefault, ""),
    "torch expandable": (TorchExpandable, "expandable_segments:True"),
}
# The old name of the variable and the new one; torch reads one or the other.
VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")


def child(path: Path) -> dict[str, Any]:
    """Run one trace through the real allocator of this process."""
    import torch

    if not torch.cuda.is_available():
        raise SystemExit("torch sees no GPU here: this needs a machine with CUDA")
    wanted = requests(Recording.load(path))
    torch.cuda.init()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_stats().get("reserved_bytes.all.current", 0)
    run(wanted, torch.cuda)
    stats = torch.cuda.memory_stats()
    return {
        "torch": torch.__version__,
        "gpu": torch.cuda.get_device_name(),
        "before_bytes": before,
        "peak_reserved_bytes": stats["reserved_bytes.all.peak"],
        "peak_allocated_bytes": stats["allocated_bytes.all.peak"],
        "segments": stats["segment.all.peak"],
        "retries": stats["num_alloc_retries"],  # above 0, it ran out and gave segments back
    }


def run(wanted: Requests, cuda: Any) -> None:
    """All requests of a trace."""
    addresses = [0] * len(wanted.sizes)
    for move in wanted.moves:
        if move >= 0:
            addresses[move] = cuda.caching_allocator_alloc(wanted.sizes[move])
        else:
            cuda.caching_allocator_delete(addresses[~move])


def real(path: Path, setting: str) -> dict[str, Any]:
    """What `child` finds, in a fresh process."""
    environment = {k: v for k, v in os.environ.items() if k not in VARIABLES}
    if setting:
        environment |= dict.fromkeys(VARIABLES, setting)
    command = [sys.executable, __file__, "--child", str(path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{path.name} with {setting or 'default settings'}:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def compared(path: Path, name: str) -> dict[str, Any]:
    """One trace with one setting: the real allocator and the simulator."""
    simulator, setting = SETTINGS[name]
    outcome = replay(Recording.load(path), simulator(), name)
    found = real(path, setting)
    return found | {
        "trace": path.stem,
        "setting": name,
        "max_live_bytes": outcome.max_live_bytes,
        "real_ratio": found["peak_reserved_bytes"] / outcome.max_live_bytes,
        "simulated_ratio": outcome.ratio,
        "simulated_bytes": outcome.peak_reserved_bytes,
        "equal": outcome.peak_reserved_bytes == found["peak_reserved_bytes"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, help="JSON file to write")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(child(options.child)))
        return
    rows = []
    print(f"{'trace':16}{'setting':18}{'real':>8}{'simulated':>11}  same bytes")
    for path in sorted(TRACES.glob(f"*{SUFFIX}")):
        for name in SETTINGS:
            row = compared(path, name)
            rows.append(row)
            ratios = f"{row['real_ratio']:8.4f}{row['simulated_ratio']:11.4f}"
            verdict = "yes" if row["equal"] else "no"
            print(f"{row['trace']:16}{name:18}{ratios}  {verdict}", flush=True)
    if options.out:
        document = {"date": datetime.now(UTC).isoformat(timespec="seconds"), "rows": rows}
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()

"""Measurements kept on disk, one file for each machine.

Promise: a file that cannot be read or belongs to other hardware counts as none; a write is whole
or not at all.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from holdfast.base.codec import decode, encode
from holdfast.base.config import Config
from holdfast.base.errors import BadInput
from holdfast.base.files import write_whole
from holdfast.topology.model import Measurement, Topology


def load(topology: Topology, config: Config) -> tuple[Measurement, ...]:
    """What was measured on this machine before, or nothing."""
    try:
        data = json.loads(_path(topology, config).read_text())
        return tuple(decode(Measurement, item) for item in data)
    except (OSError, ValueError, TypeError, BadInput):
        return ()


def save(topology: Topology, config: Config) -> Path | None:
    """Keep the measurements of `topology`; None where the folder cannot be written."""
    path = _path(topology, config)
    text = json.dumps([encode(m) for m in topology.measurements], indent=1)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, text)
    except OSError:
        return None
    return path


def _path(topology: Topology, config: Config) -> Path:
    """Named by the machine and the parts that were measured, so other hardware is another file."""
    parts = [topology.machine_id, topology.hostname, topology.cpu_model]
    parts += [f"{n.id} {n.cpus}" for n in topology.nodes]  # sizes may grow while a machine runs
    parts += [f"{g.pci_address} {g.pci_id}" for g in topology.gpus]
    name = hashlib.sha256(repr(parts).encode()).hexdigest()[:16]
    return config.cache_dir / "measurements" / f"{name}.json"

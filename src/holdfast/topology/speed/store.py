"""Measurements on disk, one file for each machine. Writes are atomic."""

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
    """Earlier measurements of this machine; none if the file cannot be read."""
    try:
        data = json.loads(_path(topology, config).read_text())
        return tuple(decode(Measurement, item) for item in data)
    except (OSError, ValueError, TypeError, BadInput):
        return ()


def save(topology: Topology, config: Config) -> Path | None:
    """Store the measurements of `topology`; None if the folder cannot be written."""
    path = _path(topology, config)
    text = json.dumps([encode(m) for m in topology.measurements], indent=1)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, text)
    except OSError:
        return None
    return path


def _path(topology: Topology, config: Config) -> Path:
    """Named by a hash of machine and hardware, so that other hardware has another file."""
    parts = [topology.machine_id, topology.hostname, topology.cpu_model]
    parts += [f"{n.id} {n.cpus}" for n in topology.nodes]  # memory may grow while it runs
    parts += [f"{g.pci_address} {g.pci_id}" for g in topology.gpus]
    name = hashlib.sha256(repr(parts).encode()).hexdigest()[:16]
    return config.cache_dir / "measurements" / f"{name}.json"

"""Memory and CPUs where there is no sysfs: macOS, Windows, the BSDs. All in one node."""

from __future__ import annotations

import platform
import uuid

import psutil

from holdfast.base.config import Config
from holdfast.topology.model import Cpu, Node, Topology
from holdfast.topology.probes import hash_id


def probe(config: Config) -> Topology:
    memory = psutil.virtual_memory()
    count = psutil.cpu_count(logical=True) or 1
    cores = psutil.cpu_count(logical=False) or count
    cpus = tuple(Cpu(id=i, core=i * cores // count, node=0) for i in range(count))
    return Topology(
        machine_id=hash_id(str(uuid.getnode())),
        hostname=platform.node() or None,
        system=platform.system() or None,
        kernel=platform.release() or None,
        architecture=platform.machine() or None,
        cpu_model=platform.processor() or None,
        memory_bytes=memory.total,
        available_bytes=memory.available,
        nodes=(
            Node(
                id=0,
                total_bytes=memory.total,
                free_bytes=memory.available,
                cpus=tuple(cpu.id for cpu in cpus),
                distances=(10,),
                memory_kind="dram",
            ),
        ),
        cpus=cpus,
    )

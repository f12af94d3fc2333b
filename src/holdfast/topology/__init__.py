"""The machine: NUMA nodes, CPUs, caches, GPUs of any vendor, and the links between them.

    from holdfast import topology
    machine = topology.discover()
    print(topology.tree(machine))

Modules:

    model           the description of a machine, as frozen dataclasses
    discover        ask all probes and merge their answers
    probes/         sources of facts: sysfs, PCI, NVML, OpenCL, torch; simulated machines
    merge           one machine from the answers of several probes
    measuring       time memory and GPU links (`measure`)
    speed/          the benchmarks behind `measure`, and their stored results
    render/         a machine as a tree or as SVG
    numa            NUMA system calls: bind and move pages, bind threads
    control_groups  memory limits of Linux control groups
    sysfs           read small files of sysfs and procfs
    isolate         call a function in a child process
    amx             CPUs that claim AMX without having it
    native          machine code as a Python function
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from holdfast.topology.discover import discover
from holdfast.topology.model import (
    Cache,
    Cpu,
    Gpu,
    HugePages,
    Link,
    Measurement,
    Node,
    OpenclDevice,
    PcieLink,
    Performance,
    ProbeReport,
    Topology,
    TorchDevice,
    schema,
)
from holdfast.topology.probes.simulated import simulate

if TYPE_CHECKING:
    from holdfast.topology.measuring import measure
    from holdfast.topology.render import svg, tree

# Imported on first use, to keep `discover` fast. No sub-module may have the name of one of these
# functions: importing it would replace the function.
_LATER = {"measure": "measuring", "svg": "render", "tree": "render"}

__all__ = [
    "Cache",
    "Cpu",
    "Gpu",
    "HugePages",
    "Link",
    "Measurement",
    "Node",
    "OpenclDevice",
    "PcieLink",
    "Performance",
    "ProbeReport",
    "Topology",
    "TorchDevice",
    "discover",
    "measure",
    "schema",
    "simulate",
    "svg",
    "tree",
]


def __getattr__(name: str) -> object:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_LATER[name]}"), name)

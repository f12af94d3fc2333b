"""What the machine is: NUMA nodes, CPUs, caches, GPUs of any vendor, and the links between them.

from holdfast import topology
machine = topology.discover()
print(topology.tree(machine))
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

# Knowing the machine should not cost the time to load stop-watches and pictures. No sub-module
# has the name of one of these functions, so importing one cannot take the function's place.
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

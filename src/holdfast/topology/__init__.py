"""What the machine is: NUMA nodes, CPUs, caches, GPUs of any vendor, and the links between them.

from holdfast import topology
machine = topology.discover()
print(topology.tree(machine))
"""

from holdfast.topology.discover import discover
from holdfast.topology.measure import measure
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
from holdfast.topology.render import svg, tree

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

"""Sources of facts about the machine.

A probe is a function from a `Config` to a partial `Topology`: it fills in what it knows and
leaves the rest alone; `discover` merges. A probe that cannot answer raises: `Absent` when there
is nothing to ask, anything else when asking went wrong. Places in its links may be PCI addresses
("pci:0000:01:00.0"), which `discover` turns into GPU numbers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from holdfast.base.config import Config
from holdfast.base.registry import Entry, Registry
from holdfast.topology.model import Topology

Probe = Callable[[Config], Topology]


def hidden_id(text: str) -> str:
    """A hash that tells machines apart without giving the machine's own id away."""
    return hashlib.sha256(f"holdfast {text}".encode()).hexdigest()[:16]


_HERE = __name__

# In order of trust: where two probes know the same fact, the first one is believed.
PROBES: Registry[Probe] = Registry(
    "probe",
    {
        "linux": Entry(f"{_HERE}.linux:probe", "nodes, CPUs and caches from sysfs and procfs"),
        "pci": Entry(f"{_HERE}.pci:probe", "GPUs of any vendor and their links from sysfs"),
        "kfd": Entry(f"{_HERE}.kfd:probe", "memory and xGMI links of AMD GPUs from sysfs"),
        "nvml": Entry(f"{_HERE}.nvml:probe", "NVIDIA memory, affinity and NVLink", "nvml"),
        "opencl": Entry(f"{_HERE}.opencl:probe", "devices of every OpenCL runtime", "opencl"),
        "torch": Entry(f"{_HERE}.torch:probe", "devices PyTorch can use", "torch"),
        "psutil": Entry(f"{_HERE}.psutil:probe", "memory and CPUs where there is no sysfs"),
    },
)

# These read files below Config.root, so they can describe a recorded machine as well.
FROM_FILES = ("linux", "pci", "kfd")

# Nodes and GPUs in milliseconds: nothing that starts a process.
QUICK = (*FROM_FILES, "nvml")

# Vendor drivers run in these: they may crash, hang, or leave a context behind, so each gets a
# process of its own. The value is the package without which there is no point in starting one.
IN_A_CHILD = {"opencl": "pyopencl", "torch": "torch"}

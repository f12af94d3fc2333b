"""Sources of facts about the machine.

A probe is a function from a `Config` to a partial `Topology` with what it knows; `discover` merges
them. It raises `Absent` if the machine has no such bus, driver or runtime, and anything else if it
fails. Endpoints of its links may be PCI addresses ("pci:0000:01:00.0"); `merge` replaces them by
GPU numbers.

    linux           nodes, CPUs and caches from sysfs and procfs
    pci             GPUs of any vendor and their PCIe links from sysfs
    kfd             memory and xGMI links of AMD GPUs from sysfs
    nvml            NVIDIA memory, affinity and NVLink
    opencl          devices of every OpenCL runtime
    torch           devices PyTorch can use
    psutil          memory and CPUs where there is no sysfs
    simulated       made-up machines from a short text
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from holdfast.base.config import Config
from holdfast.base.registry import Entry, Registry
from holdfast.topology.model import Topology

Probe = Callable[[Config], Topology]


def hash_id(text: str) -> str:
    """Hash a machine's id, so that documents do not reveal it."""
    return hashlib.sha256(f"holdfast {text}".encode()).hexdigest()[:16]


_HERE = __name__

# In order of trust: for each fact the first probe wins.
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

# These read only files below Config.root, so they can describe a recorded machine.
FROM_FILES = ("linux", "pci", "kfd")

# These take milliseconds: none starts a process.
QUICK = (*FROM_FILES, "nvml")

# These run vendor drivers, which may crash, hang or leave a context behind, so each runs in a child
# process. The value is the package it needs.
IN_A_CHILD = {"opencl": "pyopencl", "torch": "torch"}

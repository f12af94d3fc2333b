"""What can be measured on this machine: which benchmarks, beside which peers.

Covers: packages, programs, devices; in words a person can act on.
Leaves to others: the table (catalog), the machine (topology), running (running).
Promise: nothing is imported to find out whether it is there.
"""

from __future__ import annotations

import importlib.util
import platform
import shutil
from importlib import metadata
from pathlib import Path

import holdfast
from holdfast.base.errors import Unsupported
from holdfast.dashboard.benching.catalog import Benchmark, Need, Peer
from holdfast.dashboard.benching.document import Absentee, Machine, Version
from holdfast.topology import Topology
from holdfast.topology.render import words

PACKAGES = (
    "numpy", "scipy", "torch", "diffusers", "transformers", "accelerate", "safetensors",
    "pyopencl", "jax", "torchax", "tinygrad", "mmgp", "comfy-aimdo",
)  # fmt: skip


def scripts() -> Path:
    """The folder of the benchmarks: a clone's, else what came with the package.

    Raises Unsupported where there is neither.
    """
    package = Path(holdfast.__file__).parent
    places = (package.parents[1] / "benchmarks", package / "benchmarks")
    for place in places:
        if (place / "report.py").is_file():
            return place
    raise Unsupported(
        "the scripts of the benchmarks are not here",
        expected=f"them in {' or '.join(map(str, places))}",
        hint="a clone of Holdfast, or its package installed anew",
    )


def why_not(benchmark: Benchmark, machine: Topology) -> str | None:
    """Why a benchmark cannot run on this machine; None where it can."""
    for module, get in benchmark.modules.items():
        if not _installed(module):
            return f"{module} is not installed: {get}"
    for need in benchmark.needs:
        if reason := _unmet(need, machine):
            return reason
    return None


def _unmet(need: Need, machine: Topology) -> str | None:
    if need == "cuda" and not has_cuda(machine):
        return "torch sees no CUDA or ROCm device here"
    if need == "opencl" and not machine.opencl:
        return "there is no OpenCL device: a driver, or apt-get install pocl-opencl-icd"
    if need == "comfyui" and not _installed("comfy"):
        return "ComfyUI cannot be imported: PYTHONPATH=FOLDER of a clone of ComfyUI"
    return None


def has_cuda(machine: Topology) -> bool:
    """Whether torch can compute on a card through CUDA (or what it calls so)."""
    return any(device.backend in ("cuda", "rocm") for device in machine.torch)


def arguments(benchmark: Benchmark, machine: Topology) -> tuple[str, ...]:
    """What a script is told besides, on this machine."""
    on_gpu = has_cuda(machine) and bool(machine.opencl) and machine.opencl[0].kind == "gpu"
    return benchmark.on_gpu if on_gpu else ()


def absent(benchmark: Benchmark) -> tuple[Absentee, ...]:
    """Its peers that are not installed, and how to get them."""
    return tuple(Absentee(p.name, p.get) for p in benchmark.peers if not _is_here(p))


def _is_here(peer: Peer) -> bool:
    if peer.module is not None:
        return _installed(peer.module)
    if peer.program is not None:
        return shutil.which(peer.program) is not None
    return any(Path(file).exists() for file in peer.files)


def _installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):  # a package that is half there
        return False


def machine_in_words(machine: Topology) -> Machine:
    """The machine as a report names it."""
    return Machine(
        about=words.machine(machine),
        cpu=machine.cpu_model,
        cpus=len(machine.cpus),
        gpus=tuple(words.gpu_title(gpu) for gpu in machine.gpus),
    )


def versions() -> tuple[Version, ...]:
    """Python and those packages that are installed."""
    found = [Version("python", platform.python_version())]
    for name in PACKAGES:
        try:
            found.append(Version(name, metadata.version(name)))
        except metadata.PackageNotFoundError:
            continue
    return tuple(found)

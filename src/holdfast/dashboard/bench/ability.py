"""Which benchmarks can run on this machine, beside which peers; imports none of them."""

from __future__ import annotations

import importlib.util
import platform
import shutil
from importlib import metadata
from pathlib import Path

import holdfast
from holdfast.base.errors import Unsupported
from holdfast.dashboard.bench.catalog import Benchmark, Need, Peer
from holdfast.dashboard.bench.document import Absentee, Machine, Version
from holdfast.topology import Topology
from holdfast.topology.render import words

PACKAGES = (
    "numpy", "scipy", "torch", "diffusers", "transformers", "accelerate", "safetensors",
    "pyopencl", "jax", "torchax", "tinygrad", "mmgp", "comfy-aimdo",
)  # fmt: skip


def scripts() -> Path:
    """The folder of the benchmark scripts: of a clone, else of the installed package.

    Raises Unsupported if there is neither.
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
    """Why a benchmark cannot run on this machine, or None."""
    for module, get in benchmark.modules.items():
        if not _is_installed(module):
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
    if need == "comfyui" and not _is_installed("comfy"):
        return "ComfyUI cannot be imported: PYTHONPATH=FOLDER of a clone of ComfyUI"
    return None


def has_cuda(machine: Topology) -> bool:
    """Whether torch can use a GPU through CUDA or ROCm."""
    return any(device.backend in ("cuda", "rocm") for device in machine.torch)


def arguments(benchmark: Benchmark, machine: Topology) -> tuple[str, ...]:
    """Extra arguments of a script on this machine."""
    on_gpu = has_cuda(machine) and bool(machine.opencl) and machine.opencl[0].kind == "gpu"
    return benchmark.on_gpu if on_gpu else ()


def missing_peers(benchmark: Benchmark) -> tuple[Absentee, ...]:
    """Peers that are not installed, and how to install them."""
    return tuple(Absentee(p.name, p.get) for p in benchmark.peers if not _is_here(p))


def _is_here(peer: Peer) -> bool:
    if peer.module is not None:
        return _is_installed(peer.module)
    if peer.program is not None:
        return shutil.which(peer.program) is not None
    return any(Path(file).exists() for file in peer.files)


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):  # a broken package
        return False


def describe_machine(machine: Topology) -> Machine:
    """The machine for a report."""
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

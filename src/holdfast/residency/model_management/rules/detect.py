"""Finds the device that computes, and describes it, through torch.

Order: DirectML (if asked for), MPS, CPU (if asked for), XPU, NPU, MLU, CUDA and ROCm, else the CPU.
torch, the system and package imports are arguments, so that tests can run every branch. A package
that is broken counts as missing.
"""

from __future__ import annotations

import importlib
import importlib.util
import platform
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import psutil

from holdfast.base.errors import MissingDependency
from holdfast.base.interrupts import is_interrupt, run_uninterrupted
from holdfast.residency.model_management.rules import queries
from holdfast.residency.model_management.rules.machine import Kind, Machine
from holdfast.residency.model_management.rules.options import Options
from holdfast.topology import control_groups

# What a driver or a missing part of torch may raise.
_NO_ANSWER = (AttributeError, AssertionError, ImportError, OSError, RuntimeError)
# In the order they are tried; torch finds NPU and MLU once their package is imported.
_PLUG_INS: dict[Kind, str | None] = {"xpu": None, "npu": "torch_npu", "mlu": "torch_mlu"}

Load = Callable[[str], Any]
Found = Callable[[str], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """The host, as far as the rules need it."""

    ram_total_bytes: int
    ram_free_bytes: int
    windows: bool = False
    wsl: bool = False
    macos: tuple[int, ...] | None = None


def this_system() -> System:
    """The host of this process. In a container, RAM is the container's limit."""
    memory = psutil.virtual_memory()
    limit, left = control_groups.memory_limit(), control_groups.memory_left()
    return System(
        ram_total_bytes=memory.total if limit is None else min(memory.total, limit),
        ram_free_bytes=memory.available if left is None else min(memory.available, left),
        windows=sys.platform == "win32",
        wsl=sys.platform == "linux" and "microsoft" in platform.release().lower(),
        macos=_numbers(platform.mac_ver()[0]),
    )


def load_package(name: str) -> Any:
    """Import an optional package; None if it is missing or does not import."""
    if not package_found(name):
        return None
    try:
        return run_uninterrupted(lambda: importlib.import_module(name))
    except Exception as exc:  # broken ones raise anything
        if is_interrupt(exc):
            raise
        return None


def package_found(name: str) -> bool:
    """Whether a package is installed, without importing it."""
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def detect(
    torch: Any,
    options: Options | None = None,
    *,
    device: Any = None,
    system: System | None = None,
    load: Load = load_package,
    found: Found = package_found,
) -> Machine:
    """Describe the device that computes, or another of its kind. Raises MissingDependency."""
    options = options or Options()
    system = system or this_system()
    kind, chosen = _choose(torch, options, load)
    return Machine(
        kind=kind,
        torch_version=_two(_numbers(torch.__version__)) or (0, 0),
        rocm_version=(_two(_numbers(torch.version.hip)) or (6, -1)) if kind == "rocm" else None,
        windows=system.windows,
        wsl=system.wsl,
        macos=system.macos,
        **_packages(kind, options, load, found),
        **_describe(torch, kind, chosen if device is None else device, system),
    )


def _choose(torch: Any, options: Options, load: Load) -> tuple[Kind, Any]:
    if options.directml is not None:
        return "directml", _directml(options.directml, load)
    if _answers(lambda: torch.backends.mps.is_available()) and not options.cpu:
        return "mps", torch.device("mps")
    if options.cpu:
        return "cpu", torch.device("cpu")
    for kind, package in _PLUG_INS.items():
        installed = package is None or load(package) is not None
        if installed and _answers(lambda kind=kind: getattr(torch, kind).is_available()):
            return kind, torch.device(kind, getattr(torch, kind).current_device())
    if _answers(lambda: torch.cuda.is_available()):
        return "rocm" if torch.version.hip else "cuda", torch.device(
            "cuda", torch.cuda.current_device()
        )
    return "cpu", torch.device("cpu")


def _directml(number: int, load: Load) -> Any:
    package = load("torch_directml")
    if package is None:
        raise MissingDependency(
            "cannot use --directml: the package 'torch_directml' cannot be imported",
            expected="an installation of torch-directml that works with this torch",
            hint="pip install torch-directml, or leave out --directml",
        )
    return package.device() if number < 0 else package.device(number)


def _answers(question: Callable[[], Any]) -> bool:
    try:
        return bool(question())
    except _NO_ANSWER:
        return False


def _describe(torch: Any, kind: Kind, device: Any, system: System) -> dict[str, Any]:
    host: dict[str, Any] = {
        "device": str(device),
        "ram_total_bytes": system.ram_total_bytes,
        "ram_free_bytes": system.ram_free_bytes,
    }
    if kind in ("cpu", "mps"):
        shared = {"total_bytes": system.ram_total_bytes, "free_bytes": system.ram_free_bytes}
        return host | shared
    host["total_bytes"] = queries.total(torch, device).device
    host["free_bytes"] = queries.free(torch, device).device
    if kind == "directml":
        return host
    api = torch.cuda if kind == "rocm" else getattr(torch, kind)
    return host | _card(api, kind, device)


def _card(api: Any, kind: Kind, device: Any) -> dict[str, Any]:
    found = api.get_device_properties(device)
    major, minor = getattr(found, "major", None), getattr(found, "minor", 0)
    return {
        "name": getattr(found, "name", None),
        "capability": None if major is None or kind in ("xpu", "npu") else (major, minor),
        "arch": getattr(found, "gcnArchName", None) if kind == "rocm" else None,
        "fp16": bool(getattr(found, "has_fp16", False)) if kind == "xpu" else None,
        "bf16": None if kind == "npu" else _answers(lambda: api.is_bf16_supported()),
    }


def _packages(kind: Kind, options: Options, load: Load, found: Found) -> dict[str, Any]:
    """Attention packages; xformers has to be imported to know whether it was built."""
    usable = {name for name in ("sageattention", "flash_attn", "triton") if found(name)}
    version = None
    if kind in ("cuda", "rocm") and not options.disable_xformers:
        package = load("xformers")
        if package is not None and getattr(package, "_has_cpp_library", True):
            usable.add("xformers")
            version = getattr(package, "__version__", None)
    return {"packages": frozenset(usable), "xformers_version": version}


def _numbers(version: Any) -> tuple[int, ...] | None:
    """The leading integers of "2.13.0+cpu"; None if it does not start with one."""
    found: list[int] = []
    for part in str(version or "").split("+")[0].split("."):
        if not part.isdecimal():
            break
        found.append(int(part))
    return tuple(found) or None


def _two(version: tuple[int, ...] | None) -> tuple[int, int] | None:
    return None if version is None or len(version) < 2 else (version[0], version[1])

"""Check what Holdfast can use on this machine, what each extra would add, and what to install.

Exit status: 0 when nothing is broken, 1 when something installed does not work or a name given
with --require cannot be used.

examples:
holdfast doctor                          the whole report
holdfast doctor --json                   for scripts
holdfast doctor --require opencl,torch   status 1 unless both can be used
"""

from __future__ import annotations

import argparse
import importlib.util
import platform
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import holdfast
from holdfast.base.codec import about, encode
from holdfast.base.config import Config, unknown_variables, variable_for
from holdfast.base.errors import BadInput, HoldfastError
from holdfast.cli.parsing import option
from holdfast.cli.tables import as_json, output_console
from holdfast.dashboard.ipc import server, socket_dir
from holdfast.memory import svm
from holdfast.memory.core import native_build
from holdfast.topology import Topology, discover
from holdfast.topology.render import words


@dataclass(frozen=True, slots=True)
class Extra:
    """An extra: what it adds, its packages (distribution: module), the probe that uses it."""

    name: str
    adds: str
    packages: dict[str, str]
    probe: str | None = None


EXTRAS = (
    Extra("compute", "tensors that learn, without torch", {"ml-dtypes": "ml_dtypes"}),
    Extra(
        "torch", "devices PyTorch can use: CUDA, ROCm, XPU, MPS", {"torch": "torch"}, probe="torch"
    ),
    Extra("run", "`holdfast run`: FLUX, SDXL and Wan", {"diffusers": "diffusers"}),
    Extra("video", "MP4 files", {"av": "av"}),
    Extra("ray", "`holdfast batch --ray`, over several machines", {"ray": "ray"}),
    Extra(
        "opencl",
        "`--device opencl`: GPUs of any vendor, without CUDA",
        {"pyopencl": "pyopencl"},
        probe="opencl",
    ),
    Extra("nvml", "NVIDIA memory and NVLink", {"nvidia-ml-py": "pynvml"}, probe="nvml"),
    Extra("plot", "pictures of memory over time", {"matplotlib": "matplotlib"}),
    Extra(
        "xla",
        "`--device xla` and `holdfast port`: TPUs through JAX",
        {"torchax": "torchax", "jax": "jax"},
    ),
    Extra("comfyui", "the nodes in ComfyUI", {"ml-dtypes": "ml_dtypes", "pillow": "PIL"}),
    Extra(
        "dashboard",
        "`holdfast top` in a terminal, `holdfast serve` in a browser",
        {"textual": "textual", "aiohttp": "aiohttp"},
    ),
)
CHECKS = ("machine", "gpu", *(extra.name for extra in EXTRAS))  # names for --require


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the report."""

    name: str = about("what was checked")
    state: str = about(
        "ok, missing (can be installed), idle (installed, no device for it) or broken"
    )
    found: str = about("what was found")
    advice: str | None = about("what to do about it", default=None)


MARKS = {"ok": "[green]✓[/]", "missing": "[yellow]○[/]", "idle": "[dim]–[/]", "broken": "[red]✗[/]"}


OPTIONS = (
    option("--json", "print JSON instead of the report"),
    option(
        "--require CHECKS",
        "checks that must be ok, by name, such as opencl,torch (default: none)",
        "",
    ),
)


def run(args: argparse.Namespace) -> int:
    """Print the report; the status says whether something is broken or a requirement is not met."""
    topology = discover(config=Config.load())
    checks = examine(topology)
    required = [name.strip() for name in args.require.split(",") if name.strip()]
    unmet = _unmet(required, checks)
    healthy = not unmet and all(check.state != "broken" for check in checks)
    if args.json:
        document = {"healthy": healthy, "unmet": unmet, "checks": [encode(c) for c in checks]}
        print(as_json(document))
    else:
        _print(checks, unmet, healthy)
    return 0 if healthy else 1


def examine(topology: Topology) -> list[Check]:
    """Every check, in the order a person wants to read them."""
    return [
        Check("holdfast", "ok", f"{holdfast.__version__} on Python {platform.python_version()}"),
        _machine(topology),
        *_gpu_checks(topology),
        *(_extra(extra, topology) for extra in EXTRAS),
        _memory_core(),
        *_shared_memory(),
        *_processes(),
        *_settings(),
    ]


def _machine(topology: Topology) -> Check:
    linux, other = topology.probe("linux"), topology.probe("psutil")
    found = words.join(
        [
            words.machine(topology),
            words.count(len(topology.nodes), "node"),
            words.count(len(topology.cores), "core"),
            *words.memory_remarks(topology),
        ]
    )
    if topology.nodes:
        return Check("machine", "ok", found)
    reasons = words.join([linux.reason if linux else None, other.reason if other else None], "; ")
    return Check("machine", "broken", f"no memory was found: {reasons}", "report it")


def _gpu_checks(topology: Topology) -> list[Check]:
    gpus = [gpu for gpu in topology.gpus if gpu.kind not in ("display", "virtual")]
    if not gpus:
        return [Check("gpu", "idle", "no GPU on the PCI bus; models run on the CPU")]
    advice = "install a driver, then holdfast[torch] or holdfast[opencl]"
    checks = []
    for gpu in gpus:
        found = words.join([words.gpu_title(gpu), words.gpu_memory(gpu), gpu.torch, gpu.opencl])
        outcome = ("ok", found) if gpu.torch or gpu.opencl else ("missing", found, advice)
        checks.append(Check(f"gpu {gpu.id}", *outcome))
    return checks


def _extra(extra: Extra, topology: Topology) -> Check:
    missing = [
        d for d, module in extra.packages.items() if importlib.util.find_spec(module) is None
    ]
    if missing:
        some = "" if len(missing) == len(extra.packages) else f"{words.join(missing)} is "
        found = f"{some}not installed; would add {extra.adds}"
        return Check(extra.name, "missing", found, f"pip install 'holdfast[{extra.name}]'")
    version = words.join([f"{name} {_version(name)}" for name in extra.packages])
    if extra.probe is None:
        return Check(extra.name, "ok", f"{version}; for {extra.adds}")
    return _check_probe(extra, version, topology)


def _check_probe(extra: Extra, version: str, topology: Topology) -> Check:
    """The check of an installed extra, by the result of its probe."""
    report = topology.probe(extra.probe or "")
    if report is None or report.status == "skipped":
        return Check(extra.name, "idle", f"{version}; not asked")
    if report.status == "absent":
        return Check(extra.name, "idle", f"{version}; {report.reason}")
    if report.status == "failed":
        advice = f"pip install --force-reinstall 'holdfast[{extra.name}]', or repair the driver"
        return Check(extra.name, "broken", f"{version}; {report.reason}", advice)
    devices = _DEVICES[extra.name](topology)
    return Check(extra.name, "ok", words.join([version, devices, report.reason]))


def _memory_core() -> Check:
    """Whether the compiled core of the pools is available, and why not."""
    try:
        native_build.load_core()
    except HoldfastError as exc:
        found = f"the pools run in Python: {exc.what.splitlines()[0]}"
        advice = "apt-get install g++ python3-dev, which makes them ten times as fast"
        return Check("memory core", "missing", found, advice)
    return Check("memory core", "ok", "compiled on this machine")


def _version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "(version unknown)"


_DEVICES: dict[str, Callable[[Topology], str]] = {
    "torch": lambda t: ", ".join(device.id for device in t.torch),
    "opencl": lambda t: ", ".join(f"{d.name} ({d.platform})" for d in t.opencl) or "no device",
    "nvml": lambda t: words.count(sum(gpu.vendor == "NVIDIA" for gpu in t.gpus), "GPU"),
}


def _shared_memory() -> list[Check]:
    """Whether the provider named in the settings works; no check without one."""
    config = Config.load()
    name = config.svm_provider or ("retryix" if config.retryix_library else None)
    if name is None:
        return []
    try:
        svm.provider(name, config=config)
    except HoldfastError as exc:
        return [Check("shared memory", "broken", exc.what, exc.hint or exc.expected)]
    return [Check("shared memory", "ok", f"provider {name}")]


def _processes() -> list[Check]:
    """Why `holdfast top` cannot see processes of Holdfast; no check if it can."""
    config = Config.load()
    if not config.offer:
        found = "HOLDFAST_OFFER is off: holdfast top and serve do not see such processes"
        return [Check("processes", "idle", found)]
    if server.is_offered():
        return []
    opened = socket_dir.open_here(config)
    if opened is not None:
        opened.close()
        return []
    reasons = words.join([_why_not(folder) for folder in socket_dir.folders(config)], "; ")
    advice = f"{variable_for('runtime_dir')} names a folder that is yours alone"
    found = f"holdfast top and serve would see none: {reasons}"
    return [Check("processes", "broken", found, advice)]


def _why_not(folder: Path) -> str:
    try:
        socket_dir.refuse_shared(folder)
    except OSError as exc:
        return f"{folder}: {exc.strerror}"
    except HoldfastError as exc:
        return exc.what
    return f"{folder}: no socket can be made there, or the path is too long"


def _settings() -> list[Check]:
    return [
        Check("settings", "broken", f"the variable {name} is read by nothing", advice)
        for name, meant in unknown_variables().items()
        for advice in [f"did you mean {meant}?" if meant else "unset it"]
    ]


def _unmet(required: list[str], checks: list[Check]) -> list[str]:
    states = {check.name: check.state for check in checks}
    states["gpu"] = "ok" if any(n.startswith("gpu ") for n in states) else states.get("gpu", "idle")
    for name in required:
        if name not in states:
            raise BadInput(
                f"cannot require {name!r}: there is no such check",
                expected=f"some of {', '.join(sorted(states))}",
            )
    return [name for name in required if states[name] != "ok"]


def _print(checks: list[Check], unmet: list[str], healthy: bool) -> None:
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column()
    table.add_column(no_wrap=True, style="bold")
    table.add_column(overflow="fold")
    for check in checks:
        table.add_row(MARKS[check.state], check.name, escape(check.found))
        if check.advice:
            table.add_row("", "", f"[cyan]→ {escape(check.advice)}[/]")
    console = output_console()
    console.print(table)
    if unmet:
        console.print(f"[red]required, and not usable here: {', '.join(unmet)}[/]")
    console.print("All is well." if healthy else "[red]Something needs attention.[/]")

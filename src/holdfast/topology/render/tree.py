"""A machine as a tree for the terminal.

Promise: plain text without colour codes from `tree`; colour only where rich finds a terminal.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from holdfast.topology.model import Gpu, Node, Topology
from holdfast.topology.render import words

if TYPE_CHECKING:
    from rich.tree import Tree

_BAR = 16


def tree(topology: Topology, width: int = 110) -> str:
    """The tree as text."""
    from rich.console import Console

    console = Console(file=io.StringIO(), width=width, color_system=None, legacy_windows=False)
    console.print(rich_tree(topology), highlight=False)
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    return "\n".join(line.rstrip() for line in text.splitlines())


def rich_tree(topology: Topology) -> Tree:
    """The tree as rich draws it."""
    from rich.markup import escape
    from rich.tree import Tree

    top = Tree(f"[bold]{escape(words.machine(topology))}[/]", guide_style="dim")
    for remark in words.memory_remarks(topology):
        top.add(f"[yellow]{escape(remark)}[/]")
    homes = _add_packages(top, topology)
    for node in topology.nodes:
        if node.id not in homes:
            _add_node(top, topology, node)
    for gpu in topology.gpus:
        if topology.node(gpu.numa_node if gpu.numa_node is not None else -1) is None:
            _add_gpu(top, gpu)
    _add_devices(top, topology)
    _add_links(top, topology)
    _add_measurements(top, topology)
    return top


def _add_packages(top: Tree, topology: Topology) -> set[int]:
    """Packages with the nodes whose CPUs are all theirs; returns those nodes."""
    placed: set[int] = set()
    for package, cpus in topology.packages.items():
        mine = {cpu.id for cpu in cpus}
        cores = [core for core in topology.cores if core[0].id in mine]
        kinds = [c[0].kind for c in cores if c[0].kind]
        about = words.join(
            [
                topology.cpu_model,
                words.count(len(cores), "core"),
                f"{kinds.count('performance')} performance + {kinds.count('efficiency')} efficiency"
                if kinds
                else None,
                words.count(len(cpus), "thread") if len(cpus) > len(cores) else None,
            ]
        )
        title = "package" if package is None else f"package {package}"
        branch = top.add(f"[bold cyan]{title}[/]  {about}")
        caches = [cache for cache in topology.caches if set(cache.cpus) <= mine]
        if caches:
            branch.add(f"[dim]caches[/]  {words.caches(caches)}")
        for node in topology.nodes:
            if node.cpus and set(node.cpus) <= mine:
                _add_node(branch, topology, node)
                placed.add(node.id)
    return placed


def _add_node(parent: Tree, topology: Topology, node: Node) -> None:
    used = None
    if node.total_bytes and node.free_bytes is not None:
        used = 1 - node.free_bytes / node.total_bytes
    about = words.join(
        [
            words.node_memory(node),
            f"CPUs {words.ranges(node.cpus)}" if node.cpus else None,
            words.node_hugepages(node),
            words.node_hmat(node),
        ]
    )
    branch = parent.add(f"[bold green]{words.node_title(node)}[/]  {_bar(used)}{about}")
    for gpu in topology.gpus:
        if gpu.numa_node == node.id:
            _add_gpu(branch, gpu)


def _add_gpu(parent: Tree, gpu: Gpu) -> None:
    used = None
    if gpu.memory_bytes and gpu.free_bytes is not None:
        used = 1 - gpu.free_bytes / gpu.memory_bytes
    facts = words.join(
        [
            words.gpu_title(gpu),
            gpu.kind if gpu.kind in ("display", "virtual", "integrated") else None,
            words.gpu_memory(gpu),
            words.pcie(gpu.link) if gpu.memory_node is None else None,
            f"its memory is node {gpu.memory_node}" if gpu.memory_node is not None else None,
            gpu.pci_address,
            words.join([gpu.torch, gpu.opencl], ", "),
        ]
    )
    parent.add(f"[bold magenta]gpu {gpu.id}[/]  {_bar(used)}{facts}")


def _add_devices(top: Tree, topology: Topology) -> None:
    """Devices that are no card of their own: the CPU as OpenCL and torch see it."""
    joined = {gpu.opencl for gpu in topology.gpus} | {gpu.torch for gpu in topology.gpus}
    for device in topology.opencl:
        if device.id not in joined:
            svm = "SVM " + ", ".join(device.svm).replace("_", " ") if device.svm else None
            facts = words.join([device.name, device.platform, svm])
            top.add(f"[bold blue]{device.id}[/]  {facts}")
    for device in topology.torch:
        if device.id not in joined:
            facts = words.join([device.name, device.capability])
            top.add(f"[bold blue]torch {device.id}[/]  {facts}")


def _add_links(top: Tree, topology: Topology) -> None:
    if topology.links:
        branch = top.add("[bold]links[/]")
        for link in topology.links:
            ends = f"{words.place(link.source)} – {words.place(link.target)}"
            branch.add(f"{ends}  [dim]{words.link(link)}[/]")


def _add_measurements(top: Tree, topology: Topology) -> None:
    if topology.measurements:
        days = {m.measured_at.partition("T")[0] for m in topology.measurements}
        branch = top.add(f"[bold]measured[/] [dim]{', '.join(sorted(days))}[/]")
        for m in topology.measurements:
            ends = f"{words.place(m.source)} → {words.place(m.target)}"
            branch.add(f"{ends}  {m.mode}  [bold]{words.measured(m)}[/]  [dim]{m.method}[/]")


def _bar(used: float | None) -> str:
    if used is None:
        return ""
    full = min(round(used * _BAR), _BAR)
    colour = "green" if used < 0.7 else "yellow" if used < 0.9 else "red"
    return f"[{colour}]{'█' * full}[/][dim]{'░' * (_BAR - full)}[/] "

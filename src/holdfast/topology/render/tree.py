"""A machine as a tree for the terminal."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from holdfast.topology.model import Cpu, Gpu, Node, Topology
from holdfast.topology.render import words

if TYPE_CHECKING:
    from rich.text import Text
    from rich.tree import Tree

_BAR = 16


def tree(topology: Topology, width: int = 110) -> str:
    """The tree as plain text without colours."""
    from rich.console import Console

    page = io.StringIO()
    console = Console(file=page, width=width, color_system=None, legacy_windows=False)
    console.print(rich_tree(topology), highlight=False)
    return "\n".join(line.rstrip() for line in page.getvalue().splitlines())


def rich_tree(topology: Topology) -> Tree:
    """The tree for rich, with colours."""
    from rich.tree import Tree

    top = Tree(_label((words.machine(topology), "bold")), guide_style="dim")
    for remark in words.memory_remarks(topology):
        top.add(_label((remark, "yellow")))
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


def _label(*parts: str | tuple[str, str]) -> Text:
    """Text from parts, some with a style; names of hardware are not read as markup."""
    from rich.text import Text

    return Text.assemble(*parts)


def _add_packages(top: Tree, topology: Topology) -> set[int]:
    placed: set[int] = set()
    for package, cpus in topology.packages.items():
        mine = {cpu.id for cpu in cpus}
        title = "package" if package is None else f"package {package}"
        about = _package_facts(topology, cpus)
        branch = top.add(_label((title, "bold cyan"), f"  {about}"))
        caches = [cache for cache in topology.caches if set(cache.cpus) <= mine]
        if caches:
            branch.add(_label(("caches", "dim"), f"  {words.caches(caches)}"))
        for node in topology.nodes:
            if node.cpus and set(node.cpus) <= mine:
                _add_node(branch, topology, node)
                placed.add(node.id)
    return placed


def _package_facts(topology: Topology, cpus: tuple[Cpu, ...]) -> str:
    mine = {cpu.id for cpu in cpus}
    cores = [core for core in topology.cores if core[0].id in mine]
    kinds = [core[0].kind for core in cores if core[0].kind]
    hybrid = f"{kinds.count('performance')} performance + {kinds.count('efficiency')} efficiency"
    return words.phrase(
        topology.cpu_model,
        words.count(len(cores), "core"),
        hybrid if kinds else None,
        words.count(len(cpus), "thread") if len(cpus) > len(cores) else None,
    )


def _add_node(parent: Tree, topology: Topology, node: Node) -> None:
    bar, facts = _bar(node.total_bytes, node.free_bytes), words.node_facts(node)
    branch = parent.add(_label((words.node_title(node), "bold green"), "  ", *bar, facts))
    for gpu in topology.gpus:
        if gpu.numa_node == node.id:
            _add_gpu(branch, gpu)


def _add_gpu(parent: Tree, gpu: Gpu) -> None:
    facts = words.phrase(
        words.gpu_title(gpu),
        gpu.kind if gpu.kind in ("display", "virtual", "integrated") else None,
        words.gpu_memory(gpu),
        words.pcie(gpu.link) if gpu.memory_node is None else None,
        f"its memory is node {gpu.memory_node}" if gpu.memory_node is not None else None,
        gpu.pci_address,
        words.join([gpu.torch, gpu.opencl], ", "),
    )
    bar = _bar(gpu.memory_bytes, gpu.free_bytes)
    parent.add(_label((f"gpu {gpu.id}", "bold magenta"), "  ", *bar, facts))


def _add_devices(top: Tree, topology: Topology) -> None:
    """Add OpenCL and torch devices that are not one of the GPUs, such as the CPU."""
    joined = {gpu.opencl for gpu in topology.gpus} | {gpu.torch for gpu in topology.gpus}
    for device in topology.opencl:
        if device.id not in joined:
            svm = "SVM " + ", ".join(device.svm).replace("_", " ") if device.svm else None
            facts = words.join([device.name, device.platform, svm])
            top.add(_label((device.id, "bold blue"), f"  {facts}"))
    for device in topology.torch:
        if device.id not in joined:
            facts = words.join([device.name, device.capability])
            top.add(_label((f"torch {device.id}", "bold blue"), f"  {facts}"))


def _add_links(top: Tree, topology: Topology) -> None:
    if topology.links:
        branch = top.add(_label(("links", "bold")))
        for link in topology.links:
            ends = f"{words.endpoint(link.source)} – {words.endpoint(link.target)}  "
            branch.add(_label(ends, (words.link(link), "dim")))


def _add_measurements(top: Tree, topology: Topology) -> None:
    if topology.measurements:
        days = sorted({m.measured_at.partition("T")[0] for m in topology.measurements})
        branch = top.add(_label(("measured", "bold"), " ", (", ".join(days), "dim")))
        for m in topology.measurements:
            ends = f"{words.endpoint(m.source)} → {words.endpoint(m.target)}  {m.mode}  "
            branch.add(_label(ends, (words.measurement(m), "bold"), "  ", (m.method, "dim")))


def _bar(total: int | None, free: int | None) -> list[str | tuple[str, str]]:
    used = words.used_fraction(total, free)
    if used is None:
        return []
    full = min(round(used * _BAR), _BAR)
    colour = "green" if used < 0.7 else "yellow" if used < 0.9 else "red"
    return [("█" * full, colour), ("░" * (_BAR - full), "dim"), " "]

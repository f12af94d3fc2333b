"""Simulated machines from a short text.

The text is a list of groups `COUNTxSIZE[:OPTION...]`; each is COUNT nodes with SIZE of memory:

    2x16GB                  two nodes of 16 GB with four CPUs each
    2x16GB,1x64GB:far       the same and a far node of 64 GB without CPUs, like CXL memory
    1x32GB:cpus=8:gpu=24GB  one node with eight CPUs and a GPU of 24 GB
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from holdfast.base.errors import BadInput
from holdfast.base.units import format_bytes, parse_bytes
from holdfast.topology.model import Cache, Cpu, Gpu, Node, PcieLink, ProbeReport, Topology

EXAMPLE = "2x16GB,1x64GB:far"
LOCAL, REMOTE, FAR = 10, 20, 30
MOST_NODES, MOST_CPUS = 256, 4096
_EXPECTED = "groups COUNTxSIZE[:far][:cpus=N][:gpu=SIZE] separated by commas"


@dataclass(frozen=True, slots=True)
class _Group:
    count: int
    memory_bytes: int
    cpus: int
    far: bool
    gpu_bytes: int | None


def simulate(text: str) -> Topology:
    """The machine that `text` describes; raises BadInput with the bad part."""
    groups = [_group(part.strip(), text) for part in text.split(",")]
    nodes, cpus = sum(g.count for g in groups), sum(g.count * g.cpus for g in groups)
    if nodes > MOST_NODES or cpus > MOST_CPUS:
        raise BadInput(
            f"the simulated machine {text!r} is too large",
            expected=f"at most {MOST_NODES} nodes and {MOST_CPUS} CPUs",
        )
    specs = [group for group in groups for _ in range(group.count)]
    return _build(specs).replace(
        simulated=True,
        hostname="simulated",
        system="simulated",
        cpu_model="simulated CPU",
        memory_bytes=sum(spec.memory_bytes for spec in specs),
        available_bytes=sum(spec.memory_bytes for spec in specs),
        probes=(ProbeReport(name="simulated", status="ok", reason=f"made up from {text!r}"),),
    )


def _build(specs: list[_Group]) -> Topology:
    nodes: list[Node] = []
    cpus: list[Cpu] = []
    gpus: list[Gpu] = []
    for number, spec in enumerate(specs):
        mine = tuple(range(len(cpus), len(cpus) + spec.cpus))
        cpus += [Cpu(id=i, core=i, die=0, package=number, node=number) for i in mine]
        nodes.append(
            Node(
                id=number,
                total_bytes=spec.memory_bytes,
                free_bytes=spec.memory_bytes,
                cpus=mine,
                distances=tuple(_distance(specs, number, other) for other in range(len(specs))),
                memory_kind="cxl" if spec.far else "dram",
            )
        )
        if spec.gpu_bytes is not None:
            gpus.append(_gpu(len(gpus), number, spec.gpu_bytes))
    caches = (
        Cache(level=3, kind="unified", size_bytes=32 * 2**20, line_bytes=64, cpus=node.cpus)
        for node in nodes
        if node.cpus
    )
    return Topology(nodes=tuple(nodes), cpus=tuple(cpus), gpus=tuple(gpus), caches=tuple(caches))


def _distance(specs: list[_Group], source: int, target: int) -> int:
    if source == target:
        return LOCAL
    return FAR if specs[source].far or specs[target].far else REMOTE


def _gpu(number: int, node: int, memory_bytes: int) -> Gpu:
    return Gpu(
        id=number,
        pci_address=f"0000:{number + 1:02x}:00.0",
        vendor="simulated",
        name=f"simulated {format_bytes(memory_bytes)} GPU",
        kind="virtual",
        memory_bytes=memory_bytes,
        free_bytes=memory_bytes,
        numa_node=node,
        link=PcieLink(speed_gt_s=16.0, width=16, max_speed_gt_s=16.0, max_width=16),
    )


def _group(part: str, text: str) -> _Group:
    size, *options = part.split(":")
    match = re.fullmatch(r"(?:(\d+)\s*[xX*]\s*)?(\S.*)", size.strip())
    if match is None:
        raise _bad(part, text, "it has no size")
    count = int(match[1] or 1)
    if count < 1:
        raise _bad(part, text, "a group has at least one node")
    far, cpus, gpu_bytes = False, None, None
    for option in options:
        name, _, value = option.strip().partition("=")
        if name == "far" and not value:
            far = True
        elif name == "cpus" and value.isdecimal():
            cpus = int(value)
        elif name == "gpu" and value:
            gpu_bytes = _size(value, part, text)
        else:
            raise _bad(part, text, f"unknown option {option!r}")
    if cpus is None:
        cpus = 0 if far else 4
    return _Group(count, _size(match[2], part, text), cpus, far, gpu_bytes)


def _size(size: str, part: str, text: str) -> int:
    try:
        count = parse_bytes(size)
    except BadInput as exc:
        raise _bad(part, text, f"{size!r} is not a size") from exc
    if count == 0:
        raise _bad(part, text, "a size cannot be zero")
    return count


def _bad(part: str, text: str, why: str) -> BadInput:
    return BadInput(
        f"cannot read {part!r} in the simulated machine {text!r}: {why}",
        expected=_EXPECTED,
        hint=EXAMPLE,
    )

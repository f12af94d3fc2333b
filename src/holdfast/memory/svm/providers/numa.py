"""The `numa` provider: memory of Linux NUMA nodes, by the system calls of `topology.numa`.

Pages are touched when they are allocated, and the kernel is asked where they are. An allocation
that ends up outside of its nodes raises OutOfMemory.
"""

from __future__ import annotations

import errno
import os
from collections import Counter
from dataclasses import replace
from pathlib import Path

from holdfast.base.config import Config
from holdfast.base.errors import OutOfMemory, Unsupported
from holdfast.base.units import format_bytes
from holdfast.memory.core import system_pages
from holdfast.memory.svm.interface import Provider
from holdfast.memory.svm.model import (
    PAGE_BYTES,
    Chunk,
    Domain,
    Layout,
    Mode,
    Placement,
    Where,
    node_domain,
)
from holdfast.memory.svm.providers.host_pages import PagesBacking, host_free, touch
from holdfast.topology import Node, Topology, discover, numa
from holdfast.topology.control_groups import memory_left
from holdfast.topology.probes import QUICK
from holdfast.topology.sysfs import parse_list, read_memory, read_table

METHOD = "move_pages, page by page"
_MODES: dict[Mode, int] = {
    "bind": numa.BIND,
    "interleave": numa.INTERLEAVE,
    "preferred": numa.PREFERRED,
}
SHARED = "shared with another process"
# The kernel's status of a page, as text.
REASONS = {
    errno.EACCES: SHARED,
    errno.EAGAIN: "the kernel did not get to it",
    errno.EBUSY: "in use by the kernel at the moment",
    errno.EFAULT: "no memory is mapped there",
    errno.EIO: "being written to disk",
    errno.EINVAL: "cannot be moved",
    errno.ENOENT: "never touched",
    errno.ENOMEM: "no memory left on the target",
}
_UNTOUCHED = -errno.ENOENT
_LOOKED_UP_AT_ONCE = 256 << 20  # bytes; the pages of a terabyte would not fit into one list


class NumaProvider(Provider):
    """NUMA nodes of this machine."""

    name = "numa"

    def __init__(self, config: Config | None = None) -> None:
        super().__init__(config)
        if self.config.simulate is not None or not numa.is_supported():
            raise Unsupported(
                "NUMA calls need a real Linux machine",
                expected="Linux, and no simulated machine in the settings",
                hint="the provider 'simulated'",
            )
        numa.nodes_of(0, PAGE_BYTES)  # raises in a sandbox, or if the kernel has no NUMA
        self._discovery = replace(self.config, probes=QUICK, svm_provider=None)

    def discover(self, refresh: bool = False) -> Layout:
        """The nodes with memory that this process may use; free memory is read every time."""
        machine = discover(refresh, config=self._discovery)
        alone = len(machine.nodes) == 1
        status = {} if alone else read_table(Path("/proc/self/status"))
        allowed = parse_list(status.get("Mems_allowed_list", ""))  # the cpuset
        nodes = [n for n in machine.nodes if n.total_bytes and (not allowed or n.id in allowed)]
        order = [machine.nodes.index(n) for n in nodes]
        return Layout(
            provider=self.name,
            domains=tuple(_domain(n, machine, order, alone) for n in nodes),
            free_bytes=memory_left(),
            topology=machine,
        )

    def _obtain(self, size: int, placement: Placement) -> NumaBacking:
        return NumaBacking(size)

    def _prepare(self, backing: NumaBacking, size: int, placement: Placement) -> None:
        address, length, mode = backing.address, backing.pages.length, _MODES[placement.mode]
        numa.bind(address, length, placement.domains, mode, move=False)
        if placement.mode != "interleave":  # small pages interleave more evenly
            system_pages.use_huge_pages(address, length)
        touch(address, length)
        if placement.mode != "preferred":
            _verify(backing, placement, size)


class NumaBacking(PagesBacking):
    """Private pages bound to nodes; the kernel moves a page while it is mapped."""

    def where(self) -> Where:
        return where_is(self.address, self.pages.length)

    def move(self, offset: int, length: int, source: int, target: int) -> Chunk:
        """Move the pages of a range that are on `source`."""
        address = self.address + offset
        before = numa.nodes_of(address, length)
        if before.count(source) < len(before):
            return move_range(address, length, source, target)
        numa.bind(address, length, [target], strict=False)  # all of them: twice as fast
        moved = numa.nodes_of(address, length).count(target)
        if moved == len(before):
            return Chunk(moved=moved)
        rest = move_range(address, length, source, target)  # returns the reasons
        return replace(rest, moved=moved + rest.moved, elsewhere=rest.elsewhere - moved)

    def finish_move(self, target: int) -> None:
        """Have pages that are dropped and touched again come from the new node."""
        numa.bind(self.address, self.pages.length, [target], numa.BIND, move=False)


def where_is(address: int, length: int, *, pid: int = 0) -> Where:
    """Look up the nodes of a range of pages, in this process or another."""
    found: Counter[int] = Counter()
    for offset in range(0, length, _LOOKED_UP_AT_ONCE):
        part = min(_LOOKED_UP_AT_ONCE, length - offset)
        found.update(numa.nodes_of(address + offset, part, pid=pid))
    untouched = found.pop(_UNTOUCHED, 0)
    return Where(
        pages={node: count for node, count in sorted(found.items()) if node >= 0},
        untouched=untouched,
        unknown={_reason(code): count for code, count in sorted(found.items()) if code < 0},
        method=METHOD,
        verified=True,
    )


def move_range(address: int, length: int, source: int, target: int, *, pid: int = 0) -> Chunk:
    """Move the pages of a range that are on `source`; the result is checked afterwards."""
    before = numa.nodes_of(address, length, pid=pid)
    wanted = [i for i, node in enumerate(before) if node == source]
    if not wanted:
        return Chunk(elsewhere=len(before))
    codes = numa.move([address + i * PAGE_BYTES for i in wanted], target, pid=pid)
    after = numa.nodes_of(address, length, pid=pid)
    left = Counter(
        _reason(code) if code < 0 else "the kernel left it where it was"
        for i, code in zip(wanted, codes, strict=True)
        if after[i] != target
    )
    return Chunk(
        moved=len(wanted) - left.total(),
        elsewhere=len(before) - len(wanted),
        not_moved=dict(left),
    )


def _reason(code: int) -> str:
    return REASONS.get(-code, os.strerror(-code))


def _domain(node: Node, machine: Topology, order: list[int], alone: bool) -> Domain:
    return node_domain(
        node,
        # With a single node use the figures of the machine: its memory may come on demand.
        total_bytes=machine.memory_bytes if alone else node.total_bytes,
        free_bytes=host_free(machine) if alone else _node_free(node.id),
        distances=tuple(node.distances[i] for i in order if i < len(node.distances)),
    )


def _node_free(node: int) -> int | None:
    """Free memory plus cache that the kernel reclaims at once."""
    memory = read_memory(Path(f"/sys/devices/system/node/node{node}/meminfo"))
    if "MemFree" not in memory:
        return None
    return memory["MemFree"] + memory.get("Inactive(file)", 0)


def _verify(backing: NumaBacking, placement: Placement, size: int) -> None:
    pages = backing.where().pages
    strays = sum(count for node, count in pages.items() if node not in placement.domains)
    if strays:
        raise OutOfMemory(
            f"{strays} of {sum(pages.values())} pages of {format_bytes(size)} are outside "
            f"of node {', '.join(map(str, placement.domains))}",
            expected="free memory on the requested nodes",
        )

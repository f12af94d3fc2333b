"""The `opencl` provider: memory that the host and an OpenCL device share.

    provider = OpenclProvider()                         # a GPU before a CPU, its best tier
    memory = provider.alloc("16MB")
    memory.array("float32")[:] = 1                      # no copy
    with memory.on_device() as argument:                # for the kernel
        kernel(provider.queue, (count,), None, argument)

The tier is chosen by the device's capability bits. The provider checks free memory itself, since
some runtimes hand out more than there is. The contents of fresh memory are undefined; it starts in
the domain "host" unless placed elsewhere.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, cast

from holdfast.base.config import Config
from holdfast.base.errors import Absent, BadInput, OutOfMemory, Unsupported
from holdfast.base.units import format_bytes
from holdfast.memory.resources.opencl_devices import open_by_id
from holdfast.memory.svm.interface import Allocation, Provider
from holdfast.memory.svm.model import PAGE_BYTES, Domain, Layout, Placement
from holdfast.memory.svm.placement import KEPT_BYTES
from holdfast.memory.svm.providers.host_pages import host_free, touch
from holdfast.memory.svm.providers.opencl_tiers import (
    DEVICE,
    HOST,
    TIERS,
    OpenclBacking,
    tiers_of,
)
from holdfast.topology import OpenclDevice, Topology, discover
from holdfast.topology.control_groups import memory_left
from holdfast.topology.probes import QUICK
from holdfast.topology.probes.opencl import probe

_ABOUT_PAGES = (
    "OpenCL does not report where pages are: they count as where they were last sent, by a "
    "mapping, a kernel or a migration"
)


class OpenclProvider(Provider):
    """One OpenCL device and the host."""

    name = "opencl"
    balances = False  # kernels and views move memory themselves

    def __init__(
        self, config: Config | None = None, *, device: str | None = None, tier: str | None = None
    ) -> None:
        """`device` as the topology names it ("opencl:0:0"), `tier` one of `TIERS`.

        Raises Absent if there is no device, BadInput for an unknown one, Unsupported for a tier
        that the device lacks.
        """
        super().__init__(config)
        if self.config.simulate is not None:
            raise Unsupported(
                "OpenCL devices are real, but the settings simulate a machine",
                expected="no simulated machine in the settings",
                hint="the provider 'simulated'",
            )
        self._files = replace(self.config, probes=QUICK)
        self.device = _device(probe(self.config).opencl, device)  # as the topology describes it
        self.tier = _tier(self.device, tier)
        self.runtime = open_by_id(self.device.id)

    @property
    def context(self) -> Any:
        """The context to build kernels for."""
        return self.runtime.context

    @property
    def queue(self) -> Any:
        """A queue for kernels."""
        return self.runtime.queue

    def __repr__(self) -> str:
        return f"<{self.name} provider on {self.device.id}, {self.tier}>"

    def discover(self, refresh: bool = False) -> Layout:
        """The host and the device; free memory of the host is read every time."""
        machine = self._machine(refresh)
        cpus = tuple(sorted({cpu for node in machine.nodes for cpu in node.cpus}))
        host = Domain(
            id=HOST,
            name="host",
            kind="dram",
            total_bytes=machine.memory_bytes,
            free_bytes=host_free(machine),
            cpus=cpus,
        )
        device = Domain(
            id=DEVICE,
            name=self.device.id,
            kind="dram" if self.runtime.is_host else self.device.kind,
            total_bytes=self.device.memory_bytes,
            cpus=cpus if self.runtime.is_host else (),
        )
        return Layout(
            provider=self.name,
            domains=(host, device),
            free_bytes=memory_left(),
            topology=machine,
            remarks=(_about(self.device, self.tier), self._about_free(), _ABOUT_PAGES),
        )

    def _machine(self, refresh: bool = False) -> Topology:
        return discover(refresh, config=self._files)

    def _about_free(self) -> str:
        if self.runtime.is_host:
            return f"{self.device.id} is a CPU: its memory is that of the host, and counted there"
        return f"OpenCL does not report how much memory of {self.device.id} is free"

    def _place(self, layout: Layout, size: int, **wanted: Any) -> Placement:
        """As the base class, except: `near` this device itself means in its memory."""
        near = wanted["near"] if wanted["domain"] is None else None
        address = self._gpu_address(near) if near is not None else None
        if address is None:
            return super()._place(layout, size, **wanted)
        here = address == self.device.pci_address
        placed = {"domain": DEVICE if here else HOST, "near": None}
        placement = super()._place(layout, size, **wanted | placed)
        what = f"is {self.device.id}" if here else f"is not {self.device.id}: the host feeds both"
        return replace(placement, near=near, reason=f"{near} {what}")

    def _gpu_address(self, near: str) -> str | None:
        match = re.fullmatch(r"gpu(?::(\d+))?", str(near))
        number = int(match[1] or 0) if match else None
        return next((g.pci_address for g in self._machine().gpus if g.id == number), None)

    def _obtain(self, size: int, placement: Placement) -> OpenclBacking:
        self._check_room(size)
        if len(placement.domains) > 1 and placement.mode != "preferred":
            raise Unsupported(
                "memory of 'opencl' cannot be spread over the host and a device",
                expected="one domain",
                hint="domain=0 for the host, domain=1 for the device",
            )
        return TIERS[self.tier](self.runtime, self.device, size)

    def _prepare(self, backing: OpenclBacking, size: int, placement: Placement) -> None:
        if backing.on_host_pages or self.runtime.is_host:
            touch(backing.address, backing.length)
        if placement.domains[0] == DEVICE:
            refused = backing.move(0, backing.length, HOST, DEVICE).not_moved
            if refused and placement.mode != "preferred":
                raise Unsupported(
                    f"cannot place {format_bytes(size)} on {self.device.id}: {', '.join(refused)}",
                    expected="a device that memory can be sent to",
                    hint="leave it to the host: domain=0",
                )

    def _check_room(self, size: int) -> None:
        """Raise OutOfMemory before the runtime: PoCL hands out more than the machine has."""
        most, total = self.device.max_allocation_bytes, self.device.memory_bytes
        needed = -(-size // PAGE_BYTES) * PAGE_BYTES + PAGE_BYTES  # as coarse memory takes it
        if most is not None and needed > most:
            raise self._full(size, f"one allocation has at most {format_bytes(most)}")
        held = self.runtime.held_bytes
        if total is not None and needed > total - held:
            raise self._full(size, f"{format_bytes(held)} of its {format_bytes(total)} are in use")
        free = host_free(self._machine())
        if free is not None and needed > free - KEPT_BYTES:
            raise self._full(size, f"the host, which maps it, has {format_bytes(free)} free")

    def _full(self, size: int, why: str) -> OutOfMemory:
        return OutOfMemory(
            f"cannot allocate {format_bytes(size)} on {self.device.id}: {why}",
            expected=f"that much on both sides, with {format_bytes(KEPT_BYTES)} left on the host",
            hint="a smaller size, or freeing something first",
        )

    def _same_memory(self, source: int, target: int) -> bool:
        return self.runtime.is_host and self.tier != "copy"

    def _room_needed(self, pages: int) -> int:
        return 0  # an allocation takes memory on both sides from the beginning

    @contextlib.contextmanager
    def on_device(self, handle: Allocation, queue: Any = None) -> Iterator[Any]:
        """Yields what to pass to a kernel: a `cl.SVM`, or a `cl.Buffer`.

        Enqueue the kernels on `queue` (default: the provider's own); the end of the block waits for
        them. The memory cannot be freed in the block. Raises InUse while another operation is in
        progress, or while the host has views of memory that only one side can use at a time.
        Memory that a kernel reaches only by pointers must be one of its arguments all the same.
        """
        record = self.ledger.record(handle)
        backing = cast("OpenclBacking", record.backing)
        queue = self.queue if queue is None else queue
        if queue.context != self.context:
            raise BadInput(
                "the queue belongs to another context than the memory",
                expected="a queue made for provider.context",
                hint="cl.CommandQueue(provider.context)",
            )
        alone = not backing.moves_under_views
        with (
            self.ledger.operation(record, "used by a device", alone=alone),
            backing.used_by(queue) as argument,
        ):
            yield argument


def _device(devices: Sequence[OpenclDevice], wanted: str | None) -> OpenclDevice:
    """The named device, or the best: CPUs last, then by tier."""
    if not devices:
        raise Absent(
            "no OpenCL runtime has a device on this machine",
            expected="a GPU with its vendor's OpenCL driver, or PoCL for the CPU",
            hint="apt install pocl-opencl-icd",
        )
    if wanted is None:
        order = list(TIERS)
        return min(devices, key=lambda d: (d.kind == "cpu", order.index(tiers_of(d)[0])))
    found = next((d for d in devices if d.id == wanted), None)
    if found is None:
        raise BadInput(
            f"there is no OpenCL device {wanted!r}",
            expected="one of " + ", ".join(f"{d.id} ({d.name})" for d in devices),
        )
    return found


def _tier(device: OpenclDevice, wanted: str | None) -> str:
    offered = tiers_of(device)
    if wanted is None:
        return offered[0]
    if wanted not in TIERS:
        raise BadInput(f"there is no tier {wanted!r}", expected=f"one of {', '.join(TIERS)}")
    if wanted not in offered:
        raise Unsupported(
            f"{device.id} ({device.name}) does not offer {wanted!r}",
            expected=f"one of those it has: {', '.join(offered)}",
        )
    return wanted


def _about(device: OpenclDevice, tier: str) -> str:
    return f"{device.id} is {device.name} ({device.platform}); memory is shared as {tier!r}"

"""The `opencl` provider: memory that the host and an OpenCL device share.

    provider = OpenclProvider()                         # a GPU before a CPU, its best tier
    memory = provider.alloc("16MB")
    memory.array("float32")[:] = 1                      # no copy
    with memory.on_device() as argument:                # what the kernel takes
        kernel(provider.queue, (count,), None, argument)

Covers: which device, which tier, the domains "host" and the device's own, limits, kernels.
Leaves to others: the tiers (opencl_tiers), where memory belongs (placement).
Promise: tiers are chosen by what the device says it can, never by trying; no more is handed out
than the device and the machine have, though the runtime would.

What is in fresh memory is not defined. Unless something else is asked for it is the host's, which
is the one to fill it.
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
from holdfast.memory.svm.allocation import Allocation
from holdfast.memory.svm.interface import Provider
from holdfast.memory.svm.model import PAGE_BYTES, Domain, Layout, Placement
from holdfast.memory.svm.opencl_runtime import start
from holdfast.memory.svm.opencl_tiers import DEVICE, HOST, TIERS, OpenclBacking, tiers_of
from holdfast.memory.svm.pages import host_free, touch
from holdfast.memory.svm.placement import KEPT_BYTES
from holdfast.topology import OpenclDevice, Topology, discover
from holdfast.topology.control_groups import memory_left
from holdfast.topology.probes import QUICK
from holdfast.topology.probes.opencl import probe

_PLACES_ARE_TOLD = (
    "OpenCL does not tell where pages are: they count as where they were last sent, by a mapping, "
    "a kernel or a migration"
)


class OpenclProvider(Provider):
    """One OpenCL device and the host."""

    name = "opencl"
    balances = False  # kernels and views take memory where they need it

    def __init__(
        self, config: Config | None = None, *, device: str | None = None, tier: str | None = None
    ) -> None:
        """`device` as the topology names it ("opencl:0:0"), `tier` one of `TIERS`.

        Raises Absent where there is no device, BadInput for one that is not there, Unsupported for
        a tier that the device lacks.
        """
        super().__init__(config)
        if self.config.simulate is not None:
            raise Unsupported(
                "OpenCL devices are real, and the settings make a machine up",
                expected="no simulated machine in the settings",
                hint="the provider 'simulated'",
            )
        self._files = replace(self.config, probes=QUICK)
        chosen = _device(probe(self.config).opencl, device)
        self.tier = _tier(chosen, tier)
        self.runtime = start(chosen)

    @property
    def device(self) -> OpenclDevice:
        """What the device says of itself."""
        return self.runtime.device

    @property
    def context(self) -> Any:
        """The context that kernels have to be built for."""
        return self.runtime.context

    @property
    def queue(self) -> Any:
        """A queue for kernels."""
        return self.runtime.queue

    def __repr__(self) -> str:
        return f"<{self.name} provider on {self.device.id}, {self.tier}>"

    def discover(self, refresh: bool = False) -> Layout:
        """The host and the device; what is free on the host is read again every time."""
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
            remarks=(_about(self.device, self.tier), self._about_free(), _PLACES_ARE_TOLD),
        )

    def _machine(self, refresh: bool = False) -> Topology:
        return discover(refresh, config=self._files)

    def _about_free(self) -> str:
        if self.runtime.is_host:
            return f"{self.device.id} is a CPU: its memory is the host's, and counted there"
        return f"OpenCL does not tell how much of the memory of {self.device.id} is free"

    # ---- allocations

    def _place(
        self,
        layout: Layout,
        size: int,
        domain: int | Sequence[int] | None,
        near: str | None,
        mode: str | None,
    ) -> Placement:
        """As everywhere; but near the GPU that is this device means in its memory."""
        address = self._gpu_address(near) if domain is None and near is not None else None
        if address is None:
            return super()._place(layout, size, domain, near, mode)
        here = address == self.device.pci_address
        placement = super()._place(layout, size, DEVICE if here else HOST, None, mode)
        what = f"is {self.device.id}" if here else f"is not {self.device.id}: the host feeds both"
        return replace(placement, near=near, reason=f"{near} {what}")

    def _gpu_address(self, near: str) -> str | None:
        match = re.fullmatch(r"gpu(?::(\d+))?", str(near))
        number = int(match[1] or 0) if match else None
        return next((g.pci_address for g in self._machine().gpus if g.id == number), None)

    def _obtain(self, size: int, placement: Placement) -> OpenclBacking:
        self._check_room(size)
        first, *more = placement.domains
        if more and placement.mode != "preferred":
            raise Unsupported(
                "memory of 'opencl' cannot be spread over the host and a device",
                expected="one domain",
                hint="domain=0 for the host, domain=1 for the device",
            )
        backing = TIERS[self.tier](self.runtime, size)
        try:
            if backing.on_host_pages or self.runtime.is_host:
                touch(backing.address, backing.length)
            if first == DEVICE:
                self._send(backing, size, required=placement.mode != "preferred")
        except BaseException:
            backing.close()
            raise
        return backing

    def _check_room(self, size: int) -> None:
        """What the runtime would not refuse: PoCL promises what the machine does not have."""
        most, total = self.device.max_allocation_bytes, self.device.memory_bytes
        needed = -(-size // PAGE_BYTES) * PAGE_BYTES + PAGE_BYTES  # as coarse memory takes it
        if most is not None and needed > most:
            raise self._full(size, f"it gives {format_bytes(most)} at most at a time")
        held = self.runtime.held_bytes
        if total is not None and needed > total - held:
            had = f"{format_bytes(held)} of its {format_bytes(total)} are taken"
            raise self._full(size, had)
        free = host_free(self._machine())
        if free is not None and needed > free - KEPT_BYTES:
            raise self._full(size, f"the host, which looks at it, has {format_bytes(free)} free")

    def _full(self, size: int, why: str) -> OutOfMemory:
        return OutOfMemory(
            f"cannot allocate {format_bytes(size)} on {self.device.id}: {why}",
            expected=f"that much on both sides, with {format_bytes(KEPT_BYTES)} left on the host",
            hint="a smaller size, or freeing something first",
        )

    def _send(self, backing: OpenclBacking, size: int, *, required: bool) -> None:
        refused = backing.move(0, backing.length, HOST, DEVICE).not_moved
        if refused and required:
            raise Unsupported(
                f"cannot place {format_bytes(size)} on {self.device.id}: {', '.join(refused)}",
                expected="a device that memory can be sent to",
                hint="leave it to the host: domain=0",
            )

    def _same_memory(self, source: int, target: int) -> bool:
        return self.runtime.is_host and self.tier != "copy"

    def _room_needed(self, pages: int) -> int:
        return 0  # an allocation has its place on both sides from the beginning

    # ---- kernels

    @contextlib.contextmanager
    def on_device(self, handle: Allocation, queue: Any = None) -> Iterator[Any]:
        """Within the block, what to pass to a kernel: a `cl.SVM`, or a `cl.Buffer`.

        The kernels go to `queue` (the provider's own where none is given) and are over when the
        block is left. Raises InUse where the host looks at memory that only one side can use at a
        time, or where something else is being done to it; it cannot be freed meanwhile. Memory that
        a kernel reaches by pointers alone has to be one of its arguments all the same.
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
            self.ledger.doing(record, "used by a device", alone=alone),
            backing.used_by(queue) as argument,
        ):
            yield argument


# ---- which device


def _device(devices: Sequence[OpenclDevice], wanted: str | None) -> OpenclDevice:
    """The one that is named, or the best: no CPU before the others, then by tier."""
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

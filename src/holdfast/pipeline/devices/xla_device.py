"""XLA as a device of pipelines: TPUs, GPUs and CPUs through JAX, weights split over all of them.

Stages take and return CPU tensors. A scheduler that cannot be compiled runs step by step on the
CPU, with the network on XLA.
"""

from __future__ import annotations

from typing import Any

import jax
import torch

from holdfast.base.errors import Unsupported
from holdfast.base.units import format_bytes
from holdfast.pipeline.devices.denoise_loop import StepDone
from holdfast.pipeline.devices.torch_devices import PRECISIONS, Cpu, Device
from holdfast.topology.amx import disable_broken_amx
from holdfast.xla.cluster.mesh import make_mesh
from holdfast.xla.denoising import Denoising
from holdfast.xla.errors import explain, translate_errors
from holdfast.xla.port import PORTS, Port
from holdfast.xla.stages import OnXla, StepCallback, sample


class Xla(Device):
    """All JAX devices; "xla:2" is one of them."""

    kind = "cpu"  # where inputs and outputs are, for torch
    preparation = "compiling, if new"  # minutes, for a large model

    def __init__(self, index: int | None = None) -> None:
        super().__init__(None)
        self.index = index
        self._mesh: Any = None
        disable_broken_amx()

    @property
    def name(self) -> str:
        return "xla" if self.index is None else f"xla:{self.index}"

    @property
    def mesh(self) -> Any:
        """Made on first use, which starts JAX's backend."""
        if self._mesh is None:
            with translate_errors("starting XLA"):
                devices = None if self.index is None else [jax.devices()[self.index]]
                self._mesh = make_mesh(devices)
        return self._mesh

    def unusable(self) -> str | None:
        try:
            count = len(jax.devices())
        except RuntimeError as exc:
            return str(explain(exc, "starting XLA") or exc).partition("\n")[0]
        if self.index is not None and self.index >= count:
            return f"jax sees {count} of its kind, numbered from 0"
        return None

    @property
    def _devices(self) -> list[Any]:
        return list(self.mesh.local_devices)

    @property
    def _host(self) -> Cpu | None:
        """Counts the memory where XLA computes on the CPU."""
        return Cpu() if self._devices[0].platform == "cpu" else None

    def free_bytes(self) -> int | None:
        """Free memory of all devices, where JAX reports it."""
        if self._host is not None:
            return self._host.free_bytes()
        limit, used = self._total("bytes_limit"), self._total("bytes_in_use")
        return None if limit is None or used is None else limit - used

    def precision(self, wanted: str) -> torch.dtype:
        """For "auto": bf16 on accelerators; fp32 on the CPU, as fast there and closer to torch."""
        usual = "bf16" if self._host is None else "fp32"
        return PRECISIONS[usual if wanted == "auto" else wanted]

    def limit(self, budget_bytes: int | None) -> None:
        """Raise Unsupported: JAX takes its memory when it starts."""
        if budget_bytes is not None:
            raise Unsupported(
                f"cannot keep a run on XLA under {format_bytes(budget_bytes)}: weights stay on "
                "the devices",
                expected="no budget",
                hint="more devices, or XLA_PYTHON_CLIENT_MEM_FRACTION for a share of a GPU",
            )

    def place(self, module: torch.nn.Module) -> Any:
        """Shard the weights one by one; each host copy is freed."""
        port = find_port(module)
        return OnXla(port.place(module, mesh=self.mesh, free=True), port.output)

    def denoise(
        self, network: Any, work: Denoising, generator: torch.Generator, step_done: StepDone
    ) -> torch.Tensor:
        """Each step is one compiled program, where the scheduler can be compiled."""
        listener = StepCallback(step_done)
        try:
            return sample(network, work, listener)
        except Unsupported:
            if listener.done:
                raise
            return super().denoise(network, work, generator, step_done)

    def used_bytes(self) -> int | None:
        return self._total("bytes_in_use") if self._host is None else self._host.used_bytes()

    def reset_peak(self) -> None:
        """Only where XLA computes on the CPU."""
        if self._host is not None:
            self._host.reset_peak()

    def peak_bytes(self) -> int | None:
        """Peak of all devices since JAX started."""
        return self._total("peak_bytes_in_use") if self._host is None else self._host.peak_bytes()

    def _total(self, key: str) -> int | None:
        """A memory statistic summed over all devices; None if one does not report it."""
        stats = [device.memory_stats() or {} for device in self._devices]
        return sum(one[key] for one in stats) if all(key in one for one in stats) else None


def find_port(module: torch.nn.Module) -> Port:
    """The port for the class of `module`, or that of a submodule port, or an empty one.

    The port registered last wins, so that a user's replaces ours.
    """
    name = f"{type(module).__module__.partition('.')[0]}:{type(module).__name__}"
    ports = [PORTS[one] for one in reversed(list(PORTS))]
    known = [*ports, *(part for port in ports for part in port.parts.values())]
    return next((p for p in known if p.network == name), Port(name=name, network=name))

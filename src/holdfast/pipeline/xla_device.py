"""XLA as a device of pipelines: TPUs, GPUs and CPUs through JAX, weights split over all of them.

Covers: which devices, formats, memory; the denoise stage with its own loop.
Leaves to others: everything about XLA (holdfast.xla).
Promise: stages get and give tensors of the CPU. A scheduler that cannot be compiled runs step by
step on the CPU, with the network on XLA.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import torch

from holdfast.base.errors import Unsupported
from holdfast.base.units import format_bytes
from holdfast.pipeline.settings import Settings
from holdfast.pipeline.stages import DenoiseStage
from holdfast.pipeline.torch_devices import PRECISIONS, Cpu, TorchDevice
from holdfast.residency.files.holding import trim
from holdfast.topology.amx import keep_from_crashing
from holdfast.xla.errors import explained, translated
from holdfast.xla.mesh import make_mesh
from holdfast.xla.port import PORTS, Port
from holdfast.xla.stages import Denoising, OnXla, Told, per_token, sample

_MOMENTS = {"per token": per_token}


class Xla(TorchDevice):
    """All devices that JAX has; "xla:2" is one of them."""

    kind = "cpu"  # where its inputs and answers are, for torch
    preparation = "compiling, if new"  # minutes, for a large model

    def __init__(self, index: int | None = None) -> None:
        super().__init__(None)
        self.index = index
        self._mesh: Any = None
        keep_from_crashing()

    @property
    def name(self) -> str:
        """As the user writes it."""
        return "xla" if self.index is None else f"xla:{self.index}"

    @property
    def mesh(self) -> Any:
        """Made when it is first needed: JAX starts its back end then."""
        if self._mesh is None:
            with translated("starting XLA"):
                devices = None if self.index is None else [jax.devices()[self.index]]
                self._mesh = make_mesh(devices)
        return self._mesh

    def unusable(self) -> str | None:
        """No such device, or another process has it."""
        try:
            count = len(jax.devices())
        except RuntimeError as exc:
            return str(explained(exc, "starting XLA") or exc).partition("\n")[0]
        if self.index is not None and self.index >= count:
            return f"jax sees {count} of its kind, numbered from 0"
        return None

    @property
    def _devices(self) -> list[Any]:
        return list(self.mesh.local_devices)

    @property
    def _host(self) -> Cpu | None:
        """Who counts the memory where XLA computes on the CPU."""
        return Cpu() if self._devices[0].platform == "cpu" else None

    def free_bytes(self) -> int | None:
        """What all devices could give, where they tell."""
        if self._host is not None:
            return self._host.free_bytes()
        limit, used = self._told("bytes_limit"), self._told("bytes_in_use")
        return None if limit is None or used is None else limit - used

    def precision(self, wanted: str) -> torch.dtype:
        """bf16 on what has units for it; the CPU is as fast in fp32, and nearer to torch."""
        usual = "bf16" if self._host is None else "fp32"
        return PRECISIONS[usual if wanted == "auto" else wanted]

    def limit(self, budget_bytes: int | None) -> None:
        """JAX takes its memory when it starts."""
        if budget_bytes is not None:
            raise Unsupported(
                f"cannot keep a run on XLA under {format_bytes(budget_bytes)}: weights stay on "
                "the devices",
                expected="no budget",
                hint="more devices, or XLA_PYTHON_CLIENT_MEM_FRACTION for a share of a GPU",
            )

    def place(self, module: torch.nn.Module) -> Any:
        """Its weights go into shards one after the other, and leave the host."""
        port = port_of(module)
        return OnXla(port.place(module, mesh=self.mesh, free=True), port.output)

    def sampled(self, denoise: Any) -> DenoiseStage:
        """The stage with the loop compiled."""
        return Sampled(denoise)

    def synchronize(self) -> None:
        """Answers are on the CPU already."""

    def used_bytes(self) -> int | None:
        """In use on all devices."""
        return self._told("bytes_in_use") if self._host is None else self._host.used_bytes()

    def reset_peak(self) -> None:
        """XLA cannot; the host may."""
        if self._host is not None:
            self._host.reset_peak()

    def peak_bytes(self) -> int | None:
        """The most that was in use on all devices since JAX started."""
        return self._told("peak_bytes_in_use") if self._host is None else self._host.peak_bytes()

    def _told(self, word: str) -> int | None:
        told = [device.memory_stats() or {} for device in self._devices]
        return sum(one[word] for one in told) if all(word in one for one in told) else None

    def tidy(self) -> None:
        """Have the C library give back what is free."""
        trim()


class Sampled:
    """A family's denoise stage whose steps are one compiled program each."""

    def __init__(self, denoise: Any) -> None:
        self._denoise = denoise

    @property
    def network(self) -> Any:
        """The one that is called first."""
        return self._denoise.network

    def noise(self, settings: Settings, generator: torch.Generator) -> torch.Tensor:
        """The same as on every device."""
        return self._denoise.noise(settings, generator)

    def __call__(
        self,
        conditioning: Mapping[str, torch.Tensor],
        latents: torch.Tensor,
        settings: Settings,
        generator: torch.Generator,
        step_done: Callable[[int], None],
    ) -> torch.Tensor:
        """Latents without noise."""
        work = self._denoise.work(conditioning, latents, settings)
        if "moment" in work:
            work["moment"] = _MOMENTS[work["moment"]]
        heard = _Heard(step_done)
        try:
            return sample(self.network, Denoising(**work), heard)
        except Unsupported:
            if heard.begun:
                raise
            return self._denoise(conditioning, latents, settings, generator, step_done)


class _Heard(Told):
    """Knows whether a step is over."""

    def __init__(self, step_done: Callable[[int], None]) -> None:
        super().__init__(step_done, lambda latents: latents)
        self.begun = False

    def __call__(self, done: int) -> None:
        self.begun = True
        super().__call__(done)


def port_of(module: torch.nn.Module) -> Port:
    """What is known about a class: its port, or that of a part, or one with nothing to say.

    Of several, the one that was registered last: a user's goes before ours.
    """
    name = f"{type(module).__module__.partition('.')[0]}:{type(module).__name__}"
    ports = [PORTS[one] for one in reversed(list(PORTS))]
    known = [*ports, *(part for port in ports for part in port.parts.values())]
    return next((p for p in known if p.network == name), Port(name=name, network=name))

"""comfy-aimdo: weights in a virtual range of the device, filled on demand.

No package index has a ComfyUI that uses it, so the protocol of its own documentation is followed
here: fault, copy when the signature changed, use, unpin; a temporary copy where a fault is refused.
Copies go to two streams in turn from pinned memory, as ComfyUI's offload streams do.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from residency.shapes import Shape
from residency.system import Room, System

ALIGN_BYTES = 512
STREAMS = 2
control: Any = importlib.import_module("comfy_aimdo.control")


@dataclass
class Leaf:
    """The weights of one module: pinned bytes in RAM and a place in the virtual range."""

    names: list[str]
    shapes: list[torch.Size]
    dtype: torch.dtype
    source: torch.Tensor
    place: Any
    absent: list[nn.Parameter]
    signature: Any = None
    faulted: bool = False
    stream: Any = None

    def put(self, module: nn.Module, values: torch.Tensor) -> None:
        """Let the module's parameters be views of `values`."""
        start = 0
        flat = values.view(self.dtype)
        for name, shape in zip(self.names, self.shapes, strict=True):
            view = flat[start : start + shape.numel()].view(shape)
            module._parameters[name] = nn.Parameter(view, requires_grad=False)
            start += shape.numel()

    def take(self, module: nn.Module) -> None:
        """Let the module have no values."""
        for name, parameter in zip(self.names, self.absent, strict=True):
            module._parameters[name] = parameter


class Aimdo(System):
    """All leaves in one virtual range, in the order of the module, up to the weights' budget."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        self._range: Any = None
        self._pinned: Any = None
        self._handles: list[Any] = []
        self._streams: list[Any] = []
        self._turn = 0

    def apply(self, module: nn.Module, room: Room) -> None:
        super().apply(module, room)
        if room.device.type != "cuda":
            raise RuntimeError("comfy-aimdo needs a CUDA device")
        index = room.device.index or 0
        if not control.devctxs and not (control.init("cuda") and control.init_device(index)):
            raise RuntimeError("comfy-aimdo could not be initialised")
        # Not before: it binds the library that init() loaded.
        self._vbar: Any = importlib.import_module("comfy_aimdo.model_vbar")
        self._to_tensor: Any = importlib.import_module("comfy_aimdo.torch").aimdo_to_tensor
        self._device = room.device
        leaves = [m for m in module.modules() if list(m.parameters(recurse=False))]
        total = sum(_size(leaf) + ALIGN_BYTES for leaf in leaves)
        self._range = self._vbar.ModelVBAR(total, index)
        self._range.set_watermark_limit(room.weights_bytes)
        self._streams = [torch.cuda.Stream(room.device) for _ in range(STREAMS)]
        pinned = torch.empty(total, dtype=torch.uint8)
        if int(_runtime().cudaHostRegister(pinned.data_ptr(), total, 1)) != 0:
            raise RuntimeError("cannot pin the weights")
        self._pinned = pinned
        for part in leaves:
            self._hook(part)
        for part in module.modules():
            for name, buffer in part.named_buffers(recurse=False):
                setattr(part, name, buffer.to(room.device))
        self._range.prioritize()

    def _hook(self, module: nn.Module) -> None:
        """Pin the weights of one leaf and have them fetched before it runs."""
        found = list(module.named_parameters(recurse=False))
        flat = torch.cat([p.data.reshape(-1) for _, p in found]).view(torch.uint8)
        place = self._range.alloc(flat.numel())
        start = self._range.offset - flat.numel()
        source = self._pinned[start : start + flat.numel()].copy_(flat)
        leaf = Leaf(
            names=[name for name, _ in found],
            shapes=[p.shape for _, p in found],
            dtype=found[0][1].dtype,
            source=source,
            place=place,
            absent=[nn.Parameter(p.data.to("meta"), requires_grad=False) for _, p in found],
        )
        leaf.take(module)
        if list(module.children()):  # its own weights are used between the calls of its parts
            leaf.put(module, leaf.source.to(self._device))
            return
        self._handles.append(
            module.register_forward_pre_hook(lambda part, _: self._fetch(part, leaf))
        )
        self._handles.append(
            module.register_forward_hook(lambda part, _, __: self._let_go(part, leaf))
        )

    def _fetch(self, module: nn.Module, leaf: Leaf) -> None:
        signature = self._vbar.vbar_fault(leaf.place)
        leaf.faulted = signature is not None
        if leaf.faulted and self._vbar.vbar_signature_compare(signature, leaf.signature):
            leaf.put(module, self._view(leaf))
            return
        current = torch.cuda.current_stream(self._device)
        stream = self._streams[self._turn]
        self._turn = (self._turn + 1) % STREAMS
        with torch.cuda.stream(stream):
            if leaf.faulted:
                values = self._view(leaf)
            else:
                values = torch.empty_like(leaf.source, device=self._device)
            values.copy_(leaf.source, non_blocking=True)
        current.wait_stream(stream)
        leaf.signature, leaf.stream = signature, stream
        leaf.put(module, values)

    def _view(self, leaf: Leaf) -> torch.Tensor:
        return self._to_tensor(leaf.place, self._device)

    def _let_go(self, module: nn.Module, leaf: Leaf) -> None:
        if leaf.stream is not None:  # the next copy there may take the memory of this one
            leaf.stream.wait_stream(torch.cuda.current_stream(self._device))
        leaf.stream = None
        leaf.take(module)
        if leaf.faulted:
            self._vbar.vbar_unpin(leaf.place)

    def figures(self) -> dict[str, float]:
        return {"kept_bytes": self._range.loaded_size()}

    def undo(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []
        if self.module is not None and self._range is not None:
            torch.cuda.synchronize(self._device)
            self._range.close()
        if self._pinned is not None:
            _runtime().cudaHostUnregister(self._pinned.data_ptr())
        self._range = self._pinned = None
        super().undo()


def _runtime() -> Any:
    """CUDA's own calls."""
    return torch.cuda.cudart()


def _size(module: nn.Module) -> int:
    return sum(p.numel() * p.element_size() for p in module.parameters(recurse=False))

"""A made-up card for loading: torch's meta device, with a size and a count of what is on it.

What is on it is counted from the tensors themselves, so a model that says it is elsewhere and is
not shows. Meta tensors have no content: patchers keep the host's (`keep_host`), and values are
compared after unloading, or with the CPU as the card.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator

import torch
from torch import nn

from holdfast.residency.model_management.models.loaded import Manager
from holdfast.residency.model_management.models.patcher import Patcher
from holdfast.residency.model_management.rules import current
from holdfast.residency.model_management.rules.machine import Kind, Machine
from holdfast.residency.model_management.rules.options import Options

MIB, GIB = 2**20, 2**30
META, CPU = torch.device("meta"), torch.device("cpu")


class Card:
    """Device memory of `total_bytes`; what is in use is what its models have on it."""

    def __init__(self, total_bytes: int) -> None:
        self.total_bytes = total_bytes
        self.cached_bytes = 0
        self.emptied = 0
        self._models: list[weakref.ref[nn.Module]] = []

    def add(self, model: nn.Module) -> None:
        """Count what this model has on the card."""
        self._models.append(weakref.ref(model))

    @property
    def used_bytes(self) -> int:
        """Bytes of tensors on the card."""
        living = [model for model in (ref() for ref in self._models) if model is not None]
        return sum(on_card(model) for model in living)

    def free(self, device: torch.device) -> int:
        return self.total_bytes - self.used_bytes

    def cached(self, device: torch.device) -> int:
        return self.cached_bytes

    def empty(self) -> None:
        self.cached_bytes = 0
        self.emptied += 1


def on_card(model: nn.Module) -> int:
    """Bytes of a model's tensors that are on the card."""
    tensors = {id(t): t for t in (*model.parameters(), *model.buffers())}
    return sum(t.numel() * t.element_size() for t in tensors.values() if t.device == META)


class Desk:
    """A card, a list of models loaded on it, and models to load."""

    def __init__(self, total_bytes: int) -> None:
        self.card = Card(total_bytes)
        self.manager = Manager(self.card)

    def model(self, layers: int, layer_mib: float = 1.0) -> Patcher:
        """A patcher of a new model of that many equal layers."""
        model = made(layers, layer_mib)
        self.card.add(model)
        return Patcher(model, META, CPU, keep_host=True)

    def names(self) -> list[int]:
        """The listed models by their sizes in MiB."""
        return [entry.model_memory() // MIB for entry in self.manager.models]


def made(layers: int, layer_mib: float = 1.0) -> nn.Sequential:
    """That many layers in a row; 1 MiB is 512 × 512 numbers."""
    width = 512
    rows = int(layer_mib * MIB) // 4 // width
    with torch.device("meta"):
        layers_ = [nn.Linear(width, rows, bias=False) for _ in range(layers)]
    for layer in layers_:
        numbers = torch.zeros(rows, width)  # large ones cost nothing until somebody writes
        layer.weight = nn.Parameter(numbers if layer_mib > 2 else numbers.uniform_())
    return nn.Sequential(*layers_)


@contextlib.contextmanager
def desk(total_mib: float, options: Options | None = None, kind: Kind = "cuda") -> Iterator[Desk]:
    """A machine whose card has `total_mib`, while in the block."""
    total_bytes = int(total_mib * MIB)
    machine = Machine(
        kind=kind,
        device="meta",
        total_bytes=total_bytes,
        ram_total_bytes=32 * GIB,
    )
    with current.running_as(machine, options or Options()):
        yield Desk(total_bytes)

"""The cells of the table: which system runs which model with how much room, and in which order.

Covers: the names of the systems, the order, the physical limit of a cell.
Leaves to others: running a cell (running.py), writing it down (record.py).
Promise: everything here only reads its arguments.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from residency.shapes import Shape
from residency.system import Compiled, Ours, OursPacked, Resident, System

RESIDENT = "resident"
OURS = ("ours-packed", "ours")


@dataclass(frozen=True)
class Entry:
    """How a system is made; `stage` orders the cells, `budgeted` systems get every budget."""

    stage: int
    make: Callable[[Shape], System]
    budgeted: bool = False


def _late(module: str, name: str, options: str = "") -> Callable[[Shape], System]:
    """A system of a file that is imported when it is needed: its package may be missing."""

    def make(shape: Shape) -> System:
        file: Any = importlib.import_module(f"residency.{module}")
        return getattr(file, name)(shape, **(getattr(file, options) if options else {}))

    return make


def _group(options: str, **more: bool) -> Callable[[Shape], System]:
    def make(shape: Shape) -> System:
        file: Any = importlib.import_module("residency.peer_diffusers")
        return file.GroupOffload(shape, **getattr(file, options), **more)

    return make


SYSTEMS: dict[str, Entry] = {
    RESIDENT: Entry(0, Resident),
    "ours": Entry(1, Ours, budgeted=True),
    "ours-packed": Entry(1, OursPacked, budgeted=True),
    "group-leaf": Entry(2, _group("LEAF")),
    "comfyui": Entry(3, _late("peer_comfyui", "ComfyUI"), budgeted=True),
    "mmgp": Entry(4, _late("peer_mmgp", "Mmgp"), budgeted=True),
    "group-leaf-record": Entry(5, _group("LEAF", record_stream=True)),
    "group-block": Entry(6, _group("BLOCK")),
    "accelerate": Entry(7, _late("peer_diffusers", "CpuOffload")),
    "compiled": Entry(8, Compiled),
    "group-block-record": Entry(9, _group("BLOCK", record_stream=True)),
    "group-leaf-lowcpu": Entry(10, _group("LEAF", low_cpu_mem_usage=True)),
    "group-block-plain": Entry(11, _group("NO_STREAM")),
    # Last of all: it takes over how the whole process gets device memory.
    "aimdo": Entry(12, _late("peer_aimdo", "Aimdo"), budgeted=True),
}


@dataclass(frozen=True)
class Cell:
    """One figure of the table. Shares are of the weights' bytes; at most one is given."""

    model: str
    system: str
    keep: float | None = None
    budget: float | None = None

    @property
    def room(self) -> str:
        """The room in words."""
        if self.keep is not None:
            return f"keep {self.keep:.0%}"
        return f"budget {self.budget:.0%}" if self.budget is not None else "no budget"


def plan(
    models: Sequence[str],
    systems: Iterable[str],
    keeps: Sequence[float],
    budgets: Sequence[float],
    rounds: int = 1,
) -> list[Cell]:
    """All cells, the most telling ones first.

    Model by model: resident, ours in all rooms (it moves between them without being applied anew),
    the fastest peer, then budget by budget. With several rounds, the cells of a stage go forwards
    and backwards in turn (A B B A). What may end the process comes after all models.
    """
    wanted = set(systems) | {RESIDENT}
    stages: list[tuple[tuple[bool, int, float], list[Cell]]] = []
    for place, model in enumerate(models):
        for rank, cells in _stages(model, wanted, keeps, budgets):
            risky = any(cell.system == "aimdo" for cell in cells)
            stages.append(((risky, place, rank), cells))
    stages.sort(key=lambda stage: stage[0])
    ordered = []
    for _, cells in stages:
        for turn in range(rounds):
            ordered += cells if turn % 2 == 0 else cells[::-1]
    return ordered


def _stages(
    model: str, wanted: set[str], keeps: Sequence[float], budgets: Sequence[float]
) -> list[tuple[float, list[Cell]]]:
    ours = [name for name in ("ours", "ours-packed") if name in wanted]
    found: list[tuple[float, list[Cell]]] = [(0, [Cell(model, RESIDENT)])]
    for name in ours:
        rooms = [Cell(model, name, keep=keep) for keep in keeps]
        rooms += [Cell(model, name, budget=budget) for budget in budgets]
        found.append((1, rooms))
    found += [
        (2 + entry.stage, [Cell(model, name)])
        for name, entry in SYSTEMS.items()
        if name in wanted and name != RESIDENT and not entry.budgeted
    ]
    # Budgets right after the fastest peer that has none: for each budget all who can keep it.
    rivals = [name for name in ("comfyui", "mmgp") if name in wanted]
    for place, budget in enumerate(budgets):
        rank = 4.5 + place / (len(budgets) + 1) / 2
        found.append((rank, [Cell(model, name, budget=budget) for name in rivals]))
    if "aimdo" in wanted:
        found.append((99, [Cell(model, "aimdo", budget=budget) for budget in budgets]))
    return [(rank, cells) for rank, cells in found if cells]


def limit_ms(compute_ms: float, weights_bytes: int, kept_bytes: int, link_gb_s: float) -> float:
    """The least time of a step: compute, or the bytes that must pass the link, whichever is more.

    Fewer bytes than the weights have, by packing, can pass below it.
    """
    streamed = max(0, weights_bytes - kept_bytes)
    return max(compute_ms, streamed / link_gb_s / 1e6)


def most_kept_bytes(cell: Cell, weights_bytes: int, beside_bytes: int) -> int:
    """The weights that the room of `cell` could hold at best; none where there is no budget.

    `beside_bytes` is what a step takes beside the weights.
    """
    if cell.system in (RESIDENT, "compiled"):
        return weights_bytes
    if cell.keep is not None:
        return int(cell.keep * weights_bytes)
    if cell.budget is None:
        return 0
    room = int(cell.budget * weights_bytes) - beside_bytes
    return max(0, min(weights_bytes, room))

"""What a run leaves behind: a JSON file after every cell, and a table at the end.

Several runs of one cell are one row: the median over all their steps.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import platform
import statistics
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

import holdfast
from holdfast.base.files import write_whole
from holdfast.topology import Topology
from holdfast.topology.render import words
from residency.cells import OURS, RESIDENT, SYSTEMS, Cell, limit_ms, most_kept_bytes
from residency.running import Outcome, Reference

# A peak this far above the budget is no rounding of an allocator any more.
TOLERANCE = 1.05
PACKAGES = (
    "torch",
    "triton",
    "diffusers",
    "accelerate",
    "transformers",
    "mmgp",
    "comfy-aimdo",
    "optimum-quanto",
)


@dataclass
class Record:
    """Everything that was measured so far.

    `earlier` are the rows of a run that is continued; a cell that was measured again replaces its
    row. The link is the best that was measured, so the limit is the hardest one.
    """

    machine: Topology
    settings: dict[str, Any]
    earlier: list[dict[str, Any]] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)
    references: dict[str, Reference] = field(default_factory=dict)
    left_out: list[Cell] = field(default_factory=list)

    @property
    def link_gb_s(self) -> float | None:
        measured = [o.link_gb_s for o in self.outcomes if o.link_gb_s is not None]
        return max(measured, default=None)

    def rows(self) -> list[dict[str, Any]]:
        """One row for each cell, in the order in which they were first run."""
        by_cell: dict[Cell, list[Outcome]] = {}
        for outcome in self.outcomes:
            by_cell.setdefault(outcome.cell, []).append(outcome)
        kept = [row for row in self.earlier if cell_of(row) not in by_cell]
        return kept + [self._row(cell, runs) for cell, runs in by_cell.items()]

    def _row(self, cell: Cell, runs: list[Outcome]) -> dict[str, Any]:
        good = [run for run in runs if run.error is None]
        times = [ms for run in runs for ms in run.step_times_ms]
        step_ms = statistics.median(times) if times else None
        reference = self.references.get(cell.model)
        limit = self._limit_ms(cell, reference)
        return asdict(cell) | {
            "room": cell.room,
            "step_ms": step_ms,
            "limit_ms": limit,
            "of_limit": _ratio(step_ms, limit),
            "of_resident": _ratio(step_ms, reference.step_ms if reference else None),
            "runs": len(runs),
            "steps": len(times),
            "fastest_step_ms": min(times, default=None),
            "slowest_step_ms": max(times, default=None),
            "first_step_ms": _median(run.warm_steps_ms[0] for run in runs if run.warm_steps_ms),
            "warm_steps_ms": runs[-1].warm_steps_ms,
            "apply_s": _median(run.apply_s for run in runs),
            "move_s": _median(run.move_s for run in runs),
            "undo_s": _median(run.undo_s for run in runs),
            "budget_bytes": runs[-1].budget_bytes,
            "keep_bytes": runs[-1].keep_bytes,
            "torch_peak_bytes": _most(run.torch_peak_bytes for run in runs),
            "driver_peak_bytes": _most(run.driver_peak_bytes for run in runs),
            "same_output": all(run.same_output for run in good) if good else None,
            "largest_difference": _most(run.largest_difference for run in runs),
            "link_gb_s": _median(run.link_gb_s for run in runs),
            "whole_s": sum(run.whole_s or 0.0 for run in runs),
            "figures": runs[-1].figures,
            "remark": runs[-1].remark,
            "error": next((run.error for run in runs if run.error), None),
        }

    def _limit_ms(self, cell: Cell, reference: Reference | None) -> float | None:
        if reference is None or self.link_gb_s is None:
            return None
        kept = most_kept_bytes(cell, reference.weights_bytes, reference.beside_bytes)
        return limit_ms(reference.step_ms, reference.weights_bytes, kept, self.link_gb_s)

    def document(self) -> dict[str, Any]:
        """The JSON document."""
        rows = self.rows()
        return {
            "benchmark": "residency",
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "holdfast": holdfast.__version__,
            "machine": {
                "about": words.machine(self.machine),
                "cpu": self.machine.cpu_model,
                "cpus": len(self.machine.cpus),
                "gpus": [words.gpu_title(gpu) for gpu in self.machine.gpus],
            },
            "versions": versions(),
            "settings": self.settings,
            "link_gb_s": self.link_gb_s,
            "models": {
                name: {
                    "weights_bytes": reference.weights_bytes,
                    "activation_bytes": reference.activation_bytes,
                    "context_bytes": reference.context_bytes,
                    "resident_step_ms": reference.step_ms,
                }
                for name, reference in self.references.items()
            },
            "rows": rows,
            "lost": lost(rows),
            "left_out": [asdict(cell) for cell in self.left_out],
        }

    def write(self, path: Path) -> None:
        """Write the document, whole."""
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps(self.document(), indent=1) + "\n")


def cell_of(row: dict[str, Any]) -> Cell:
    """The cell that a row is about."""
    return Cell(row["model"], row["system"], row["keep"], row["budget"])


def lost(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Every budget at which a peer was faster than one of our systems.

    A peer takes part in those budgets that its peak stayed within.
    """
    found = []
    for mine in rows:
        if mine["system"] not in OURS or mine["budget"] is None:
            continue
        for peer in rows:
            if not _rivals(mine, peer):
                continue
            if mine["step_ms"] is None or peer["step_ms"] < mine["step_ms"]:
                found.append(
                    {
                        "model": mine["model"],
                        "budget": mine["budget"],
                        "ours": mine["system"],
                        "ours_ms": mine["step_ms"],
                        "peer": peer["system"],
                        "peer_ms": peer["step_ms"],
                    }
                )
    return found


def over(row: dict[str, Any], budget_bytes: int | None) -> bool:
    """Whether a row took clearly more than a budget."""
    peak = row["driver_peak_bytes"] or row["torch_peak_bytes"] or 0
    return budget_bytes is not None and peak > budget_bytes * TOLERANCE


def _rivals(mine: dict[str, Any], peer: dict[str, Any]) -> bool:
    """Whether `peer` is measured against `mine`."""
    if peer["model"] != mine["model"] or peer["step_ms"] is None:
        return False
    if peer["system"] in (*OURS, RESIDENT, "compiled"):
        return False
    if SYSTEMS[peer["system"]].budgeted and peer["budget"] != mine["budget"]:
        return False
    return not over(peer, mine["budget_bytes"])


def versions() -> dict[str, str | None]:
    """The versions of what took part; None for what is not installed."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    found["cuda"] = torch.version.cuda
    try:  # ComfyUI is no package, it only has this file
        found["comfyui"] = importlib.import_module("comfyui_version").__version__
    except ImportError:
        found["comfyui"] = None
    return found


def show(rows: list[dict[str, Any]], link_gb_s: float | None) -> None:
    """Print the table."""
    title = f"one step; link {link_gb_s:.1f} GB/s" if link_gb_s else "one step"
    table = Table(title=title)
    left = ("model", "room", "system", "remark")
    right = ("ms", "÷ limit", "÷ resident", "peak GB", "first ms", "apply s")
    for column in (*left[:3], *right, "output", left[3]):
        table.add_column(column, justify="right" if column in right else "left")
    for row in rows:
        peak = row["driver_peak_bytes"] or row["torch_peak_bytes"]
        same = {True: "same", False: "differs", None: ""}[row["same_output"]]
        table.add_row(
            row["model"],
            row["room"],
            row["system"],
            _shown(row["step_ms"], ".1f"),
            _shown(row["of_limit"], ".3f"),
            _shown(row["of_resident"], ".2f"),
            _shown(peak / 1e9 if peak else None, ".2f"),
            _shown(row["first_step_ms"], ".0f"),
            _shown(row["apply_s"], ".1f"),
            same,
            _remark(row),
        )
    Console(width=None if Console().is_terminal else 160).print(table)


def _remark(row: dict[str, Any]) -> str:
    """What went wrong, in one line, or how the system was set up and what it told."""
    if row["error"]:
        return row["error"].splitlines()[0]
    said = ["OVER BUDGET"] if over(row, row["budget_bytes"]) else []
    said += [row["remark"]] if row["remark"] else []
    if "kept_bytes" in row["figures"]:
        said.append(f"{row['figures']['kept_bytes'] / 1e9:.2f} GB kept")
    if "predicted_ms" in row["figures"]:
        said.append(f"{row['figures']['predicted_ms']:.1f} ms predicted")
    return ", ".join(said)


def _shown(value: float | None, pattern: str) -> str:
    return "" if value is None else format(value, pattern)


def _ratio(value: float | None, base: float | None) -> float | None:
    return value / base if value is not None and base else None


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def _most(values: Iterable[Any]) -> Any:
    return max((value for value in values if value is not None), default=None)

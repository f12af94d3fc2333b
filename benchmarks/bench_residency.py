"""Models larger than the device: Holdfast beside the ways other projects do it, in one run.

Full-size shapes with random weights (FLUX.1, Wan 2.1, the UNet of SDXL), one pass after another
with the same inputs; every output is compared with the resident run, bit for bit.

Room: `--keeps` are shares of the weights that stay on the device (ours alone), `--budgets` are all
the device memory of the process, as the driver counts it, as a share of the weights' bytes. A
ballast takes the rest of the device, so that every system sees the budget however it asks; systems
without a budget get the smallest one (at least 2 GiB). ComfyUI, mmgp and aimdo count weights alone:
they are told the budget less what the resident run takes beside its weights.

Time: the median of `--steps` steps in a row, by the device's clock; the first step and the time to
apply are told apart. `limit` is max(resident step, bytes that must pass / link), with the best
pinned bandwidth measured in the run. JSON is written after every cell; cells that no longer fit
into `--time-limit` are named in `left_out`, and `--resume` runs those later.
"""

from __future__ import annotations

import argparse
import json
import logging
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from report import RUNS, add_quick, tell
from residency.cells import RESIDENT, SYSTEMS, Cell, plan
from residency.measure import LINK_BYTES, Link
from residency.record import Record, cell_of, show
from residency.running import Outcome, Runner
from residency.shapes import SHAPES

from holdfast.topology import amx, discover

# What a cell of the whole FLUX shape takes, until a cell of the same system has told.
FIRST_GUESS_S = 30.0
TINY_LINK_BYTES = 4 << 20
WHOLE: dict[str, Any] = {
    "models": ["flux", "wan14b", "sdxl"],
    "keeps": [0.0, 0.25, 0.5],
    "budgets": [0.1, 0.25, 0.5, 0.75],
}
QUICK: dict[str, Any] = {"models": ["sdxl"], "keeps": [], "budgets": [0.25]}


def options(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The options of one run."""
    about, _, _ = (__doc__ or "").partition("\n")
    parser = argparse.ArgumentParser(description=about)
    default = RUNS / "residency.json"
    parser.add_argument("--models", type=_names(SHAPES), help="default: flux,wan14b,sdxl")
    parser.add_argument("--systems", type=_names(SYSTEMS), help="default: all")
    parser.add_argument("--keeps", type=_shares, help="percent (default: 0,25,50)")
    parser.add_argument("--budgets", type=_shares, help="percent (default: 10,25,50,75)")
    parser.add_argument("--steps", type=_positive, default=10, help="timed steps of a run")
    parser.add_argument("--rounds", type=_positive, default=1, help="2: A B B A in each stage")
    parser.add_argument("--device", help="a torch device (default: cuda where there is one)")
    parser.add_argument("--tiny", action="store_true", help="small models, to try the benchmark")
    parser.add_argument("--out", type=Path, default=default, help=f"JSON file (default {default})")
    parser.add_argument("--time-limit", type=float, default=float("inf"), help="seconds in all")
    parser.add_argument("--cell-limit", type=float, default=120.0, help="seconds for one cell")
    parser.add_argument("--resume", action="store_true", help="keep the rows that --out has")
    parser.add_argument("--verbose", action="store_true", help="tracebacks of systems that failed")
    add_quick(parser)
    found = parser.parse_args(arguments)
    defaults = QUICK if found.quick else WHOLE
    for name, value in defaults.items():
        if getattr(found, name) is None:
            setattr(found, name, value)
    return found


def _names(known: Any) -> Any:
    def names(text: str) -> list[str]:
        wanted = [name for name in text.split(",") if name]
        unknown = [name for name in wanted if name not in known]
        if unknown:
            raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {', '.join(known)}")
        return wanted

    return names


def _shares(text: str) -> list[float]:
    shares = [float(part) / 100 for part in text.split(",") if part]
    if any(not 0 <= share <= 1 for share in shares):
        raise argparse.ArgumentTypeError(f"percentages from 0 to 100, got {text!r}")
    return shares


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"a whole number from 1, got {text!r}")
    return number


class Clock:
    """Whether another cell fits into the time that is left."""

    def __init__(self, limit_s: float) -> None:
        self._ends = time.monotonic() + limit_s
        self._took: dict[tuple[str, str], float] = {}

    def fits(self, cell: Cell, guess_s: float) -> bool:
        """Judged by the longest cell of the same system and model so far, or by `guess_s`."""
        expected = self._took.get((cell.model, cell.system), guess_s)
        return time.monotonic() + expected < self._ends

    def note(self, outcome: Outcome) -> None:
        """Learn how long a cell took."""
        key = (outcome.cell.model, outcome.cell.system)
        self._took[key] = max(self._took.get(key, 0.0), outcome.whole_s or 0.0)


def said(outcome: Outcome) -> str:
    """One line about a cell that was run."""
    cell = outcome.cell
    result = outcome.error or (
        f"{outcome.step_ms:.1f} ms, "
        + (f"apply {outcome.apply_s:.1f} s, " if outcome.apply_s is not None else "")
        + f"{'same output' if outcome.same_output else 'OUTPUT DIFFERS'}"
    )
    return f"{cell.model}, {cell.room}, {cell.system}: {result} ({outcome.whole_s:.1f} s)"


def run(args: argparse.Namespace) -> Record:
    """Run the cells and write them down."""
    amx.disable_broken_amx()
    device = chosen_device(args)
    cells = plan(args.models, chosen_systems(args, device), args.keeps, args.budgets, args.rounds)
    runner = Runner(
        device=device,
        shapes={name: SHAPES[name](tiny=args.tiny) for name in args.models},
        steps=args.steps,
        cell_limit_s=args.cell_limit,
        smallest_budget=min(args.budgets, default=None),
        link=Link(device, TINY_LINK_BYTES if args.tiny else LINK_BYTES),
    )
    settings = {
        "device": device.type,
        "tiny": args.tiny,
        "steps": args.steps,
        "rounds": args.rounds,
        "quick": args.quick,
        "shapes": {name: SHAPES[name](tiny=args.tiny).about for name in args.models},
    }
    record = Record(discover(), settings, earlier=earlier(args), references=runner.references)
    done = {cell_of(row) for row in record.earlier if row["step_ms"] or row["error"]}
    clock = Clock(args.time_limit)
    for cell in cells:
        if cell in done and cell.system != RESIDENT:
            continue
        if not clock.fits(cell, 0.0 if args.tiny else FIRST_GUESS_S):
            record.left_out.append(cell)
            continue
        outcome = runner.run(cell)
        clock.note(outcome)
        record.outcomes.append(outcome)
        record.write(args.out)
        tell({"subject": f"{cell.model}, {cell.room}", "system": cell.system})
        print(said(outcome), flush=True)
    runner.close()
    record.write(args.out)
    return record


def chosen_device(args: argparse.Namespace) -> torch.device:
    """The device that was asked for, with its number."""
    device = torch.device(args.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    if device.type == "cuda":
        device = torch.device("cuda", device.index or 0)
        torch.cuda.set_device(device)
    if args.tiny:
        torch.set_num_threads(1)  # several would mostly wait for each other
    return device


def chosen_systems(args: argparse.Namespace, device: torch.device) -> list[str]:
    """The systems that were asked for; of all, those that the device can tell something about."""
    if args.systems is not None:
        return args.systems
    needs_gpu = ("compiled", "mmgp", "aimdo")
    return [name for name in SYSTEMS if device.type == "cuda" or name not in needs_gpu]


def earlier(args: argparse.Namespace) -> list[dict[str, Any]]:
    """The rows of the file that is continued."""
    if not args.resume or not args.out.exists():
        return []
    return json.loads(args.out.read_text())["rows"]


def losses(lost: list[dict[str, Any]]) -> list[str]:
    """A line for each of our cells that was beaten, with the peers that did, fastest first."""
    beaten: dict[tuple[str, float, str], list[dict[str, Any]]] = {}
    for loss in lost:
        beaten.setdefault((loss["model"], loss["budget"], loss["ours"]), []).append(loss)
    lines = []
    for (model, budget, ours), found in beaten.items():
        mine = found[0]["ours_ms"]
        shown = "no result" if mine is None else f"{mine:.1f} ms"
        found.sort(key=lambda loss: loss["peer_ms"])
        peers = ", ".join(f"{loss['peer']} {loss['peer_ms']:.1f} ms" for loss in found)
        lines.append(f"lost: {model}, budget {budget:.0%}: {ours} {shown}; {peers}")
    return lines


def main(arguments: Sequence[str] | None = None) -> None:
    """Run, print the table, name the cells that were lost."""
    args = options(arguments)
    logging.basicConfig(level=logging.WARNING)
    if args.verbose:
        logging.getLogger("bench_residency").setLevel(logging.DEBUG)
    record = run(args)
    document = record.document()
    show(document["rows"], document["link_gb_s"])
    for line in losses(document["lost"]):
        print(line)
    if document["left_out"]:
        print(f"left out for lack of time: {len(document['left_out'])} cells")
    print(f"results: {args.out}")


if __name__ == "__main__":
    main()

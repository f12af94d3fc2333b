"""The same bits under a tight budget, with inputs whose sizes change from call to call.

    benchmarks/residency/bundle.sh .carry                 # here: diffusers and its peers for there
    tar -xzf .carry/peers.tgz && PYTHONPATH=src:peers/site python3 \\
        benchmarks/residency_exact_h200.py --out $OUT/residency-exact-h200.json

Full-size shapes with random weights made on the card: FLUX.1, the UNet of SDXL with and without the
features of T2I adapters (a list that the model pops from), Wan 2.1 14B, Qwen-Image. Each size runs
once with all weights on the device; then the module is managed with a quarter of its weights' bytes
and called with all sizes in a row that repeats. Every output is compared with that of the resident
run, bit for bit. `restarted` counts runs of the module's code beyond its calls. Steady steps of the
size of the committed table follow, beside that table's figure. JSON is written after every model.

It also counts allocations that failed without an error of ours (`num_ooms`): cuDNN catches those
and takes another algorithm, which it then keeps for the process.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from report import RUNS, Row, publish
from residency.measure import step_times_ms, synchronize
from residency.shapes import DTYPE, SEED, SHAPES, Inputs
from residency.weights import on_device, weight_bytes

from holdfast import residency
from holdfast.topology import discover

BUDGET = 0.25
ROUNDS = 2  # each size comes up so often
STEPS = 8
SETTLING = 12  # times are taken, larger calls are forgotten, the plan settles
# ms a step, not packed, with a quarter of the weights' bytes: benchmarks/results/residency-*.json.
COMMITTED_MS = {"flux": 354.0, "wan14b": 508.0}


@dataclass(frozen=True)
class Model:
    """A shape and the inputs of its sizes; the first is that of the committed table."""

    name: str
    shape: str
    sizes: Sequence[Any]
    resize: Callable[[Inputs, Any, bool], Inputs]


def _flux(inputs: Inputs, side: int, tiny: bool) -> Inputs:
    rows, columns = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
    places = torch.stack([torch.zeros_like(rows), rows, columns], dim=-1).reshape(-1, 3)
    channels = inputs["hidden_states"].shape[-1]
    return inputs | {
        "hidden_states": _random(1, side * side, channels),
        "img_ids": places.to(DTYPE),
    }


def _wan(inputs: Inputs, frames: int, tiny: bool) -> Inputs:
    _, channels, _, height, width = inputs["hidden_states"].shape
    return inputs | {"hidden_states": _random(1, channels, frames, height, width)}


def _qwen(inputs: Inputs, side: int, tiny: bool) -> Inputs:
    channels = inputs["hidden_states"].shape[-1]
    return inputs | {
        "hidden_states": _random(1, side * side, channels),
        "img_shapes": [[(1, side, side)]],
    }


def _sdxl(inputs: Inputs, side: int, tiny: bool) -> Inputs:
    return inputs | {"sample": _random(2, 4, side, side)}


def _sdxl_with_adapters(inputs: Inputs, side: int, tiny: bool) -> Inputs:
    widths = (32, 64) if tiny else (320, 640, 1280)
    down = (2, 2) if tiny else (2, 2, 4)  # the first is added behind its block's downsampler
    features = [
        _random(2, wide, side // by, side // by) for wide, by in zip(widths, down, strict=True)
    ]
    return _sdxl(inputs, side, tiny) | {"down_intrablock_additional_residuals": features}


def _random(*shape: int) -> torch.Tensor:
    generator = torch.Generator("cpu").manual_seed(SEED + sum(shape))
    return torch.randn(shape, generator=generator).to(DTYPE)


def models(tiny: bool) -> list[Model]:
    """All of them, the smallest first: its figures are there if time runs out."""
    return [
        Model("sdxl", "sdxl", (8, 16, 12) if tiny else (128, 96, 152), _sdxl),
        Model("sdxl+adapters", "sdxl", (8, 16) if tiny else (128, 96, 152), _sdxl_with_adapters),
        Model("flux", "flux", (4, 6, 3) if tiny else (64, 48, 80), _flux),
        Model("wan14b", "wan14b", (2, 3, 1) if tiny else (5, 3, 7), _wan),
        Model("qwen", "qwen", (4, 6, 3) if tiny else (64, 48, 80), _qwen),
    ]


def _to(value: Any, device: torch.device) -> Any:
    """Inputs of one call: tensors on the device, lists and dicts of its own."""
    if isinstance(value, torch.Tensor):
        return value.to(device)
    if isinstance(value, dict):
        return {name: _to(one, device) for name, one in value.items()}
    return [_to(one, device) for one in value] if isinstance(value, list) else value


class Counted:
    """Runs of a module's own code."""

    def __init__(self, module: Any) -> None:
        self.runs = 0
        self._forward = module.forward
        module.forward = self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.runs += 1
        return self._forward(*args, **kwargs)


def _failed_allocations(device: torch.device) -> int:
    return torch.cuda.memory_stats(device).get("num_ooms", 0) if device.type == "cuda" else 0


def run(model: Model, device: torch.device, carrier: str, tiny: bool, pack: Any) -> dict[str, Any]:
    """One model: resident, then managed, then steady."""
    began = time.perf_counter()
    shape = SHAPES[model.shape](tiny=tiny)
    module = on_device(shape, device)
    nbytes = weight_bytes(module)
    base = shape.step_inputs(torch.device("cpu"))
    given = [model.resize(base, size, tiny) for size in model.sizes]
    wanted, peaks = [], []
    with torch.no_grad():
        for inputs in given:
            if device.type == "cuda":
                torch.cuda.reset_peak_memory_stats(device)
            wanted.append(module(**_to(inputs, device))[0].cpu())
            if device.type == "cuda":
                peaks.append(torch.cuda.max_memory_allocated(device) - nbytes)
        inputs = _to(given[0], device)
        resident, _ = step_times_ms(lambda: module(**_to(inputs, device))[0], STEPS, device)
    synchronize(device)
    beside = max(peaks, default=nbytes)
    # The committed figures are those of the smaller size: a budget that has room for the largest.
    least = int(0.05 * nbytes + 1.3 * beside) + (0 if tiny else 900 << 20)
    budget = max(int(BUDGET * nbytes), least)
    counted = Counted(module)
    failures = _failed_allocations(device)
    managed = residency.manage(module, budget=budget, device=carrier, pack=pack)
    try:
        calls = _call_with_all_sizes(model, module, given, wanted, device)
        # On the device, as between the steps of a pipeline: a copy would queue behind weights.
        steady = _to(given[0], device)
        with torch.no_grad():
            for _ in range(SETTLING):
                module(**_to(steady, device))
            times, last = step_times_ms(lambda: module(**_to(steady, device))[0], STEPS, device)
        plan = managed.plan
    finally:  # after an error the next model needs the device
        managed.abandon()
    same_last = bool(torch.equal(last.cpu(), wanted[0]))
    total = len(calls) + SETTLING + STEPS + 1
    found = {
        "model": model.name,
        "weight_bytes": nbytes,
        "budget_bytes": budget,
        "beside_bytes": beside,
        "calls": calls,
        "all_same": all(call["same_output"] for call in calls) and same_last,
        "restarted": counted.runs - total,
        "repeated_ops": managed.repeated_ops,
        "failed_allocations": _failed_allocations(device) - failures,
        "resident_ms": statistics.median(resident),
        "steady_ms": statistics.median(times),
        "committed_ms": COMMITTED_MS.get(model.name),
        "plan": plan and {"kept": plan.kept_bytes, "streamed": plan.streamed_bytes},
    }
    found["took_s"] = time.perf_counter() - began
    return found


def _call_with_all_sizes(
    model: Model, module: Any, given: list[Inputs], wanted: list[torch.Tensor], device: torch.device
) -> list[dict[str, Any]]:
    """Each size in turn, and again; each output beside that of the resident run."""
    calls = []
    with torch.no_grad():
        for _ in range(ROUNDS):
            for size, inputs, expected in zip(model.sizes, given, wanted, strict=True):
                before = time.perf_counter()
                got = module(**_to(inputs, device))[0].cpu()
                calls.append(
                    {
                        "size": size,
                        "same_output": bool(torch.equal(got, expected)),
                        "off_by": float((got.float() - expected.float()).abs().max()),
                        "call_ms": (time.perf_counter() - before) * 1000,
                    }
                )
    return calls


def rows_of(models: Sequence[dict[str, Any]]) -> list[Row]:
    """A step of each model with its weights managed, and with all of them on the device."""
    rows = []
    for model in models:
        if "error" in model:
            continue
        budget, weights = (model[key] / 1e9 for key in ("budget_bytes", "weight_bytes"))
        same = "equal bits" if model["all_same"] else "OTHER BITS"
        remark = f"{budget:.2f} GB for {weights:.2f} GB of weights, {same}"
        subject = f"step of {model['model']}"
        rows.append(Row(subject, "holdfast", model["steady_ms"], "ms", remark))
        rows.append(Row(subject, "resident", model["resident_ms"], "ms"))
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the models and write what was found."""
    about, _, _ = (__doc__ or "").partition("\n")
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--out", type=Path, default=RUNS / "residency-exact.json")
    parser.add_argument("--models", help="names, with commas between them (default: all)")
    parser.add_argument("--tiny", action="store_true", help="tiny models, on any machine")
    parser.add_argument("--pack", action="store_true", help="pack weights")
    parser.add_argument("--time-limit", type=float, default=450.0, help="seconds")
    chosen = parser.parse_args(arguments)
    on_card = torch.cuda.is_available() and not chosen.tiny
    device = torch.device("cuda", 0) if on_card else torch.device("cpu")
    carrier = "cuda:0" if on_card else "simulated"
    began = time.perf_counter()
    machine = discover()
    found_models: list[dict[str, Any]] = []
    left_out: list[str] = []
    names = chosen.models.split(",") if chosen.models else None
    chosen.out.parent.mkdir(parents=True, exist_ok=True)
    for model in models(chosen.tiny):
        if names is not None and model.name not in names:
            continue
        longest = max((one["took_s"] for one in found_models), default=0.0)
        if time.perf_counter() - began + 1.5 * longest > chosen.time_limit:
            left_out.append(model.name)
        else:
            try:
                found = run(model, device, carrier, chosen.tiny, chosen.pack)
            except Exception as exc:  # noqa: BLE001  the other models are measured all the same
                found = {"model": model.name, "error": f"{type(exc).__name__}: {exc}", "took_s": 0}
            found_models.append(found)
            keys = ("model", "all_same", "restarted", "repeated_ops", "failed_allocations")
            keys = (*keys, "resident_ms", "steady_ms", "committed_ms", "took_s", "error")
            print({key: found[key] for key in keys if key in found}, flush=True)
            gc.collect()
            if on_card:
                torch.cuda.empty_cache()
        more = {"models": found_models, "left_out": left_out}
        publish("residency-exact", rows_of(found_models), machine, chosen.out, **more)


if __name__ == "__main__":
    main()

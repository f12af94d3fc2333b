"""torch's own database of modules (ModuleInfo) on `torch.device("holdfast")`.

    python -m tests.contract.module_db                 # all, prints a summary
    python -m tests.contract.module_db --only "nn.Conv*" --strict -v
    python -m tests.contract.module_db --write         # and note the passes

A ModuleInfo passes when for every float32 input, in training and in evaluation, the results, the
gradients of inputs and parameters, and the buffers afterwards are close to those on the CPU.
"""

from __future__ import annotations

import argparse
import copy
import fnmatch
import json
import sys
import warnings
from pathlib import Path
from typing import Any

import torch

from holdfast.compute.engine import strict
from tests.contract import op_db

WAYS = {"modules": False, "native modules": True}  # and whether falling back is refused


def database() -> dict[str, Any]:
    """Every ModuleInfo by name."""
    from torch.testing._internal.common_modules import module_db

    return {info.name: info for info in module_db}


def check(info: Any, way: str, slack: float = 1) -> dict[str, Any]:
    """One ModuleInfo: {"passed", "samples", "fallbacks", "error"}; tolerances times `slack`."""
    result: dict[str, Any] = {"passed": False, "samples": 0, "error": None}
    result |= {"fallbacks": {}, "calls": []}
    try:
        for training in (True, False):
            torch.manual_seed(op_db.SEED)
            for given in info.module_inputs_func(
                info, device="cpu", dtype=_format(info), requires_grad=True, training=training
            ):
                if given.forward_input is None:
                    continue
                result["samples"] += 1
                _compare(info, given, training, way, slack)
        result["passed"] = result["samples"] > 0
    except Exception as exc:  # noqa: BLE001
        result["error"] = f"{type(exc).__name__}: {exc}"[:600]
    return result


def _format(info: Any) -> torch.dtype:
    """The samples of some hold float64 numbers that are for float64 modules alone."""
    return torch.float64 if info.name.startswith("nn.FractionalMaxPool") else torch.float32


def _compare(info: Any, given: Any, training: bool, way: str, slack: float) -> None:
    made = given.constructor_input
    module = info.module_cls(*made.args, **made.kwargs).train(training)
    inputs = (given.forward_input.args, given.forward_input.kwargs)
    if info.is_lazy:  # its parameters come with the first call
        module(*op_db.moved(inputs[0], "cpu"), **op_db.moved(inputs[1], "cpu"))
    twin = copy.deepcopy(module).to("holdfast")
    for name, value in vars(twin).items():  # what is no buffer stays behind
        if isinstance(value, torch.Tensor):
            setattr(twin, name, value.to("holdfast"))
    expected = _run(module, op_db.moved(inputs, "cpu"))
    with strict(WAYS[way]):
        got = _run(twin, op_db.moved(inputs, "holdfast"))
    where = f"{'training' if training else 'evaluation'} of {given.desc or made.args}"
    for what, ours, theirs in zip(("results", "gradients", "buffers"), got, expected, strict=True):
        op_db.close(ours, theirs, f"{what} in {where}", slack * _largest(theirs))


def _largest(value: Any) -> float:
    """The largest number, or 1: what a sum of many numbers is off by grows with them."""
    found = [t.detach().abs().max().item() for t in op_db.tensors(value) if t.numel()]
    return max([1.0, *(n for n in found if n < float("inf"))])


def _run(module: Any, inputs: Any) -> tuple[Any, Any, Any]:
    """Results, gradients and buffers, on the CPU."""
    op_db.seeded()
    out = module(*inputs[0], **inputs[1])
    outs = [t for t in op_db.tensors(out) if t.requires_grad]
    starts = [t for t in op_db.tensors(inputs) if t.requires_grad] + list(module.parameters())
    grads: list[Any] = []
    if outs:
        generator = torch.Generator().manual_seed(1)
        seeds = [torch.randn(t.shape, generator=generator).to(t.device) for t in outs]
        grads = list(torch.autograd.grad(outs, starts, seeds, allow_unused=True))
    return tuple(op_db.moved(part, "cpu") for part in (out, grads, list(module.buffers())))


def _work(place: str, way: str, name: str, slack: float) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    Path(place).write_text(json.dumps(check(database()[name], way, slack)))


def sweep(names: list[str], way: str, workers: int = 2, slack: float = 1) -> dict[str, Any]:
    """Results by ModuleInfo. Each runs in a forked process: a crash is a failed ModuleInfo."""
    database()
    return op_db.sweep(names, [way], workers, slack, check=_work)[way]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="*", help="names of ModuleInfos, with * and commas")
    parser.add_argument("--strict", action="store_true", help="refuse to fall back")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--write", action="store_true", help="add new passes to the list")
    parser.add_argument("-v", action="store_true", help="say why each failed")
    options = parser.parse_args(argv)
    warnings.simplefilter("ignore")
    patterns = options.only.split(",")
    names = [n for n in database() if any(fnmatch.fnmatchcase(n, p) for p in patterns)]
    if not names:
        parser.error(f"no ModuleInfo is called {options.only!r}; try --only 'nn.Conv*'")
    way = "native modules" if options.strict else "modules"
    found = sweep(names, way, options.workers)
    passed = [n for n, r in found.items() if r["passed"]]
    print(f"{way}: {len(passed)} of {len(found)} ModuleInfos pass")
    if options.v:
        for name, r in sorted(found.items()):
            if not r["passed"]:
                print(f"  {name}: {r['error'] or ''}")
    if options.write:
        op_db.write({way: passed})
    return 0


if __name__ == "__main__":
    sys.exit(main())

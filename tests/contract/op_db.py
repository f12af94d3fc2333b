"""torch's own operator database (OpInfo) through our table, forward and backward.

    python -m tests.contract.op_db                     # everything, both ways, prints a summary
    python -m tests.contract.op_db --only "conv*" -v    # some, with what went wrong
    python -m tests.contract.op_db --way table --write  # and note the passes
    python -m tests.contract.op_db --way native        # on the torch device, without falling back
    python -m tests.contract.op_db --engine opencl --only "softmax*" -v   # the OpenCL engine
    python -m tests.contract.op_db --engine opencl --way device           # and on the torch device

Ways: "table" has torch's autograd call our kernels, "tape" takes gradients by our own lines,
"device" runs on `torch.device("holdfast")`, and "native" does so with falling back refused.
With the OpenCL engine the ways are "opencl" (the table) and "opencl device"; "gpu" behind them has
kernels laid out as for GPUs, "strict" refuses what the host would have to compute: else that is
counted.
An OpInfo passes when every float32 sample's results and gradients are close to torch's, with no
call computed by torch (on the "device" torch's CPU kernels may fill in).
"""

from __future__ import annotations

import argparse
import copy
import fnmatch
import importlib
import json
import multiprocessing
import multiprocessing.connection
import os
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from holdfast.compute import random
from holdfast.compute.engine import fallbacks as counted
from holdfast.compute.engine import strict
from tests.compute.opencl import checks
from tests.contract.torch_bridge import OnTable, OnTape, to_array, to_torch

PASSES = Path(__file__).parent / "passes.json"
PASSES_DEVICE = Path(__file__).parent / "passes_device.json"
PASSES_OPENCL = Path(__file__).parent / "passes_opencl.json"
RTOL, ATOL = 1e-4, 1e-5
SEED = 0
WAYS = ("table", "tape", "device", "native")
ON_DEVICE = ("device", "native", "modules", "native modules")
LIMIT_S = 180.0  # for one OpInfo: a few seconds are usual


def database() -> dict[str, Any]:
    """Every OpInfo with float32 samples, by name."""
    from torch.testing._internal.common_methods_invocations import op_db

    found = {}
    for info in op_db:
        if torch.float32 in info.dtypes:
            name = f"{info.name}.{info.variant_test_name}" if info.variant_test_name else info.name
            found[name] = info
    return found


def tensors(value: Any) -> list[torch.Tensor]:
    """Every tensor in arguments or results."""
    return [t for t in torch.utils._pytree.tree_leaves(value) if isinstance(t, torch.Tensor)]


def check(info: Any, way: str, slack: float = 1) -> dict[str, Any]:
    """One OpInfo: {"passed", "samples", "fallbacks", "error"}; tolerances times `slack`."""
    result: dict[str, Any] = {"passed": False, "samples": 0, "error": None}
    fallbacks: Counter[str] = Counter()
    calls: Counter[str] = Counter()
    hosted: Counter[str] = Counter()
    rules: set[str] = set()
    try:
        torch.manual_seed(SEED)
        for sample in info.sample_inputs(
            "cpu", torch.float32, requires_grad=info.supports_autograd
        ):
            result["samples"] += 1
            bridge = bridge_of(way)
            try:
                _compare(info, sample, bridge, way, slack)
            finally:
                fallbacks += bridge.fallbacks
                calls += bridge.calls
                hosted += bridge.hosted
                rules |= bridge.wrong_rules
        result["passed"] = bool(result["samples"]) and not fallbacks and not rules
        if rules:
            result["error"] = "; ".join(sorted(rules)[:5])
    except Exception as exc:  # noqa: BLE001
        result["error"] = f"{type(exc).__name__}: {exc}"[:600]
    result["fallbacks"] = dict(fallbacks)
    result["calls"] = sorted(calls)
    result["hosted"] = dict(hosted)
    return result


def _compare(info: Any, sample: Any, bridge: Any, way: str, slack: float) -> None:
    inputs = (sample.input, sample.args, sample.kwargs)
    expected, wanted = _torch_run(info, sample, inputs)
    run = {OnTable: _table_run, OnTape: _tape_run}.get(type(bridge), _device_run)
    # OpInfos of random ops set a seed of their own inside the call.
    refused = isinstance(bridge, OnDeviceNative) or "strict" in way.split()
    earlier = counted.copy()
    with mock.patch.object(torch, "manual_seed", _seed_both), strict(refused):
        got, found = run(info, sample, bridge, wanted)
    if run is _device_run:
        bridge.hosted += Counter({name: n for (_, name), n in (counted - earlier).items()})
    unspecified = info.name in RANDOM
    try:
        _close(got, expected, f"forward of sample {sample}", unspecified, slack)
        if wanted is not None:
            _close(found, wanted[1], f"gradients of sample {sample}", unspecified, slack)
    except AssertionError:
        if not _is_exact(info, sample, got, found, slack):
            raise


def _is_exact(info: Any, sample: Any, got: Any, found: Any, slack: float) -> bool:
    """Whether ours is close to torch's float64: torch's float32 may be what is off."""
    exact = copy.copy(sample)
    inputs = _doubled((sample.input, sample.args, sample.kwargs))
    exact.input, exact.args, exact.kwargs = inputs
    try:
        truth, wanted = _torch_run(info, exact, inputs)
        _close(_doubled(got), truth, "forward", False, slack)
        gradients = None if wanted is None else wanted[1]
        _close(_doubled(found), gradients, "gradients", False, slack)
    except Exception:  # noqa: BLE001  (then the first comparison says what is wrong)
        return False
    return True


def _doubled(value: Any) -> Any:
    def one(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor) or leaf.dtype not in _DOUBLE:
            return leaf
        return leaf.detach().to(_DOUBLE[leaf.dtype]).requires_grad_(leaf.requires_grad)

    return torch.utils._pytree.tree_map(one, value)


_DOUBLE = {torch.float32: torch.float64, torch.complex64: torch.complex128}


def _called(info: Any, sample: Any, leaves: Any) -> Any:
    out = info(leaves[0], *leaves[1], **leaves[2])
    return sample.output_process_fn_grad(out) if info.name in UP_TO_SIGN else out


def _torch_run(info: Any, sample: Any, inputs: Any) -> Any:
    leaves = _fresh(inputs)
    seeded()
    out = _called(info, sample, leaves)
    outs = [t for t in tensors(out) if t.requires_grad]
    starts = [t for t in tensors(leaves) if t.requires_grad]
    if not outs or not starts:
        return out, None
    gen = torch.Generator().manual_seed(1)
    seeds = [torch.randn(t.shape, generator=gen, dtype=torch.float64).to(t.dtype) for t in outs]
    found = torch.autograd.grad(outs, starts, seeds, allow_unused=True, retain_graph=False)
    return out, (seeds, list(found))


def _table_run(info: Any, sample: Any, bridge: Any, wanted: Any) -> Any:
    inputs = (sample.input, sample.args, sample.kwargs)
    leaves = _fresh(inputs)
    seeded()
    with bridge:
        out = _called(info, sample, leaves)
    if wanted is None:
        return out, None
    outs = [t for t in tensors(out) if t.requires_grad]
    starts = [t for t in tensors(leaves) if t.requires_grad]
    with bridge:
        found = torch.autograd.grad(outs, starts, wanted[0], allow_unused=True)
    return out, list(found)


def _tape_run(info: Any, sample: Any, bridge: Any, wanted: Any) -> Any:
    inputs = (sample.input, sample.args, sample.kwargs)
    from holdfast.compute.autograd import tape

    flat, spec = torch.utils._pytree.tree_flatten(inputs)
    starts = []
    for place, leaf in enumerate(flat):
        if isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided:
            flat[place] = bridge.start(leaf)
            if leaf.requires_grad:
                starts.append(flat[place].ours)
    leaves = torch.utils._pytree.tree_unflatten(flat, spec)
    seeded()
    with torch.no_grad(), bridge:
        out = _called(info, sample, leaves)
    if wanted is None:
        return out, None
    outs = [t.ours for t in tensors(out) if hasattr(t, "ours") and t.ours.requires_grad]
    seeds = [type(o)._wrap(to_array(s), o.device) for o, s in zip(outs, wanted[0], strict=True)]
    found = tape.grad(outs, starts, seeds, allow_unused=True)
    return out, [None if g is None else to_torch(g.data.copy()) for g in found]


class OnDevice:
    """A run on `torch.device("holdfast")`; what torch's CPU kernels computed is counted."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.fallbacks: Counter[str] = Counter()
        self.hosted: Counter[str] = Counter()
        self.wrong_rules: set[str] = set()


class OnDeviceNative(OnDevice):
    """The same, with falling back refused."""


BRIDGES: dict[str, Any] = {
    "table": OnTable,
    "tape": OnTape,
    "device": OnDevice,
    "native": OnDeviceNative,
}


def bridge_of(way: str) -> Any:
    """What a sample runs on."""
    if "opencl" not in way.split():
        return BRIDGES[way]()
    if "device" in way.split():
        return OnDevice()
    return OnTable(checks.engine("gpu") if "gpu" in way.split() else "opencl")


def prepare(way: str) -> None:
    """What a process does before samples of a way; OpenCL starts here, as it cannot be forked."""
    words = way.split()
    if "opencl" in words and "device" in words:
        os.environ["HOLDFAST_OPENCL_MAPPING"] = "gpu" if "gpu" in words else "auto"
        importlib.import_module("holdfast.torch").use("opencl")


def moved(value: Any, device: str) -> Any:
    """Arguments or results on another device, as leaves of their own."""

    def one(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            made = _twin(leaf.detach(), device)
            return made.requires_grad_(leaf.requires_grad)
        return torch.device(device) if isinstance(leaf, torch.device) else leaf

    return torch.utils._pytree.tree_map(one, value)


def _twin(leaf: torch.Tensor, device: str) -> torch.Tensor:
    """A copy with the same strides, on a copy of all memory that the tensor is a part of."""
    if leaf.layout is not torch.strided or leaf.is_conj() or leaf.is_neg() or not leaf.numel():
        return leaf.to(device, copy=True)
    size = leaf.untyped_storage().nbytes() // leaf.element_size()
    whole = leaf.as_strided((size,), (1,), 0).to(device, copy=True)
    return whole.as_strided(leaf.shape, leaf.stride(), leaf.storage_offset())


def _device_run(info: Any, sample: Any, bridge: Any, wanted: Any) -> Any:
    leaves = moved((sample.input, sample.args, sample.kwargs), "holdfast")
    if info.name in ARGUMENTS_ON_CPU:
        leaves = (leaves[0], *_fresh((sample.args, sample.kwargs)))
    if "device" in sample.kwargs:
        leaves[2]["device"] = "holdfast"
    seeded()
    out = _called(info, sample, leaves)
    if wanted is None:
        return moved(out, "cpu"), None
    outs = [t for t in tensors(out) if t.requires_grad]
    starts = [t for t in tensors(leaves) if t.requires_grad]
    seeds = [s.to(out.device) for s, out in zip(wanted[0], outs, strict=True)]
    found = torch.autograd.grad(outs, starts, seeds, allow_unused=True)
    return moved(out, "cpu"), moved(list(found), "cpu")


def seeded() -> None:
    """The same random numbers for torch and for us."""
    _seed_both(SEED)


def _seed_both(seed: int) -> Any:
    random.manual_seed(seed)
    return _torch_seed(seed)


_torch_seed = torch.manual_seed


def _fresh(inputs: Any) -> Any:
    """Leaves of their own, so that nothing a run changes is seen by the next."""

    def one(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        made = leaf.detach()
        if made.layout is torch.strided:
            needed = made.numel() * made.element_size()
            part = made.is_contiguous() and made.untyped_storage().nbytes() > needed
            made = _twin(made, "cpu") if part else made.clone()
        return made.requires_grad_(leaf.requires_grad)

    return torch.utils._pytree.tree_map(one, inputs)


def close(got: Any, expected: Any, where: str, slack: float = 1) -> None:
    """Raises AssertionError that says `where`, unless all leaves are close."""
    _close(got, expected, where, False, slack)


def _close(got: Any, expected: Any, where: str, unspecified: bool, slack: float) -> None:
    ours, theirs = torch.utils._pytree.tree_leaves(got), torch.utils._pytree.tree_leaves(expected)
    if len(ours) != len(theirs):
        raise AssertionError(f"{where}: {len(ours)} results, torch has {len(theirs)}")
    for one, other in zip(ours, theirs, strict=True):
        if other is None or one is None:
            # A gradient that is certainly zero may be left out.
            there = other if one is None else one
            if there is not None and bool(there.detach().ne(0).any()):
                raise AssertionError(f"{where}: a gradient is missing: {one} and {other}")
            continue
        if unspecified and isinstance(other, torch.Tensor):
            assert (one.shape, one.dtype) == (other.shape, other.dtype), where
            continue
        try:
            near = {"rtol": RTOL * slack, "atol": ATOL * slack}
            torch.testing.assert_close(one, other, **near, equal_nan=True, check_stride=False)
        except AssertionError as exc:
            raise AssertionError(f"{str(exc)[:300]} [{where[:200]}]") from None


# Vectors with any sign or phase are right: the sample says what of them is defined.
UP_TO_SIGN = {"linalg.eig", "linalg.eigh", "linalg.svd", "svd", "svd_lowrank", "pca_lowrank"}

# torch reads where to split on the CPU, whatever the tensor is on.
ARGUMENTS_ON_CPU = {"tensor_split"}

# Compared by shape and format: the numbers are random, or unspecified.
RANDOM = {
    "empty",
    "empty_like",
    "empty_strided",
    "empty_permuted",
    "new_empty",
    "new_empty_strided",
}


def _work(place: str, way: str, name: str, slack: float) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.cuda.is_available = lambda: False  # samples keep its random state, which a fork cannot
    prepare(way)
    result = check(database()[name], way, slack)
    Path(place).write_text(json.dumps(result))


def sweep(
    names: list[str],
    ways: list[str],
    workers: int = 2,
    slack: float = 1,
    limit_s: float = LIMIT_S,
    check: Callable[..., None] = _work,
) -> dict[str, dict[str, Any]]:
    """Results by way and OpInfo. Each runs in a forked process: a crash is a failed OpInfo."""
    database()
    if any(set(ON_DEVICE) & {way, *way.split()} for way in ways):
        importlib.import_module("holdfast.torch")
        torch.empty(1, device="holdfast").add(1).sum()  # every child has the handlers already
    found: dict[str, dict[str, Any]] = {way: {} for way in ways}
    tasks = [(way, name) for way in ways for name in names]
    context = multiprocessing.get_context("fork")
    running: dict[Any, tuple[str, str, Path, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        while tasks or running:
            while tasks and len(running) < workers:
                way, name = tasks.pop(0)
                place = Path(folder) / f"{way}-{name.replace('/', '_')}.json"
                child = context.Process(target=check, args=(str(place), way, name, slack))
                child.start()
                running[child] = way, name, place, time.monotonic() + limit_s
            multiprocessing.connection.wait([child.sentinel for child in running], 1.0)
            for child in list(running):
                way, name, place, end = running[child]
                late = time.monotonic() > end
                if child.is_alive() and not late:
                    continue
                if late:
                    child.kill()
                child.join()
                del running[child]
                found[way][name] = _read(place, child.exitcode, late, limit_s)
    return found


def _read(place: Path, code: int | None, late: bool, limit_s: float) -> dict[str, Any]:
    if place.exists() and not late:
        return json.loads(place.read_text())
    why = f"not done after {limit_s:.0f} s" if late else f"the process ended with {code}"
    empty: dict[str, Any] = {"fallbacks": {}, "calls": [], "hosted": {}}
    return {"passed": False, "samples": 0, "error": why, **empty}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="*", help="names of OpInfos, with * and commas")
    parser.add_argument("--way", choices=[*WAYS, "both", "all"], default="both")
    parser.add_argument("--engine", choices=["numpy", "opencl"], default="numpy")
    parser.add_argument("--mapping", choices=["auto", "gpu"], default="auto", help="of OpenCL")
    parser.add_argument("--strict", action="store_true", help="the host computes nothing")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--write", action="store_true", help="add new passes to passes.json")
    parser.add_argument("--json", type=Path, help="write all results here")
    parser.add_argument("-v", action="store_true", help="say why each failed")
    options = parser.parse_args(argv)
    warnings.simplefilter("ignore")
    patterns = options.only.split(",")
    names = [n for n in database() if any(fnmatch.fnmatchcase(n, p) for p in patterns)]
    if not names:
        parser.error(f"no OpInfo is called {options.only!r}; try --only 'nn.functional.conv*'")
    ways = {"both": ["table", "tape"], "all": list(WAYS)}.get(options.way, [options.way])
    if options.engine == "opencl":
        ways = [_opencl_way(options)]
        if os.environ.get("HOLDFAST_TORCH_SHIM") != "off":  # its kernels read the host's memory
            os.environ["HOLDFAST_TORCH_SHIM"] = "off"  # torch has read it already: begin again
            again = sys.argv[1:] if argv is None else argv
            os.execv(sys.executable, [sys.executable, "-m", "tests.contract.op_db", *again])
    found = sweep(names, ways, options.workers)
    for way, results in found.items():
        passed = [n for n, r in results.items() if r["passed"]]
        print(f"{way}: {len(passed)} of {len(results)} OpInfos pass")
        hosted = sum((Counter(r["hosted"]) for r in results.values()), Counter[str]())
        if hosted:
            print(f"{way}: {len(hosted)} ops were left to the host: {' '.join(sorted(hosted))}")
        if options.v:
            for name, r in sorted(results.items()):
                if not r["passed"]:
                    print(f"  {name}: fallbacks {sorted(r['fallbacks'])} {r['error'] or ''}")
                elif r["hosted"]:
                    print(f"  {name}: passes, the host computes {sorted(r['hosted'])}")
        if options.write:
            reached = {op for r in results.values() if r["passed"] for op in r["calls"]}
            alone = way in ON_DEVICE or "opencl" in way
            write({way: passed} if alone else {way: passed, "ops": sorted(reached)})
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))
    return 0


def _opencl_way(options: Any) -> str:
    words = ["opencl"]
    words += ["device"] if options.way in ON_DEVICE else []
    words += ["gpu"] if options.mapping == "gpu" else []
    words += ["strict"] if options.strict or options.way == "native" else []
    return " ".join(words)


def known() -> dict[str, list[str]]:
    """The passes that are committed, by way, and the ops that they called."""
    empty: dict[str, list[str]] = {"table": [], "tape": [], "ops": []}
    found = json.loads(PASSES.read_text()) if PASSES.exists() else empty
    for more in (PASSES_DEVICE, PASSES_OPENCL):
        found |= json.loads(more.read_text()) if more.exists() else {}
    return found


def write(passed: dict[str, list[str]]) -> None:
    """Add passes to the committed lists, which only grow."""
    before = known()
    for way, names in passed.items():
        before[way] = sorted(set(before.get(way, [])) | set(names))
    opencl = {way: before.pop(way) for way in list(before) if "opencl" in way}
    device = {way: before.pop(way) for way in ON_DEVICE if way in before}
    for file, ways in ((PASSES, before), (PASSES_DEVICE, device), (PASSES_OPENCL, opencl)):
        if ways:
            file.write_text(json.dumps(ways, indent=0) + "\n")


if __name__ == "__main__":
    sys.exit(main())

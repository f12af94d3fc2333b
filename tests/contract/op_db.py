"""torch's own operator database (OpInfo) through our table, forward and backward.

    python -m tests.contract.op_db                     # everything, both ways, prints a summary
    python -m tests.contract.op_db --only "conv*" -v    # some, with what went wrong
    python -m tests.contract.op_db --way table --write  # and note the passes

Ways: "table" has torch's autograd call our kernels, "tape" takes gradients by our own lines.
An OpInfo passes when every float32 sample's results and gradients are close to torch's, with no
call computed by torch.
"""

from __future__ import annotations

import argparse
import copy
import fnmatch
import json
import multiprocessing
import sys
import warnings
from collections import Counter
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from holdfast.compute import random
from tests.contract.torch_bridge import OnTable, OnTape, to_array, to_torch

PASSES = Path(__file__).parent / "passes.json"
RTOL, ATOL = 1e-4, 1e-5
SEED = 0


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
    rules: set[str] = set()
    try:
        torch.manual_seed(SEED)
        for sample in info.sample_inputs(
            "cpu", torch.float32, requires_grad=info.supports_autograd
        ):
            result["samples"] += 1
            bridge = OnTable() if way == "table" else OnTape()
            try:
                _compare(info, sample, bridge, way, slack)
            finally:
                fallbacks += bridge.fallbacks
                calls += bridge.calls
                rules |= bridge.wrong_rules
        result["passed"] = bool(result["samples"]) and not fallbacks and not rules
        if rules:
            result["error"] = "; ".join(sorted(rules)[:5])
    except Exception as exc:  # noqa: BLE001
        result["error"] = f"{type(exc).__name__}: {exc}"[:600]
    result["fallbacks"] = dict(fallbacks)
    result["calls"] = sorted(calls)
    return result


def _compare(info: Any, sample: Any, bridge: Any, way: str, slack: float) -> None:
    inputs = (sample.input, sample.args, sample.kwargs)
    expected, wanted = _torch_run(info, sample, inputs)
    run = _table_run if way == "table" else _tape_run
    # OpInfos of random ops set a seed of their own inside the call.
    with mock.patch.object(torch, "manual_seed", _seed_both):
        got, found = run(info, sample, bridge, wanted)
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
    from holdfast.compute import autograd

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
    found = autograd.grad(outs, starts, seeds, allow_unused=True)
    return out, [None if g is None else to_torch(g.data.copy()) for g in found]


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
        made = leaf.detach().clone() if leaf.layout is torch.strided else leaf.detach()
        return made.requires_grad_(leaf.requires_grad)

    return torch.utils._pytree.tree_map(one, inputs)


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

# Compared by shape and format: the numbers are random, or unspecified.
RANDOM = {
    "empty",
    "empty_like",
    "empty_strided",
    "empty_permuted",
    "new_empty",
    "new_empty_strided",
}


def _work(task: tuple[str, str, float]) -> tuple[str, str, dict[str, Any]]:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    name, way, slack = task
    return name, way, check(database()[name], way, slack)


def sweep(
    names: list[str], ways: list[str], workers: int = 2, slack: float = 1
) -> dict[str, dict[str, Any]]:
    """Results by way and OpInfo. Each runs in a forked process: a crash is a failed OpInfo."""
    database()
    found: dict[str, dict[str, Any]] = {way: {} for way in ways}
    context = multiprocessing.get_context("fork")
    tasks = [(name, way, slack) for way in ways for name in names]
    with context.Pool(workers, maxtasksperchild=40) as pool:
        for name, way, result in pool.imap_unordered(_work, tasks, chunksize=4):
            found[way][name] = result
    return found


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="*", help="names of OpInfos, with * and commas")
    parser.add_argument("--way", choices=["table", "tape", "both"], default="both")
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
    ways = ["table", "tape"] if options.way == "both" else [options.way]
    found = sweep(names, ways, options.workers)
    for way, results in found.items():
        passed = [n for n, r in results.items() if r["passed"]]
        print(f"{way}: {len(passed)} of {len(results)} OpInfos pass")
        if options.v:
            for name, r in sorted(results.items()):
                if not r["passed"]:
                    print(f"  {name}: fallbacks {sorted(r['fallbacks'])} {r['error'] or ''}")
        if options.write:
            reached = {op for r in results.values() if r["passed"] for op in r["calls"]}
            write({way: passed, "ops": sorted(reached)})
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))
    return 0


def known() -> dict[str, list[str]]:
    """The passes that are committed, by way, and the ops that they called."""
    empty: dict[str, list[str]] = {"table": [], "tape": [], "ops": []}
    return json.loads(PASSES.read_text()) if PASSES.exists() else empty


def write(passed: dict[str, list[str]]) -> None:
    """Add passes to the committed list, which only grows."""
    before = known()
    for way, names in passed.items():
        before[way] = sorted(set(before.get(way, [])) | set(names))
    PASSES.write_text(json.dumps(before, indent=0) + "\n")


if __name__ == "__main__":
    sys.exit(main())

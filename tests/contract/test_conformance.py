"""Every op of the table against torch, over torch's own database of samples."""

from __future__ import annotations

import subprocess
import sys
import warnings

import pytest
import torch

from holdfast.compute.engine import ENGINES
from holdfast.compute.ops import OPS
from tests.contract import op_db
from tests.contract.torch_bridge import METADATA, counterpart, name_of

# A few of each family, for the quick run; the slow test goes through all.
SAMPLE = [
    *(
        "add",
        "mul",
        "div.no_rounding_mode",
        "pow",
        "where",
        "clamp",
        "exp",
        "erf",
        "nn.functional.gelu",
    ),
    *("sum", "var", "softmax", "nn.functional.layer_norm", "nn.functional.cross_entropy", "cumsum"),
    *("matmul", "addmm", "linalg.inv", "fft.rfft", "cat", "permute", "as_strided", "gather"),
    *(
        "scatter_add",
        "index_put",
        "sort",
        "topk",
        "nn.functional.conv2d",
        "nn.functional.avg_pool2d",
    ),
    *(
        "nn.functional.interpolate.bilinear",
        "nn.functional.pad.constant",
        "nn.functional.embedding",
    ),
]
# The samples of these take longest, and others of their families are quick.
LONG = {"sort", "nn.functional.pad.constant", "var"}
# Ours alone: functions of torch's Python side, names with two meanings, fused layers.
OWN = {
    *("softsign", "tanhshrink", "tensordot.dims", "unique", "softmin", "special_round.decimals"),
    *("special_xlogy.Tensor", "special_xlogy.Scalar_Self", "special_xlogy.Scalar_Other"),
    *("_lstm_layer", "_lstm_layer_backward", "_gru_layer", "_gru_layer_backward"),
    *("_rnn_layer", "_rnn_layer_backward", "holdfast_int_conv2d"),
}
NAMED = {"special_round"}  # an alias with the overloads of `round`


def core_overloads() -> list:
    """Every overload that torch counts among its core ops."""
    found = []
    for schema in torch._C._jit_get_all_schemas():
        if not schema.name.startswith("aten::"):
            continue
        packet = getattr(torch.ops.aten, schema.name.removeprefix("aten::"), None)
        overload = getattr(packet, schema.overload_name or "default", None)
        if overload is not None and torch.Tag.core in overload.tags:
            found.append(overload)
    return sorted(set(found), key=name_of)


def test_every_core_overload_of_torch_has_a_kernel_of_its_own():
    overloads = core_overloads()
    assert len(overloads) == 193
    kernels = ENGINES["numpy"].kernels
    missing = []
    for overload in overloads:
        op, _ = counterpart(overload)
        if (op is None or op.name not in kernels) and name_of(overload) not in METADATA:
            missing.append(name_of(overload))
    assert missing == []


def test_every_op_has_a_kernel_or_a_decomposition():
    kernels = ENGINES["numpy"].kernels
    assert [n for n, op in OPS.items() if n not in kernels and op.decomposition is None] == []


def test_every_kernel_belongs_to_an_op():
    assert [name for name in ENGINES["numpy"].kernels if name not in OPS] == []


def test_signatures_are_those_of_torch():
    """Names, types and order; formats, layouts and the like are left out on purpose."""
    dropped = {"layout", "device", "pin_memory", "memory_format", "generator", "non_blocking"}
    strange = []
    for name, op in OPS.items():
        base, _, overload = name.partition(".")
        theirs = getattr(getattr(torch.ops.aten, base, None), overload or "default", None)
        if theirs is None:
            continue
        expected = [
            (a.name, a.kwarg_only) for a in theirs._schema.arguments if a.name not in dropped
        ]
        found = [(p.name, p.keyword) for p in op.schema.parameters]
        if expected != found and name not in NAMED:
            strange.append((name, expected, found))
    assert strange == []


def test_ops_that_aten_does_not_have_are_known():
    found = set()
    for name in OPS:
        base, _, overload = name.partition(".")
        if not hasattr(getattr(torch.ops.aten, base, None), overload or "default"):
            found.add(name)
    assert found == OWN


@pytest.mark.parametrize("way", ["table", pytest.param("tape", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow if n in LONG else ()) for n in SAMPLE]
)
def test_a_sample_of_the_database_passes(name: str, way: str):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = op_db.check(op_db.database()[name], way)
    assert (result["passed"], result["error"], result["fallbacks"]) == (True, None, {})


@pytest.mark.slow
@pytest.mark.parametrize("way", ["table", "tape"])
def test_the_passes_in_the_database_only_grow(way: str):
    names = list(op_db.database())
    assert len(names) == 677
    # The list is written with the tolerances as they are. Another processor, or no compiler, sums
    # in another order: what passed narrowly there may miss narrowly here.
    results = op_db.sweep(names, [way], slack=4)[way]
    lost = {n: results[n] for n in op_db.known()[way] if not results[n]["passed"]}
    assert {n: (r["error"], r["fallbacks"]) for n, r in lost.items()} == {}
    assert sum(r["passed"] for r in results.values()) >= 600


def test_computing_imports_no_torch():
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys; from holdfast.compute import CustomTensor, nn, optim, quant\n"
            "print((CustomTensor([1, 2]) @ CustomTensor([3, 4])).item(), 'torch' in sys.modules)",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "11.0 False\n"

"""Every op of the table against torch, over torch's own database of samples."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor

import pytest
import torch

from holdfast.compute.engine import ENGINES
from holdfast.compute.ops import OPS
from holdfast.compute.torch_device.dispatch.resolve import counterpart, name_of
from tests.contract import module_db, op_db
from tests.contract.torch_bridge import METADATA
from tests.needs import needs
from tests.topology.test_probes import _no_opencl

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
# On the torch device: what goes ways of its own there, and a few others.
ON_DEVICE = [
    *("add", "where", "nn.functional.gelu", "softmax", "matmul", "cat", "index_put", "sort"),
    *("arange", "eye", "linspace", "cummax", "logcumsumexp", "cholesky_solve", "fft.ifft", "polar"),
    *("linalg.eig", "sgn", "to", "randn", "multinomial", "nn.functional.dropout", "normal"),
    *("nn.functional.conv2d", "nn.functional.layer_norm", "as_strided.partial_views"),
]
ON_HOST = ["to_sparse", "sparse.sampled_addmm"]  # torch's CPU kernels compute these
MODULES = [
    *("nn.Conv2d", "nn.BatchNorm2d", "nn.LSTM", "nn.GRUCell", "nn.Embedding", "nn.Linear"),
    *("nn.MultiheadAttention", "nn.CrossEntropyLoss", "nn.GroupNorm"),
]
whole = pytest.mark.skipif(
    not os.environ.get("HOLDFAST_TEST_ALL"), reason="takes minutes: make test-all runs it"
)
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
on_opencl = [pytest.mark.opencl, needs(_no_opencl())]
ENGINES_HERE = ["numpy", pytest.param("opencl", marks=on_opencl)]
# With the OpenCL engine, for the quick run.
ON_OPENCL = [
    *("add", "where", "nn.functional.gelu", "sum", "softmax", "matmul", "cat", "permute"),
    *("gather", "nn.functional.layer_norm", "nn.functional.embedding", "as_strided"),
]
# Core overloads that the OpenCL engine leaves to decompositions or to the host: it only shrinks.
NOT_ON_OPENCL = {"_fft_c2r", "_fft_r2c", "upsample_bilinear2d.vec", "upsample_nearest2d.vec"}


@pytest.fixture(autouse=True)
def kernels_kept(kept_kernels: None) -> None:
    """For every test here."""


@pytest.fixture(scope="module")
def fresh_process() -> Iterator[ProcessPoolExecutor]:
    """A process for sweeps, which fork: once this one has gone backward it cannot (torch's rule).

    It computes nothing itself, so all sweeps can be in the same.
    """
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        yield pool


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


def core_without_kernel(engine: str) -> set[str]:
    """Core overloads that an engine has no kernel for."""
    kernels = ENGINES[engine].kernels
    missing = set()
    for overload in core_overloads():
        op, _ = counterpart(overload)
        if (op is None or op.name not in kernels) and name_of(overload) not in METADATA:
            missing.add(name_of(overload))
    return missing


def test_every_core_overload_of_torch_has_a_kernel_of_its_own():
    assert len(core_overloads()) == 193
    assert core_without_kernel("numpy") == set()


def test_most_core_overloads_of_torch_have_an_opencl_kernel():
    missing = core_without_kernel("opencl")
    assert missing - NOT_ON_OPENCL == set()
    assert NOT_ON_OPENCL - missing == set()  # there is a kernel now: take it off the list
    assert 193 - len(missing) >= 150


def test_every_op_has_a_kernel_or_a_decomposition():
    kernels = ENGINES["numpy"].kernels
    assert [n for n, op in OPS.items() if n not in kernels and op.decomposition is None] == []


@pytest.mark.parametrize("engine", ["numpy", "opencl"])
def test_every_kernel_belongs_to_an_op(engine: str):
    assert [name for name in ENGINES[engine].kernels if name not in OPS] == []


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


@pytest.mark.opencl
@needs(_no_opencl())
@pytest.mark.parametrize(
    "way", ["opencl strict", pytest.param("opencl gpu strict", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("name", ON_OPENCL)
def test_a_sample_of_the_database_passes_on_opencl(name: str, way: str):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = op_db.check(op_db.database()[name], way, slack=4)
    assert (result["passed"], result["error"], result["fallbacks"]) == (True, None, {})


@whole
@pytest.mark.slow
@pytest.mark.opencl
@needs(_no_opencl())
@pytest.mark.parametrize(
    ("way", "least"), [("opencl", 600), ("opencl gpu", 600), ("opencl device", 600)]
)
def test_the_passes_on_opencl_only_grow(fresh_process: ProcessPoolExecutor, way: str, least: int):
    names = list(op_db.database())
    assert len(names) == 677
    results = fresh_process.submit(op_db.sweep, names, [way], slack=4, limit_s=600.0).result()[way]
    known = op_db.known().get(way, [])
    lost = {n: results[n]["error"] for n in known if not results[n]["passed"]}
    assert lost == {}
    assert sum(r["passed"] for r in results.values()) >= least


@pytest.mark.slow
@pytest.mark.parametrize("way", ["table", pytest.param("tape", marks=whole)])
def test_the_passes_in_the_database_only_grow(fresh_process: ProcessPoolExecutor, way: str):
    """All of them under `make test-all`, every third one else."""
    names = list(op_db.database())
    assert len(names) == 677
    if not os.environ.get("HOLDFAST_TEST_ALL"):
        names = names[::3]
    # The list is written with the tolerances as they are. Another processor, or no compiler, sums
    # in another order: what passed narrowly there may miss narrowly here.
    results = fresh_process.submit(op_db.sweep, names, [way], slack=4).result()[way]
    known = set(op_db.known()[way]).intersection(names)
    lost = {n: results[n] for n in known if not results[n]["passed"]}
    assert {n: (r["error"], r["fallbacks"]) for n, r in lost.items()} == {}
    assert sum(r["passed"] for r in results.values()) >= len(names) * 600 // 677


@pytest.mark.slow
def test_a_sample_of_the_database_passes_on_the_device(fresh_process: ProcessPoolExecutor):
    native = fresh_process.submit(op_db.sweep, ON_DEVICE, ["native"], slack=4).result()["native"]
    helped = fresh_process.submit(op_db.sweep, ON_HOST, ["device"], slack=4).result()["device"]
    failed = {n: r["error"] for n, r in (native | helped).items() if not r["passed"]}
    assert failed == {}


@pytest.mark.slow
def test_a_sample_of_the_modules_passes_on_the_device(fresh_process: ProcessPoolExecutor):
    results = fresh_process.submit(module_db.sweep, MODULES, "native modules", slack=4).result()
    assert {n: r["error"] for n, r in results.items() if not r["passed"]} == {}


def test_the_samples_on_the_device_are_among_the_committed_passes():
    known = op_db.known()
    assert set(ON_DEVICE) - set(known["native"]) == set()
    assert set(ON_HOST) - set(known["device"]) == set()
    assert set(MODULES) - set(known["native modules"]) == set()
    assert set(ON_OPENCL) - set(known["opencl"]) == set()


@whole
@pytest.mark.slow
@pytest.mark.parametrize(("way", "least"), [("device", 668), ("native", 640)])
def test_the_passes_on_the_device_only_grow(
    fresh_process: ProcessPoolExecutor, way: str, least: int
):
    names = list(op_db.database())
    assert len(names) == 677
    results = fresh_process.submit(op_db.sweep, names, [way], slack=4).result()[way]
    lost = {n: results[n]["error"] for n in op_db.known()[way] if not results[n]["passed"]}
    assert lost == {}
    assert sum(r["passed"] for r in results.values()) >= least


@whole
@pytest.mark.slow
@pytest.mark.parametrize("way", list(module_db.WAYS))
def test_the_modules_that_pass_on_the_device_only_grow(
    fresh_process: ProcessPoolExecutor, way: str
):
    names = list(module_db.database())
    assert len(names) == 114
    results = fresh_process.submit(module_db.sweep, names, way, slack=4).result()
    lost = {n: results[n]["error"] for n in op_db.known()[way] if not results[n]["passed"]}
    assert lost == {}
    assert sum(r["passed"] for r in results.values()) >= 110


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

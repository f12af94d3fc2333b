"""Matrix products on the OpenCL engine, in both mappings, against the NumPy engine."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy
import pytest

from holdfast.base.errors import BadInput
from holdfast.compute.engine import ENGINES, run
from holdfast.compute.ops import OPS
from tests.compute.opencl import checks

FORMATS = ("float32", "float64", "float16", ml_dtypes.bfloat16, "int64", "int32", "uint8", "bool")


def numbers(*shape: int, kind: Any = "float32", seed: int = 0) -> Any:
    """Random numbers of a dtype."""
    kind = numpy.dtype(kind)
    random = numpy.random.default_rng([seed, *shape])
    if kind.kind == "b":
        return random.integers(0, 2, shape).astype(bool)
    if kind.kind in "iu":
        return random.integers(0 if kind.kind == "u" else -9, 9, shape).astype(kind)
    return random.standard_normal(shape).astype(kind)


def same(name: str, *args: Any, **kwargs: Any) -> Any:
    return checks.same(name, *args, rtol=1e-4, atol=1e-4, **kwargs)


@pytest.mark.parametrize(
    "shape", [(1, 1, 1), (3, 5, 7), (64, 64, 64), (130, 70, 131), (9, 300, 17)]
)
def test_matrices_of_any_size_are_multiplied(shape: tuple[int, int, int]):
    m, k, n = shape
    same("mm", numbers(m, k), numbers(k, n, seed=1))


@pytest.mark.parametrize("shape", [(2, 33, 40), (40, 33, 2), (128, 16, 128), (100, 20, 36)])
def test_matrices_may_lie_in_memory_in_any_order(shape: tuple[int, int, int]):
    m, k, n = shape
    rows, columns = numbers(m, k), numbers(n, k).T
    same("mm", rows, columns)
    same("mm", numbers(k, m).T, columns)
    same("mm", numbers(k, m).T, numbers(k, n))
    same("mm", numbers(2 * m, 3 * k)[::2, 1::3], numbers(k + 2, 2 * n)[1:-1, ::2])


@pytest.mark.parametrize("kind", FORMATS, ids=str)
def test_every_dtype_is_multiplied_in_its_own_way(kind: Any):
    same("mm", numbers(20, 33, kind=kind), numbers(33, 21, kind=kind))
    if kind != "bool":
        base = numbers(21, kind=kind)
        same("addmm", base, numbers(20, 33, kind=kind), numbers(33, 21, kind=kind), alpha=2, beta=3)


def test_a_long_sum_is_shared_out_over_work_groups():
    same("mm", numbers(5, 5000), numbers(5000, 6))
    same("addmm", numbers(6), numbers(5, 5000), numbers(5000, 6), alpha=0.5, beta=0.25)


def test_batches_are_multiplied_one_by_one():
    same("bmm", numbers(5, 10, 12), numbers(5, 12, 14))
    same("bmm", numbers(5, 2, 12), numbers(5, 14, 12).transpose(0, 2, 1))
    same("bmm", numbers(10, 5, 40).transpose(1, 0, 2), numbers(40, 5, 20).transpose(1, 0, 2))


def test_batches_broadcast_as_in_numpy():
    same("matmul", numbers(2, 3, 10, 12), numbers(12, 14))
    same("matmul", numbers(2, 3, 10, 12), numbers(3, 12, 14))
    same("matmul", numbers(10, 12), numbers(2, 3, 12, 14))
    same("matmul", numbers(2, 1, 10, 12), numbers(1, 3, 12, 14))
    same("matmul", numbers(2, 1, 2, 10, 12), numbers(3, 1, 12, 14))
    same("matmul", numbers(4, 3, 10, 12)[::2].transpose(1, 0, 2, 3), numbers(12, 14))


def test_vectors_are_rows_first_and_columns_second():
    same("matmul", numbers(12), numbers(12))
    same("matmul", numbers(12), numbers(12, 14))
    same("matmul", numbers(10, 12), numbers(12))
    same("matmul", numbers(3, 10, 12), numbers(12))
    same("matmul", numbers(12), numbers(3, 12, 14))
    same("mv", numbers(100, 33), numbers(33))
    same("mv", numbers(33, 100).T, numbers(33))
    same("dot", numbers(1000), numbers(1000, seed=1))
    same("dot", numbers(2000)[::2], numbers(1000, seed=1))
    same("vdot", numbers(9), numbers(9, seed=1))


def test_what_is_added_broadcasts():
    one, other = numbers(10, 12), numbers(12, 14)
    for base in (numbers(10, 14), numbers(14), numbers(10, 1), numbers(1), numbers(14, 10).T):
        same("addmm", base, one, other, beta=0.5, alpha=2.0)
    same("baddbmm", numbers(5, 1, 14), numbers(5, 10, 12), numbers(5, 12, 14), beta=2)
    same("addbmm", numbers(10, 14), numbers(5, 10, 12), numbers(5, 12, 14), beta=2, alpha=0.5)
    same("addmv", numbers(10), one, numbers(12), beta=2, alpha=0.5)
    same("addr", numbers(10, 14), numbers(10), numbers(14), beta=2, alpha=0.5)


def test_what_is_added_times_nothing_is_not_read():
    nothing = numpy.full((10, 14), numpy.nan, "float32")
    same("addmm", nothing, numbers(10, 12), numbers(12, 14), beta=0)


def test_factors_of_float64_are_not_rounded_to_float32():
    args = [numbers(10, 14, kind="float64"), numbers(10, 12, kind="float64")]
    last = numbers(12, 14, kind="float64")
    checks.same("addmm", *args, last, alpha=0.1, beta=0.3, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("rows", [(7,), (2, 7), (2, 3, 40), ()])
def test_a_linear_layer_adds_its_bias(rows: tuple[int, ...]):
    weight = numbers(20, 33)
    same("linear", numbers(*rows, 33), weight)
    same("linear", numbers(*rows, 33), weight, numbers(20))


def test_a_linear_layer_may_have_one_result():
    same("linear", numbers(4, 33), numbers(33), numbers(1).reshape(()))


def test_an_empty_product_has_a_shape_and_an_empty_sum_is_zero():
    same("mm", numbers(0, 3), numbers(3, 4))
    same("mm", numbers(3, 0), numbers(0, 4))
    same("bmm", numbers(0, 3, 4), numbers(0, 4, 5))
    same("addmm", numbers(4), numbers(3, 0), numbers(0, 4), beta=2)
    same("linear", numbers(2, 0), numbers(3, 0), numbers(3))


@pytest.mark.parametrize("kind", ["float32", "float16", "int32"])
def test_traces_crosses_and_blocks(kind: str):
    same("trace", numbers(5, 7, kind=kind))
    same("linalg_cross", numbers(4, 3, kind=kind), numbers(1, 3, kind=kind, seed=1))
    same("linalg_cross", numbers(3, 4, kind=kind), numbers(3, 4, kind="float32", seed=1), dim=0)
    blocks = [
        numbers(2, 3, kind=kind),
        numbers(4, kind=kind),
        numbers(1).reshape(()),
        numbers(0, 2),
    ]
    same("block_diag", blocks)


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("mm", (numbers(2, 3), numbers(4, 5))),
        ("mm", (numbers(2, 3), numbers(3))),
        ("mm", (numbers(2, 3), numbers(3, 4, kind="float64"))),
        ("bmm", (numbers(2, 2, 3), numbers(3, 3, 4))),
        ("matmul", (numbers(2, 2, 3), numbers(3, 3, 4))),
        ("matmul", (numbers(1).reshape(()), numbers(3))),
        ("addmm", (numbers(4, kind="float64"), numbers(2, 3), numbers(3, 4))),
        ("addbmm", (numbers(4), numbers(2, 2, 3), numbers(2, 4, 5))),
    ],
)
def test_shapes_that_do_not_meet_are_refused_as_by_numpy(name: str, args: tuple[Any, ...]):
    with pytest.raises(BadInput) as expected:
        run(OPS[name], ENGINES["numpy"], list(args), {})
    for mapping in ("cpu", "gpu"):
        with pytest.raises(BadInput) as found:
            checks.on(mapping, name, *args)
        assert str(found.value) == str(expected.value)

"""Kernels made from an expression: layouts, dtypes, remembered calls, fused chains."""

from __future__ import annotations

from typing import Any

import numpy
import pytest

from holdfast.base.errors import BadInput
from holdfast.compute import CustomDevice, CustomTensor, fuse
from holdfast.compute import functional as F
from holdfast.compute.engine import run, strict
from holdfast.compute.engines.opencl.elementwise import codegen, expressions, strided_kernels
from holdfast.compute.engines.opencl.engine import MAPPINGS
from holdfast.compute.ops import OPS
from tests.compute.opencl.checks import engine, on, same

rng = numpy.random.default_rng(0)
X = rng.standard_normal((6, 5, 7)).astype(numpy.float32)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (X, X[:, :1]),
        (X, X[0, 0]),
        (X.transpose(2, 0, 1), X.transpose(2, 0, 1)),
        (X[:, ::2], X[:, ::-2][:, ::-1]),
        (X[..., :1], X[:1]),
        (X[2:3, 1, 1], X[0, 0, 0].reshape(())),
        (X[:0], X[:0]),
        (X.reshape(-1)[1:200], X.reshape(-1)[2:201]),
    ],
)
def test_any_layouts_and_broadcasts_come_out_right(one: Any, other: Any) -> None:
    same("add.Tensor", one, numpy.asarray(other))


@pytest.mark.parametrize("count", [1, 31, 32, 33, 64, 4095, 4097, 20000])
def test_every_length_is_computed_to_its_end(count: int) -> None:
    x = numpy.arange(count, dtype=numpy.float32)
    same("mul.Scalar", x, 0.5)
    same("gt.Scalar", x, count / 2)


def test_more_dimensions_than_numpy_broadcasts_are_computed() -> None:
    x = numpy.arange(6, dtype=numpy.float32).reshape(2, *(1,) * 40, 3, 1)
    same("add.Tensor", x, numpy.array([[1, 2]], numpy.float32))


def test_rows_longer_than_a_vector_with_a_rest_come_out_right() -> None:
    x = rng.standard_normal((7, 100)).astype(numpy.float32)
    same("silu", x[:, :75])
    same("add.Tensor", x, x[:, :1])


@pytest.mark.parametrize("one", ["float32", "int32", "bool", "float16", "uint8", "float64"])
@pytest.mark.parametrize("other", ["float32", "int64", "bool", "bfloat16"])
def test_dtypes_are_promoted_as_the_table_says(one: str, other: str) -> None:
    import ml_dtypes

    formats = {"bfloat16": ml_dtypes.bfloat16}
    x = (X * 4).astype(formats.get(one, one))
    same("mul.Tensor", x, (X * 4).astype(formats.get(other, other)))


def test_a_number_counts_less_than_an_array() -> None:
    same("add.Scalar", numpy.arange(5, dtype=numpy.int8), 300)
    same("add.Scalar", numpy.arange(5, dtype=numpy.int32), 0.5)
    same("add.Tensor", numpy.arange(5, dtype=numpy.int32), numpy.array(0.5))


def test_a_number_that_does_not_fit_wraps_around_before_it_is_compared_as_in_torch() -> None:
    found = on("cpu", "lt.Scalar", numpy.array([3, 255], numpy.uint8), -1)
    assert found.tolist() == [True, False]


@pytest.mark.parametrize("source", ["float32", "float64", "int64", "bool", "float16", "complex64"])
@pytest.mark.parametrize("target", ["float32", "uint8", "int16", "bool", "bfloat16", "float64"])
def test_a_cast_is_the_hosts_cast(source: str, target: str) -> None:
    same("_to_copy", (X * 20).astype(source), dtype=target, mappings=("cpu",))


def test_a_transposed_array_has_a_transposed_result() -> None:
    there = engine("cpu")
    made = there.upload(X[0]).transpose((1, 0))
    assert run(OPS["neg"], there, (made,), {}).strides == made.strides


def test_shapes_that_do_not_broadcast_are_refused_as_on_the_host() -> None:
    with pytest.raises(BadInput) as caught:
        on("cpu", "add.Tensor", X, X[:, :2])
    assert str(caught.value) == (
        "cannot compute add.Tensor(float32[6, 5, 7], float32[6, 2, 7]): shape mismatch: objects "
        "cannot be broadcast to a single shape.  Mismatch is between arg 0 with shape (6, 5, 7) "
        "and arg 1 with shape (6, 2, 7).\n"
        "  expected: shapes that broadcast: from the right, sizes are equal or one of them is 1"
    )


# ---- remembered calls


def test_a_call_that_was_made_before_is_not_worked_out_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    there = engine("cpu")
    x = there.upload(X)
    first = run(OPS["add.Scalar"], there, (x, 1.5), {})
    monkeypatch.setattr(expressions, "_prepare_plan", None)
    second = run(OPS["add.Scalar"], there, (x, 2.5), {})
    assert numpy.array_equal(there.download(second), X + numpy.float32(2.5))
    assert numpy.array_equal(there.download(first), X + numpy.float32(1.5))


def test_a_number_may_come_by_name_or_by_place() -> None:
    same("add.Tensor", X, X, alpha=3)
    same("leaky_relu", X, negative_slope=0.2)
    same("leaky_relu", X, 0.3)
    same("softplus", X, beta=2.0)


def test_calls_are_forgotten_when_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strided_kernels, "_PLANS", 3)
    there = engine("cpu")
    for size in range(1, 8):
        run(OPS["neg"], there, (there.upload(X.reshape(-1)[:size]),), {})
    assert len(there.plans) <= 3


def test_the_same_form_has_one_text() -> None:
    read = codegen.Read("self", "float32", "float")
    form = codegen.Form(
        *("cpu", "float", 16, (read,), (), (codegen.Step("out", "-$self"),), ("out",)),
        *(("float32",), (1, 1), 1, False),
    )
    assert codegen.text_of(form) is codegen.text_of(form._replace(helpers=""))
    assert "vload" in codegen.text_of(form)


# ---- fused chains


def _on(mapping: str, array: Any) -> CustomTensor:
    device: Any = object.__new__(CustomDevice)
    device.device_type, device.index, device.engine = "opencl", 0, engine(mapping)
    return CustomTensor._wrap(device.engine.upload(array), device)


def _launches(mapping: str, monkeypatch: pytest.MonkeyPatch, call: Any) -> tuple[Any, int]:
    there, counted = engine(mapping), []
    plain = there.launch

    def launch(*args: Any) -> None:
        counted.append(args)
        plain(*args)

    with monkeypatch.context() as patch:
        patch.setattr(there, "launch", launch)
        return call(), len(counted)


CHAINS = {
    "one result": lambda x, y: x * (1 + y).sigmoid() + 0.5,
    "three results": lambda x, y: (x - y, x > 0.25, (x - y).exp()),
    "a choice": lambda x, y: F.where(x > y, F.gelu(x), -y),
    "a booleans as a number": lambda x, y: (x > y) * x,
}


@pytest.mark.parametrize("mapping", MAPPINGS)
@pytest.mark.parametrize("name", CHAINS)
def test_a_chain_is_one_kernel_and_gives_what_its_ops_give(
    name: str, mapping: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = _on(mapping, X), _on(mapping, X[0, :, :])
    function: Any = CHAINS[name]
    plain, quick = function(x, y), fuse(function)
    quick(x, y)
    with strict():
        found, count = _launches(mapping, monkeypatch, lambda: quick(x, y))
    assert count == 1
    pairs = zip(found, plain, strict=True) if isinstance(plain, tuple) else [(found, plain)]
    for one, other in pairs:
        assert one.dtype == other.dtype
        numpy.testing.assert_allclose(one.data, other.data, 1e-6, 1e-7)


def test_a_chain_reads_integers_and_narrow_floats_as_float32() -> None:
    x, whole = _on("cpu", X), _on("cpu", numpy.arange(7))
    function = lambda x, n: x * n + 1  # noqa: E731
    numpy.testing.assert_array_equal(fuse(function)(x, whole).data, function(x, whole).data)
    half = _on("cpu", X.astype(numpy.float16))
    numpy.testing.assert_array_equal(fuse(F.gelu)(half).data, F.gelu(half).data)


def test_a_chain_that_cannot_be_one_kernel_is_called_op_by_op() -> None:
    whole = _on("cpu", numpy.arange(8))
    assert fuse(lambda n: n * 2 + 1)(whole).data.tolist() == [1, 3, 5, 7, 9, 11, 13, 15]
    half = _on("cpu", X.astype(numpy.float16))
    function = lambda h: h * 2 + h  # noqa: E731
    numpy.testing.assert_array_equal(fuse(function)(half).data, function(half).data)

"""`holdfast.xla.check.check`: a tiny model on torch and on XLA, and what is wrong with it."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("jax")
pytest.importorskip("diffusers")

from holdfast.base.errors import Absent, BadInput, NotFound  # noqa: E402
from holdfast.xla import tiny  # noqa: E402
from holdfast.xla.check.check import PortCheck, check, devices_for  # noqa: E402
from holdfast.xla.tiny.spec import TensorSpec, Tiny  # noqa: E402
from tests.tolerance import no_worse  # noqa: E402

HERE = __name__


class Net(torch.nn.Module):
    """A layer that can be split, and something done to what it gives."""

    def __init__(self) -> None:
        super().__init__()
        self.proj = torch.nn.Linear(16, 64)

    def after(self, x: Any) -> Any:
        return x.sin()

    def forward(self, x: Any) -> Any:
        return (self.after(self.proj(x)),)


class Attending(torch.nn.Module):
    """One attention: what goes in is split by heads, what comes out is summed."""

    def __init__(self) -> None:
        super().__init__()
        self.to_q, self.to_k, self.to_v, self.to_out = (torch.nn.Linear(32, 32) for _ in range(4))

    def forward(self, x: Any) -> Any:
        q, k, v = (
            one(x).unflatten(-1, (8, 4)).transpose(1, 2)
            for one in (self.to_q, self.to_k, self.to_v)
        )
        mixed = torch.nn.functional.scaled_dot_product_attention(q, k, v)
        return (self.to_out(mixed.transpose(1, 2).flatten(2)),)


class Branching(Net):
    def after(self, x: Any) -> Any:
        return x if x.sum() > 0 else -x


class Lacking(Net):
    def after(self, x: Any) -> Any:
        first, scale = torch.geqrf(x)
        return torch.special.airy_ai(first) + scale.sum() + torch.special.airy_ai(x)


class Guessing(Net):
    def after(self, x: Any) -> Any:
        return x + torch.rand(64)


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    """The classes above have tiny models, too."""
    table: Any = tiny.tiny_models()
    for cls in (Net, Branching, Lacking, Guessing):
        entry = Tiny(config={}, inputs={"x": TensorSpec("normal", (2, 16))})
        monkeypatch.setitem(table, f"{HERE}:{cls.__name__}", entry)
    attending = Tiny(config={}, inputs={"x": TensorSpec("normal", (2, 5, 32))})
    monkeypatch.setitem(table, f"{HERE}:Attending", attending)


@pytest.mark.parametrize(
    "name",
    [
        f"{HERE}:Attending",
        pytest.param("transformers:T5EncoderModel", marks=pytest.mark.slow),
    ],
)
def test_a_class_that_runs_is_compared_in_every_way(name: str) -> None:
    found = check(name, devices=4)
    assert found.problems == ()
    assert found.ok
    assert found.failure is None
    assert found.error_f32 is not None
    assert 0 <= found.error_f32 < 1e-5
    assert found.error_sharded is not None
    assert found.error_sharded < 1e-5
    assert found.error_bf16 is not None
    assert found.torch_bf16_error is not None
    assert found.error_bf16 > 1e-4
    assert no_worse(found.error_bf16, found.torch_bf16_error, "bfloat16")
    assert found.ideal_bytes < found.bytes_per_device < 4 * found.ideal_bytes
    assert found.collectives["all-reduce"] >= 1
    assert found.seconds > 0


def test_bytes_are_those_of_the_weights() -> None:
    found = check(f"{HERE}:Net", devices=8, dtypes=("f32",))
    assert found.ok
    assert found.ideal_bytes == (16 * 64 + 64) * 4 // 8
    assert found.bytes_per_device == 8 * found.ideal_bytes  # too small to be worth a split
    assert (found.full_bytes_per_device, found.full_ideal_bytes) == (8 * 272, 272)
    assert (found.error_bf16, found.torch_bf16_error) == (None, None)


def test_with_one_device_nothing_is_split() -> None:
    found = check(f"{HERE}:Net", devices=1, dtypes=("f32",))
    assert found.ok
    assert (found.error_sharded, found.bytes_per_device, found.collectives) == (None, 0, {})


def test_bf16_alone() -> None:
    found = check(f"{HERE}:Net", devices=2, dtypes=("bf16",))
    assert found.ok
    assert found.error_f32 is None
    assert found.error_bf16 is not None


def test_a_model_that_fails_is_told_with_its_line() -> None:
    found = check(f"{HERE}:Branching", devices=1)
    assert not found.ok
    assert found.failure is not None
    assert found.problems == (found.failure,)
    assert found.failure.startswith("ConcretizationTypeError: ")
    assert found.error_f32 is None


def test_all_operators_that_are_missing_are_named_with_what_to_write() -> None:
    found = check(f"{HERE}:Lacking", devices=1)
    assert found.missing_ops == ("aten::geqrf", "aten::special_airy_ai")
    assert found.problems == (
        'aten::geqrf is missing on XLA; write Port(..., ops={"aten.geqrf": lambda self: ...})',
        "aten::special_airy_ai is missing on XLA; write "
        'Port(..., ops={"aten.special_airy_ai": lambda x: ...})',
    )
    assert found.failure is not None


def test_an_answer_that_differs_is_a_problem() -> None:
    found = check(f"{HERE}:Guessing", devices=1, dtypes=("f32",))
    assert found.error_f32 is not None
    assert found.error_f32 > 0.01
    assert found.problems == (f"f32 differs from torch by {found.error_f32:.1e}, more than 0.0001",)


def test_every_bound_has_its_sentence() -> None:
    found = PortCheck(
        "x:Y",
        8,
        error_f32=float("inf"),
        error_sharded=1e-3,
        error_bf16=0.4,
        torch_bf16_error=0.2,
    )
    assert found.problems == (
        "f32 differs from torch by inf, more than 0.0001",
        "8 devices differ from one by 1.0e-03, more than 1e-05",
        "bf16 differs by 4.0e-01, more than 1.5 times torch's own 2.0e-01",
    )
    assert PortCheck("x:Y", 8, error_f32=float("nan")).problems == (
        "f32 differs from torch by nan, more than 0.0001",
    )
    assert PortCheck("x:Y", 8, error_bf16=0.3, torch_bf16_error=0.2).ok


def test_what_cannot_be_checked_is_refused() -> None:
    with pytest.raises(NotFound, match="there is no tiny model of diffusers:NoSuchModel"):
        check("diffusers:NoSuchModel")
    with pytest.raises(BadInput) as bad:
        check(f"{HERE}:Net", dtypes=("fp8",))
    assert str(bad.value) == "cannot check 'fp8'\n  expected: f32, bf16 or both"
    with pytest.raises(BadInput) as bad:
        devices_for(0)
    assert str(bad.value) == "cannot check on 0 devices\n  expected: 1 or more"
    with pytest.raises(Absent) as absent:
        devices_for(1000)
    assert str(absent.value) == (
        "there are no 1000 devices to check on: JAX has 8 of the CPU\n"
        "  expected: 1000 devices, of an accelerator or virtual\n"
        "  try: XLA_FLAGS=--xla_force_host_platform_device_count=1000"
    )

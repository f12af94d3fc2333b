"""Who computes: an engine's kernel, a decomposition, the host; what is counted and refused."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy
import pytest

from holdfast.base.errors import NotFound, Unsupported
from holdfast.base.registry import Entry
from holdfast.compute import ENGINES, CustomDevice, CustomTensor, engine, functional
from holdfast.compute.engines.numpy import NumpyEngine
from holdfast.compute.ops import OPS, find


class Partial(NumpyEngine):
    """NumPy with few kernels, which notes what it is asked for."""

    name = "partial"

    def __init__(self) -> None:
        few = ("add.Tensor", "mul.Tensor", "mul.Scalar", "sigmoid", "clone")
        self.kernels = {name: self._noted(name) for name in few}
        self.asked: list[str] = []

    def on(self, index: int) -> Partial:
        return self

    def _noted(self, name: str) -> Any:
        def kernel(*args: Any, **kwargs: Any) -> Any:
            self.asked.append(name)
            return ENGINES["numpy"].kernels[name](*args, **kwargs)

        return kernel


partial = Partial()


@pytest.fixture
def device() -> Iterator[CustomDevice]:
    if "partial" not in ENGINES:
        ENGINES.register("partial", Entry(f"{__name__}:partial"))
    partial.asked.clear()
    engine.fallbacks.clear()
    yield CustomDevice("partial")
    engine.fallbacks.clear()


def tensor(device: CustomDevice, requires_grad: bool = False) -> CustomTensor:
    return CustomTensor([0.5, -1.0, 2.0], device, requires_grad=requires_grad)


def test_an_engines_own_kernel_comes_first(device):
    assert functional.add(tensor(device), tensor(device)).tolist() == [1, -2, 4]
    assert partial.asked == ["add.Tensor"]
    assert not engine.fallbacks


def test_a_decomposition_comes_before_the_host(device):
    apart = next(n for n in ("square", "softsign", "tanhshrink") if OPS[n].decomposition)
    expected = functional.packet(apart)(CustomTensor([0.5, -1.0, 2.0]))
    found = functional.packet(apart)(tensor(device))
    assert numpy.allclose(found.data, expected.data)
    assert all(name != apart for _, name in engine.fallbacks)


def test_the_host_does_the_rest_and_that_is_counted(device):
    x = tensor(device, requires_grad=True)
    out = functional.exp(functional.exp(x * 1.0))
    out.sum().backward()
    assert engine.fallbacks["partial", "exp"] == 2
    assert str(out.device) == "partial:0"
    assert x.grad is not None
    e = numpy.exp([0.5, -1.0, 2.0])
    assert numpy.allclose(x.grad.data, numpy.exp(e) * e, rtol=1e-5)


def test_strict_refuses_the_host(device, monkeypatch):
    with engine.strict(), pytest.raises(Unsupported) as caught:
        functional.exp(tensor(device))
    assert str(caught.value) == (
        "engine 'partial' has no kernel for exp, and falling back is forbidden\n"
        "  expected: a native kernel, or a decomposition into ops that have one\n"
        "  try: with strict(False): ..."
    )
    with monkeypatch.context() as patch:
        patch.setattr(engine, "_strict_by_setting", lambda: True)
        with pytest.raises(Unsupported) as caught:
            functional.exp(tensor(device))
    assert str(caught.value).endswith("try: HOLDFAST_STRICT=0")
    with engine.strict(), engine.strict(False):
        functional.exp(tensor(device))
    functional.exp(tensor(device))
    assert engine.fallbacks["partial", "exp"] == 2


def test_strict_can_be_a_setting():
    program = "from holdfast.compute import engine\nprint(engine._strict_by_setting())"
    for value, expected in (("1", "True"), ("0", "False")):
        done = subprocess.run(
            [sys.executable, "-c", program],
            env={"HOLDFAST_STRICT": value, "PATH": ""},
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.strip() == expected


def test_numpy_has_every_op_so_nothing_falls_back():
    assert [
        n for n, op in OPS.items() if n not in ENGINES["numpy"].kernels and not op.decomposition
    ] == []


def test_an_op_that_is_not_in_the_table_is_said():
    with pytest.raises(NotFound) as caught:
        find("add.Nothing")
    assert str(caught.value) == (
        "there is no op 'add.Nothing' in the table\n  expected: one of add.Tensor, add.Scalar"
    )
    with pytest.raises(NotFound) as caught:
        ENGINES["nunpy"]
    assert str(caught.value).startswith(
        "unknown engine 'nunpy'\n  expected: one of numpy, opencl, torch"
    )

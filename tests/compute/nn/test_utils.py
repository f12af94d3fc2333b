"""Clipping, initialisation and files."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy
import pytest
import safetensors.torch
import torch

from holdfast.base.errors import BadInput, MissingDependency
from holdfast.compute import nn, random
from holdfast.compute.tensors.custom_tensor import CustomTensor
from tests.tolerance import assert_near, bound


def _gradients(scale: float = 1.0) -> tuple[list[Any], list[Any]]:
    rng = numpy.random.default_rng(0)
    arrays = [(scale * rng.standard_normal(shape)).astype("float32") for shape in ((3, 4), (5,))]
    theirs = [torch.nn.Parameter(torch.zeros(a.shape)) for a in arrays]
    ours = [nn.Parameter(numpy.zeros(a.shape)) for a in arrays]
    for one, other, array in zip(theirs, ours, arrays, strict=True):
        one.grad, other.grad = torch.tensor(array), CustomTensor(array)
    return theirs, ours


@pytest.mark.parametrize("kind", [2.0, 1.0, 3.0, float("inf")])
@pytest.mark.parametrize("limit", [0.5, 100.0])
def test_a_common_norm_is_clipped_as_torch_clips_it(kind: float, limit: float) -> None:
    theirs, ours = _gradients()
    expected = torch.nn.utils.clip_grad_norm_(theirs, limit, kind)
    near = bound("float32", 17)
    found = nn.utils.clip_grad_norm_(ours, limit, kind).item()
    assert found == pytest.approx(expected.item(), rel=near)
    for one, other in zip(theirs, ours, strict=True):
        numpy.testing.assert_allclose(other.grad.data, one.grad.numpy(), rtol=near)


def test_values_are_clipped_as_torch_clips_them() -> None:
    theirs, ours = _gradients()
    torch.nn.utils.clip_grad_value_(theirs, 0.3)
    nn.utils.clip_grad_value_(ours, 0.3)
    for one, other in zip(theirs, ours, strict=True):
        assert numpy.array_equal(other.grad.data, one.grad.numpy())


def test_clipping_takes_one_tensor_and_none_without_gradients() -> None:
    _, ours = _gradients(100)
    nn.utils.clip_grad_norm_(ours[0], 1.0)
    assert numpy.linalg.norm(ours[0].grad.data) == pytest.approx(1.0, rel=1e-5)
    assert nn.utils.clip_grad_norm_([nn.Parameter([1.0])], 1.0).item() == 0


def test_a_norm_that_is_no_number_is_refused_if_asked() -> None:
    _, ours = _gradients()
    ours[0].grad.data[0, 0] = numpy.inf
    with pytest.raises(BadInput) as caught:
        nn.utils.clip_grad_norm_(ours, 1.0, error_if_nonfinite=True)
    assert str(caught.value) == (
        "the norm of the gradients is inf\n  expected: finite gradients\n"
        "  try: error_if_nonfinite=False, or a smaller learning rate"
    )


# ---- beginnings


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("uniform_", {"a": -1, "b": 2}),
        ("normal_", {"mean": 1, "std": 2}),
        ("xavier_uniform_", {"gain": 2.0}),
        ("xavier_normal_", {}),
        ("kaiming_uniform_", {"nonlinearity": "relu"}),
        ("kaiming_normal_", {"mode": "fan_out", "a": 0.2}),
        ("constant_", {"val": 3}),
        ("ones_", {}),
        ("zeros_", {}),
        ("eye_", {}),
    ],
)
def test_tensors_are_filled_as_torch_fills_them(name: str, options: dict[str, Any]) -> None:
    torch.manual_seed(5)
    theirs = getattr(torch.nn.init, name)(torch.empty(9, 11), **options)
    random.manual_seed(5)
    ours = getattr(nn.init, name)(nn.init.empty(9, 11), **options)
    assert_near(ours.data, theirs.numpy(), "float32", 64)


def test_a_cut_normal_distribution_stays_within_its_ends() -> None:
    random.manual_seed(0)
    tensor = nn.init.trunc_normal_(nn.init.empty(100, 100), 0.1, 0.5, -0.6, 0.7)
    assert -0.6 <= tensor.data.min() < -0.55
    assert 0.65 < tensor.data.max() <= 0.7
    theirs = torch.nn.init.trunc_normal_(torch.empty(100, 100), 0.1, 0.5, -0.6, 0.7)
    assert tensor.data.mean() == pytest.approx(float(theirs.mean()), abs=0.02)
    assert tensor.data.std() == pytest.approx(float(theirs.std()), abs=0.02)


@pytest.mark.parametrize("name", ["linear", "tanh", "relu", "leaky_relu", "selu"])
def test_gains_are_torchs(name: str) -> None:
    assert nn.init.calculate_gain(name) == torch.nn.init.calculate_gain(name)
    assert nn.init.calculate_gain("leaky_relu", 0.3) == torch.nn.init.calculate_gain(
        "leaky_relu", 0.3
    )


# ---- files


def test_a_module_goes_to_a_file_and_comes_back(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)).to(dtype="bfloat16")
    path = tmp_path / "net.safetensors"
    nn.save(net, path)
    state = nn.load(path)
    assert set(state) == set(net.state_dict())
    for name, tensor in net.state_dict().items():
        assert state[name].dtype == tensor.dtype
        assert numpy.array_equal(state[name].data, tensor.data)
    fresh = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    fresh.load_state_dict(state)
    assert [p.name for p in tmp_path.iterdir()] == ["net.safetensors"]


def test_torch_reads_our_files_and_we_read_torchs(tmp_path: Path) -> None:
    theirs, ours = torch.nn.Linear(3, 2), nn.Linear(3, 2)
    nn.save(ours.state_dict(), tmp_path / "ours")
    theirs.load_state_dict(safetensors.torch.load_file(tmp_path / "ours"))
    assert numpy.array_equal(theirs.weight.detach().numpy(), ours.weight.data)
    theirs = theirs.to(torch.bfloat16)
    safetensors.torch.save_file(theirs.state_dict(), tmp_path / "theirs")
    ours.load_state_dict(nn.load(tmp_path / "theirs"))
    assert numpy.array_equal(theirs.weight.detach().float().numpy(), ours.weight.data)


def test_shared_and_transposed_weights_can_be_saved(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    net[1].weight = net[0].weight
    nn.save({**net.state_dict(), "turned": net[0].weight.detach().t()}, tmp_path / "x")
    state = nn.load(tmp_path / "x")
    assert numpy.array_equal(state["0.weight"].data, state["1.weight"].data)
    assert numpy.array_equal(state["turned"].data, net[0].weight.data.T)


def test_a_file_that_is_none_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bad"
    path.write_bytes(b"nothing of the kind")
    with pytest.raises(BadInput, match=r"cannot read .*bad: "):
        nn.load(path)
    with pytest.raises(BadInput, match=r"cannot read .*absent: "):
        nn.load(tmp_path / "absent")
    with pytest.raises(BadInput, match=r"cannot write .*x: "):
        nn.save(nn.Linear(1, 1), tmp_path / "nowhere" / "x")
    with pytest.raises(BadInput) as caught:
        nn.save(3, path)
    assert str(caught.value) == ("a int cannot be saved\n  expected: a module or its state_dict()")


def test_without_safetensors_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "safetensors", None)
    monkeypatch.setitem(sys.modules, "safetensors.numpy", None)
    with pytest.raises(MissingDependency) as caught:
        nn.save(nn.Linear(1, 1), "x")
    assert str(caught.value).endswith(
        "\n  expected: the package safetensors\n  try: pip install 'holdfast[compute]'"
    )

"""Every module against torch's: results, gradients, buffers, printed form, weights both ways."""

from __future__ import annotations

import warnings
from typing import Any

import numpy
import pytest
import torch

from holdfast.compute import nn, random
from holdfast.compute.tensors.custom_tensor import CustomTensor
from tests.compute.nn.cases import CASES
from tests.compute.nn.peers import Case, compare, given, ids, pair, results
from tests.tolerance import bound

_NAMED = {case.name for case in CASES}


@pytest.fixture(autouse=True)
def _quiet() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of reductions and masks it will change
        yield


@pytest.mark.parametrize("case", CASES, ids=ids)
def test_a_module_computes_what_torchs_does_and_so_do_its_gradients(case: Case) -> None:
    theirs, ours = pair(case)
    arrays = given(case)
    expected, expected_gradients = results(theirs, arrays, case.call, ours=False)
    found, gradients = results(ours, arrays, case.call, ours=True)
    assert len(found) == len(expected)
    for one, other in zip(expected, found, strict=True):
        compare(one, other)
    assert gradients.keys() == expected_gradients.keys()
    for name, gradient in expected_gradients.items():
        compare(gradient, gradients[name])
    for name, buffer in theirs.named_buffers():
        compare(buffer.numpy(), dict(ours.named_buffers())[name].data)


@pytest.mark.parametrize("case", [c for c in CASES if not c.call], ids=ids)
def test_weights_go_to_torch_and_come_from_there(case: Case) -> None:
    theirs, ours = pair(case)
    state = ours.state_dict()
    assert list(state) == list(theirs.state_dict())
    fresh = pair(case)[0]
    with torch.no_grad():
        for parameter in fresh.parameters():
            parameter.zero_()
    fresh.load_state_dict({name: torch.from_numpy(t.data.copy()) for name, t in state.items()})
    for name, tensor in theirs.state_dict().items():
        assert torch.equal(fresh.state_dict()[name], tensor)
        assert numpy.array_equal(state[name].data, tensor.numpy())


@pytest.mark.parametrize("case", CASES, ids=ids)
def test_a_module_is_printed_as_torch_prints_it(case: Case) -> None:
    theirs, ours = pair(case)
    assert repr(ours) == repr(theirs)


@pytest.mark.parametrize("name", sorted(_NAMED))
def test_a_module_begins_with_torchs_numbers_for_the_same_seed(name: str) -> None:
    case = next(c for c in CASES if c.name == name)
    torch.manual_seed(3)
    theirs = getattr(torch.nn, name)(*_plain(case.args, torch.nn), **_plain(case.options, torch))
    random.manual_seed(3)
    ours = getattr(nn, name)(*_plain(case.args, nn), **_plain(case.options, None))
    for key, tensor in theirs.state_dict().items():
        compare(tensor.numpy(), ours.state_dict()[key].data, bound("float32", 4))


def _plain(value: Any, library: Any) -> Any:
    from tests.compute.nn.peers import _for_torch, _for_us

    return (_for_torch if library in (torch, torch.nn) else _for_us)(value)


def test_every_module_of_the_package_is_compared() -> None:
    modules = {
        name
        for name in nn.__all__
        if isinstance(getattr(nn, name), type) and issubclass(getattr(nn, name), nn.Module)
    }
    elsewhere = {
        *("Module", "Sequential", "ModuleList", "ModuleDict", "Dropout1d", "Dropout3d"),
        *("CustomLinear", "CustomConv2d", "CustomMSELoss"),
    }
    assert modules - elsewhere == _NAMED


@pytest.mark.parametrize("kind", ["float64", "bfloat16", "float16"])
@pytest.mark.parametrize("name", ["Linear", "LSTM", "GRU", "RNN", "BatchNorm2d", "LayerNorm"])
def test_modules_compute_in_other_formats(name: str, kind: str) -> None:
    case = next(c for c in CASES if c.name == name)
    ours = pair(case)[1]
    array = given(case)[0]
    expected = _first(ours(CustomTensor(array)))
    ours = pair(case)[1].to(dtype=kind)
    out = _first(ours(CustomTensor(array, dtype=kind)))
    assert str(out.dtype) == kind
    tolerance = {"float64": 1e-5, "bfloat16": 6e-2, "float16": 1e-2}[kind]
    numpy.testing.assert_allclose(
        out.data.astype("float32"), expected.data, rtol=tolerance, atol=tolerance
    )


def _first(out: Any) -> Any:
    return out[0] if isinstance(out, tuple) else out

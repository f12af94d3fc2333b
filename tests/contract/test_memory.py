"""Whose memory results lie in: that of an argument only where torch's do too.

Kernels are held to their schemas by the conformance run (`torch_bridge.check_memory`); here the
functions people call are compared with torch's, decompositions included.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy
import pytest
import torch

from holdfast.compute import functional
from holdfast.compute.autograd import tape
from holdfast.compute.ops import PACKETS
from holdfast.compute.tensors import custom_tensor
from holdfast.compute.tensors.custom_tensor import CustomTensor
from tests.contract import op_db
from tests.contract.test_conformance import ENGINES_HERE, kernels_kept, whole  # noqa: F401
from tests.contract.torch_bridge import to_array, to_dtype

# torch conjugates lazily, and has `unsafe_` views that its signatures deny; ours are copies.
COPIES = {"conj", "conj_physical", "unsafe_chunk", "unsafe_split"}
# OpInfos that call the in-place form, or another function of that name.
ELSEWHERE = {"cauchy", "exponential", "geometric", "log_normal", "uniform"}
# torch copies where its own layouts ask for it; a view does here.
VIEWS = {"ravel", "sum_to_size"}


def counterpart(info: Any) -> str | None:
    """Our function for an OpInfo."""
    names = (info.aten_name, info.name.replace(".", "_"), info.name.rpartition(".")[2])
    return next((name for name in names if name in PACKETS), None)


def ours(value: Any) -> Any:
    """Arguments with our tensors, each with memory of its own."""
    if isinstance(value, torch.Tensor):
        return CustomTensor._wrap(to_array(value.detach().clone()), custom_tensor.default_device())
    if isinstance(value, list | tuple):
        return type(value)(ours(one) for one in value)
    return to_dtype(value) if isinstance(value, torch.dtype) else value


def arrays(value: Any) -> list[Any]:
    """Every array of our tensors in arguments or results."""
    if isinstance(value, CustomTensor):
        return [value._array]
    if isinstance(value, list | tuple):
        return [found for one in value for found in arrays(one)]
    return []


def memory(value: Any) -> set[int]:
    """Where the memory of torch's tensors lies."""
    return {t.untyped_storage().data_ptr() for t in op_db.tensors(value) if t.numel()}


def borrowed(name: str, info: Any) -> list[str]:
    """Samples for which our result lies in an argument's memory, and torch's does not."""
    found = []
    for sample in info.sample_inputs("cpu", torch.float32, requires_grad=False):
        given = (sample.input, *sample.args, *sample.kwargs.values())
        if any(t.layout is not torch.strided for t in op_db.tensors(given)):
            continue
        args = [ours(one) for one in (sample.input, *sample.args)]
        named = {key: ours(one) for key, one in sample.kwargs.items()}
        try:
            with tape.no_grad():
                made = functional.packet(name)(*args, **named)
        except Exception:  # noqa: BLE001  (torch's Python function takes other arguments)
            continue
        sources = arrays([*args, *named.values()])
        if any(numpy.shares_memory(a, b) for a in sources for b in arrays(made)):
            with torch.no_grad():
                theirs = info.op(sample.input, *sample.args, **sample.kwargs)
            if not memory(given) & memory(theirs):
                found.append(str(sample))
    return found


@whole
@pytest.mark.slow
def test_results_lie_in_an_argument_where_those_of_torch_do():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = {}
        for info in op_db.database().values():
            name = counterpart(info)
            if name is not None and name not in COPIES | ELSEWHERE | VIEWS:
                found[name] = borrowed(name, info)
    assert len(found) > 400
    assert {name: samples for name, samples in found.items() if samples} == {}


def of(*shape: int) -> CustomTensor:
    return CustomTensor(numpy.ones(shape, numpy.float32))


def elsewhere(value: Any, device: str) -> Any:
    """Arguments with tensors on another device."""
    if isinstance(value, list | tuple):
        return type(value)(elsewhere(one, device) for one in value)
    return value.to(device) if isinstance(value, CustomTensor) else value


def shared(one: Any, other: Any) -> bool:
    """Whether two arrays of one engine lie in the same memory."""
    if isinstance(one, numpy.ndarray):
        return numpy.shares_memory(one, other)
    return one.memory is other.memory


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("repeat_interleave", (of(3), 1, 0)),
        ("repeat_interleave", (of(), 2)),
        ("ormqr", (of(3, 0), of(0), of(3, 2))),
        ("matrix_power", (of(2, 2), 1)),
        ("chain_matmul", ([of(2, 2)],)),
        ("fft_fftn", (of(3).to("complex64"), None, [])),
        ("roll", (of(3), [0], [0])),
        ("flip", (of(3), [])),
        ("repeat", (of(3), [1])),
        ("clamp", (of(3), None, 2)),
        ("pow", (of(3), 1)),
        ("sum", (of(3), [0])),
        ("amax", (of(1), [0])),
        ("cat", ([of(3)],)),
        ("constant_pad_nd", (of(3), [0, 0])),
        ("upsample_nearest1d", (of(1, 1, 3), [3])),
        ("avg_pool1d", (of(1, 1, 3), [1])),
        ("_adaptive_avg_pool2d", (of(1, 3, 3), [3, 3])),
        ("index_select", (of(3), 0, CustomTensor(numpy.arange(3), dtype="int64"))),
        ("linalg_matrix_exp", (of(0, 0),)),
        ("tril", (of(1, 1),)),
        ("_to_copy", (of(3),)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
@pytest.mark.parametrize("engine", ENGINES_HERE)
def test_a_result_that_changes_nothing_is_a_copy(name: str, args: Any, engine: str):
    args = elsewhere(args, engine)
    made = functional.packet(name)(*args)
    assert arrays(made)
    assert not any(shared(a, b) for a in arrays(list(args)) for b in arrays(made))

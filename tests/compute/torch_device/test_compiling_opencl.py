"""`torch.compile(backend="holdfast")` with OpenCL: pointwise nodes are one launch, numbers stay."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.nn import functional as F
from torch.utils import _pytree

import holdfast.torch
from holdfast.compute.torch_device.compile import launch_groups
from tests.conftest import CACHE
from tests.needs import needs
from tests.topology.test_probes import _no_opencl

pytestmark = [pytest.mark.opencl, needs(_no_opencl())]
DEVICE = "holdfast"
Tensors = tuple[torch.Tensor, ...]


class Counts:
    """What the engine was asked for: kernels to launch, arrays to make."""

    def __init__(self, engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.engine, self.launches, self.arrays = engine, 0, 0
        launch, make = engine.launch, engine.memories.make

        def launched(*args: Any) -> None:
            self.launches += 1
            launch(*args)

        def made(nbytes: int) -> Any:
            self.arrays += 1
            return make(nbytes)

        monkeypatch.setattr(engine, "launch", launched)
        monkeypatch.setattr(engine.memories, "make", made)

    def of(self, function: Callable[..., Any], *args: Any) -> tuple[int, int]:
        """Launches and arrays of one call."""
        self.launches = self.arrays = 0
        function(*args)
        return self.launches, self.arrays


@pytest.fixture
def counts(python_device: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Counts]:
    from holdfast.compute.engines.opencl.engine import engine_at

    monkeypatch.setenv("HOLDFAST_CACHE_DIR", str(CACHE / "kernels"))
    torch._dynamo.reset()
    holdfast.torch.use("opencl")
    yield Counts(engine_at(0), monkeypatch)
    holdfast.torch.use("numpy")
    torch._dynamo.reset()


def random(*shape: int) -> torch.Tensor:
    torch.manual_seed(sum(shape))
    return torch.randn(*shape).to(DEVICE)


def compiled(function: Any, **options: Any) -> Any:
    return torch.compile(function, backend="holdfast", **options)


def same(function: Any, *args: torch.Tensor, **options: Any) -> Any:
    """The compiled function, which was compared with the function."""
    made = compiled(function, **options)
    found, wanted = made(*args), function(*args)
    torch.testing.assert_close(_cpu(found), _cpu(wanted), rtol=1e-6, atol=1e-6)
    return made


def _cpu(value: Any) -> Any:
    return _pytree.tree_map(lambda tensor: tensor.detach().cpu(), value)


def gelu(x: torch.Tensor) -> torch.Tensor:
    return 0.5 * x * (1 + torch.tanh(0.7978845608 * (x + 0.044715 * x * x * x)))


# ---- one launch


def test_gelu_written_out_is_one_launch_and_makes_one_array(counts: Counts) -> None:
    x = random(33, 65)
    made = same(gelu, x)
    assert counts.of(gelu, x) == (9, 9)
    assert counts.of(made, x) == (1, 1)


def test_silu_times_gate_reads_any_layout(counts: Counts) -> None:
    def function(x: torch.Tensor, gate: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return F.silu(x + bias) * gate

    args = random(34, 20), random(20, 34).t(), random(20)
    assert counts.of(same(function, *args), *args) == (1, 1)


def test_a_launch_has_several_results_and_truth_values(counts: Counts) -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> Tensors:
        inside = (x > 0) & ~(y > 1)
        return torch.where(inside, x * y, -y), inside, y.exp() + 1

    args = random(7, 40), random(7, 40)
    assert counts.of(same(function, *args), *args) == (1, 3)


def test_it_is_the_same_laid_out_for_gpus(counts: Counts, monkeypatch: Any) -> None:
    monkeypatch.setattr(counts.engine, "mapping", "gpu")
    monkeypatch.setattr(counts.engine, "plans", {})
    x = random(33, 65)
    assert counts.of(same(gelu, x), x) == (1, 1)


def test_a_chain_ends_where_something_else_reads_it(counts: Counts) -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (x.sin() * 2 + 1) @ w * 3 - 1

    args = random(16, 16), random(16, 16)
    one_matmul, _ = counts.of(torch.matmul, *args)
    launches, arrays = counts.of(same(function, *args), *args)
    assert (launches - one_matmul, arrays) == (2, 3)


def test_casts_are_read_and_written_within_a_launch(counts: Counts) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return (x.float().tanh() * 2).to(torch.bfloat16)

    x = random(4, 50).to(torch.bfloat16)
    assert counts.of(same(function, x), x) == (1, 1)


def test_what_was_rounded_is_read_by_another_launch(counts: Counts) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return (x * 3).to(torch.bfloat16).float() + 1

    x = random(4, 50)
    assert counts.of(same(function, x), x)[0] == 2


# ---- gradients, optimizers, changes in place


def test_gradients_are_launched_in_one(counts: Counts) -> None:
    x = random(33, 65).requires_grad_()
    found = torch.autograd.grad(compiled(gelu)(x).sum(), x)
    wanted = torch.autograd.grad(gelu(x).sum(), x)
    torch.testing.assert_close(_cpu(found), _cpu(wanted), rtol=1e-5, atol=1e-6)
    out = compiled(gelu)(x)
    ones = torch.ones_like(out)
    launches, _ = counts.of(lambda: torch.autograd.grad(out, x, ones))
    assert launches == 1


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
def test_adam_is_one_launch_for_each_parameter_and_makes_no_array(counts: Counts) -> None:
    def trained(device: str, backend: str) -> tuple[list[torch.Tensor], Any]:
        torch._dynamo.reset()
        torch.manual_seed(1)
        own = [torch.randn(8, 8).to(device).requires_grad_() for _ in range(2)]
        optimizer = torch.optim.Adam(own, lr=0.1)
        step = torch.compile(optimizer.step, backend=backend)
        for number in range(3):
            for one in own:
                one.grad = one.detach() * 0.3 + number
            step()
        return own, step

    theirs, _ = trained("cpu", "aot_eager")
    ours, step = trained(DEVICE, "holdfast")
    torch.testing.assert_close(_cpu(ours), _cpu(theirs), rtol=1e-6, atol=1e-6)
    assert counts.of(step) == (2, 0)


def test_a_change_in_place_goes_into_the_input(counts: Counts) -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> None:
        x.add_(y, alpha=0.5)

    x, y = random(5, 6), random(6)
    made = compiled(function)
    made(x, y)
    wanted, before = x.cpu() + y.cpu() * 0.5, x._version
    assert counts.of(made, x, y) == (1, 0)
    torch.testing.assert_close(x.cpu(), wanted, rtol=1e-6, atol=1e-6)
    assert x._version == before + 1  # torch counts for the graph


def test_an_input_that_another_one_overlaps_is_changed_behind_it(counts: Counts) -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> None:
        x.mul_(y)

    whole, alike = random(3, 40), random(3, 40).cpu()
    compiled(function)(whole[0], whole[1])
    function(alike[0], alike[1])
    torch.testing.assert_close(whole.cpu(), alike, rtol=1e-6, atol=1e-6)


# ---- what is left alone


def test_shapes_may_change_from_call_to_call(counts: Counts) -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (x * y + 1).relu() * 0.5

    made = compiled(function, dynamic=True)
    for rows in (3, 5, 40):
        args = random(rows, 7), random(7)
        torch.testing.assert_close(made(*args).cpu(), function(*args).cpu(), rtol=1e-6, atol=1e-6)
        assert counts.of(made, *args) == (1, 1)
    assert made(random(0, 7), random(7)).shape == (0, 7)


def test_other_formats_go_op_by_op(counts: Counts) -> None:
    def function(x: torch.Tensor, n: torch.Tensor) -> Tensors:
        return x * 2 + 1, n * 3 - 1

    args = random(4, 5).double(), torch.arange(12).to(DEVICE)
    assert counts.of(same(function, *args), *args) == counts.of(function, *args)


def test_random_numbers_are_drawn_as_without_compiling(counts: Counts) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return F.dropout(x * 2 + 1, 0.5) * 3 - torch.rand_like(x)

    found = []
    for call in (function, compiled(function)):
        torch.get_device_module(DEVICE).manual_seed(3)
        found.append(call(random(6, 50)).cpu())
    torch.testing.assert_close(*found, rtol=1e-6, atol=1e-6)


def test_what_a_device_cannot_launch_goes_op_by_op(counts: Counts, monkeypatch: Any) -> None:
    from holdfast.compute.engines.opencl.elementwise.fused_chains import Fused
    from holdfast.compute.engines.opencl.runtime.array import NotHere

    def refused(*_: Any) -> None:
        raise NotHere("no room")

    monkeypatch.setattr(Fused, "on_arrays", refused)
    x = random(33, 65)
    assert counts.of(same(gelu, x), x) == (9, 9)

    def function(y: torch.Tensor) -> None:
        y.mul_(2).add_(1)

    wanted = x.cpu() * 2 + 1
    compiled(function)(x)
    torch.testing.assert_close(x.cpu(), wanted, rtol=1e-6, atol=1e-6)


def test_a_kernel_that_cannot_be_built_is_tried_once(counts: Counts, monkeypatch: Any) -> None:
    from holdfast.compute.engines.opencl.elementwise.fused_chains import Fused
    from holdfast.compute.engines.opencl.runtime.programs import BuildFailed

    tries: list[int] = []

    def failed(*_: Any) -> None:
        tries.append(1)
        raise BuildFailed("cannot build")

    monkeypatch.setattr(Fused, "on_arrays", failed)
    x = random(33, 65)
    made = same(gelu, x)
    assert counts.of(made, x) == (9, 9)
    assert len(tries) == 1


def test_tensors_of_numpy_take_part(counts: Counts) -> None:
    holdfast.torch.use("numpy")
    x = random(4, 5)
    holdfast.torch.use("opencl")
    same(lambda a, b: (a * b + 1).tanh(), x, random(5))


def test_long_chains_are_cut(counts: Counts, monkeypatch: Any) -> None:
    monkeypatch.setattr(launch_groups, "_MOST_NODES", 5)
    x = random(33, 65)
    assert counts.of(same(gelu, x), x) == (2, 2 + 1)


# ---- copies to the device


@pytest.mark.parametrize("name", ["float32", "bfloat16", "float64", "int64", "bool"])
def test_numbers_of_the_cpu_go_straight_to_where_they_belong(counts: Counts, name: str) -> None:
    whole = torch.zeros(4, 6, dtype=getattr(torch, name)).to(DEVICE)
    source = torch.tensor([[1, 0, 3, 4, 5, 6]] * 2).to(whole.dtype)
    wanted = source.clone()
    assert counts.of(whole[1:3].copy_, source) == (0, 0)
    source.zero_()  # a private copy is on its way
    assert whole.cpu()[1:3].equal(wanted)
    assert not whole.cpu()[0::3].any()


def test_numbers_go_to_memory_that_has_made_room_as_well(counts: Counts) -> None:
    whole = torch.zeros(4, 6).to(DEVICE)
    counts.engine.memories.make_room(None)
    assert counts.of(whole[1].copy_, torch.arange(6.0)) == (0, 0)
    assert whole.tolist() == [[0] * 6, [0, 1, 2, 3, 4, 5], [0] * 6, [0] * 6]


def test_numbers_are_cast_on_their_way(counts: Counts) -> None:
    for source, kind in (("float64", "float32"), ("int16", "float32"), ("float32", "bfloat16")):
        given = torch.tensor([1.7, -2.0, 1e4]).to(getattr(torch, source))
        target = torch.empty(3, dtype=getattr(torch, kind)).to(DEVICE)
        assert counts.of(target.copy_, given) == (0, 0)
        assert target.cpu().equal(given.to(target.dtype))


def test_other_layouts_and_casts_go_by_way_of_the_device(counts: Counts) -> None:
    whole = torch.zeros(3, 2).to(DEVICE)
    whole.t().copy_(torch.arange(6.0).reshape(2, 3))
    assert whole.tolist() == [[0, 3], [1, 4], [2, 5]]
    whole.copy_(torch.tensor([7.0, 8.0]))
    assert whole.tolist() == [[7, 8]] * 3
    numbers = torch.zeros(2, dtype=torch.int32).to(DEVICE)
    numbers.copy_(torch.tensor([2.9, -1.2]))
    assert numbers.tolist() == [2, -1]

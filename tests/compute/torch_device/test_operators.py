"""What a program does to tensors, on the CPU and on the device: the same comes out."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch

import holdfast.torch  # noqa: F401  (registers the device)
from holdfast.base.errors import Unsupported
from holdfast.compute.engine import fallbacks, strict
from holdfast.compute.torch_device import registration
from holdfast.compute.torch_device.errors import BadIndex, Refused

DEVICE = "holdfast"


class Place:
    """Makes tensors on one device."""

    def __init__(self, device: str) -> None:
        self.device = device

    def tensor(self, value: Any, **named: Any) -> torch.Tensor:
        return torch.tensor(value, device=self.device, **named)

    def ramp(self, *shape: int) -> torch.Tensor:
        count = int(numpy.prod(shape))
        return torch.arange(count, dtype=torch.float32, device=self.device).reshape(shape)

    def empty(self, *shape: int, **named: Any) -> torch.Tensor:
        return torch.empty(*shape, device=self.device, **named)


def outcome(case: Callable[[Place], Any], device: str) -> Any:
    torch.manual_seed(3)
    found = case(Place(device))
    return torch.utils._pytree.tree_map(
        lambda v: v.detach().cpu() if isinstance(v, torch.Tensor) else v, found
    )


def check_the_same(case: Callable[[Place], Any]) -> None:
    torch.testing.assert_close(outcome(case, DEVICE), outcome(case, "cpu"))


# ---- in place, out=, and memory that is shared


def _alias(at: Place) -> Any:
    x = at.ramp(3)
    return torch.add(x, x, out=x), x


def _turned(at: Place) -> Any:
    x, y, z = at.ramp(2, 3), at.ramp(2, 3, 4), at.ramp(1, 3)
    return x.t_(), y.transpose_(0, 2).contiguous(), z.squeeze_(0).unsqueeze_(1)


def _resized(at: Place) -> Any:
    x = at.ramp(3).resize_(2, 3)
    part = at.ramp(6)[2:].resize_(2)
    last = at.empty(1, 2, 2, 2).resize_(1, 2, 2, 2, memory_format=torch.channels_last)
    return x[0], x.shape, part, last.stride()


def _set(at: Place) -> Any:
    x, y = at.ramp(3), at.ramp(6)
    x.set_(y)
    x.add_(1)
    window = at.empty(0).set_(y.untyped_storage(), 2, (2, 2), (2, 1))
    return y, window


def _seen_otherwise(at: Place) -> Any:
    bits = at.ramp(4).view(torch.int32), at.ramp(4).view(torch.uint8), at.ramp(4).view(torch.double)
    return (
        *bits,
        at.ramp(3, 4)[1:].as_strided((2, 2), (4, 1), 5),
        at.ramp(2, 4)[:, :2].view(torch.int32),
    )


def _outs(at: Place) -> Any:
    values, places = at.empty(3), at.empty(3, dtype=torch.long)
    torch.sort(at.tensor([3.0, 1.0, 2.0]), out=(values, places))
    best, where = at.empty(0), at.empty(0, dtype=torch.long)
    torch.max(at.ramp(2, 3), 1, out=(best, where))
    steps = torch.arange(3, out=at.empty(3, dtype=torch.int32))
    return values, places, best, where, steps, torch.linspace(0, 1, 3, out=at.empty(3))


def _copies(at: Place) -> Any:
    whole = torch.zeros(2, 3, dtype=torch.int64, device=at.device).copy_(at.ramp(3) + 0.7)
    last = at.ramp(1, 2, 2, 2).contiguous(memory_format=torch.channels_last)
    strides = last.stride(), last.clone().stride(), last.double().stride()
    return (
        whole,
        last,
        strides,
        at.ramp(2).to("cpu", non_blocking=True),
        torch.empty_like(last).shape,
    )


def _gradient_through_a_view(at: Place) -> Any:
    x = at.ramp(4).requires_grad_()
    y = x * 2
    y[1:3].mul_(3)
    y.sum().backward()
    return x.grad


# ---- reading, indexing


def _numbers(at: Place) -> Any:
    read = at.ramp(1).item(), at.tensor(3).item(), at.tensor(True).item(), at.tensor(1 + 2j).item()
    return (
        *read,
        at.ramp(2, 2).tolist(),
        bool(at.tensor(1)),
        int(at.tensor(2.7)),
        float(at.tensor(2)),
    )


def _indexed(at: Place) -> Any:
    x = at.ramp(3, 4)
    lists = x[[0, 2]], x[:, [1, 3]], x[None, ..., 0], x[-1], x[1:, ::2], x[..., None]
    masks = x[x > 5], x[at.tensor([True, False, True])], x[at.tensor([0, 1]), at.tensor([1, 2])]
    return *lists, *masks, x[numpy.array([0, 2])], x[torch.tensor([0, 2])], x[torch.tensor(1)]


def _assigned(at: Place) -> Any:
    x = at.ramp(3, 4)
    x[0] = 9
    x[:, 1] = at.ramp(3)
    x[x > 8] = -1
    x[[1, 2], [0, 0]] = at.tensor([7.0, 8.0])
    x[at.tensor([True, False, False])] = 0
    x[..., 2:3] = 5
    x[1, 1] = torch.tensor(3.0)
    x[2, 1:] = torch.tensor([1.0, 2.0, 3.0])
    return x


def _found(at: Place) -> Any:
    x = at.ramp(2, 3) % 2
    rows = at.tensor([[1, 2], [1, 2]])
    return (
        (x.nonzero(), *x.nonzero(as_tuple=True), *torch.where(x > 0), x.count_nonzero()),
        torch.unique(at.tensor([3, 1, 1, 2]), return_inverse=True, return_counts=True),
        (torch.unique(rows, dim=0), torch.unique_consecutive(rows, dim=0)),
        (x.masked_select(x > 0), torch.searchsorted(at.ramp(5), at.tensor([2.5]))),
        (torch.equal(x, x), torch.equal(x, x + 1), torch.allclose(x, x)),
    )


# ---- helpers, factories, random numbers, conjugates


def _helpers(at: Place) -> Any:
    x = at.tensor([[1.0, 3.0, 2.0]])
    shifted = at.tensor([1, 2, 4])
    shifted <<= 1
    return (
        (*torch.cummax(x, 1), *torch.cummin(x, 1), torch.logcumsumexp(x, 1)),
        (shifted, at.tensor([4]) >> 1, at.tensor([1]) << at.tensor([3])),
        (torch.cholesky_solve(at.ramp(2, 2), torch.eye(2, device=at.device) * 2),),
        (torch.linalg.eigvals(at.tensor([[2.0, 0.0], [0.0, 3.0]])).real,),
    )


def _factories(at: Place) -> Any:
    where = {"device": at.device}
    return (
        torch.range(0, 4, **where),
        torch.arange(5, 0, -2, **where),
        torch.linspace(0, 1, 5, dtype=torch.int64, **where),
        torch.logspace(0, 2, 3, **where),
        torch.eye(2, 3, **where),
        torch.tril_indices(3, 3, **where),
    )


def _random(at: Place) -> Any:
    where = {"device": at.device}
    drawn = torch.randn(5, **where), torch.rand(3, **where), torch.randperm(6, **where)
    weights = at.tensor([0.1, 0.2, 0.7])
    chosen = torch.multinomial(weights, 5, replacement=True), torch.bernoulli(weights)
    # These are computed by torch's CPU kernels, out of the device's stream of numbers.
    filled = (
        torch.poisson(at.ramp(4)),
        torch._standard_gamma(at.ramp(3) + 1),
        torch.randn(3, **where),
    )
    generator = torch.Generator().manual_seed(4)
    own = at.empty(3).normal_(generator=generator), torch.randperm(5, generator=generator, **where)
    return *drawn, *chosen, *filled, *own


def _conjugates(at: Place) -> Any:
    x = torch.complex(at.ramp(2, 2), at.ramp(2, 2).t() + 1)
    written = torch.zeros_like(x)
    torch.mm(x, x, out=written.conj())
    added = torch.zeros_like(x)
    added.conj().addmm_(x.conj(), x.mH)
    copied = torch.zeros_like(x)
    copied.conj().copy_(x)
    return (
        (x.mH @ x, x.conj() + 1, x.conj().imag, x.conj().imag + 1, torch.vdot(x[0], x[1])),
        (written, added, copied, x.conj().clone(), x.conj().cpu()),
        (torch.linalg.solve_triangular(x.triu().mH, x, upper=False), x.sgn()),
    )


CASES = [
    *(_alias, _turned, _resized, _set, _seen_otherwise, _outs, _copies, _gradient_through_a_view),
    *(_numbers, _indexed, _assigned, _found, _helpers, _factories, _random, _conjugates),
]


@pytest.mark.filterwarnings("ignore:torch.range is deprecated")
@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__.strip("_"))
def test_the_device_does_as_the_cpu_does(case: Callable[[Place], Any]):
    check_the_same(case)


@pytest.mark.usefixtures("python_device")
def test_a_copy_between_overlapping_parts_takes_what_was_there_before():
    x = Place(DEVICE).ramp(5)
    x[1:].copy_(x[:-1])
    y = Place(DEVICE).ramp(4)
    torch.add(y[1:], 1, out=y[:-1])
    assert (x.tolist(), y.tolist()) == ([0, 0, 1, 2, 3], [2, 3, 4, 3])


def test_tensors_print_as_tensors_of_the_device():
    assert str(Place(DEVICE).ramp(2)) == "tensor([0., 1.], device='holdfast:0')"


# ---- what is refused


def _said(call: Callable[[], Any], kind: type[Exception]) -> str:
    with pytest.raises(kind) as caught:
        call()
    return str(caught.value)


APART = (
    "Expected all tensors to be on the same device, but found at least two devices, "
    "holdfast:0 and cpu\n"
    "  expected: every tensor on 'holdfast'; numbers and indices may be on the CPU\n"
    "  try: tensor.to('holdfast') for the torch.float32 tensor of [2, 2]"
)


@pytest.mark.parametrize(
    "call",
    [
        lambda here, there: here + there,
        lambda here, there: there + here,
        lambda here, there: here @ there,
        lambda here, there: torch.cat([here, there]),
        lambda here, there: torch.nn.functional.mse_loss(here, there),
        lambda here, there: here.add_(there),
        lambda here, there: there.add_(here),
        lambda here, there: torch.mul(here, here, out=there),
        lambda here, there: torch.poisson(here).add(torch.binomial(here, there)),
        lambda here, there: torch.nn.functional.linear(here, there),
        lambda here, there: torch.where(here > 0, here, there),
    ],
)
def test_tensors_of_two_devices_are_refused_by_name(call: Callable[..., Any]):
    assert _said(lambda: call(Place(DEVICE).ramp(2, 2), torch.ones(2, 2)), RuntimeError) == APART


def test_numbers_may_be_on_the_cpu():
    x = Place(DEVICE).ramp(2)
    assert ((x + torch.tensor(1.0)).tolist(), (torch.tensor(2.0) * x).tolist()) == ([1, 2], [0, 2])


@pytest.mark.usefixtures("python_device")
def test_a_result_that_a_tensor_cannot_hold_is_refused():
    assert _said(lambda: torch.tensor([1, 2], device=DEVICE).add_(1.5), Refused) == (
        "cannot compute add.Tensor into a tensor: result type float32 can't be cast to the desired "
        "output type int64\n  expected: a tensor whose dtype holds the result"
    )


@pytest.mark.usefixtures("python_device")
def test_writing_to_a_tensor_whose_elements_are_one_is_refused():
    text = (
        "unsupported operation: more than one element of the written-to tensor refers to a single "
        "memory location\n  expected: a tensor whose elements are all its own\n"
        "  try: tensor.clone() before writing"
    )
    wide = torch.zeros(1, device=DEVICE).expand(3)
    assert _said(lambda: wide.add_(1.0), Refused) == text
    assert _said(lambda: wide.copy_(Place(DEVICE).ramp(3)), Refused) == text


@pytest.mark.usefixtures("python_device")
def test_an_index_that_is_not_there_is_either_error_of_torchs():
    x = Place(DEVICE).ramp(3)
    for kind in (IndexError, RuntimeError, BadIndex):
        assert "out of" in _said(lambda: x.gather(0, torch.tensor([5], device=DEVICE)), kind)
    assert "index 5" in _said(lambda: x[torch.tensor([5], device=DEVICE)], IndexError)


def test_an_output_of_another_shape_is_resized_with_a_warning():
    target = torch.empty(3, device=DEVICE)
    with pytest.warns(UserWarning, match="An output with one or more elements was resized"):
        torch.add(Place(DEVICE).ramp(2), 1, out=target)
    assert target.tolist() == [1, 2]


@pytest.mark.usefixtures("python_device")
def test_what_only_the_host_computes_is_counted_and_refused_where_it_is_strict():
    before = fallbacks["numpy", "poisson"]
    torch.poisson(Place(DEVICE).ramp(2))
    assert fallbacks["numpy", "poisson"] == before + 1
    with strict():
        assert _said(lambda: torch.poisson(Place(DEVICE).ramp(2)), Unsupported) == (
            "engine 'numpy' has no kernel for poisson, and falling back is forbidden\n"
            "  expected: a native kernel, or a decomposition into ops that have one\n"
            "  try: with strict(False): ..."
        )


def test_every_decomposition_of_torchs_ends_in_ops_of_the_device():
    """One that came back to its own overload would go to the host."""
    x, n = Place(DEVICE).ramp(2, 2), torch.tensor([1, 2], device=DEVICE)
    with strict():
        torch._addmm_activation(x[0], x, x)
        torch._weight_norm_interface(x, x[:, :1], 0)
        torch.tril_indices(2, 2, device=DEVICE)
        torch.triu_indices(2, 2, device=DEVICE)
        n <<= 1
        n >>= n


# ---- optimizers, recurrent layers, sparse tensors


OPTIMIZERS = [
    ("Adam", {"foreach": True}),
    ("Adam", {"fused": True, "amsgrad": True, "weight_decay": 0.1}),
    ("AdamW", {"fused": True, "weight_decay": 0.1, "maximize": True}),
    ("SGD", {"fused": True, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    ("SGD", {"foreach": True, "momentum": 0.9}),
    ("Adagrad", {"fused": True, "weight_decay": 0.1}),
    ("Adamax", {}),
    ("RMSprop", {"foreach": True}),
    ("LBFGS", {}),
]


@pytest.mark.parametrize(("name", "options"), OPTIMIZERS)
def test_optimizers_step_as_on_the_cpu(name: str, options: dict[str, Any]):
    def trained(at: Place) -> Any:
        p = torch.nn.Parameter(at.ramp(3, 2) * 0.1)
        q = torch.nn.Parameter(at.ramp(2, 4) * 0.2 - 0.3)
        optimizer = getattr(torch.optim, name)([p, q], lr=0.01, **options)

        def closure() -> Any:
            optimizer.zero_grad()
            loss = ((p @ q).sin() ** 2).sum()
            loss.backward()
            return loss

        for _ in range(4):
            optimizer.step(closure)
        return p, q

    with strict():
        check_the_same(trained)


def test_gradients_are_unscaled_and_an_infinity_holds_back_the_step():
    def scaled(at: Place) -> Any:
        scaler = torch.amp.GradScaler(at.device, init_scale=4.0, growth_interval=2)
        p = torch.nn.Parameter(at.ramp(3))
        optimizer = torch.optim.SGD([p], lr=0.1)
        scales = []
        for factor in (1.0, float("inf"), 1.0, 1.0):
            optimizer.zero_grad()
            scaler.scale((p * factor).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
            scales.append(scaler.get_scale())
        return p, scales

    with strict():
        check_the_same(scaled)


@pytest.mark.parametrize("kind", [torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN])
@pytest.mark.parametrize("bias", [True, False])
def test_recurrent_layers_and_their_gradients_are_those_of_the_cpu(kind: Any, bias: bool):
    def learned(at: Place) -> Any:
        torch.manual_seed(1)
        layer = kind(5, 7, num_layers=2, bidirectional=True, bias=bias).to(at.device)
        x = torch.randn(3, 4, 5).to(at.device).requires_grad_()
        out, state = layer(x)
        states = state if isinstance(state, tuple) else (state,)
        (out.pow(2).sum() + sum(s.pow(3).sum() for s in states)).backward()
        return out, state, x.grad, [p.grad for p in layer.parameters()]

    with strict():
        check_the_same(learned)


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta state")
def test_sparse_tensors_hold_parts_on_the_device_and_are_computed_on_the_host():
    dense = torch.tensor([[0.0, 1.0], [2.0, 0.0]], device=DEVICE)
    for sparse in (dense.to_sparse(), dense.to_sparse_csr()):
        assert (sparse.device.type, sparse.values().device.type) == (DEVICE, DEVICE)
        assert sparse.to_dense().tolist() == dense.tolist()
        assert (sparse @ dense).tolist() == [[2, 0], [0, 2]]
        assert sparse.cpu().to_dense().tolist() == dense.tolist()
    summed = dense.to_sparse()
    summed.add_(dense.to_sparse())
    assert summed.to_dense().tolist() == [[0, 2], [4, 0]]


def test_sparse_gradients_of_an_embedding_train_it():
    def trained(at: Place) -> Any:
        torch.manual_seed(0)
        table = torch.nn.Embedding(5, 3, sparse=True).to(at.device)
        optimizer = torch.optim.SparseAdam(table.parameters(), lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            table(at.tensor([1, 2, 2])).pow(2).sum().backward()
            optimizer.step()
        return table.weight

    check_the_same(trained)


def test_an_encoder_that_torch_fuses_is_computed_by_the_device():
    def encoded(at: Place) -> Any:
        torch.manual_seed(0)
        layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, activation="gelu")
        layer = layer.to(at.device).eval()
        x = torch.randn(2, 3, 8).to(at.device)
        mask = at.tensor([[False, False, True], [False, True, True]])
        with torch.no_grad():
            out, near = layer.self_attn(x, x, x)
            return layer(x), layer(x, src_key_padding_mask=mask)[~mask], out, near

    with strict():
        check_the_same(encoded)


def test_every_special_is_an_overload_of_torchs():
    unknown = [n for n in registration.specials() if registration.overload_of(n) is None]
    assert unknown == []


def test_no_handler_warns(recwarn: pytest.WarningsRecorder):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        x = Place(DEVICE).ramp(3)
        torch.maximum(x, x.neg(), out=torch.empty(3, device=DEVICE))
        x.clamp_(min=0.5)
        torch._foreach_maximum_([x], [x + 1])
    assert [str(w.message) for w in recwarn] == []

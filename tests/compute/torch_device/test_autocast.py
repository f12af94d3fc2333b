"""`torch.autocast("holdfast")` and `torch.amp.GradScaler("holdfast")`."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable

import pytest
import torch
from torch import nn

import holdfast.torch
from holdfast.compute.torch_device.dispatch import autocast

DEVICE = "holdfast"
HALF, BRAIN = torch.float16, torch.bfloat16


def ones(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.ones(*shape, device=DEVICE, dtype=dtype)


NARROW: dict[str, Callable[[], torch.Tensor]] = {
    "matmul": lambda: ones(2, 2) @ ones(2, 2),
    "linear": lambda: nn.functional.linear(ones(2, 3), ones(4, 3), ones(4)),
    "conv2d": lambda: nn.functional.conv2d(ones(1, 2, 5, 5), ones(3, 2, 3, 3)),
    "bmm": lambda: torch.bmm(ones(2, 3, 4), ones(2, 4, 5)),
    "einsum": lambda: torch.einsum("ij,jk->ik", ones(2, 3), ones(3, 2)),
    "attention": lambda: nn.functional.scaled_dot_product_attention(
        ones(1, 2, 3, 4), ones(1, 2, 3, 4), ones(1, 2, 3, 4)
    ),
}
WIDE: dict[str, Callable[[], torch.Tensor]] = {
    "softmax": lambda: torch.softmax(ones(2, 2, dtype=BRAIN), 0),
    "layer_norm": lambda: nn.functional.layer_norm(ones(2, 2, dtype=BRAIN), (2,)),
    "group_norm": lambda: nn.functional.group_norm(ones(2, 2, 3, dtype=BRAIN), 2),
    "mse_loss": lambda: nn.functional.mse_loss(ones(2, dtype=BRAIN), ones(2, dtype=BRAIN)),
    "cross_entropy": lambda: nn.functional.cross_entropy(
        ones(2, 3, dtype=BRAIN), torch.zeros(2, dtype=torch.int64, device=DEVICE)
    ),
    "exp": lambda: ones(2, dtype=BRAIN).exp(),
    "pow": lambda: ones(2, dtype=BRAIN) ** 2.5,
    "sum": lambda: ones(2, dtype=BRAIN).sum(),
    "cumsum": lambda: ones(2, dtype=BRAIN).cumsum(0),
    "norm": lambda: ones(2, dtype=BRAIN).norm(),
    "norm of a dimension": lambda: torch.norm(ones(2, 2, dtype=BRAIN), 2, 0),
}


@pytest.mark.parametrize("name", NARROW)
@pytest.mark.parametrize("kind", [HALF, BRAIN])
def test_products_are_computed_in_the_narrow_format(name: str, kind: torch.dtype) -> None:
    with torch.autocast(DEVICE, dtype=kind):
        assert NARROW[name]().dtype == kind
    assert NARROW[name]().dtype == torch.float32


@pytest.mark.parametrize("name", WIDE)
def test_sums_norms_and_losses_are_computed_in_float32(name: str) -> None:
    with torch.autocast(DEVICE):
        assert WIDE[name]().dtype == torch.float32
    assert WIDE[name]().dtype == BRAIN


def test_tensors_that_meet_get_the_widest_of_their_formats() -> None:
    wide, narrow = ones(2, 2), ones(2, 2, dtype=BRAIN)
    with torch.autocast(DEVICE):
        assert torch.addcmul(narrow, wide, narrow).dtype == torch.float32
        assert torch.addcmul(narrow, narrow, narrow).dtype == BRAIN
        assert torch.dot(narrow[0], wide[0]).dtype == torch.float32


def test_what_is_on_no_list_is_left_alone() -> None:
    with torch.autocast(DEVICE):
        assert (ones(2, dtype=BRAIN) + 1).dtype == BRAIN
        assert (ones(2) * 2).dtype == torch.float32
        assert (ones(2, 2, dtype=torch.float64) @ ones(2, 2, dtype=torch.float64)).dtype == (
            torch.float64
        )
        assert ones(2, dtype=BRAIN).sum(dtype=BRAIN).dtype == BRAIN
        assert torch.softmax(ones(2, dtype=BRAIN), 0, dtype=torch.float64).dtype == torch.float64
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.float32  # the CPU's own


def test_blocks_nest_and_can_be_off() -> None:
    x = ones(2, 2)
    with torch.autocast(DEVICE):
        with torch.autocast(DEVICE, enabled=False):
            assert (x @ x).dtype == torch.float32
        with torch.autocast(DEVICE, dtype=HALF):
            assert (x @ x).dtype == HALF
        assert (x @ x).dtype == BRAIN


def test_bfloat16_is_the_format_in_every_thread() -> None:
    x, found = ones(2, 2), []

    def work() -> None:
        with torch.autocast(DEVICE):
            found.append((x @ x).dtype)

    for _ in range(2):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    work()
    assert found == [BRAIN] * 3
    assert torch.get_autocast_dtype(DEVICE) == BRAIN


def test_another_format_is_refused_by_torch() -> None:
    with pytest.warns(UserWarning, match="In holdfast autocast, but the target dtype is not"):
        block = torch.autocast(DEVICE, dtype=torch.float64)
    with block:
        assert (ones(2, 2) @ ones(2, 2)).dtype == torch.float32


def test_a_weight_is_cast_once_within_the_outermost_block() -> None:
    weight = ones(3, 3).requires_grad_()
    with torch.autocast(DEVICE):
        with torch.autocast(DEVICE):
            y = (ones(3, 3) @ weight) @ weight
        assert len(autocast._weights) == 1
        with torch.no_grad():
            assert not (ones(3, 3) @ weight).requires_grad
        y = y @ weight
        assert y.requires_grad
    assert autocast._weights == {}
    y.sum().backward()
    assert weight.grad is not None
    assert weight.grad.dtype == torch.float32
    with torch.autocast(DEVICE, cache_enabled=False):
        ones(3, 3) @ weight
        assert autocast._weights == {}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.head = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = nn.functional.silu(self.norm(self.conv(x))).flatten(2).transpose(1, 2)
        return self.head((x + self.attention(x, x, x)[0]).mean(1))


@pytest.mark.parametrize(("kind", "off"), [(BRAIN, 0.02), (HALF, 0.003)])
def test_a_network_trains_as_under_the_cpus_autocast(kind: torch.dtype, off: float) -> None:
    torch.manual_seed(0)
    theirs = Net()
    ours = copy.deepcopy(theirs).to(DEVICE)
    x, y = torch.randn(4, 3, 8, 8), torch.randint(0, 5, (4,))
    losses = []
    for model, device in ((ours, DEVICE), (theirs, "cpu")):
        with torch.autocast(device, dtype=kind):
            out = model(x.to(device))
            losses.append(nn.functional.cross_entropy(out, y.to(device)))
        assert losses[-1].dtype == torch.float32
        losses[-1].backward()
    assert losses[0].item() == pytest.approx(losses[1].item(), abs=off)
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert mine.grad is not None
        assert other.grad is not None
        assert mine.grad.dtype == torch.float32
        torch.testing.assert_close(mine.grad.cpu(), other.grad, atol=off, rtol=0.1)


def test_autocast_computes_natively() -> None:
    holdfast.torch.clear_fallbacks()
    net = Net().to(DEVICE)
    with holdfast.torch.strict(), torch.autocast(DEVICE):
        net(torch.randn(2, 3, 6, 6, device=DEVICE)).sum().backward()
    assert holdfast.torch.fallbacks() == {}


def _scaled(device: str) -> tuple[float, torch.Tensor]:
    torch.manual_seed(1)
    model = nn.Linear(4, 2).to(device)
    scaler = torch.amp.GradScaler(device, init_scale=256.0, growth_interval=2)
    sgd = torch.optim.SGD(model.parameters(), 0.1)
    x = torch.linspace(-1, 1, 12).reshape(3, 4).to(device)
    for _ in range(4):
        with torch.autocast(device, dtype=HALF):
            loss = model(x).square().mean()
        sgd.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(sgd)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(sgd)
        scaler.update()
    return scaler.get_scale(), model.weight.detach().cpu()


def test_a_scaler_steps_and_grows_as_on_the_cpu() -> None:
    with holdfast.torch.strict():
        scale, weight = _scaled(DEVICE)
    expected, theirs = _scaled("cpu")
    assert scale == expected == 1024.0
    torch.testing.assert_close(weight, theirs, atol=1e-3, rtol=0)


def test_a_scaler_sees_what_is_not_finite() -> None:
    weight = ones(3).requires_grad_()
    weight.grad = torch.tensor([1.0, float("inf"), 2.0], device=DEVICE)
    before = weight.detach().clone()
    scaler, sgd = torch.amp.GradScaler(DEVICE, init_scale=8.0), torch.optim.SGD([weight], 1.0)
    scaler.scale(ones(1))
    scaler.unscale_(sgd)
    scaler.step(sgd)
    scaler.update()
    assert torch.equal(weight.detach(), before)
    assert scaler.get_scale() == 4.0


def test_functions_of_the_user_can_choose_their_format() -> None:
    class Square(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type=DEVICE, cast_inputs=torch.float32)
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        @torch.amp.custom_bwd(device_type=DEVICE)
        def backward(ctx, grad):  # type: ignore[override]
            (x,) = ctx.saved_tensors
            return 2 * x * grad

    x = ones(2, dtype=BRAIN).requires_grad_()
    with torch.autocast(DEVICE):
        y = Square.apply(x)
    assert y is not None
    assert y.dtype == torch.float32
    y.sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [2.0, 2.0]

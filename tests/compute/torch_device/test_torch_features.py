"""What torch brings along keeps working on the device: hooks, transforms, profilers, custom ops."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function

import holdfast.torch
from holdfast.compute.torch_device.dispatch import backward_errors

DEVICE = "holdfast"


@pytest.fixture
def x() -> torch.Tensor:
    return torch.linspace(-1, 1, 16, device=DEVICE).reshape(4, 4)


# ---- errors in backward passes


class Own(Exception):
    """An error of the user."""


def _fail(*_: object) -> None:
    raise Own("mine")


class Fails(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):  # type: ignore[override]
        raise Own("mine")


def _hooked(x: torch.Tensor) -> torch.Tensor:
    x.register_hook(_fail)
    return (x * 2).sum()


def _unpacked(x: torch.Tensor) -> torch.Tensor:
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, _fail):
        return (x * x).sum()


def _accumulated(x: torch.Tensor) -> torch.Tensor:
    x.register_post_accumulate_grad_hook(_fail)
    return (x * 2).sum()


@pytest.mark.parametrize(
    "loss",
    [_hooked, _unpacked, _accumulated, lambda x: Fails.apply(x).sum()],
    ids=["hook", "unpacking", "accumulated", "function"],
)
def test_an_error_in_a_backward_pass_is_raised_by_it(loss) -> None:
    for _ in range(2):
        made = loss(torch.ones(3, device=DEVICE, requires_grad=True))
        with pytest.raises(Own, match=r"^mine$") as caught:
            made.backward()
        names = [entry.name for entry in caught.traceback]
        assert names[-1] in ("_fail", "backward")
    assert not backward_errors._taken
    x = torch.ones(3, device=DEVICE, requires_grad=True)
    (x * x).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [2.0, 2.0, 2.0]


def test_an_error_is_raised_in_the_thread_that_asked() -> None:
    found: list[str] = []

    def work(text: str) -> None:
        def fail(_: torch.Tensor) -> None:
            raise Own(text)

        x = torch.ones(3, device=DEVICE, requires_grad=True)
        x.register_hook(fail)
        try:
            (x * 2).sum().backward()
        except Own as exc:
            found.append(str(exc))

    for text in ("one", "two"):
        thread = threading.Thread(target=work, args=(text,))
        thread.start()
        thread.join()
    assert found == ["one", "two"]


def test_errors_of_torch_itself_stay_as_they_are() -> None:
    y = torch.ones(3, device=DEVICE, requires_grad=True) * 2
    with pytest.raises(RuntimeError, match="grad can be implicitly created only for scalar"):
        y.backward()


@pytest.mark.filterwarnings("ignore:Error detected in SqrtBackward0:UserWarning")  # and where
def test_anomaly_mode_names_the_function() -> None:
    x = torch.zeros(2, device=DEVICE, requires_grad=True)
    with torch.autograd.set_detect_anomaly(True):
        loss = (x.sqrt() * 0).sum()
        with pytest.raises(RuntimeError, match="'SqrtBackward0' returned nan values in its 0th"):
            loss.backward()


# ---- gradients


def test_double_backward(x: torch.Tensor) -> None:
    x = x.requires_grad_()
    (first,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    torch.testing.assert_close(second, 6 * x.detach())


def test_gradcheck_passes() -> None:
    x = torch.linspace(0.1, 1, 4, dtype=torch.float64, device=DEVICE, requires_grad=True)
    assert torch.autograd.gradcheck(lambda a: (a * a).sin().softmax(0), x)
    assert torch.autograd.gradgradcheck(lambda a: (a * a).sin(), x)


def test_hooks_of_modules_and_tensors_are_called(x: torch.Tensor) -> None:
    model, seen = nn.Linear(4, 4).to(DEVICE), []
    model.register_forward_pre_hook(lambda *_: seen.append("before"))
    model.register_forward_hook(lambda *_: seen.append("forward"))
    model.register_full_backward_hook(lambda *_: seen.append("backward"))
    x = x.requires_grad_()
    x.register_hook(lambda grad: grad * 2)
    x.register_post_accumulate_grad_hook(lambda _: seen.append("grad"))
    model(x).sum().backward()
    assert seen == ["before", "forward", "backward", "grad"]
    assert x.grad is not None
    torch.testing.assert_close(x.grad, 2 * model.weight.detach().sum(0).expand(4, 4))


def test_saved_tensors_can_wait_on_the_cpu(x: torch.Tensor) -> None:
    x = x.requires_grad_()
    with torch.autograd.graph.save_on_cpu():
        loss = (x * x).sum()
    loss.backward()
    assert x.grad is not None
    assert torch.equal(x.grad, 2 * x.detach())


# ---- torch.func


def test_vmap_computes_what_a_loop_does(x: torch.Tensor) -> None:
    rows = torch.vmap(lambda a: (a * a).softmax(0) @ a)(x)
    torch.testing.assert_close(rows, torch.stack([(a * a).softmax(0) @ a for a in x]))
    many = torch.stack([x, x + 1])
    torch.testing.assert_close(torch.vmap(torch.mm, (None, 0))(x, many), x @ many)
    drawn = torch.vmap(lambda a: torch.rand_like(a), randomness="different")(x)
    assert drawn.shape == x.shape
    assert not torch.equal(drawn[0], drawn[1])


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # torch's own
def test_gradients_of_functions(x: torch.Tensor) -> None:
    torch.testing.assert_close(torch.func.grad(lambda a: (a**3).sum())(x), 3 * x * x)
    torch.testing.assert_close(
        torch.func.hessian(lambda a: (a**3).sum())(x[0]), torch.diag(6 * x[0])
    )
    assert torch.equal(torch.func.jvp(torch.sin, (x,), (torch.ones_like(x),))[1], x.cos())
    expected = torch.diag(1 - x[0].tanh() ** 2)
    for jacobian in (torch.func.jacfwd, torch.func.jacrev):
        torch.testing.assert_close(jacobian(torch.tanh)(x[0]), expected)


def test_a_module_is_called_with_other_weights(x: torch.Tensor) -> None:
    model = nn.Linear(4, 2).to(DEVICE)
    weights = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    assert torch.func.functional_call(model, weights, (x,)).abs().sum().item() == 0
    per_row = torch.vmap(
        torch.func.grad(lambda w, row: model.bias[0] * 0 + (w @ row).sum()), (None, 0)
    )
    assert per_row(model.weight.detach(), x).shape == (4, 2, 4)


# ---- custom ops


@pytest.fixture
def library() -> Iterator[torch.library.Library]:
    with torch.library._scoped_library("holdfast_test", "DEF") as made:
        made.define("f(Tensor x) -> Tensor")
        yield made


@pytest.mark.parametrize("key", ["PrivateUse1", "CompositeExplicitAutograd"])
def test_an_op_of_the_user_runs_on_the_device(
    key: str, library: torch.library.Library, x: torch.Tensor
) -> None:
    library.impl("f", lambda t: t + 5, key)
    assert torch.equal(torch.ops.holdfast_test.f(x), x + 5)


def test_an_op_with_a_kernel_for_the_cpu_alone_falls_back(
    library: torch.library.Library, x: torch.Tensor
) -> None:
    library.impl("f", lambda t: t + 7, "CPU")
    holdfast.torch.clear_fallbacks()
    assert torch.equal(torch.ops.holdfast_test.f(x), x + 7)
    assert sum(holdfast.torch.fallbacks().values()) == 1
    holdfast.torch.clear_fallbacks()


def test_a_custom_op_has_a_kernel_for_the_device_and_a_gradient(x: torch.Tensor) -> None:
    @torch.library.custom_op("holdfast_test_custom::scale", mutates_args=(), device_types="cpu")
    def scale(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @scale.register_kernel(DEVICE)
    def _(x: torch.Tensor) -> torch.Tensor:
        return x * 3

    scale.register_autograd(lambda ctx, grad: grad * 3)
    x = x.requires_grad_()
    torch.testing.assert_close(scale(x), x * 3)
    scale(x).sum().backward()
    assert x.grad is not None
    assert x.grad.unique().tolist() == [3.0]


# ---- profilers and modes


def _named() -> record_function:  # entered once the profiler is
    return record_function("mine")


def test_profilers_name_the_ops(x: torch.Tensor) -> None:
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as seen, _named():
        (x @ x).relu().sum()
    names = {event.key for event in seen.key_averages()}
    assert {"mine", "aten::mm", "aten::relu", "aten::sum"} <= names
    with torch.autograd.profiler.profile() as also:
        x.exp()
    assert "aten::exp" in {event.key for event in also.key_averages()}


def test_the_devices_activity_has_its_name() -> None:
    assert ProfilerActivity.HOLDFAST.name == "HOLDFAST"  # type: ignore[attr-defined]


def test_modes_see_the_devices_ops(x: torch.Tensor) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        x @ x
    assert counter.get_total_flops() == 2 * 4**3
    with FakeTensorMode():
        made = torch.ones(2, 3, device=DEVICE) @ torch.ones(3, 4, device=DEVICE)
    assert (made.shape, made.device.type) == ((2, 4), DEVICE)


# ---- where tensors are made


def test_a_default_device_is_used_by_factories_and_modules() -> None:
    torch.set_default_device(DEVICE)
    try:
        made = [torch.ones(2), torch.tensor([1.0]), torch.arange(3), torch.randperm(4)]
        made += list(nn.Linear(2, 2).parameters())
    finally:
        torch.set_default_device(None)
    assert {t.device.type for t in made} == {DEVICE}
    with torch.device(DEVICE):
        assert torch.zeros(1).device.type == DEVICE
    assert torch.zeros(1).device.type == "cpu"


def test_a_generator_of_the_cpu_draws_for_the_device() -> None:
    def drawn(device: str) -> torch.Tensor:
        return torch.rand(40, generator=torch.Generator().manual_seed(3), device=device).cpu()

    assert torch.equal(drawn(DEVICE), drawn("cpu"))

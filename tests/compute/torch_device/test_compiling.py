"""`torch.compile(backend="holdfast")`: the same numbers, generated source, errors, memory."""

from __future__ import annotations

import copy
import gc
import linecache
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import holdfast.torch  # noqa: F401
from holdfast.base.errors import Unsupported
from holdfast.compute import engine
from holdfast.compute.torch_device.compile import backend, grouping, runtime

DEVICES = ("holdfast", "cpu")
# What torch itself imports for Inductor, and for optimizers.
OLD_SCRIPTS = pytest.mark.filterwarnings(
    "ignore:`torch.jit.script_method` is deprecated:DeprecationWarning"
)


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def compiled(function: Any, sources: list[str] | None = None, **options: Any) -> Any:
    show = None if sources is None else sources.append
    return torch.compile(function, backend="holdfast", options={"show": show}, **options)


def same(function: Any, *args: Any, **options: Any) -> list[str]:
    """Compare a function with its compiled form; the sources of the latter."""
    sources: list[str] = []
    wanted = function(*copied(args))
    found = compiled(function, sources, **options)(*copied(args))
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
    return sources


def copied(args: Any) -> list[Any]:
    return [a.detach().clone() if isinstance(a, torch.Tensor) else a for a in args]


def on(device: str, *shape: int) -> torch.Tensor:
    torch.manual_seed(len(shape))
    return torch.randn(*shape).to(device)


# ---- source


def test_the_backend_is_among_those_that_torch_lists() -> None:
    assert "holdfast" in torch._dynamo.list_backends()


def test_source_has_a_line_for_each_node_and_names_it() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (x * 2 + y).relu().sum(-1)

    (text,) = same(function, on("holdfast", 3, 4), on("holdfast", 4))

    assert text == (
        "# graph\n"
        "def computed(inputs):\n"
        "    arg0_1, arg1_1, = inputs\n"
        "    inputs.clear()\n"
        "\n"
        "    # ---- return (x * 2 + y).relu().sum(-1)\n"
        "    # aten.mul.Tensor(arg0_1, 2) -> float32[3, 4]\n"
        "    mul = numpy_multiply(arg0_1, 2)\n"
        "    # aten.add.Tensor(mul, arg1_1) -> float32[3, 4]\n"
        "    add = numpy_add(mul, arg1_1)\n"
        "    # aten.relu.default(add) -> float32[3, 4]\n"
        "    relu = numpy_maximum(add, 0)\n"
        "    # aten.sum.dim_IntList(relu, [-1]) -> float32[3]\n"
        "    sum_1 = kernel_sum_dim_IntList(relu, [-1])\n"
        "\n"
        "    return [sum_1]\n"
    )


def test_source_is_printed_where_it_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    torch.compile(torch.neg, backend="holdfast", options={"show": True})(on("cpu", 2))

    assert "numpy_negative(arg0_1)" in capsys.readouterr().out


def test_buffers_that_are_not_read_again_are_written_to() -> None:
    (text,) = same(lambda x: (x * 2 + 1) * x, on("holdfast", 64, 64))

    assert "add = numpy_add(mul, 1, out=mul)" in text
    assert "mul_1 = numpy_multiply(add, arg0_1)" in text  # torch gets it: an array of its own


def test_a_buffer_that_somebody_else_looks_at_is_left_alone() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x * 2
        return (y + 1) * 3, y.t() - 1

    (text,) = same(function, on("holdfast", 64, 64))

    assert "out=mul)" not in text


@pytest.mark.parametrize("device", DEVICES)
def test_pointwise_runs_over_large_arrays_go_in_one_pass(device: str) -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> Any:
        a = torch.sigmoid(x * y + 0.5) - F.gelu(x)
        b = a.exp() * 2 + y.mean()
        return b.sum(), torch.where(b > 2, a, b.to(torch.float64).float())

    (text,) = same(function, on(device, 300, 200), on(device, 200))

    assert "in one pass" in text
    assert grouping.LARGE <= 300 * 200


def test_the_lines_of_a_program_stand_over_what_they_add_to_a_pass() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = x * 2 + 1
        return y.tanh()

    (text,) = same(function, on("holdfast", 300, 200))

    assert text == (
        "# graph\n"
        "def computed(inputs):\n"
        "    arg0_1, = inputs\n"
        "    inputs.clear()\n"
        "\n"
        "    # in one pass:\n"
        "    # ---- y = x * 2 + 1\n"
        "    #   mul = aten.mul.Tensor(arg0_1, 2) -> float32[300, 200]\n"
        "    #   add = aten.add.Tensor(mul, 1) -> float32[300, 200]\n"
        "    # ---- return y.tanh()\n"
        "    #   tanh = aten.tanh.default(add) -> float32[300, 200]\n"
        "    tanh, = chain_1(arg0_1)\n"
        "    del arg0_1\n"
        "\n"
        "    return [tanh]\n"
    )


def test_views_between_pointwise_ops_do_not_part_a_pass() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> Any:
        a = x * 2
        seen = a.t()
        return (a + 1) * y, seen.sum(0)

    (text,) = same(function, on("holdfast", 200, 200), on("holdfast", 200, 200))

    assert text.count("in one pass") == 1


# ---- the same numbers


@pytest.mark.parametrize("device", DEVICES)
def test_formats_meet_as_they_do_uncompiled(device: str) -> None:
    def function(x: Any, i: Any, h: Any, zero: Any, b: Any) -> Any:
        return (
            *(x + i, i / 2, i + 2.5, h * x, h + 1, h * i, zero + h, zero * i, b + b, x > i),
            *((i // 2).float().log(), b & (x > 0), i.to(torch.int8) + 100, h.softmax(-1)),
        )

    whole = torch.arange(1, 5).to(device)
    half = on(device, 4).bfloat16()
    number = torch.tensor(2.5, dtype=torch.float64).to(device)
    same(function, on(device, 4), whole, half, number, whole > 2)


@pytest.mark.parametrize("device", DEVICES)
def test_inputs_that_are_changed_in_place_are_changed(device: str) -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        y[1:, 0] = x[0]
        return x.relu_() * y

    made = []
    for call in (function, compiled(function)):
        wide, y = on(device, 4, 6), torch.zeros(4, 3).to(device)
        result = call(wide[:, 1:4], y)
        made.append((wide, y, result))

    torch.testing.assert_close(made[1], made[0], rtol=1e-6, atol=0)


@pytest.mark.parametrize("device", DEVICES)
def test_an_output_that_is_a_view_of_an_input_stays_one(device: str) -> None:
    x = on(device, 2, 3)
    seen, _ = compiled(lambda x: (x.t()[1:], x + 1))(x)

    x.zero_()

    assert seen.shape == (2, 2)
    assert seen.abs().max().item() == 0


@pytest.mark.parametrize("device", DEVICES)
def test_random_numbers_are_those_of_the_uncompiled_function(device: str) -> None:
    def function(x: torch.Tensor) -> Any:
        a = F.dropout(x, 0.4)
        return a, torch.rand_like(a), torch.randn(5, device=x.device), a.bernoulli(0.5)

    x = on(device, 4, 5)
    made = []
    for call in (function, compiled(function)):
        torch.manual_seed(7)
        made.append([call(x), call(x)])

    torch.testing.assert_close(made[1], made[0], rtol=0, atol=0)


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.rows, self.more = nn.LayerNorm(8), nn.Linear(8, 8)
        self.words, self.attend = nn.Embedding(10, 8), nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.relu(self.norm(self.conv(x))), 2).mean((2, 3))
        x = F.dropout(F.gelu(self.more(self.rows(x))), 0.3, self.training)
        words = self.words(places)
        seen, _ = self.attend(words, words, words, need_weights=False)
        masked = F.scaled_dot_product_attention(seen, words, words, is_causal=True)
        return F.cross_entropy(x, places[:, 0] % 8) + masked.pow(2).mean()


@pytest.mark.slow
@pytest.mark.parametrize("device", DEVICES)
def test_a_network_learns_the_same(device: str) -> None:
    torch.manual_seed(0)
    first = Network()
    x, places = on(device, 2, 3, 8, 8), torch.randint(0, 10, (2, 5)).to(device)

    def learned(compiling: bool) -> Any:
        model = copy.deepcopy(first).to(device)
        call = compiled(model, fullgraph=True) if compiling else model
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        torch.manual_seed(3)
        losses = []
        for _ in range(3):
            optimizer.zero_grad()
            loss = call(x, places)
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        return losses, [p.grad for p in model.parameters()], list(model.buffers())

    torch.testing.assert_close(learned(True), learned(False), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@OLD_SCRIPTS
def test_an_optimizer_step_compiles() -> None:
    def stepped(compiling: bool) -> torch.Tensor:
        weight = nn.Parameter(on("holdfast", 5, 3))
        other = nn.Parameter(on("holdfast", 3))
        optimizer = torch.optim.AdamW([weight, other], 0.1, foreach=True)
        step = compiled(optimizer.step) if compiling else optimizer.step
        for _ in range(2):
            weight.grad, other.grad = weight.detach() * 2, other.detach() + 1
            step()
        return weight.detach()

    torch.testing.assert_close(stepped(True), stepped(False), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("device", DEVICES)
def test_sizes_may_change_from_call_to_call(device: str) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = torch.cat([x, x * 2], 1).reshape(-1, 2)
        return (y.sigmoid() + 1).t() * x.shape[0]

    sources: list[str] = []
    call = compiled(function, sources, dynamic=True)
    for rows in (3, 7, 300):
        x = on(device, rows, 64)
        found, wanted = call(x), function(x)
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)
        assert found.stride() == wanted.stride()

    assert len(sources) == 1


def test_gradients_follow_sizes_that_change() -> None:
    layer = nn.Linear(8, 4).to("holdfast")
    call = compiled(lambda x: F.silu(layer(x)).sum(), dynamic=True)
    for rows in (3, 5, 4096):
        grads = []
        for function in (call, lambda x: F.silu(layer(x)).sum()):
            layer.zero_grad()
            function(on("holdfast", rows, 8)).backward()
            grads.append([p.grad.clone() for p in layer.parameters()])
        torch.testing.assert_close(grads[0], grads[1], rtol=1e-4, atol=1e-4)


def test_a_graph_may_break() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        x = x * 2
        if x.sum().item() > 0:
            return x + 1
        return x - 1

    assert len(same(function, on("holdfast", 5).abs())) == 2


@pytest.mark.parametrize("device", DEVICES)
def test_conjugates_are_seen_as_such(device: str) -> None:
    x = torch.complex(on(device, 4), on(device, 4))
    call = compiled(lambda z: z * 2 + 1)

    torch.testing.assert_close(call(x.conj()), x.conj() * 2 + 1)


def test_memory_order_is_that_of_the_uncompiled_function() -> None:
    x = on("holdfast", 2, 3, 4, 5).to(memory_format=torch.channels_last)
    made = compiled(lambda x: (x * 2).permute(0, 2, 3, 1).contiguous() + 1)(x)

    assert made.stride() == (60, 15, 3, 1)
    assert compiled(lambda x: x.mul(3))(x).stride() == x.mul(3).stride() == x.stride()


def test_tensors_on_the_cpu_are_looked_at_in_place() -> None:
    x = torch.randn(3, requires_grad=True)

    assert runtime.from_cpu(x).ctypes.data == x.data_ptr()


def test_an_input_that_is_returned_is_the_same_tensor() -> None:
    x = on("holdfast", 3)
    made = compiled(lambda x: (x, x + 1))(x)

    assert made[0] is x


def test_several_threads_run_one_compiled_function() -> None:
    call = compiled(lambda x: (x.exp() * 2).tanh() + x)
    x = on("holdfast", 200, 200)
    wanted = call(x)
    found: list[torch.Tensor] = []
    team = [threading.Thread(target=lambda: found.append(call(x))) for _ in range(4)]
    for thread in team:
        thread.start()
    for thread in team:
        thread.join()

    assert len(found) == 4
    assert all(torch.equal(one, wanted) for one in found)


@pytest.mark.parametrize("device", DEVICES)
def test_tensors_made_of_numbers_inside_are_constants(device: str) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        table = torch.tensor([1.0, 2.0, 3.0], device=x.device)
        table[0] += 1  # each call begins with the numbers that are written there
        return x * table + torch.tensor(3.0)

    again = compiled(function)
    x = on(device, 3)
    torch.testing.assert_close([again(x), again(x)], [function(x), function(x)])


@pytest.mark.slow
@OLD_SCRIPTS
def test_a_whole_step_of_training_is_compiled() -> None:
    def losses(wrap: Any) -> list[float]:
        torch.manual_seed(0)
        model = nn.Linear(4, 1).to("holdfast")
        adam = torch.optim.Adam(model.parameters(), lr=0.1)
        x = torch.randn(8, 4, device="holdfast")

        def step() -> torch.Tensor:
            adam.zero_grad()
            loss = model(x).square().mean()
            found = loss.detach()
            loss.backward()
            adam.step()
            return found

        run = wrap(step)
        return [run().item() for _ in range(3)]

    # Traced, torch's Adam corrects its averages in float32: torch's own backends differ as much.
    traced = losses(lambda step: torch.compile(step, backend="eager"))
    torch._dynamo.reset()
    assert losses(compiled) == pytest.approx(traced)


# ---- what the table has not


def rows_begin(places: torch.Tensor) -> torch.Tensor:
    """An op that the table has not, and torch has no decomposition for."""
    return torch._convert_indices_from_coo_to_csr(places + 1, 4) * 2


@pytest.mark.usefixtures("python_device")
@pytest.mark.parametrize("device", DEVICES)
def test_what_only_the_host_computes_is_counted(device: str) -> None:
    torch.zeros(1, device="holdfast")  # the first use of a process may go through another overload
    before = engine.fallbacks.copy()
    found = compiled(rows_begin)(torch.tensor([0, 1, 1]).to(device))

    assert found.tolist() == [0, 0, 2, 6, 6]
    assert engine.fallbacks - before == {("numpy", "_convert_indices_from_coo_to_csr"): 1}


def test_what_only_the_host_computes_is_refused_where_it_is_strict() -> None:
    call = compiled(rows_begin)
    with engine.strict(), pytest.raises(Unsupported) as info:
        call(torch.tensor([0, 1, 1]).to("holdfast"))

    assert str(info.value) == (
        "engine 'numpy' has no kernel for _convert_indices_from_coo_to_csr, and falling back is "
        "forbidden\n"
        "  expected: a native kernel, or a decomposition into ops that have one\n"
        "  try: with strict(False): ..."
    )


@pytest.mark.parametrize("device", DEVICES)
def test_a_checkpoint_draws_the_same_numbers_again(device: str) -> None:
    layer = nn.Linear(4, 4).to(device)

    def part(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast(device, torch.bfloat16):
            return F.dropout(layer(x).relu(), 0.5)

    def function(x: torch.Tensor) -> torch.Tensor:
        return checkpoint(part, x, use_reentrant=False).float().square().sum()

    grads = []
    for call in (function, compiled(function)):
        layer.zero_grad()
        torch.manual_seed(5)
        call(on(device, 3, 4)).backward()
        grads.append([p.grad.clone() for p in layer.parameters()])

    torch.testing.assert_close(grads[1], grads[0], rtol=1e-2, atol=1e-3)


def test_an_op_of_somebody_elses_is_called() -> None:
    @torch.library.custom_op("holdfast_tests::thrice", mutates_args=())
    def thrice(x: torch.Tensor) -> torch.Tensor:
        return x * 3

    @thrice.register_fake
    def _(x: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(x)

    same(lambda x: thrice(x + 1) - 1, on("holdfast", 4), fullgraph=True)


# ---- errors


def test_an_unknown_option_is_refused() -> None:
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed) as info:
        torch.compile(torch.neg, backend="holdfast", options={"fast": True})(on("cpu", 2))

    assert str(info.value.inner_exception) == (
        "backend 'holdfast' has no option 'fast'\n"
        "  expected: 'show': print the generated source; or a function that is called with it"
    )


def test_a_mode_is_refused() -> None:
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed) as info:
        torch.compile(torch.neg, backend="holdfast", mode="max-autotune")(on("cpu", 2))

    assert str(info.value.inner_exception) == (
        "backend 'holdfast' has no mode 'max-autotune'\n"
        "  expected: no mode\n"
        '  try: options={"show": True} prints the source'
    )


def test_tensors_elsewhere_are_refused() -> None:
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed) as info:
        compiled(torch.neg)(torch.ones(2, device="meta"))

    assert str(info.value.inner_exception) == (
        "backend 'holdfast' cannot compute with a tensor on meta\n"
        "  expected: tensors on 'holdfast' or 'cpu'\n"
        '  try: backend="inductor"'
    )


def test_an_error_while_it_runs_names_the_node() -> None:
    call = compiled(lambda x, i: x[i + 1] * 2)
    with pytest.raises(IndexError) as info:
        call(on("holdfast", 3), torch.tensor([7]).to("holdfast"))

    assert str(info.value) == (
        "cannot compute aten.index.Tensor(arg1_1, [add]) -> float32[1]: index 8 is out of range "
        "for dimension 0 of size 3\n"
        "  expected: what the graph was compiled for\n"
        '  try: options={"show": True} prints the source'
    )


@OLD_SCRIPTS
@pytest.mark.slow
@pytest.mark.parametrize("function", [lambda x: x * 2 + 1, lambda x: x.sum()])
def test_inductor_on_the_device_is_refused(function: Any) -> None:
    with pytest.raises(Exception, match="generates no code") as info:
        torch.compile(function, backend="inductor")(on("holdfast", 4))

    assert (
        "Unsupported: torch's Inductor generates no code for tensors on 'holdfast'\n"
        "  expected: tensors on the CPU, or another backend\n"
        '  try: torch.compile(…, backend="holdfast")'
    ) in str(info.value)


# ---- memory


def test_nothing_stays_of_functions_that_are_gone() -> None:
    def gone(number: int) -> Any:
        held = torch.full((1000,), float(number)).to("holdfast")
        call = compiled(lambda x: x * number + held)
        call(held)
        return weakref.ref(held)

    lines = len([name for name in linecache.cache if name.startswith("<holdfast")])
    held = [gone(number) for number in range(12)]
    torch._dynamo.reset()
    gc.collect()

    assert [ref for ref in held if ref() is not None] == []
    assert len([n for n in linecache.cache if n.startswith("<holdfast")]) <= lines


def test_inputs_are_let_go_while_a_graph_runs() -> None:
    (text,) = same(lambda x: (x @ x).exp().sum(0) @ x, on("holdfast", 80, 80))

    assert "del mm" in text


def test_decompositions_leave_what_the_table_has() -> None:
    found = backend.decompositions()

    assert torch.ops.aten.gelu.default not in found
    assert torch.ops.aten.native_layer_norm.default not in found
    assert torch.ops.aten._native_batch_norm_legit_functional.default in found

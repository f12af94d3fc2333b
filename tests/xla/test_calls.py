"""A module's method as a function of its weights: right, and the module is left alone."""

from __future__ import annotations

import gc
import threading
from typing import Any

import pytest

torch = pytest.importorskip("torch")
jax = pytest.importorskip("jax")

import numpy as np  # noqa: E402
from torch import nn  # noqa: E402

from holdfast.xla import tiny  # noqa: E402
from holdfast.xla.arrays import to_jax, to_torch  # noqa: E402
from holdfast.xla.check.comparison import distance, floats, make_traceable, on_torch  # noqa: E402
from holdfast.xla.compat.environment import Tensor  # noqa: E402
from holdfast.xla.compat.tensors import is_ours  # noqa: E402
from holdfast.xla.module.calls import ModuleCall  # noqa: E402


class Small(nn.Module):
    """Ties, buffers of both kinds, a cache of its own, several kinds of answers."""

    saved: torch.Tensor
    unsaved: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.register_buffer("saved", torch.arange(4.0))
        self.register_buffer("unsaved", torch.full((4,), 2.0), persistent=False)
        self.kept: dict[str, Any] = {}
        self.last: Any = None

    def forward(self, x: Any, times: int = 1, mask: Any = None) -> Any:
        for _ in range(times):
            x = self.second(self.first(x)) * self.unsaved + self.saved
        if mask is not None:
            x = x[:, : int(mask.sum())]
        self.kept["x"] = self.last = x
        return x

    def named(self, x: Any) -> dict[str, Any]:
        return {"sum": x.sum(), "both": (x, [x * self.saved]), "none": None, "size": x.shape[0]}

    def nested(self, parts: Any) -> Any:
        return parts["list"][0] + parts["list"][1][0]

    def noise(self, x: Any) -> Any:
        return x + torch.randn_like(x)


def weights_of(call: ModuleCall) -> dict[str, jax.Array]:
    return {name: to_jax(tensor) for name, tensor in call.weights.items()}


def run(module: nn.Module, x: torch.Tensor, method: str = "forward", **more: Any) -> Any:
    call = ModuleCall(module, method)
    return jax.jit(lambda w, x: call(w, {"x": x, **more}))(weights_of(call), to_jax(x))


def same(found: Any, expected: torch.Tensor) -> bool:
    return np.allclose(np.asarray(found), expected.detach().numpy(), rtol=1e-6, atol=1e-6)


X = torch.linspace(-1, 1, 12).reshape(3, 4)


# ---- what it computes


def test_it_gives_what_the_module_gives_jitted_and_eagerly() -> None:
    module = Small()
    expected = module(X)
    call = ModuleCall(module)
    assert same(run(module, X), expected)
    assert same(call(weights_of(call), {"x": to_jax(X)}), expected)


def test_tied_weights_stand_once_and_reach_both_places() -> None:
    module = Small()
    call = ModuleCall(module)
    assert sorted(call.weights) == ["first.bias", "first.weight", "saved", "second.bias", "unsaved"]
    weights = weights_of(call) | {"first.weight": jax.numpy.eye(4) * 2}
    module.first.weight.data = torch.eye(4) * 2
    assert same(call(weights, {"x": to_jax(X)}), module(X))


def test_buffers_are_weights_saved_or_not() -> None:
    module = Small()
    call = ModuleCall(module)
    changed = {"saved": torch.ones(4), "unsaved": torch.full((4,), 3.0)}
    weights = weights_of(call) | {name: to_jax(one) for name, one in changed.items()}
    module.saved.copy_(changed["saved"])
    module.unsaved.copy_(changed["unsaved"])
    assert same(call(weights, {"x": to_jax(X)}), module(X))


def test_answers_keep_their_containers_with_arrays_in_them() -> None:
    found = run(Small(), X, "named")
    assert sorted(found) == ["both", "none", "size", "sum"]
    assert same(found["sum"], X.sum())
    assert same(found["both"][0], X)
    assert same(found["both"][1][0], X * torch.arange(4.0))
    assert found["none"] is None
    assert int(found["size"]) == 3


def test_inputs_may_be_nested() -> None:
    call = ModuleCall(Small(), "nested")
    parts = {"list": [to_jax(X), (X * 2,)]}  # one traced, one constant
    assert same(jax.jit(lambda x: call({}, {"parts": {"list": [x, (X * 2,)]}}))(to_jax(X)), X * 3)
    assert same(call({}, {"parts": parts}), X * 3)


@pytest.mark.slow
def test_a_model_that_answers_with_a_dict_gives_one() -> None:
    made = tiny.make("transformers:CLIPTextModelWithProjection")
    call = ModuleCall(made.module)
    function, given = make_traceable(call, made.inputs())
    found = jax.jit(function)(weights_of(call), given)
    assert {"text_embeds", "last_hidden_state"} <= set(found)
    assert distance(floats(found), on_torch(made)) < 1e-5


# ---- what is traced and what is a constant


def test_jax_arrays_are_traced_so_that_one_program_serves_all_values() -> None:
    module = Small()
    call = ModuleCall(module)
    function = jax.jit(lambda w, x: call(w, {"x": x}))
    for factor in (1, 2, 3):
        assert same(function(weights_of(call), to_jax(X * factor)), module(X * factor))
    assert function._cache_size() == 1


def test_torch_tensors_are_constants_so_that_shapes_may_depend_on_them() -> None:
    mask = torch.tensor([True, True, False, True])
    assert same(run(Small(), X, mask=mask), Small()(X)[:, :3])
    call = ModuleCall(Small())
    program = jax.jit(lambda w, x, m: call(w, {"x": x, "mask": m}))
    with pytest.raises(jax.errors.ConcretizationTypeError):
        program(weights_of(call), to_jax(X), to_jax(mask))


def test_numbers_are_constants() -> None:
    assert same(run(Small(), X, times=3), Small()(X, times=3))


def test_what_a_model_draws_is_the_same_in_each_program() -> None:
    first, second = run(Small(), X, "noise"), run(Small(), X, "noise")
    assert np.array_equal(np.asarray(first), np.asarray(second))
    assert not same(first, X)


# ---- the module is left alone


def alive() -> list[Any]:
    gc.collect()
    return [one for one in gc.get_objects() if type(one) is Tensor]


def test_the_module_keeps_its_weights_and_caches() -> None:
    module = Small()
    expected = module(X)
    before = {
        name: (id(one), one.clone()) for name, one in module.state_dict(keep_vars=True).items()
    }
    kept, last = module.kept["x"], module.last
    run(module, X * 5)
    for name, one in module.state_dict(keep_vars=True).items():
        assert id(one) == before[name][0]
        assert torch.equal(one, before[name][1])
    assert module.kept["x"] is kept
    assert module.last is last
    assert torch.equal(module(X), expected)


NAMES = (
    "diffusers:FluxTransformer2DModel",
    "diffusers:AutoencoderKLWan",  # keeps what it has seen of a video
    "diffusers:Kandinsky6SRTransformer3DModel",  # keeps tables in functions' caches
)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.slow
def test_models_of_diffusers_answer_as_before(name: str) -> None:
    made = tiny.make(name)
    before = on_torch(made)
    call = ModuleCall(made.module, made.tiny.method)
    for _ in range(2):  # the second trace finds nothing of the first
        function, given = make_traceable(call, made.inputs(), made.tiny.static)
        jax.make_jaxpr(function)(weights_of(call), given)
    assert distance(on_torch(made), before) == 0
    tensors = [one for part in made.module.modules() for one in vars(part).values()]
    assert not any(map(is_ours, tensors))


@pytest.mark.slow
def test_other_shapes_make_another_program_of_the_same_call() -> None:
    made = tiny.make("diffusers:WanTransformer3DModel")
    call = ModuleCall(made.module)
    weights = weights_of(call)

    def wide(inputs: dict[str, Any], columns: int) -> dict[str, Any]:
        return inputs | {"hidden_states": inputs["hidden_states"][..., :columns]}

    for columns in (10, 6):
        inputs = wide(made.inputs(), columns)
        function, given = make_traceable(call, inputs)
        with torch.no_grad():
            expected = floats(made(**inputs))
        assert distance(floats(jax.jit(function)(weights, given)), expected) < 1e-5


# ---- wherever it is called


def test_nothing_is_enabled_before_or_after() -> None:
    run(Small(), X)
    assert torch.overrides._get_current_function_mode_stack() == []
    assert torch.utils._python_dispatch._get_current_dispatch_mode_stack() == []
    assert type(torch.ones(2) + 1) is torch.Tensor


def test_nothing_stays_enabled_when_a_model_raises() -> None:
    call = ModuleCall(Small())
    with pytest.raises(TypeError):
        call(weights_of(call), {"x": to_jax(X), "unknown": 1})
    assert torch.overrides._get_current_function_mode_stack() == []
    assert type(torch.ones(2) + 1) is torch.Tensor
    assert same(run(Small(), X), Small()(X))


def test_it_works_inside_inference_mode_under_which_comfyui_runs_nodes() -> None:
    made = tiny.make("diffusers:FluxTransformer2DModel")
    expected = on_torch(made)
    with torch.inference_mode():
        call = ModuleCall(made.module)
        function, given = make_traceable(call, made.inputs())
        found = jax.jit(function)(weights_of(call), given)
        assert torch.is_inference_mode_enabled()
    assert distance(floats(found), expected) < 1e-5


def test_a_module_made_inside_inference_mode_works_too() -> None:
    with torch.inference_mode():
        module = Small()
        found = run(module, X)
    assert same(found, Small()(X))


def test_two_threads_at_once_do_not_meet() -> None:
    module = Small()
    shared = ModuleCall(module)
    start = threading.Barrier(4)
    found: dict[int, bool] = {}
    plain = [Small() for _ in range(4)]  # made here: torch's seed is one for all threads

    def work(number: int) -> None:
        call = shared if number % 2 else ModuleCall(module)
        start.wait()
        x = X * (number + 1)
        function = jax.jit(lambda w, x: call(w, {"x": x, "times": 20 + number}))
        answer = to_torch(function(weights_of(call), to_jax(x)))
        expected = plain[number](x, times=20 + number)
        found[number] = torch.allclose(answer, expected, rtol=1e-4)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == dict.fromkeys(range(4), True)


def test_nothing_of_torchax_lives_on() -> None:
    before = len(alive())
    run(Small(), X)
    assert len(alive()) == before

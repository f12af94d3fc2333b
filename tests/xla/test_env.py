"""The environment of nodes: on in its context and nowhere else, off while files are read."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import torch
from jax.sharding import Mesh
from safetensors.torch import load_file, save_file
from torch.utils import _python_dispatch

from holdfast.xla import TorchaxContext, TorchaxEnvManager, torchax
from holdfast.xla.env import is_enabled, ready
from holdfast.xla.module.calls import ModuleCall

pytestmark = pytest.mark.xla


def is_on() -> bool:
    """Whether torch's modes are those of torchax, in this thread."""
    env = TorchaxEnvManager._env
    dispatch = _python_dispatch._get_current_dispatch_mode_stack()
    on = env is not None and is_enabled(env)
    assert on == any(env is not None and one is env._dispatch_mode for one in dispatch)
    return on


def modes() -> tuple[int, int]:
    return (
        len(torch.overrides._get_current_function_mode_stack()),
        len(_python_dispatch._get_current_dispatch_mode_stack()),
    )


@pytest.fixture(autouse=True)
def nothing_stays_on() -> Iterator[None]:
    yield
    left, TorchaxEnvManager._mesh = modes(), None
    TorchaxEnvManager._here.pauses.clear()
    assert left == (0, 0)


def in_thread(function: Callable[[], Any]) -> Any:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(function()))
    thread.start()
    thread.join()
    return found[0]


def test_getting_the_environment_enables_nothing() -> None:
    env = TorchaxEnvManager.get_env()
    assert (TorchaxEnvManager._initialized, TorchaxEnvManager._env) == (True, env)
    assert TorchaxEnvManager.get_env() is env
    assert not is_on()


def test_all_threads_get_the_same_environment() -> None:
    assert in_thread(TorchaxEnvManager.get_env) is TorchaxEnvManager.get_env()


def test_torchax_has_the_same_default() -> None:
    assert ready().default_env() is TorchaxEnvManager.get_env()


def test_context_enables_for_its_body_alone() -> None:
    with TorchaxContext() as ctx:
        assert ctx.env is TorchaxEnvManager.get_env()
        assert is_on()
        assert ctx.mesh is None
    assert not is_on()


def test_context_disables_when_its_body_raises() -> None:
    with pytest.raises(ZeroDivisionError), TorchaxContext():
        raise ZeroDivisionError
    assert not is_on()


def test_contexts_nest() -> None:
    outer = TorchaxContext()
    with outer:
        once = modes()
        with outer, TorchaxContext():
            assert modes() == once
        assert is_on()
    assert not is_on()


def test_a_context_that_ends_in_another_thread_changes_nothing_here() -> None:
    def other() -> bool:
        with TorchaxContext():
            return TorchaxEnvManager.get_env().enabled

    with TorchaxContext() as context:
        assert in_thread(other)
        assert context.env.enabled
        assert isinstance(torch.zeros(2, device="meta"), torchax.tensor.Tensor)
    assert not context.env.enabled


def test_context_is_for_its_own_thread() -> None:
    with TorchaxContext():
        assert not in_thread(is_on)

        def other() -> bool:
            with TorchaxContext():
                TorchaxEnvManager.pause()
                return is_on()

        assert not in_thread(other)
        assert is_on()


def test_pauses_nest() -> None:
    seen = []
    with TorchaxContext():
        TorchaxEnvManager.pause()
        TorchaxEnvManager.pause()
        seen.append(is_on())
        TorchaxEnvManager.resume()
        seen.append(is_on())
        TorchaxEnvManager.resume()
        seen.append(is_on())
    assert seen == [False, False, True]


def test_pause_where_nothing_is_enabled_does_nothing() -> None:
    TorchaxEnvManager.pause()
    with TorchaxContext():
        assert is_on()
        TorchaxEnvManager.resume()  # of the pause outside, as the template orders them
        assert is_on()
    TorchaxEnvManager.resume()
    assert not is_on()


def test_resume_without_a_pause_does_nothing() -> None:
    TorchaxEnvManager.resume()
    assert not is_on()
    with TorchaxContext():
        TorchaxEnvManager.resume()
        assert is_on()


def test_context_in_a_pause_is_on_and_leaves_the_pause() -> None:
    with TorchaxContext():
        with TorchaxEnvManager.paused():
            with TorchaxContext():
                assert is_on()
            assert not is_on()
        assert is_on()


def test_pause_that_nobody_ended_ends_with_its_context() -> None:
    with TorchaxContext():
        with TorchaxContext():
            TorchaxEnvManager.pause()
        assert is_on()


def test_pause_ends_when_loading_raises() -> None:
    with TorchaxContext():
        with pytest.raises(FileNotFoundError), TorchaxEnvManager.paused():
            load_file("no such file")
        assert is_on()


def test_pause_also_takes_what_torchax_enabled_itself() -> None:
    torchax = ready()
    torchax.enable_globally()
    try:
        with TorchaxEnvManager.paused():
            assert not is_on()
        assert is_on()
    finally:
        torchax.disable_globally()


def test_other_modes_of_the_thread_stay() -> None:
    with TorchaxContext():
        with torch.device("cpu"):
            with TorchaxEnvManager.paused():
                assert not is_on()
                assert len(torch.overrides._get_current_function_mode_stack()) == 1
            assert is_on()
        assert is_on()


def test_context_is_closed_below_a_mode_that_is_still_open() -> None:
    context, device = TorchaxContext(), torch.device("cpu")
    context.__enter__()
    device.__enter__()
    context.__exit__(None, None, None)
    assert not is_on()
    assert len(torch.overrides._get_current_function_mode_stack()) == 1
    device.__exit__(None, None, None)


def test_safetensors_are_read_in_a_pause(tmp_path: Path) -> None:
    file = tmp_path / "weights.safetensors"
    save_file({"w": torch.arange(6.0).reshape(2, 3)}, file)
    with TorchaxContext(), TorchaxEnvManager.paused():
        found = load_file(file)["w"]
    assert type(found) is torch.Tensor
    assert found.tolist() == [[0, 1, 2], [3, 4, 5]]


def test_nothing_stands_between_a_call_and_torch_in_a_pause() -> None:
    def modes() -> int:
        """Each is asked about every call, which makes it slow."""
        functions: Any = torch._C._len_torch_function_stack
        dispatched: Any = torch._C._len_torch_dispatch_stack
        return functions() + dispatched()

    before = modes()
    with TorchaxContext():
        assert modes() > before
        with TorchaxEnvManager.paused():
            assert modes() == before
    assert modes() == before


def test_inference_mode_is_off_in_the_context_and_back_after_it() -> None:
    with torch.inference_mode():
        with TorchaxContext():
            assert not torch.is_inference_mode_enabled()
            assert not torch.is_grad_enabled()
        assert torch.is_inference_mode_enabled()
        with pytest.raises(ZeroDivisionError), TorchaxContext():
            raise ZeroDivisionError
        assert torch.is_inference_mode_enabled()


def test_gradients_are_left_as_they_are_outside_of_inference_mode() -> None:
    with TorchaxContext():
        assert torch.is_grad_enabled()


def test_mesh_is_current_in_the_context_and_remembered() -> None:
    mesh = Mesh(np.array(jax.devices()), ("tp",))
    with TorchaxContext(mesh) as ctx:
        assert ctx.mesh is mesh
        assert jax.sharding.get_abstract_mesh().shape == {"tp": len(jax.devices())}
    assert jax.sharding.get_abstract_mesh().empty
    with TorchaxContext():
        assert not jax.sharding.get_abstract_mesh().empty
    with TorchaxContext(mesh), torch.no_grad():
        got = TorchaxEnvManager.get_env().to_xla(torch.arange(4.0)) + 1
    assert got.cpu().tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize("inside", [False, True])
def test_what_comes_out_of_a_context_can_be_used(inside: bool) -> None:
    """As the next node does that saves a picture."""
    with torch.inference_mode(inside):
        with TorchaxContext() as ctx:
            images = ctx.env.to_xla(torch.arange(6.0).reshape(2, 3)) * 2
        saved = [255.0 * image.cpu().numpy() for image in images]
        assert np.stack(saved).tolist() == [[0, 510, 1020], [1530, 2040, 2550]]
        assert (images + torch.ones(3)).clamp(0, 5).to("cpu").tolist() == [[1, 3, 5], [5, 5, 5]]


def test_what_comes_out_is_memory_of_its_own() -> None:
    with TorchaxContext() as ctx:
        inside = ctx.env.to_xla(torch.zeros(3))
    inside.cpu().add_(1)
    assert inside.tolist() == [0, 0, 0]


def test_override_written_as_the_specification_has_it_is_seen() -> None:
    env = TorchaxEnvManager.get_env()
    from torchax.ops import ops_registry

    op: Any = torch.ops.aten.hardswish.default
    table: dict[Any, Any] = vars(env)["_ops"]
    before = table.get(op)

    def mine(x: Any) -> Any:
        return env.j2t_iso(env.t2j_iso(x) * 3)

    env._ops[op] = ops_registry.Operator(
        op, mine, is_jax_function=False, is_user_defined=True, needs_env=False, is_view_op=False
    )
    try:
        with TorchaxContext() as ctx, torch.no_grad():
            found = torch.nn.functional.hardswish(ctx.env.to_xla(torch.ones(2)))
        assert found.tolist() == [3, 3]
        found = ModuleCall(torch.nn.Hardswish())({}, {"input": jax.numpy.ones(2)})
        assert found.tolist() != [3, 3]  # ports have environments of their own
    finally:
        table.pop(op)
        table |= {} if before is None else {op: before}


_EARLIER = """
from holdfast.xla.compat import torchax
import torch
env = torchax().default_env()
env.override_op_definition(torch.ops.aten.cumsum, lambda x, dim: x)
from holdfast.xla import TorchaxEnvManager, torchax as again
assert again is torchax()
assert again.default_env() is TorchaxEnvManager.get_env() is not env
op = again.default_env()._ops[torch.ops.aten.cumsum]
assert op is env._ops[torch.ops.aten.cumsum] and op.is_user_defined
"""
_LIGHT = """
import sys, holdfast, holdfast.xla
assert "TorchaxContext" in dir(holdfast.xla) and "torchax" in dir(holdfast.xla)
assert not {"torch", "jax", "torchax", "numpy"} & set(sys.modules)
try:
    holdfast.xla.nothing
except AttributeError as exc:
    assert str(exc) == "module 'holdfast.xla' has no attribute 'nothing'"
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "program", [_EARLIER, _LIGHT], ids=["overrides made earlier stay", "importing is light"]
)
def test_in_a_process_of_its_own(program: str) -> None:
    subprocess.run([sys.executable, "-W", "error", "-c", program], check=True, timeout=300)


def test_every_exported_name_exists() -> None:
    import holdfast.xla

    for name in holdfast.xla.__all__:
        assert getattr(holdfast.xla, name) is not None

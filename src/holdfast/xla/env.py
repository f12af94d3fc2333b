"""torchax's environment by the specification's names, for nodes that run torch code themselves.

    with TorchaxContext() as ctx:
        move_module_to_xla(ctx.env, model)
        model = torchax.compile(model)

Outside of a TorchaxContext nothing is enabled in any thread, and torch is as fast as ever; on exit
the modes of the thread are restored, whatever happened inside. Tensors that come out of it can be
used like others: the next node may save them. Ports need none of this: a `ModuleCall` has its
own environment.

torch keeps its modes (function and dispatch) on a stack in each thread, and torchax pushes onto
them blindly. Here they are removed wherever they are on the stack, so that
`with torch.device(...)` may come between.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import torch
from jax.sharding import Mesh
from torch import overrides
from torch.utils import _python_dispatch as dispatching
from torch.utils import _pytree as tree

from holdfast.xla.compat.environment import Environment
from holdfast.xla.compat.importing import torchax

torchax()

from torchax import tensor as _tensor  # noqa: E402  (imports only with the mends)
from torchax import view as _view  # noqa: E402


class SharedEnvironment(Environment):
    """The environment of nodes, whose code may run inside `torch.inference_mode`."""

    _on = threading.local()

    @property
    def enabled(self) -> bool:
        """Whether it is enabled in this thread; torchax reads it for tensors without a device."""
        return getattr(self._on, "enabled", False)

    @enabled.setter
    def enabled(self, value: bool) -> None:
        self._on.enabled = value

    def dispatch(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """Tensors made inside inference mode could not be views of those made outside."""
        with _outside_inference_mode():
            return super().dispatch(func, types, args, kwargs)


class _Stack(NamedTuple):
    """One of torch's two stacks of modes, that of this thread."""

    modes: Callable[[], list[Any]]
    pop: Callable[[], Any]
    push: Callable[[Any], None]

    def take(self, mode: Any) -> int | None:
        """Remove the topmost occurrence of a mode; return its index, or None if it is absent."""
        places = [place for place, one in enumerate(self.modes()) if one is mode]
        if not places:
            return None
        with self._lift(places[-1] + 1):
            mode.__exit__(None, None, None)
        return places[-1]

    def put(self, mode: Any, place: int) -> None:
        """Insert a mode at an index of the stack."""
        with self._lift(place):
            mode.__enter__()

    @contextlib.contextmanager
    def _lift(self, place: int) -> Iterator[None]:
        above = [self.pop() for _ in range(len(self.modes()) - place)]
        yield
        for one in reversed(above):
            self.push(one)


_FUNCTIONS = _Stack(
    overrides._get_current_function_mode_stack, overrides._pop_mode, overrides._push_mode
)
_DISPATCH = _Stack(
    dispatching._get_current_dispatch_mode_stack, dispatching._pop_mode, dispatching._push_mode
)


_Places = tuple[int, int | None]  # of the function mode, of the dispatch mode


class _ThreadState(threading.local):
    def __init__(self) -> None:
        self.pauses: list[list[_Places]] = []  # what each of them took off
        self.floor = 0  # pauses below are not of the innermost context


class TorchaxEnvManager:
    """The environment that the nodes of a process share. Making it enables nothing."""

    _env: SharedEnvironment | None = None
    _mesh: Mesh | None = None
    _initialized = False
    _lock = threading.RLock()
    _here = _ThreadState()

    @classmethod
    def get_env(cls, mesh_obj: Mesh | None = None) -> SharedEnvironment:
        """The environment, made at the first call; torchax.default_env() is the same.

        A mesh is remembered for contexts without one.
        """
        with cls._lock:
            if mesh_obj is not None:
                cls._mesh = mesh_obj
            if cls._env is None:
                cls._env = _install_default()
                cls._initialized = True
            return cls._env

    @classmethod
    def pause(cls) -> None:
        """Disable it in this thread until `resume`; pauses nest. Does nothing where it is off."""
        env = cls._env
        if env is None:
            return
        taken = list(iter(lambda: _take(env), None))
        if taken or len(cls._here.pauses) > cls._here.floor:
            cls._here.pauses.append(taken)

    @classmethod
    def resume(cls) -> None:
        """End the last pause of this thread. Nothing happens if there is none."""
        here = cls._here
        if cls._env is None or len(here.pauses) <= here.floor:
            return
        for places in reversed(here.pauses.pop()):
            _put(cls._env, places)

    @classmethod
    @contextlib.contextmanager
    def paused(cls) -> Iterator[None]:
        """Inside, torch is plain torch: to read models from safetensors."""
        cls.pause()
        try:
            yield
        finally:
            cls.resume()

    @classmethod
    @contextlib.contextmanager
    def _enable(cls) -> Iterator[SharedEnvironment]:
        """Inside, it is enabled in this thread, once; pauses that were left open end with it."""
        env, here = cls.get_env(), cls._here
        floor, here.floor = here.floor, len(here.pauses)
        was_on = is_enabled(env)
        if not was_on:
            env.enable_torch_modes()
        try:
            yield env
        finally:
            while len(here.pauses) > here.floor:
                cls.resume()
            here.floor = floor
            if not was_on:
                _take(env)


class TorchaxContext:
    """Enables the environment in this thread, for its body alone. May be nested.

    Inside `torch.inference_mode`, under which ComfyUI runs nodes, that is off for the body and
    gradients are off instead: torchax lacks operators there. With a mesh, it is JAX's current one.
    """

    env: SharedEnvironment

    def __init__(self, mesh_obj: Mesh | None = None) -> None:
        self.mesh = mesh_obj
        self._open: list[contextlib.ExitStack] = []

    def __enter__(self) -> TorchaxContext:
        self.env = TorchaxEnvManager.get_env(self.mesh)
        mesh = self.mesh or TorchaxEnvManager._mesh
        with contextlib.ExitStack() as held:
            held.enter_context(_outside_inference_mode())
            if mesh is not None:
                held.enter_context(jax.set_mesh(mesh))
            held.enter_context(TorchaxEnvManager._enable())
            self._open.append(held.pop_all())
        return self

    def __exit__(self, *exc: object) -> None:
        self._open.pop().close()


def is_enabled(env: Environment) -> bool:
    """Whether an environment is enabled in this thread, however that was done."""
    return any(one is env._function_mode for one in _FUNCTIONS.modes())


def ready() -> Any:
    """The module torchax, whose default environment is that of `TorchaxEnvManager`."""
    TorchaxEnvManager.get_env()
    return torchax()


def _install_default() -> SharedEnvironment:
    """Make a new environment torchax's default; operators that a user registered stay."""
    module = torchax()
    env = SharedEnvironment()
    if module._env is not None:
        env._ops |= {key: op for key, op in module._env._ops.items() if op.is_user_defined}
    module._env = env
    for cls in (_tensor.Tensor, _view.View):
        _make_usable(cls)
    return env


@contextlib.contextmanager
def _outside_inference_mode() -> Iterator[None]:
    """Inside, the mode is off and gradients are off instead. Nothing changes where it was off."""
    if not torch.is_inference_mode_enabled():
        yield
        return
    with torch.inference_mode(False), torch.no_grad():
        yield


def _make_usable(cls: Any) -> None:
    """Tensors of the shared environment compute where it is not enabled; torchax's raise there."""
    refuse = cls.__torch_dispatch__

    def dispatch(_: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        leaves = tree.tree_leaves((args, kwargs))
        found = (getattr(one, "_env", None) for one in leaves if isinstance(one, torch.Tensor))
        env = next((one for one in found if isinstance(one, SharedEnvironment)), None)
        if env is None:
            return refuse(func, types, args, kwargs)
        return env.dispatch(func, types, args, kwargs)

    cls.__torch_dispatch__ = classmethod(dispatch)


def _take(env: Environment) -> _Places | None:
    function, dispatch = _FUNCTIONS.take(env._function_mode), _DISPATCH.take(env._dispatch_mode)
    env.enabled = False
    return None if function is None else (function, dispatch)


def _put(env: Environment, places: _Places) -> None:
    function, dispatch = places
    if dispatch is not None:
        _DISPATCH.put(env._dispatch_mode, dispatch)
    _FUNCTIONS.put(env._function_mode, function)
    env.enabled = True

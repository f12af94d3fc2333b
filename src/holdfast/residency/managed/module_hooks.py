"""Hooks that keep a managed module usable as a normal one: layers, state dicts, `.to()`, copies."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Collection
from typing import Any, Protocol

import torch
from torch import nn

from holdfast.base.errors import Misuse
from holdfast.residency.stream.weights import is_plain, owners


class Managed(Protocol):
    """A managed module for the hooks on it; `managed.Managed` describes the members."""

    module: nn.Module
    name: str
    when_left: Callable[[], None] | None

    def value_of(self, tensor: torch.Tensor) -> torch.Tensor | None: ...
    def is_merged(self, layer: nn.Module) -> bool: ...
    def suspend(self) -> None: ...
    def let_go(self, reason: str) -> None: ...
    def release(self) -> None: ...
    def can_run_together(self, entry: str) -> bool: ...
    def run_together(self, entry: str, calls: Any) -> list[Any]: ...


_MARK = "_holdfast_managed"
_AWAY = "_holdfast_away"
_HANDLES = "_holdfast_handles"


def managed_of(module: nn.Module) -> Managed | None:
    """The manager of a module, or None."""
    return module.__dict__.get(_MARK)


def around(
    part: nn.Module,
    whole: bool,
    begin: Callable[[], None],
    end: Callable[[Any], Any],
    handles: list[Any],
) -> None:
    """Call `begin` and `end(output)` around a module; `end` may replace it. `handles` undo this."""
    inner: Any = part._compiled_call_impl
    if whole and inner is not None:  # normal hooks would be compiled with it

        def call(*args: Any, **kwargs: Any) -> Any:
            result = None
            try:
                begin()
                result = inner(*args, **kwargs)
            finally:
                instead = end(result)
            return result if instead is None else instead

        handles.append(_Instead(part, "_compiled_call_impl", call))
        return
    handles.append(part.register_forward_pre_hook(lambda *_: begin(), prepend=True))
    handles.append(part.register_forward_hook(lambda *seen: end(seen[2]), always_call=True))


class LayerHooks:
    """Calls `begin(path)` and `end(path, output)` around chosen layers of one module."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._begin: Callable[[], Callable[[str], None] | None] = lambda: None
        self._end: Callable[[], Callable[[str, Any], Any] | None] = lambda: None
        self._handles: list[Any] = []
        self.on_module = False  # whether the module itself is chosen: its caller runs these then

    def call(self, begin: Callable[[str], None], end: Callable[[str, Any], Any]) -> None:
        """Set the methods to call. They are held weakly while no layer is chosen."""
        self._begin, self._end = weakref.WeakMethod(begin), weakref.WeakMethod(end)

    def put_on(self, paths: Collection[str]) -> None:
        """Choose the layers at these paths, and no others."""
        self.take_off()
        begin, end = self._begin(), self._end()
        assert begin is not None
        assert end is not None
        for path, part, whole in owners(self._module):
            if part is self._module and not whole:
                self.on_module = path in paths
            elif path in paths:
                here = (functools.partial(begin, path), functools.partial(end, path))
                around(part, whole, *here, self._handles)

    def take_off(self) -> None:
        """Remove all hooks."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self.on_module = False


def attach(managed: Managed) -> None:
    """Add hooks so that state dicts, loading, moving and copying of the module work."""
    module = managed.module
    mark(managed)
    handles: list[Any] = []
    module.__dict__[_HANDLES] = handles  # before the first: Ctrl-C may come between
    for part in module.modules():
        handles.append(part._register_state_dict_hook(functools.partial(_true_values, managed)))
        handles.append(part.register_load_state_dict_pre_hook(lambda *_: managed.suspend()))
        handles.append(_Instead(part, "_apply", functools.partial(_move, managed, part)))
    for name in ("__deepcopy__", "__reduce_ex__"):
        handles.append(_Instead(module, name, functools.partial(_not_copied, managed)))


def mark(managed: Managed) -> None:
    """Set the manager of a module while its weights have their own memory."""
    managed.module.__dict__[_MARK] = managed


def detach(managed: Managed) -> None:
    """Remove all these hooks."""
    for handle in managed.module.__dict__.get(_HANDLES, ()):
        handle.remove()
    managed.module.__dict__.pop(_HANDLES, None)
    managed.module.__dict__.pop(_MARK, None)


class _Instead:
    """Replaces an attribute on one instance."""

    def __init__(self, part: nn.Module, name: str, value: Any) -> None:
        self._part, self._name = part, name
        self._before = part.__dict__.get(name)
        part.__dict__[name] = value

    def remove(self) -> None:
        self._part.__dict__.pop(self._name, None)
        if self._before is not None:
            self._part.__dict__[self._name] = self._before


def _true_values(
    managed: Managed, part: nn.Module, state: dict[str, Any], prefix: str, _metadata: Any
) -> None:
    """Host values of the tensors of one submodule, wherever they are now."""
    named = [*part.named_parameters("", False), *part.named_buffers("", False)]
    for name, tensor in named:
        key = prefix + name
        if key in state and not isinstance(state[key], nn.Parameter):
            value = managed.value_of(tensor)
            state[key] = state[key] if value is None else value


def _move(managed: Managed, part: nn.Module, function: Any, recurse: bool = True) -> nn.Module:
    """For `.to()` and the like: the CPU means to leave, another dtype to take over again."""
    tensors = [*part.parameters(recurse), *part.buffers(recurse)]
    dtypes = {tensor.dtype for tensor in tensors if is_plain(tensor)}
    probes = {dtype: function(torch.empty(0, dtype=dtype)) for dtype in dtypes}
    if all(probe.dtype == dtype for dtype, probe in probes.items()):
        if any(probe.device.type == "cpu" for probe in probes.values()):
            managed.let_go("it was moved to the CPU")
            if managed.when_left is not None:
                managed.when_left()
        return part
    managed.suspend()
    return type(part)._apply(part, lambda tensor: function(tensor).to(tensor.device), recurse)


def _not_copied(managed: Managed, *_: Any) -> Any:
    raise Misuse(
        f"cannot copy or pickle {managed.name} while it is managed",
        expected="a module that is not managed",
        hint="residency.unmanage(module) first, or save its state_dict()",
    )


def bring(module: nn.Module, device: torch.device) -> None:
    """Move tensors that cannot be streamed (wrappers, sparse, empty) to the device for good."""
    away: list[tuple[dict[str, Any], str, Any]] = []
    module.__dict__[_AWAY] = away
    for part in module.modules():
        for table in (part._parameters, part._buffers):
            for name, tensor in table.items():
                if tensor is None or tensor.device == device:
                    continue
                if not is_plain(tensor) or tensor.numel() == 0:
                    away.append((table, name, tensor))
                    moved = tensor.to(device)
                    is_weight = isinstance(tensor, nn.Parameter)
                    fresh: Any = nn.Parameter(moved, tensor.requires_grad) if is_weight else moved
                    table[name] = fresh


def take_back(module: nn.Module) -> None:
    """Put the tensors back that `bring` moved."""
    for table, name, tensor in module.__dict__.get(_AWAY, ()):
        table[name] = tensor
    module.__dict__.pop(_AWAY, None)

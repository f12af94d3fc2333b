"""Keep parameters the same objects, and tied, when `module.to(...)` moves them to the device.

torch moves a parameter by setting its data, and cannot where device and CPU have different kinds of
tensors: it then puts a new Parameter into every module that has the old one, which unties weights
and leaves an optimizer with parameters that nobody trains. Moves between CPU and CUDA, and casts,
are torch's own.
"""

from __future__ import annotations

import importlib
import threading
from typing import Any

import torch

from holdfast.base.errors import Misuse
from holdfast.compute.torch_device.storage.tensor_bridge import DEVICE

Module: Any = torch.nn.Module
Tensor = torch.Tensor


class _Moves(threading.local):
    """Parameters replaced during the outermost `_apply`, by id: (old, new)."""

    depth = 0

    def __init__(self) -> None:
        self.replaced: dict[int, tuple[Tensor, Tensor]] = {}


_moves = _Moves()


def install() -> None:
    """Keep parameters tied in every module that moves. Once is enough."""
    theirs = Module._apply

    def _apply(self: Any, fn: Any, recurse: bool = True) -> Any:
        _moves.depth += 1
        try:
            return _move(theirs, self, fn, recurse)
        finally:
            _moves.depth -= 1
            if not _moves.depth:
                _moves.replaced.clear()

    _apply.__doc__ = theirs.__doc__
    Module._apply = _apply
    Tensor.data = _make_data_property(Tensor.data)  # pyright: ignore[reportAttributeAccessIssue]
    spreading: Any = importlib.import_module("torch.nn.parallel.data_parallel")
    available = spreading._get_available_device_type

    def _get_available_device_type() -> Any:  # DataParallel never uses ours
        return None if available() == DEVICE else available()

    spreading._get_available_device_type = _get_available_device_type


def _make_data_property(theirs: Any) -> property:
    """`tensor.data` whose setter also takes data of the device for a CPU tensor, and vice versa."""

    def put(self: Tensor, data: Tensor) -> None:
        kinds = {self.device.type, getattr(data, "device", self.device).type}
        if len(kinds) == 1 or DEVICE not in kinds:
            theirs.__set__(self, data)
            return
        fresh: Any = data.detach()
        if isinstance(self, torch.nn.Parameter):
            fresh = torch.nn.Parameter(fresh, self.requires_grad)
        _inherit(self, fresh)
        try:
            torch.utils.swap_tensors(self, fresh)
        except RuntimeError as exc:
            raise Misuse(
                f"cannot give a tensor on {self.device} data on {data.device}: others hold it",
                expected="a tensor without weak references that no graph uses",
                hint=f"module.to({data.device.type!r}), which replaces such parameters",
            ) from exc

    return property(theirs.__get__, put, theirs.__delete__, theirs.__doc__)


def _move(theirs: Any, module: Any, fn: Any, recurse: bool) -> Any:
    if recurse:  # children first, as torch does
        for child in module.children():
            child._apply(fn)
    parameters = module._parameters
    before = {key: p for key, p in parameters.items() if p is not None}
    known = {key: p for key, p in before.items() if id(p) in _moves.replaced}
    for key in known:
        parameters[key] = None
    try:
        theirs(module, fn, False)
    finally:
        for key, old in known.items():
            parameters[key] = _moves.replaced[id(old)][1]
    for key, old in before.items():
        if key not in known and parameters[key] is not old:
            parameters[key] = _keep_identity(old, parameters[key])
    return module


def _keep_identity(old: Any, new: Any) -> Tensor:
    """Swap the new tensor into the old object; if others hold that, return the new one."""
    if DEVICE not in (old.device.type, new.device.type):
        return new
    if id(old) in _moves.replaced:
        return _moves.replaced[id(old)][1]
    _inherit(old, new)
    try:
        torch.utils.swap_tensors(old, new)
    except RuntimeError:  # a weak reference or a graph holds it
        _moves.replaced[id(old)] = (old, new)
        return new
    return old


def _inherit(old: Any, new: Any) -> None:
    if type(new) is torch.nn.Parameter:
        new.__class__ = type(old)
    vars(new).update(vars(old))
    for hooks in ("_backward_hooks", "_post_accumulate_grad_hooks"):
        if getattr(old, hooks):
            setattr(new, hooks, getattr(old, hooks))

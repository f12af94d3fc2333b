"""Modules on their way to the device and back.

Covers: parameters that stay the same objects when `module.to(…)` moves them, and stay tied;
`parameter.data = …` with data of the other kind.
Leaves to others: copying (`specials`), everything else that `.to` does (torch).
Promise: a move between CPU and CUDA, or of a number format alone, is torch's own.

torch moves a parameter by giving it other data, and cannot where device and CPU have different
kinds of tensors: it then puts a new Parameter into every module that has the old one, which unties
weights and leaves an optimizer with parameters that nobody trains.
"""

from __future__ import annotations

import importlib
import threading
from typing import Any

import torch

from holdfast.base.errors import Misuse
from holdfast.compute.torch_device.storage import DEVICE

Module: Any = torch.nn.Module
Tensor = torch.Tensor


class _Moves(threading.local):
    """Parameters that were replaced since the outermost module was asked: old -> new."""

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
            return _moved(theirs, self, fn, recurse)
        finally:
            _moves.depth -= 1
            if not _moves.depth:
                _moves.replaced.clear()

    _apply.__doc__ = theirs.__doc__
    Module._apply = _apply
    Tensor.data = _settable(Tensor.data)  # pyright: ignore[reportAttributeAccessIssue]
    spreading: Any = importlib.import_module("torch.nn.parallel.data_parallel")
    spreading._get_available_device_type = _several(spreading._get_available_device_type)


def _settable(theirs: Any) -> property:
    """`tensor.data`, which also takes data of the device for a tensor of the CPU, and back."""

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


def _several(theirs: Any) -> Any:
    """Which device DataParallel spreads a model over: none, where there is one of ours."""

    def _get_available_device_type() -> Any:
        found = theirs()
        return None if found == DEVICE else found

    return _get_available_device_type


def _moved(theirs: Any, module: Any, fn: Any, recurse: bool) -> Any:
    if recurse:  # as torch does it, and first: what it has moved is set aside below
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
            parameters[key] = _as_before(old, parameters[key])
    return module


def _as_before(old: Any, new: Any) -> Tensor:
    """The old object with what the new one has, or else the new one, for all who have the old."""
    if DEVICE not in (old.device.type, new.device.type):
        return new
    if id(old) in _moves.replaced:
        return _moves.replaced[id(old)][1]
    _inherit(old, new)
    try:
        torch.utils.swap_tensors(old, new)
    except RuntimeError:  # somebody else holds it: a weak reference, a graph
        _moves.replaced[id(old)] = (old, new)
        return new
    return old


def _inherit(old: Any, new: Any) -> None:
    """Give a new parameter what belongs to the object rather than to its numbers."""
    if type(new) is torch.nn.Parameter:
        new.__class__ = type(old)
    vars(new).update(vars(old))
    for hooks in ("_backward_hooks", "_post_accumulate_grad_hooks"):
        if getattr(old, hooks):
            setattr(new, hooks, getattr(old, hooks))

"""What the rest of the world sees of a managed module: state dicts, `.to()`, hooks, odd tensors.

Covers: hooks around layers (compiled ones too), true values in state dicts, loading and converting
while managed, tensors that cannot be pointed elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from holdfast.residency.weights import is_plain

if TYPE_CHECKING:
    from holdfast.residency.managed import Managed

_MARK = "_holdfast_managed"
_AWAY = "_holdfast_away"


def managed_of(module: nn.Module) -> Managed | None:
    """Who manages a module."""
    return module.__dict__.get(_MARK)


def around(
    part: nn.Module, whole: bool, begin: Callable[[], None], end: Callable[[], None]
) -> list[Any]:
    """Call `begin` before and `end` after the module runs; what is returned has `remove`."""
    if whole and part._compiled_call_impl is not None:
        return [_Compiled(part, begin, end)]
    before = part.register_forward_pre_hook(lambda *_: begin(), prepend=True)
    after = part.register_forward_hook(lambda *_: end())
    return [before, after]


class _Compiled:
    """Around a module whose call is compiled: hooks would be compiled with it."""

    def __init__(self, part: nn.Module, begin: Callable[[], None], end: Callable[[], None]) -> None:
        inner = self._inner = part._compiled_call_impl
        self._part = part

        def call(*args: Any, **kwargs: Any) -> Any:
            begin()
            result = inner(*args, **kwargs)
            end()
            return result

        part._compiled_call_impl = call

    def remove(self) -> None:
        """Take it off."""
        self._part._compiled_call_impl = self._inner


def attach(managed: Managed) -> None:
    """Have state dicts, loading and conversions of the module go right."""
    module = managed.module
    module.__dict__[_MARK] = managed


def detach(managed: Managed) -> None:
    """Take all of that off."""
    managed.module.__dict__.pop(_MARK, None)


def bring(module: nn.Module, device: torch.device) -> None:
    """Move tensors that cannot be pointed elsewhere (wrappers, sparse, empty ones) for good."""
    away: list[tuple[dict[str, Any], str, Any]] = []
    for part in module.modules():
        for table in (part._parameters, part._buffers):
            for name, tensor in table.items():
                if tensor is not None and (not is_plain(tensor) or tensor.numel() == 0):
                    away.append((table, name, tensor))
                    moved = tensor.to(device)
                    is_weight = isinstance(tensor, nn.Parameter)
                    table[name] = nn.Parameter(moved, tensor.requires_grad) if is_weight else moved
    module.__dict__[_AWAY] = away


def take_back(module: nn.Module) -> None:
    """Put the tensors back that `bring` moved."""
    for table, name, tensor in module.__dict__.pop(_AWAY, ()):
        table[name] = tensor

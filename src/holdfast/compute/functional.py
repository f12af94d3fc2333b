"""Every op of the table as a function of tensors: `functional.relu(x)`, `functional.add_(x, y)`.

A function picks the overload by its arguments and takes `out=`; a trailing underscore is the
in-place form.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from holdfast.base.errors import BadInput
from holdfast.compute.ops.schema import format_arguments
from holdfast.compute.ops.table import PACKETS, Op
from holdfast.compute.tensor_calls import tensor_calls

# Named here because the op `complex`, once used, hides the builtin in this module.
_NUMBERS = (int, float, complex)


_REMEMBERED = 256  # overload choices cached for one op


class Packet:
    """All overloads of one op."""

    def __init__(self, name: str) -> None:
        self.__name__ = name
        self.overloads = tuple(PACKETS[name])
        self._only = self.overloads[0] if len(self.overloads) == 1 else None
        self._chosen: dict[Any, Op] = {}

    def __call__(self, *args: Any, out: Any = None, **kwargs: Any) -> Any:
        chosen = self._only or self.choose(args, kwargs)
        if out is None:
            return tensor_calls.apply(chosen, args, kwargs)
        return tensor_calls.into(out, chosen, args, kwargs)

    def choose(self, args: Any, kwargs: Any) -> Op:
        """The overload for these arguments. Raises BadInput that lists all overloads."""
        key = (*map(_kind, args), *[(k, _kind(v)) for k, v in kwargs.items()])
        found = self._chosen.get(key)
        if found is None:
            if len(self._chosen) >= _REMEMBERED:
                self._chosen.clear()
            found = self._chosen[key] = self._choose(args, kwargs)
        return found

    def _choose(self, args: Any, kwargs: Any) -> Op:
        for op in self.overloads:
            if op.schema.fits(args, kwargs):
                return op
        for op in self.overloads:
            if op.schema.fits([_Number() if isinstance(a, _NUMBERS) else a for a in args], kwargs):
                return op
        raise BadInput(
            f"cannot call {self.__name__}({format_arguments(args, kwargs)})",
            expected=" or ".join(op.schema.text for op in self.overloads),
        )

    def __repr__(self) -> str:
        return f"<op {self.__name__}: {', '.join(o.name for o in self.overloads)}>"


def _kind(value: Any) -> Any:
    """What the choice depends on: an argument's type, and the element types of a list."""
    kind = type(value)
    return (kind, frozenset(map(type, value))) if kind is list or kind is tuple else kind


class _Number:
    """Stands for a scalar where an op takes a tensor."""

    _array = None


@functools.cache
def packet(name: str) -> Callable[..., Any]:
    """The function for the op `name`. Raises KeyError."""
    return Packet(name)


def __getattr__(name: str) -> Any:
    if name in PACKETS:
        return globals().setdefault(name, packet(name))
    if name.endswith("_") and name[:-1] in PACKETS:
        return globals().setdefault(name, tensor_calls.in_place(name[:-1]))
    raise AttributeError(f"there is no op {name!r}")


def __dir__() -> list[str]:
    return sorted(PACKETS)

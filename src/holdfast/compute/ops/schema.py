"""ATen signatures, parsed: binding arguments to names, and whether arguments fit.

Schemas are ATen's without `layout`, `device`, `pin_memory` and `memory_format`: a tensor knows
its device, and an engine has one layout.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy

from holdfast.base.errors import BadInput

_PARAMETER = re.compile(
    r"(?P<type>[A-Za-z]+)(?:\((?P<alias>[^)]*)\))?(?P<rest>(?:\[\d*\])?\??(?:\[\d*\])?\??)"
    r"(?: (?P<name>\w+))?(?:=(?P<default>.+))?$"
)
REQUIRED: Any = object()


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter: its name, type ("Tensor", "int", "Scalar" …) and default."""

    name: str
    type: str
    many: bool
    optional: bool
    default: Any
    keyword: bool
    alias: str | None

    @property
    def tensor(self) -> bool:
        """Whether it takes a tensor, an optional tensor, or several."""
        return self.type == "Tensor"

    def accepts(self, value: Any) -> bool:
        """Whether `value` is a valid argument."""
        if value is None:
            return self.optional or self.default is None
        if self.many:
            single = self.type == "int" and isinstance(value, int | numpy.integer)
            return single or (
                isinstance(value, Sequence)
                and not isinstance(value, str)
                and all(v is None or _fits(self.type, v) for v in value)
            )
        return _fits(self.type, value)


@dataclass(frozen=True, slots=True)
class Schema:
    """The signature of one overload."""

    text: str
    base: str
    overload: str
    parameters: tuple[Parameter, ...]
    returns: int
    many_returned: bool
    view: bool

    @property
    def name(self) -> str:
        """The key in the table: "add.Tensor", or "relu" if there is one overload."""
        return f"{self.base}.{self.overload}" if self.overload else self.base

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """All arguments by name, with defaults. Raises BadInput with the signature."""
        bound = {}
        if len(args) > len(self.parameters):
            raise self._refuse(f"{len(args)} arguments are too many")
        for place, parameter in enumerate(self.parameters):
            if place < len(args) and not parameter.keyword:
                bound[parameter.name] = args[place]
            elif parameter.name in kwargs:
                bound[parameter.name] = kwargs[parameter.name]
            elif parameter.default is not REQUIRED:
                bound[parameter.name] = parameter.default
            else:
                raise self._refuse(f"{parameter.name!r} is missing")
        strange = [name for name in kwargs if name not in bound]
        if strange:
            raise self._refuse(f"there is no argument {strange[0]!r}")
        return bound

    def fits(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        """Whether this overload accepts these arguments."""
        positional = [p.name for p in self.parameters if not p.keyword]
        given = dict(zip(positional, args, strict=False))
        if len(args) > len(positional) or not given.keys().isdisjoint(kwargs):
            return False
        given.update(kwargs)
        for parameter in self.parameters:
            if parameter.name not in given:
                if parameter.default is REQUIRED:
                    return False
            elif not parameter.accepts(given.pop(parameter.name)):
                return False
        return not given

    def _refuse(self, reason: str) -> BadInput:
        return BadInput(f"cannot call {self.name}: {reason}", expected=self.text)


@functools.cache
def parse(text: str) -> Schema:
    """Parse "add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor"."""
    head, _, tail = text.partition("(")
    inside, _, returns = tail.rpartition(") -> ")
    base, _, overload = head.partition(".")
    parameters, keyword = [], False
    for part in _split(inside):
        if part == "*":
            keyword = True
        elif part:
            parameters.append(_parameter(part, keyword))
    outs = _split(returns.strip("()")) if returns.startswith("(") else [returns]
    view = any(p.alias and "!" not in p.alias for p in parameters)
    count = len([o for o in outs if o])
    return Schema(text, base, overload, tuple(parameters), count, "[]" in returns, view)


def _split(text: str) -> list[str]:
    """Split at the commas outside of brackets."""
    parts, depth, start = [], 0, 0
    for place, letter in enumerate(text):
        depth += (letter in "([") - (letter in ")]")
        if letter == "," and not depth:
            parts.append(text[start:place].strip())
            start = place + 1
    return [*parts, text[start:].strip()]


def _parameter(text: str, keyword: bool) -> Parameter:
    found = _PARAMETER.match(text)
    if not found:
        raise ValueError(f"cannot read the parameter {text!r}")
    rest, default = found["rest"], found["default"]
    many = "[" in rest
    value = REQUIRED if default is None else _default(default)
    if many and isinstance(value, int) and not isinstance(value, bool):
        value = [value]
    kind = "int" if found["type"] == "SymInt" else found["type"]
    optional = rest.endswith("?")
    return Parameter(found["name"], kind, many, optional, value, keyword, found["alias"])


@functools.cache
def _default(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except ValueError:
        return text.strip('"')


_TYPES: dict[str, Any] = {
    "bool": bool | numpy.bool_,
    "int": int | numpy.integer,
    "float": int | float | numpy.number,
    "Scalar": int | float | complex | numpy.number | numpy.bool_,
    "str": str,
}


def _fits(kind: str, value: Any) -> bool:
    if kind == "Tensor":
        return hasattr(value, "_array")
    if kind == "ScalarType":
        return not hasattr(value, "_array") and not isinstance(value, int | float | complex | list)
    if kind in ("int", "float") and isinstance(value, bool):
        return False
    return kind not in _TYPES or isinstance(value, _TYPES[kind])


def describe(value: Any) -> str:
    """Format an argument for an error message: "float32[2, 3]" for an array."""
    if hasattr(value, "ndim") and hasattr(value, "dtype"):
        return f"{value.dtype}{list(value.shape)}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(describe(v) for v in value)}]"
    return repr(value)


def format_arguments(args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """Format all arguments of a call for an error message."""
    named = (f"{name}={describe(value)}" for name, value in kwargs.items())
    return ", ".join([*map(describe, args), *named])

"""Frozen dataclasses to JSON and back, and the JSON schema that describes them.

Fields may be int, float, str, bool, None, `X | None`, `tuple[X, ...]`, `dict[str, X]`, `Literal`
and nested dataclasses. `decode(cls, encode(value)) == value`.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
import types
import typing
from collections.abc import Callable
from typing import Any, Literal, TypeVar

from holdfast.base.errors import BadInput

T = TypeVar("T")
_PLAIN = frozenset((int, float, str, bool, type(None)))
_SCALARS = {int: "integer", float: "number", str: "string", bool: "boolean", type(None): "null"}


def about(doc: str, **options: Any) -> Any:
    """A dataclass field with a description, which the JSON schema shows too."""
    return dataclasses.field(metadata={"doc": doc}, **options)


def encode(value: Any) -> Any:
    """Convert `value` to dicts, lists and scalars."""
    kind = type(value)
    if kind in _PLAIN:
        return value
    known = _reader(kind)
    if known is not None:
        names, read = known
        values = zip(names, read(value), strict=True)
        return {name: one if type(one) in _PLAIN else encode(one) for name, one in values}
    if isinstance(value, tuple):
        return [encode(item) for item in value]
    if isinstance(value, dict):
        return {name: encode(item) for name, item in value.items()}
    return value


def decode(cls: type[T], data: Any, path: str = "") -> T:
    """Make a `cls` (a dataclass) from `data`; raises BadInput with the path of a bad value."""
    if not isinstance(data, dict):
        raise _wrong(path, "an object", data)
    hints, required = _hints(cls), _list_required(cls)
    unknown = [name for name in data if name not in hints]
    if unknown:
        raise BadInput(
            f"unknown field {_join(path, str(unknown[0]))!r}",
            expected=f"fields of {cls.__name__}: {', '.join(hints)}",
        )
    values = {
        name: _value(hint, data[name], _join(path, name))
        for name, hint in hints.items()
        if name in data
    }
    missing = [name for name in required if name not in values]
    if missing:
        raise BadInput(
            f"the field {_join(path, missing[0])!r} is missing",
            expected=f"{cls.__name__} with {', '.join(sorted(required))}",
        )
    return cls(**values)


def _value(hint: Any, data: Any, path: str) -> Any:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        if data is None and type(None) in args:
            return None
        return _value(next(a for a in args if a is not type(None)), data, path)
    if origin is tuple:
        if not isinstance(data, list):
            raise _wrong(path, "a list", data)
        return tuple(_value(args[0], item, f"{path}[{i}]") for i, item in enumerate(data))
    if origin is dict:
        if not isinstance(data, dict):
            raise _wrong(path, "an object", data)
        return {name: _value(args[1], item, _join(path, name)) for name, item in data.items()}
    if origin is Literal:
        if data not in args:
            raise _wrong(path, "one of " + ", ".join(map(repr, args)), data)
        return data
    if dataclasses.is_dataclass(hint):
        kind: Any = hint
        return decode(kind, data, path)
    if hint is float and isinstance(data, int) and not isinstance(data, bool):
        return float(data)
    if not isinstance(data, hint) or (isinstance(data, bool) and hint is not bool):
        raise _wrong(path, f"a value of type {_SCALARS[hint]}", data)
    return data


def json_schema(cls: type, title: str, schema_id: str) -> dict[str, Any]:
    """A JSON Schema (2020-12) for `cls`, with every nested dataclass under `$defs`."""
    definitions: dict[str, Any] = {}
    body = _object_schema(cls, definitions)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": schema_id,
        "title": title,
        **body,
        "$defs": dict(sorted(definitions.items())),
    }


def _object_schema(cls: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    fields = {f.name: f for f in dataclasses.fields(cls)}
    properties = {
        name: {"description": fields[name].metadata.get("doc", ""), **_schema(hint, definitions)}
        for name, hint in _hints(cls).items()
    }
    return {
        "description": (cls.__doc__ or "").strip().partition("\n\n")[0].replace("\n    ", " "),
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _schema(hint: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return {"anyOf": [_schema(a, definitions) for a in args]}
    if origin is tuple:
        return {"type": "array", "items": _schema(args[0], definitions)}
    if origin is dict:
        return {"type": "object", "additionalProperties": _schema(args[1], definitions)}
    if origin is Literal:
        return {"enum": list(args)}
    if dataclasses.is_dataclass(hint):
        name = getattr(hint, "__name__", "")
        if name not in definitions:
            definitions[name] = {}  # ends the recursion of a class that refers to itself
            definitions[name] = _object_schema(hint, definitions)
        return {"$ref": f"#/$defs/{name}"}
    return {"type": _SCALARS[hint]}


@functools.cache
def _hints(cls: Any) -> dict[str, Any]:
    hints = typing.get_type_hints(cls)
    return {f.name: hints[f.name] for f in dataclasses.fields(cls)}


@functools.cache
def _list_required(cls: Any) -> tuple[str, ...]:
    missing, fields = dataclasses.MISSING, dataclasses.fields(cls)
    return tuple(f.name for f in fields if f.default is missing and f.default_factory is missing)


@functools.cache
def _reader(cls: Any) -> tuple[tuple[str, ...], Callable[[Any], tuple[Any, ...]]] | None:
    """Names of a dataclass's fields, and a function that reads them; None for other types."""
    if not dataclasses.is_dataclass(cls):
        return None
    names = tuple(f.name for f in dataclasses.fields(cls))
    if len(names) < 2:
        return names, lambda value: tuple(getattr(value, name) for name in names)
    return names, operator.attrgetter(*names)


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _wrong(path: str, expected: str, data: Any) -> BadInput:
    shown = repr(data)
    shown = shown if len(shown) <= 60 else shown[:57] + "..."
    return BadInput(f"{path or 'the document'} is {shown}", expected=expected)

"""Parse a file of prompts into rows: JSON lines, a JSON list, or CSV.

`read` returns every row, or raises one BadInput that lists the bad ones.
"""

from __future__ import annotations

import contextlib
import csv
import difflib
import io
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from holdfast.base.errors import BadInput

MAX_LISTED = 10
_SUFFIXES = {
    ".jsonl": "json lines",
    ".ndjson": "json lines",
    ".json": "json list",
    ".csv": "csv",
    ".tsv": "csv",
}


@dataclass(frozen=True, slots=True)
class Row:
    """The values of one line; `where` locates it ("line 7")."""

    where: str
    values: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Field:
    """The type of a value, a check, and a description of both."""

    type: type
    expected: str
    rule: Callable[[Any], bool]


class BadRow(Exception):
    """One row cannot be used; the text says why."""


def _inside(name: str) -> bool:
    """Whether `name` is a relative path inside its folder and not hidden."""
    parts = re.split(r"[\\/]", name)
    rooted = PurePosixPath(name).is_absolute() or PureWindowsPath(name).anchor
    plain = all(part and not part.startswith(".") and len(part.encode()) <= 200 for part in parts)
    return plain and not rooted and name.isprintable()


def _from_one(value: int) -> bool:
    return value >= 1


FIELDS: dict[str, Field] = {
    "prompt": Field(str, "text that is not empty", lambda value: bool(value.strip())),
    "negative": Field(str, "text", lambda value: True),
    "height": Field(int, "an integer from 1", _from_one),
    "width": Field(int, "an integer from 1", _from_one),
    "steps": Field(int, "an integer from 1", _from_one),
    "seed": Field(int, "an integer from 0 to 2**63 - 1", lambda value: 0 <= value < 2**63),
    "guidance": Field(float, "a number from 0", lambda value: 0 <= value < math.inf),
    "num_frames": Field(int, "an integer from 1", _from_one),
    "out": Field(str, "a file name inside the output folder, such as cat.png", _inside),
}


def form_of(path: str) -> str:
    """The file format by its name; standard input ("-") is JSON lines."""
    if path == "-":
        return "json lines"
    suffix = Path(path).suffix.lower()
    if suffix not in _SUFFIXES:
        raise BadInput(
            f"cannot tell what {path!r} holds from its name",
            expected=f"a name that ends in {', '.join(_SUFFIXES)}, or - for standard input",
        )
    return _SUFFIXES[suffix]


def read(text: str, form: str, name: str) -> list[Row]:
    """Parse every row of `text`. Raises one BadInput for all bad rows; `name` is the file's."""
    parse = {"json lines": _json_lines, "json list": _json_list, "csv": _csv}[form]
    rows: list[Row] = []
    bad: list[tuple[str, str]] = []
    try:
        for where, raw in parse(text.removeprefix("\ufeff")):
            try:
                rows.append(Row(where, _values(raw, form == "csv")))
            except BadRow as exc:
                bad.append((where, str(exc)))
    except BadRow as exc:
        raise BadInput(f"cannot use {name!r}: {exc}", expected=_EXPECTED[form]) from exc
    if bad:
        raise bad_rows(name, bad, _EXPECTED[form])
    if not rows:
        raise BadInput(f"there is no prompt in {name!r}", expected=_EXPECTED[form])
    return rows


def bad_rows(name: str, bad: list[tuple[str, str]], expected: str | None = None) -> BadInput:
    """One error for all bad rows; lists the first ten."""
    count = "1 bad line" if len(bad) == 1 else f"{len(bad)} bad lines"
    lines = [f"  {where}: {reason}" for where, reason in bad[:MAX_LISTED]]
    if len(bad) > MAX_LISTED:
        lines.append(f"  and {len(bad) - MAX_LISTED} more")
    return BadInput(
        "\n".join([f"cannot use {name!r}: {count}, nothing was started", *lines]),
        expected=expected,
    )


def check_value(name: str, given: Any, from_text: bool = False) -> Any:
    """Check `given` as a value of the field `name`; raises BadRow."""
    field = FIELDS[name]
    converted = given
    if from_text and field.type is not str:
        with contextlib.suppress(ValueError):  # the text stays and is rejected below
            converted = field.type(given.strip())
    if field.type is float and type(converted) is int:
        converted = float(converted) if abs(converted) < 2**1000 else math.inf
    # UTF-8 cannot encode lone surrogates.
    is_broken = isinstance(converted, str) and re.search("[\ud800-\udfff]", converted)
    if type(converted) is not field.type or is_broken or not field.rule(converted):
        shown = repr(given)
        shown = shown if len(shown) <= 60 else shown[:57] + "..."
        raise BadRow(f"{name} is {shown}, not {field.expected}")
    return converted


def _values(raw: Any, from_text: bool) -> dict[str, Any]:
    if isinstance(raw, BadRow):
        raise raw
    if not isinstance(raw, dict):
        raise BadRow(f'it is {_kind(raw)}, not an object such as {{"prompt": "a cat"}}')
    for key in raw:
        _check_key(key)
    values = {
        key: check_value(key, given, from_text) for key, given in raw.items() if given is not None
    }
    if "prompt" not in values:
        raise BadRow("the prompt is missing")
    return values


def _check_key(key: str) -> None:
    if key not in FIELDS:
        close = difflib.get_close_matches(key, FIELDS, n=1)
        raise BadRow(f"unknown key {key!r}" + (f", probably {close[0]!r}" if close else ""))


def _json_lines(text: str) -> Iterator[tuple[str, Any]]:
    for number, line in enumerate(text.split("\n"), 1):  # not splitlines: U+2028 is JSON text
        stripped = line.strip()
        if stripped and not stripped.startswith("#"):
            yield f"line {number}", _json(stripped)


def _json_list(text: str) -> Iterator[tuple[str, Any]]:
    items = _json(text)
    if isinstance(items, BadRow):
        raise items
    if not isinstance(items, list):
        raise BadRow(f"it is {_kind(items)}, not a list")
    for number, item in enumerate(items, 1):
        yield f"item {number}", item


def _json(text: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_object)
    except BadRow as exc:
        return exc
    except (ValueError, RecursionError) as exc:
        place = f" at column {exc.colno}" if isinstance(exc, json.JSONDecodeError) else ""
        reason = exc.msg if isinstance(exc, json.JSONDecodeError) else str(exc)
        return BadRow(f"it is not JSON: {reason}{place}")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    keys = [key for key, _ in pairs]
    twice = next((key for key in keys if keys.count(key) > 1), None)
    if twice is not None:
        raise BadRow(f"the key {twice!r} is there twice")
    return dict(pairs)


def _csv(text: str) -> Iterator[tuple[str, Any]]:
    first = text.partition("\n")[0]
    delimiter = max(",;\t", key=first.count)  # a comma if there is none
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    header: list[str] | None = None
    while True:
        number = reader.line_num + 1  # first line of the row: quoted cells may contain newlines
        try:
            cells = next(reader, None)
        except csv.Error as exc:
            raise BadRow(f"line {number} is not CSV: {exc}") from exc
        if cells is None:
            return
        if not any(cell.strip() for cell in cells):
            continue
        if header is None:
            header = _header(cells)
        else:
            if any(cells[len(header) :]):
                why = f"it has {len(cells)} cells, the first line names {len(header)}"
                yield f"line {number}", BadRow(why)
                continue
            pairs = zip(header, cells, strict=False)  # empty cells take the default
            yield f"line {number}", {name: cell for name, cell in pairs if cell.strip()}


def _header(cells: list[str]) -> list[str]:
    names = [cell.strip() for cell in cells]
    for name in names:
        _check_key(name)
    _object([(name, None) for name in names])
    if "prompt" not in names:
        raise BadRow("its first line does not name a column 'prompt'")
    return names


def _kind(given: Any) -> str:
    names = {list: "a list", str: "text", dict: "an object", type(None): "null", bool: "a boolean"}
    return names.get(type(given), "a number")


_NAMES = f"prompt and, where wanted, {', '.join(name for name in FIELDS if name != 'prompt')}"
_EXPECTED = {
    "json lines": f"one JSON object in each line, with {_NAMES}",
    "json list": f"a list of objects with {_NAMES}",
    "csv": f"a first line of names ({_NAMES}), then a line for each picture",
}

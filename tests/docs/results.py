"""The values of a file of results, so that a figure can be found among them.

Covers: every number with what it measures and what it is called, and the ratios of two values that
are called the same but for one word.
Promise: single runs are left out, as no page quotes them; `single_runs` in not_measured.toml.
"""

from __future__ import annotations

import bisect
import functools
import itertools
import json
import math
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tests.docs.figures import ROOT, RULES, UNITS

Path = tuple[str, ...]
# What a row is called, in this order; the rest of its keys are its values.
_NAMES = ("model", "trace", "subject", "setting", "system", "room")
# How the key of a value ends, and its unit: `step_ms`, `peak_bytes`, `link_gb_s`.
_IN_TEXT = re.compile(rf"(\d[\d,]*(?:\.\d+)?) ({'|'.join(map(re.escape, UNITS))})(?!\w)")
_ENDS = {"_gb_s": "GB/s", "_ms": "ms", "_us": "µs", "_ns": "ns", "_s": "s"}


@dataclass(frozen=True)
class Value:
    """A number of a file, in the base of its unit: seconds, bytes, bytes a second, 1."""

    path: Path
    kind: str | None  # time, rate, bytes, ratio; None where the file does not say
    amount: float
    derived: bool = False  # a ratio of two values of the file


class Results:
    """All values of one file, by amount."""

    def __init__(self, name: str) -> None:
        file = ROOT / "benchmarks" / "results" / name
        document = json.loads(file.read_text(encoding="utf-8"))
        plain = list(_walked(document, (), None))
        split = [v for one in plain if (v := _split(one)).path != one.path]
        self._by_kind: dict[str | None, list[Value]] = {}
        for value in (*plain, *split, *_ratios(plain)):
            self._by_kind.setdefault(value.kind, []).append(value)
        for values in self._by_kind.values():
            values.sort(key=lambda value: value.amount)

    def between(self, kind: str | None, low: float, high: float) -> list[Value]:
        """Values of a kind in a range."""
        values = self._by_kind.get(kind, [])
        first = bisect.bisect_left(values, low, key=lambda value: value.amount)
        last = bisect.bisect_right(values, high, key=lambda value: value.amount)
        return values[first:last]


@functools.cache
def results(name: str) -> Results:
    """The values of a file in benchmarks/results."""
    return Results(name)


@functools.cache
def _single_runs() -> frozenset[str]:
    return frozenset(tomllib.loads(RULES.read_text(encoding="utf-8"))["single_runs"]["keys"])


def _walked(node: Any, path: Path, unit: str | None) -> Iterator[Value]:
    if isinstance(node, dict):
        for key, child in node.items():
            if key not in _single_runs():
                yield from _walked(child, (*path, key), node.get("unit", unit))
    elif isinstance(node, list):
        yield Value((*path, "how many"), None, len(node))
        for place, child in enumerate(node):
            words = (str(place), path[-1]) if isinstance(child, int | float) else ()
            yield from _walked(child, (*path, *(words or _named(child, place))), unit)
    elif isinstance(node, str):
        for match in _IN_TEXT.finditer(node):
            kind, one = UNITS[match[2]]
            yield Value((*path, match[0]), kind, float(match[1].replace(",", "")) * one)
    elif isinstance(node, int | float) and not isinstance(node, bool) and math.isfinite(node):
        yield _value(path, float(node), unit)


def _named(node: Any, place: int) -> Path:
    words = [str(node[key]) for key in _NAMES if isinstance(node, dict) and node.get(key)]
    return tuple(words) or (str(place),)


def _value(path: Path, number: float, unit: str | None) -> Value:
    key = path[-1]
    if key.endswith("_bytes") or key.startswith("bytes_"):
        return Value(path, "bytes", number)
    if key != "value":
        unit = next((name for end, name in _ENDS.items() if key.endswith(end)), None)
    unit = "×" if unit == "x" else unit
    if unit not in UNITS:
        return Value(path, None, number)
    kind, one = UNITS[unit]
    return Value(path, kind, number * one)


def _split(value: Value) -> Value:
    """The same with "matmul, 1 thread" as two words."""
    words = tuple(word for name in value.path for word in name.split(", "))
    return Value(words, value.kind, value.amount)


def _ratios(values: list[Value]) -> Iterator[Value]:
    """One value over another that is called the same but for one word, and how far it is off."""
    groups: dict[tuple[Any, ...], list[Value]] = {}
    for value in values:
        if value.kind in ("time", "rate", "bytes") and value.amount > 0:
            for place in range(1, len(value.path)):
                key = (value.kind, place, value.path[:place], value.path[place + 1 :])
                groups.setdefault(key, []).append(value)
    for (_, place, before, after), group in groups.items():
        for one, other in itertools.permutations(group, 2):
            ratio = one.amount / other.amount
            words = f"{one.path[place]} ÷ {other.path[place]}"
            yield Value((*before, words, *after), "ratio", ratio, derived=True)
            yield Value((*before, f"{words} - 1", *after), "ratio", ratio - 1, derived=True)

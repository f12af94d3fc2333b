"""Tiny models as data: the JSON files beside this module, and the classes they are read into.

A file maps `library:ClassName` to the fields of `Tiny`. JSON has no tuples and no tensors, so an
object with a key of `_decode` stands for one: `{"normal": [2, 3]}` is a random tensor.
Importing this module needs the standard library alone.
"""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_KINDS = ["audio", "autoencoders", "encoders", "image_transformers", "unets", "video_transformers"]


@dataclass(frozen=True)
class Normal:
    """Random normal elements."""

    shape: tuple[int, ...]


@dataclass(frozen=True)
class Integers:
    """Random integers from 0 to `below` - 1."""

    shape: tuple[int, ...]
    below: int


@dataclass(frozen=True)
class Full:
    """The same value everywhere."""

    shape: tuple[int, ...]
    value: float


@dataclass(frozen=True)
class Values:
    """Exactly these elements, in nested lists: time steps, masks with holes, positions."""

    values: Any


@dataclass(frozen=True)
class Generator:
    """A torch generator on the CPU, for models that draw noise themselves."""

    seed: int


class ForgetfulCache:
    """A key and value cache that drops what is stored; a reference pass only fills it."""

    def get(self, layer: int) -> ForgetfulCache:
        return self

    def store(self, key: object, value: object) -> None:
        return None


@dataclass(frozen=True)
class Tiny:
    """A model that is made and run in a second or two: its configuration and one call."""

    config: Mapping[str, Any]
    inputs: Mapping[str, Any]  # constants, the classes above, and lists, tuples, dicts of them
    method: str = "forward"
    notes: Mapping[str, str] = field(default_factory=dict)  # what is unusual, by input
    static: tuple[str, ...] = ()  # inputs that shapes or branches depend on: constants on XLA
    bound: float = 1e-4  # largest error of XLA against torch in float32; notes give the reason
    apart: float = 1e-5  # largest difference between several devices and one


@functools.cache
def tiny_models() -> Mapping[str, Tiny]:
    """All tiny models, by `library:ClassName`."""
    found: dict[str, Tiny] = {}
    for kind in _KINDS:
        text = Path(__file__).with_name(f"{kind}.json").read_text(encoding="utf-8")
        for name, entry in json.loads(text, object_hook=_decode).items():
            entry.pop("comment", None)
            found[name] = Tiny(**entry | {"static": tuple(entry.get("static", ()))})
    return found


def _decode(found: dict[str, Any]) -> Any:
    match found:
        case {"tuple": items}:
            return tuple(items)
        case {"dict": items}:  # whose keys are not strings
            return dict(items)
        case {"normal": shape}:
            return Normal(tuple(shape))
        case {"integers": shape, "below": below}:
            return Integers(tuple(shape), below)
        case {"full": shape, "value": value}:
            return Full(tuple(shape), value)
        case {"values": values}:
            return Values(values)
        case {"generator_seed": seed}:
            return Generator(seed)
        case {"forgetful_cache": _}:
            return ForgetfulCache()
        case {"runs": runs}:  # [item, count] pairs
            return [item for item, count in runs for _ in range(count)]
        case {"product": axes}:  # positions of a grid, the last axis fastest
            return [list(point) for point in itertools.product(*axes)]
        case {"concat": lists}:
            return list(itertools.chain(*lists))
    return found

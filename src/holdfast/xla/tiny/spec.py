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
from typing import Any, NamedTuple

_KINDS = ["audio", "autoencoders", "encoders", "image_transformers", "unets", "video_transformers"]


class TensorSpec(NamedTuple):
    """A tensor of `shape`, or a generator.

    `kind` is "normal" (random elements), "integers" (random, from 0 to `value` - 1), "full"
    (`value` everywhere), "values" (`value`, nested lists) or "generator" (with the seed `value`).
    """

    kind: str
    shape: tuple[int, ...] = ()
    value: Any = None


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
    inputs: Mapping[str, Any]  # constants, tensors, and lists, tuples, dicts of them
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
            return TensorSpec("normal", tuple(shape))
        case {"integers": shape, "below": below}:
            return TensorSpec("integers", tuple(shape), below)
        case {"full": shape, "value": value}:
            return TensorSpec("full", tuple(shape), value)
        case {"values": values}:
            return TensorSpec("values", value=values)
        case {"generator_seed": seed}:
            return TensorSpec("generator", value=seed)
        case {"forgetful_cache": _}:
            return ForgetfulCache()
        case {"runs": runs}:  # [item, count] pairs
            return [item for item, count in runs for _ in range(count)]
        case {"product": axes}:  # positions of a grid, the last axis fastest
            return [list(point) for point in itertools.product(*axes)]
        case {"concat": lists}:
            return list(itertools.chain(*lists))
    return found

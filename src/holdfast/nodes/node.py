"""`Node`: the base class of the node classes, and helpers to declare inputs.

A class declares what a node is: inputs, outputs, function. What it says (title, description,
tooltips) is in `locales/en/nodeDefs.json`, as in every other language.
"""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

LOCALES = Path(__file__).with_name("locales")
Input = tuple[Any, dict[str, Any]]  # type and options
Inputs = dict[str, dict[str, Any]]  # by "required", "optional" and "hidden", then by name


@cache
def _texts() -> dict[str, dict[str, Any]]:
    """The English texts by node, without the quotes that vue-i18n needs around {, }, @ and |."""
    text = (LOCALES / "en" / "nodeDefs.json").read_text(encoding="utf-8")
    return json.loads(re.sub(r"\{'(.)'\}", r"\1", text))


class Node:
    """The attributes that ComfyUI reads from a node class."""

    CATEGORY: ClassVar[str]
    INPUTS: ClassVar[Inputs]  # without tooltips
    RETURN_TYPES: ClassVar[tuple[str, ...]]
    RETURN_NAMES: ClassVar[tuple[str, ...]]
    OUTPUT_TOOLTIPS: ClassVar[tuple[str, ...]]
    FUNCTION: ClassVar[str]
    DISPLAY_NAME: ClassVar[str]
    DESCRIPTION: ClassVar[str]

    def __init_subclass__(cls) -> None:
        texts = _texts().get(cls.__name__)
        if texts is not None:
            cls.DISPLAY_NAME, cls.DESCRIPTION = texts["display_name"], texts["description"]
            cls.OUTPUT_TOOLTIPS = tuple(one["tooltip"] for one in texts["outputs"].values())

    @classmethod
    def INPUT_TYPES(cls) -> Inputs:
        """Inputs by name: type, default, limits and tooltip."""
        texts = _texts()[cls.__name__].get("inputs", {})
        return {
            group: inputs if group == "hidden" else _with_tooltips(inputs, texts)
            for group, inputs in cls._inputs().items()
        }

    @classmethod
    def _inputs(cls) -> Inputs:
        return cls.INPUTS


def _with_tooltips(inputs: dict[str, Input], texts: dict[str, Any]) -> dict[str, Input]:
    return {
        name: (kind, options | {"tooltip": texts[name]["tooltip"]})
        for name, (kind, options) in inputs.items()
    }


class UncachedNode(Node):
    """A node that runs in every prompt: ComfyUI never reuses its result."""

    @classmethod
    def IS_CHANGED(cls, **_: Any) -> float:
        """A new NaN each time: ComfyUI finds `math.nan` equal, as it is always the same object."""
        return float("nan")


def class_mappings(*nodes: type[Node]) -> tuple[dict[str, type[Any]], dict[str, str]]:
    """The NODE_CLASS_MAPPINGS and NODE_DISPLAY_NAME_MAPPINGS of some nodes."""
    return {n.__name__: n for n in nodes}, {n.__name__: n.DISPLAY_NAME for n in nodes}


# ---- inputs


def declare(
    required: dict[str, Input],
    optional: dict[str, Input] | None = None,
    hidden: dict[str, str] | None = None,
) -> Inputs:
    """The INPUTS of a node, by name."""
    groups = {"required": required, "optional": optional, "hidden": hidden}
    return {group: inputs for group, inputs in groups.items() if inputs is not None}


def link(kind: str) -> Input:
    """An input that only a link gives."""
    return kind, {}


def integer(default: int, least: int, most: int, **options: Any) -> Input:
    """An integer with its limits."""
    return "INT", {"default": default, "min": least, "max": most, **options}


def number(default: float, least: float, most: float, step: float, **options: Any) -> Input:
    """A float with its limits and the step of its arrows."""
    return "FLOAT", {"default": default, "min": least, "max": most, "step": step, **options}


def boolean(default: bool) -> Input:
    """A switch."""
    return "BOOLEAN", {"default": default}


def string(default: str, **options: Any) -> Input:
    """A line of text."""
    return "STRING", {"default": default, **options}


def choice(options: tuple[str, ...] | list[str], default: str) -> Input:
    """One of some options."""
    return list(options), {"default": default}

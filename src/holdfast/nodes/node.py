"""`Node`: the base class of the node classes."""

from __future__ import annotations

from typing import Any, ClassVar

Inputs = dict[str, dict[str, Any]]  # by "required" and "optional", then by name


class Node:
    """The attributes that ComfyUI reads from a node class."""

    CATEGORY: ClassVar[str]
    RETURN_TYPES: ClassVar[tuple[str, ...]]
    RETURN_NAMES: ClassVar[tuple[str, ...]]
    OUTPUT_TOOLTIPS: ClassVar[tuple[str, ...]]
    FUNCTION: ClassVar[str]
    DESCRIPTION: ClassVar[str]

    @classmethod
    def INPUT_TYPES(cls) -> Inputs:
        """Inputs by name: type, default, limits and tooltip."""
        raise NotImplementedError


class UncachedNode(Node):
    """A node that runs in every prompt: ComfyUI never reuses its result."""

    @classmethod
    def IS_CHANGED(cls, **_: Any) -> float:
        """A new NaN each time: ComfyUI finds `math.nan` equal, as it is always the same object."""
        return float("nan")

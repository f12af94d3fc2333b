"""What ComfyUI itself lets through: values where a link is due, results larger than memory.

Covers: VALIDATE_INPUTS of nodes with sockets, free memory before something large is made.
Leaves to others: ranges, choices and types of links (ComfyUI), what a value means (the nodes).
Promise: nothing is allocated and no value of a workflow is followed; texts have three parts and
are short, however long the value is.
"""

from __future__ import annotations

import inspect
import reprlib
from typing import Any

from holdfast.base.errors import BadInput, HoldfastError, OutOfMemory
from holdfast.base.units import format_bytes
from holdfast.topology.control_groups import memory_left

_short = reprlib.Repr()
_short.maxstring = _short.maxother = 60


def only_links(*names: str) -> Any:
    """A VALIDATE_INPUTS by which these inputs have to be linked.

    ComfyUI reads from the signature what it is to be given.
    """

    def validate(cls: type[Any], **sockets: object) -> bool | str:
        return unlinked(cls, **sockets)

    keyword = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = [inspect.Parameter("cls", keyword)]
    parameters += [inspect.Parameter(name, keyword, default=None) for name in names]
    vars(validate)["__signature__"] = inspect.Signature(parameters)
    return classmethod(validate)


def unlinked(node: type[Any], **sockets: object) -> bool | str:
    """For VALIDATE_INPUTS: True, or why not, where a workflow has a value in place of a link.

    ComfyUI gives None for what is linked. It checks the types of links and lets values through,
    so that a number of a file would come to the node as if somebody had made it in this process.
    """
    for name, value in sockets.items():
        if value is not None:
            return str(_not_linked(name, value, _kind(node, name)))
    return True


def _kind(node: type[Any], name: str) -> str:
    inputs = node.INPUT_TYPES()
    found = {**inputs.get("required", {}), **inputs.get("optional", {})}[name][0]
    return " or ".join(str(found).split(","))


def _not_linked(name: str, value: object, kind: str) -> HoldfastError:
    return BadInput(
        f"{name} is {shown(value)}, a value of the workflow file",
        expected=f"a link to an output of type {kind}",
        hint=f"connect the node that makes the {name}",
    )


def shown(value: object) -> str:
    """A value of a workflow for an error: of a long or deep one only the beginning."""
    return _short.repr(value)


def refuse_beyond_memory(doing: str, need_bytes: int, hint: str) -> None:
    """Raise OutOfMemory where that needs more RAM than is free; nothing has been taken then."""
    free = free_bytes()
    if need_bytes > free:
        raise OutOfMemory(
            f"cannot {doing}: that takes {format_bytes(need_bytes)} of RAM",
            expected=f"at most the {format_bytes(free)} that are free",
            hint=hint,
        )


def free_bytes() -> int:
    """RAM that this process could still have."""
    import psutil

    left = memory_left()
    free = psutil.virtual_memory().available
    return free if left is None else min(free, left)

"""Checks that ComfyUI does not make: values in place of links, results larger than memory.

Values from a workflow file are quoted in error texts, but cut to 60 characters.
"""

from __future__ import annotations

import inspect
import reprlib
from typing import Any

from holdfast.base.errors import BadInput, OutOfMemory
from holdfast.base.units import format_bytes
from holdfast.topology.control_groups import memory_left

_short = reprlib.Repr()
_short.maxstring = _short.maxother = 60


def only_links(*names: str) -> Any:
    """Make a VALIDATE_INPUTS that rejects values in place of links for these inputs.

    ComfyUI reads from its signature which inputs to pass.
    """

    def validate(cls: type[Any], **sockets: object) -> bool | str:
        return check_linked(cls, **sockets)

    keyword = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = [inspect.Parameter("cls", keyword)]
    parameters += [inspect.Parameter(name, keyword, default=None) for name in names]
    vars(validate)["__signature__"] = inspect.Signature(parameters)
    return classmethod(validate)


def check_linked(node: type[Any], **sockets: object) -> bool | str:
    """For VALIDATE_INPUTS: True, or the error text if a workflow has a value in place of a link.

    ComfyUI passes None for a linked input. It checks the types of links but not of values, so a
    number from a file would reach the node as if it were an object of this process.
    """
    for name, value in sockets.items():
        if value is not None:
            error = BadInput(
                f"{name} is {format_value(value)}, a value of the workflow file",
                expected=f"a link to an output of type {_type_of(node, name)}",
                hint=f"connect the node that makes the {name}",
            )
            return str(error)
    return True


def _type_of(node: type[Any], name: str) -> str:
    inputs = node.INPUT_TYPES()
    found = {**inputs.get("required", {}), **inputs.get("optional", {})}[name][0]
    return " or ".join(str(found).split(","))


def format_value(value: object) -> str:
    """Quote a value of a workflow for an error text; a long or deep one is cut."""
    return _short.repr(value)


def refuse_beyond_memory(doing: str, need_bytes: int, hint: str) -> None:
    """Raise OutOfMemory if `doing` needs more RAM than is free, before anything is allocated."""
    free = free_bytes()
    if need_bytes > free:
        raise OutOfMemory(
            f"cannot {doing}: that takes {format_bytes(need_bytes)} of RAM",
            expected=f"at most the {format_bytes(free)} that are free",
            hint=hint,
        )


def free_bytes() -> int:
    """RAM that this process can still get, control group included."""
    import psutil

    left = memory_left()
    free = psutil.virtual_memory().available
    return free if left is None else min(free, left)

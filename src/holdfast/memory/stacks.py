"""Where code stands: stacks that are cheap to take, and resolved when somebody asks.

Covers: taking the stack of a caller, files and lines for it.  Leaves to others: stacks of a
recording (record), what they are good for (debug).
Promise: frames of this layer, and of layers that ask for it, are left out at the inner end, so a
stack begins in a user's code.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from holdfast.memory.recording import Frame

Stack = tuple[Any, ...]  # (code, instruction, code, instruction, ...), innermost first
_ours = (str(Path(__file__).parent) + os.sep,)


def leave_out(folder: Path) -> None:
    """Take the files of `folder` for this layer's own: a layer above that hands memory on."""
    global _ours
    _ours = (*_ours, str(folder) + os.sep)


def take(depth: int) -> Stack:
    """The innermost `depth` frames outside of this layer."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename.startswith(_ours):
        frame = frame.f_back
    found = []
    while frame is not None and depth:
        found += (frame.f_code, frame.f_lasti)
        frame = frame.f_back
        depth -= 1
    return tuple(found)


def resolve(stack: Stack) -> tuple[Frame, ...]:
    """A stack as files, lines and functions."""
    return tuple(
        Frame(code.co_filename, line_of(code, at), code.co_qualname)
        for code, at in zip(stack[::2], stack[1::2], strict=True)
    )


def place(stack: Stack) -> str:
    """ "file:line in function" of the innermost frame."""
    if not stack:
        return "a place that is not known"
    code, instruction = stack[:2]
    return f"{code.co_filename}:{line_of(code, instruction)} in {code.co_qualname}"


def line_of(code: CodeType, instruction: int) -> int:
    """The line an instruction belongs to."""
    for start, end, line in code.co_lines():
        if start <= instruction < end and line is not None:
            return line
    return code.co_firstlineno

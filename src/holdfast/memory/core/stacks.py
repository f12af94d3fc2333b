"""Python stacks: cheap to capture, resolved to files and lines on demand.

The inner frames of this layer, and of folders named to `leave_out`, are dropped, so that a stack
begins in the user's code.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from holdfast.memory.profile.recording import Frame

Stack = tuple[Any, ...]  # (code, instruction, code, instruction, ...), innermost first
_ours = (str(Path(__file__).parents[1]) + os.sep,)


def leave_out(folder: Path) -> None:
    """Drop frames of files in `folder` too: for a layer above that allocates for its users."""
    global _ours
    _ours = (*_ours, str(folder) + os.sep)


def capture(depth: int) -> Stack:
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


def format_location(stack: Stack) -> str:
    """ "file:line in function" of the innermost frame."""
    if not stack:
        return "an unknown location"
    code, instruction = stack[:2]
    return f"{code.co_filename}:{line_of(code, instruction)} in {code.co_qualname}"


def line_of(code: CodeType, instruction: int) -> int:
    for start, end, line in code.co_lines():
        if start <= instruction < end and line is not None:
            return line
    return code.co_firstlineno

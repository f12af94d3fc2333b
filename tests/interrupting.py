"""Ctrl-C at a chosen line of the code under test."""

from __future__ import annotations

import ast
import functools
import sys
from collections.abc import Callable, Collection
from pathlib import Path
from types import FrameType
from typing import Any


class CtrlC:
    """Raises KeyboardInterrupt when these files come to their line number `at`, counted as run."""

    def __init__(self, files: Collection[str], at: int = 1 << 30) -> None:
        self._files = files
        self._at = at
        self.lines: list[tuple[str, int]] = []  # that were come to: file and line
        self.raised_in: str | None = None

    def __enter__(self) -> CtrlC:
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _trace(self, frame: FrameType, event: str, argument: object) -> Any:
        file = frame.f_code.co_filename
        if file not in self._files:
            return None
        if frame.f_lineno in _heads_of_with(file):
            return self._trace
        if event == "line" and self.raised_in is None:
            if len(self.lines) == self._at:
                where = f"{frame.f_code.co_name}, line {frame.f_lineno}"
                self.raised_in = f"{Path(file).name}, {where}"
                raise KeyboardInterrupt
            self.lines.append((file, frame.f_lineno))
        return self._trace


def lines_of(work: Callable[[], object], files: Collection[str]) -> list[tuple[str, int]]:
    """The lines of these files that some work comes to, in their order."""
    with CtrlC(files) as counted:
        work()
    return counted.lines


@functools.cache
def _heads_of_with(file: str) -> set[int]:
    """Python comes to these when a block is left too, between which and the end of what is held it
    takes no signals.
    """
    found: set[int] = set()
    for node in ast.walk(ast.parse(Path(file).read_text())):
        if isinstance(node, ast.With):
            found |= set(range(node.lineno, node.body[0].lineno))
    return found

"""Ctrl-C at every line: nothing is left bound, locked, counted or half done."""

from __future__ import annotations

import ast
import contextlib
import functools
import gc
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from holdfast.memory import svm
from holdfast.memory.svm import affinity
from tests.memory.svm.providers import make

# What is broken off in a destructor is told there.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

MIB = 1 << 20
FOLDER = str(Path(svm.__file__).parent)


class CtrlC:
    """Raises KeyboardInterrupt when the package comes to its line number `at`."""

    def __init__(self, at: int) -> None:
        self.left = at
        self.raised_in: str | None = None

    def __enter__(self) -> CtrlC:
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _trace(self, frame: FrameType, event: str, argument: object) -> Any:
        if not frame.f_code.co_filename.startswith(FOLDER):
            return None
        if frame.f_lineno in heads_of_with(frame.f_code.co_filename):
            return self._trace
        if event == "line" and self.raised_in is None:
            self.left -= 1
            if self.left < 0:
                self.raised_in = f"{frame.f_code.co_name}, line {frame.f_lineno}"
                raise KeyboardInterrupt
        return self._trace


@functools.cache
def heads_of_with(file: str) -> set[int]:
    """Python comes to these when a block is left too, between which and the end of what is held it
    takes no signals.
    """
    found: set[int] = set()
    for node in ast.walk(ast.parse(Path(file).read_text())):
        if isinstance(node, ast.With):
            found |= set(range(node.lineno, node.body[0].lineno))
    return found


def life(provider: svm.Provider) -> None:
    """All that can happen to an allocation."""
    source, target = (
        d.id for d in (*provider.discover().domains, *provider.discover().domains)[:2]
    )
    memory = provider.alloc(MIB, set_affinity=True)
    view = memory.view()
    view[0] = 1
    del view
    memory.migrate(source, target)
    memory.free()
    provider.alloc(4096)  # dropped
    provider.statistics()


def lines_of(work: Callable[[], object]) -> int:
    with CtrlC(1 << 30) as counted:
        work()
    return (1 << 30) - counted.left


@pytest.mark.slow
@pytest.mark.parametrize("name", ["numa", "simulated", "opencl, coarse", "opencl, copy", "retryix"])
def test_ctrl_c_at_any_line_leaves_nothing_behind(
    name: str, request: pytest.FixtureRequest
) -> None:
    provider = make(name, request)
    before = os.sched_getaffinity(0)
    life(provider)
    lines = lines_of(lambda: life(provider))
    assert lines > 100
    for at in range(lines):
        with CtrlC(at) as ctrl_c, contextlib.suppress(KeyboardInterrupt):
            life(provider)
        where = f"after Ctrl-C in {ctrl_c.raised_in}"
        sys.settrace(None)
        gc.collect(0)
        assert provider.statistics().current_count == 0, where
        assert not provider.ledger.placing.locked(), where
        assert not list(provider._taken), where
        assert affinity._grants == [], where
        assert os.sched_getaffinity(0) == before, where
    life(provider)
    assert provider.statistics().current_bytes == 0

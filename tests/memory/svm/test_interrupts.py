"""Ctrl-C at every line: nothing is left bound, locked, counted or half done."""

from __future__ import annotations

import contextlib
import gc
import os
import sys
from pathlib import Path

import pytest

from holdfast.memory import svm
from holdfast.memory.svm import affinity
from tests.interrupting import CtrlC, lines_of
from tests.memory.svm.providers import make

# What is broken off in a destructor is told there.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

MIB = 1 << 20
FILES = {str(file) for file in Path(svm.__file__).parent.rglob("*.py")}


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


@pytest.mark.slow
@pytest.mark.parametrize("name", ["numa", "simulated", "opencl, coarse", "opencl, copy", "retryix"])
def test_ctrl_c_at_any_line_leaves_nothing_behind(
    name: str, request: pytest.FixtureRequest
) -> None:
    provider = make(name, request)
    before = os.sched_getaffinity(0)
    life(provider)
    lines = len(lines_of(lambda: life(provider), FILES))
    assert lines > 100
    for at in range(lines):
        with CtrlC(FILES, at) as ctrl_c, contextlib.suppress(KeyboardInterrupt):
            life(provider)
        where = f"after Ctrl-C in {ctrl_c.raised_in}"
        sys.settrace(None)
        gc.collect(0)
        assert provider.statistics().current_count == 0, where
        assert not provider.ledger.placing.locked(), where
        assert not list(provider._reserved), where
        assert affinity._grants == [], where
        assert os.sched_getaffinity(0) == before, where
    life(provider)
    assert provider.statistics().current_bytes == 0

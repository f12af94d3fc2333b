"""Runtimes that build at the first launch: the environment may change while they do."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy
import pytest

from holdfast.compute.engines.opencl.runtime import late_builds
from holdfast.compute.engines.opencl.runtime.programs import BuildFailed
from tests.compute.opencl.checks import engine
from tests.compute.opencl.test_launching import SHIFTED


@pytest.mark.parametrize("threads", [0, 3])
def test_variables_may_change_while_kernels_are_built(tmp_path: Path, threads: int):
    folders = {name: str(tmp_path / name) for name in ("POCL_CACHE_DIR", "HOLDFAST_CACHE_DIR")}
    program = [sys.executable, "-m", "tests.compute.opencl.env_race", "600", str(threads), "3"]
    done = subprocess.run(
        program, env=os.environ | folders, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "built 3\n"), done.stderr


def test_only_the_first_launch_of_a_variant_is_waited_for(monkeypatch: pytest.MonkeyPatch):
    there = engine("cpu")
    monkeypatch.setattr(late_builds, "builds_late", lambda device: True)
    kernel = there.programs.build(SHIFTED, "shifted")
    x = there.upload(numpy.arange(80_000, dtype=numpy.int32))
    made = there.alloc(x.shape, x.dtype)
    waited: list[int] = []
    wait = late_builds.finish_at_once
    monkeypatch.setattr(
        late_builds, "finish_at_once", lambda *args: (waited.append(len(waited)), wait(*args))[1]
    )
    launches = {
        "the first": (64, 8, True),
        "the same": (64, 8, False),
        "another size, the same group": (128, 8, False),
        "another group": (128, 16, True),
        "the driver's group": (64, None, True),
        "which depends on the size": (128, None, True),
        "the same again": (64, None, False),
        "a wide grid": (80_000, 8, True),
        "another wide grid": (72_000, 8, False),
    }
    for name, (size, group, waits) in launches.items():
        before = len(waited)
        there.launch(kernel, (size,), group and (group,), x, made, 7)
        assert len(waited) - before == waits, name
        assert there.download(made)[:size].tolist() == list(range(7, size + 7))


def test_a_program_that_cannot_be_built_gives_its_log(monkeypatch: pytest.MonkeyPatch):
    there = engine("cpu")
    monkeypatch.setattr(late_builds, "builds_late", lambda device: True)
    with pytest.raises(BuildFailed, match="no_such_function"):
        there.programs.build("__kernel void k() { no_such_function(1); }", "k")

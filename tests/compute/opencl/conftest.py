"""Tests of the OpenCL engine: on PoCL, which `make test` installs, where there is no other runtime.

Binaries of kernels are kept in one folder for all tests: compiling each of them takes longer than
most tests do. Tests about that folder have one of their own (`own_cache`).
"""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.compute.engines.opencl.runtime.programs import Programs
from tests.needs import needs
from tests.topology.test_probes import _no_opencl

HERE = Path(__file__).parent
KEEP = Programs._keep
# What `make quick` runs: the others build hundreds of kernels each.
QUICK = ("test_engine", "test_launching", "test_memory", "test_programs", "test_views")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = [item for item in items if HERE in item.path.parents]
    if not here:
        return
    missing = needs(_no_opencl())
    for item in here:
        item.add_marker(pytest.mark.opencl)
        item.add_marker(missing)
        if item.path.stem not in QUICK:
            item.add_marker(pytest.mark.slow)


@pytest.fixture(autouse=True)
def shared_cache(kept_kernels: None) -> None:
    """For every test here."""


@pytest.fixture
def own_cache(shared_cache: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder of this test alone for binaries, which is not there yet. PoCL's are kept too."""
    monkeypatch.setattr(Programs, "_keep", KEEP)
    monkeypatch.setenv("HOLDFAST_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache" / "opencl"

"""What every test gets: no settings from the developer's shell, no cache but its own; compiled code
is shared.

Torch gets one thread, here and in the processes that tests start: the models are small, and threads
of several processes on few cores wait for each other. HOLDFAST_TEST_THREADS=4 asks for another
number: no test depends on it.
JAX gets eight virtual devices, beside what XLA_FLAGS has, and a cache of its own for what it
compiles.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import itertools
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from holdfast.base.config import PREFIX, Config
from holdfast.topology import amx
from tests.harness.scheduling import FileQueue

pytest_plugins = ["tests.harness.ordering", "tests.harness.report"]

CACHE = Path(__file__).parents[1] / ".cache"
BUILD_DIR = CACHE / "build"

# Read when torch and NumPy are imported.
os.environ["OMP_NUM_THREADS"] = os.environ.get("HOLDFAST_TEST_THREADS", "1")
# Read when jax is imported or starts.
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["JAX_COMPILATION_CACHE_DIR"] = str(CACHE / "jax")
DEVICES = "--xla_force_host_platform_device_count=8"
if DEVICES not in os.environ.get("XLA_FLAGS", ""):  # workers of xdist have it already
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {DEVICES}".strip()
# Tests are about the Python device, whether the shim was built or not; its own tests turn it on.
# HOLDFAST_TORCH_SHIM=on has every test of the device run with it (`tests.compute.torch_device`).
SHIM = os.environ.setdefault("HOLDFAST_TORCH_SHIM", "off")
if SHIM != "off":
    os.environ["HOLDFAST_BUILD_DIR"] = str(BUILD_DIR)  # read when torch is imported
# What is used before or between tests, by fixtures of a module or at import, is not for the
# developer's `holdfast top`, nor for tests that look at processes.
_outside = tempfile.mkdtemp(prefix="holdfast-tests-")
atexit.register(shutil.rmtree, _outside, ignore_errors=True)
os.environ["HOLDFAST_RUNTIME_DIR"] = f"{_outside}/meeting"
os.environ["HOLDFAST_HISTORY_DIR"] = f"{_outside}/runs"
# On a busy machine an example may take long; that is no failure.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("quick", settings.get_profile("patient"), max_examples=10)
settings.load_profile("patient")  # `make quick` asks for its own
amx.disable_broken_amx()  # has to come before the first product, whichever test makes it
# What was started in the background ignores Ctrl-C, and so would every process that tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config) -> Any:
    """`--dist loadfile` gives whole files to workers, in a way that survives crashes."""
    if config.getvalue("dist") != "loadfile":
        return None
    from xdist.workermanage import parse_tx_spec_config

    return FileQueue(len(parse_tx_spec_config(config)), config.getoption("--within"))


def pytest_collection_finish() -> None:
    _leave_alone_what_is_here()


@pytest.fixture(autouse=True, scope="module")
def few_objects_to_go_through() -> None:
    """Tests import torch's samples, transformers and the like when they need them."""
    _leave_alone_what_is_here()


def _leave_alone_what_is_here() -> None:
    """What was imported until now stays: a collection need not go through a million objects."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def caches(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for all: `tmp_path` makes one for each test, and goes through all to number it."""
    return tmp_path_factory.mktemp("caches", numbered=False)


@pytest.fixture(autouse=True)
def own_settings(monkeypatch: pytest.MonkeyPatch, caches: Path) -> Iterator[None]:
    for name in [name for name in os.environ if name.startswith(PREFIX)]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOLDFAST_CACHE_DIR", str(caches / str(next(_numbers))))
    # One for all tests: what is compiled is named after its source, and compiling takes seconds.
    monkeypatch.setenv("HOLDFAST_BUILD_DIR", str(BUILD_DIR))
    monkeypatch.setenv("HOLDFAST_TORCH_SHIM", SHIM)
    # Processes that tests start can be looked at too, by tests alone.
    monkeypatch.setenv("HOLDFAST_RUNTIME_DIR", str(caches / "meeting"))
    monkeypatch.setenv("HOLDFAST_HISTORY_DIR", str(caches / "runs"))
    yield
    _nothing_is_left_on()


def _nothing_is_left_on() -> None:
    """A test that leaves the leak finder on fails, and not one that comes later."""
    memory_pool = sys.modules.get("holdfast.memory.pools.memory_pool")
    if memory_pool is not None and memory_pool.is_debugged():
        memory_pool.watch_all(None)
        pytest.fail("memory debugging is still on after this test")


@pytest.fixture
def kept_kernels(own_settings: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Binaries of OpenCL kernels are kept for all tests, and built quickly rather than well.

    Building one takes longer than most tests do. PoCL has a cache of its own, and needs a sixth
    longer for a build when it is asked for the binary too: tests in this process do not ask it.
    """
    monkeypatch.setenv("HOLDFAST_CACHE_DIR", str(CACHE / "kernels"))
    monkeypatch.setenv("HOLDFAST_OPENCL_OPTIONS", "-cl-opt-disable")
    with contextlib.suppress(ImportError):  # no pyopencl: those tests are skipped
        from holdfast.compute.engines.opencl.runtime import late_builds, programs

        keep = programs.Programs._keep

        def keep_elsewhere(self: Any, file: Path, program: Any) -> None:
            if not late_builds.builds_late(self.place.device):
                keep(self, file, program)

        monkeypatch.setattr(programs.Programs, "_keep", keep_elsewhere)


_numbers = itertools.count()


@pytest.fixture
def config() -> Config:
    return Config.load()

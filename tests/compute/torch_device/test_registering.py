"""How torch comes to know the device: importing, autoload, the torch versions that work."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from importlib.metadata import entry_points
from pathlib import Path

import pytest
import torch

import holdfast.torch
from holdfast.base.errors import NotFound, Unsupported
from holdfast.compute.torch_device import autoload, registration, torch_requirements
from holdfast.compute.torch_device.dispatch import coverage


def run(program: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """A program in an interpreter of its own."""
    return subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        timeout=120,
    )


def result(program: str, **environ: str) -> str:
    done = run(program, **environ)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout.strip()


# ---- without being asked


@pytest.mark.slow
def test_torch_finds_the_device_by_its_entry_point() -> None:
    [found] = [e for e in entry_points(group="torch.backends") if e.name == "holdfast"]
    assert found.value == "holdfast.compute.torch_device.autoload:autoload"
    assert result("import torch; print(torch.zeros(2, device='holdfast'))") == (
        "tensor([0., 0.], device='holdfast:0')"
    )


@pytest.mark.slow
def test_autoload_loads_nothing_that_computes() -> None:
    program = "import json, sys, torch; print(json.dumps([*sys.modules])); torch.holdfast.init()"
    loaded = set(json.loads(result(program)))
    assert "holdfast.compute.torch_device.registration" in loaded
    heavy = {
        "holdfast.compute.ops",
        "holdfast.compute.engine",
        "holdfast.compute.tensors.custom_tensor",
    }
    heavy |= {"holdfast.memory.pools.manager", "holdfast.topology", "scipy", "psutil"}
    assert heavy & loaded == set()


@pytest.mark.slow
@pytest.mark.parametrize("asking", ["torch.ones(1, device='holdfast')", "import holdfast.torch"])
def test_programs_that_never_ask_for_the_device_have_no_accelerator(asking: str) -> None:
    program = f"""
import torch
def tell():
    found = torch.accelerator.current_accelerator()
    print(found, torch.accelerator.is_available(), torch.get_device_module().__name__)
tell()
{asking}
tell()
"""
    assert result(program).splitlines() == [
        "None False torch.cpu",
        "holdfast True holdfast.compute.torch_device.api.module",
    ]


@pytest.mark.slow
def test_autoload_can_be_turned_off() -> None:
    program = "import torch, sys; print('holdfast' in sys.modules, hasattr(torch, 'holdfast'))"
    assert result(program, TORCH_DEVICE_BACKEND_AUTOLOAD="0") == "False False"


@pytest.mark.slow
@pytest.mark.parametrize("wanted", ["0", "1"])
def test_importing_holdfast_first_works(wanted: str) -> None:
    program = "import holdfast.torch, torch; print((torch.ones(2, device='holdfast') + 1).tolist())"
    assert result(program, TORCH_DEVICE_BACKEND_AUTOLOAD=wanted) == "[2.0, 2.0]"


@pytest.mark.slow
def test_torch_is_imported_where_numpy_is_not() -> None:
    hidden = "import sys; sys.modules['numpy'] = None; import torch; print(torch.ones(1).item())"
    done = run(hidden)
    assert (done.returncode, done.stdout) == (0, "1.0\n")
    assert done.stderr.count("RuntimeWarning") == 1
    assert (
        "RuntimeWarning: torch.device('holdfast') is not there: numpy is not installed; "
        "pip install 'holdfast[compute]' (TORCH_DEVICE_BACKEND_AUTOLOAD=0 stops the attempt, and "
        "`import holdfast.torch` shows the error)" in done.stderr
    )


@pytest.mark.slow
def test_a_torch_that_lacks_something_is_imported_with_a_warning() -> None:
    program = """
import torch, warnings
del torch._C._acc.DeviceGuard
from holdfast.compute.torch_device.autoload import autoload
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    autoload()
print(caught[0].category.__name__, str(caught[0].message).split(" (")[0])
"""
    assert result(program, TORCH_DEVICE_BACKEND_AUTOLOAD="0") == (
        "RuntimeWarning torch.device('holdfast') is not there: "
        f"torch {torch.__version__} has no torch._C._acc.DeviceGuard, which tells torch which "
        f"device is current; try pip install 'torch=={torch_requirements.RECOMMENDED}'"
    )


@pytest.mark.slow
def test_nothing_is_registered_where_there_is_another_accelerator() -> None:
    program = """
import torch
torch.accelerator.current_accelerator = lambda check_available=False: torch.device("cuda")
from holdfast.compute.torch_device.autoload import autoload
for count in 1, 0:
    torch.cuda.device_count = lambda: count
    autoload()
    print(hasattr(torch, "holdfast"))
"""
    assert result(program, TORCH_DEVICE_BACKEND_AUTOLOAD="0") == "False\nTrue"


@pytest.mark.slow
def test_an_engine_that_cannot_is_no_reason_to_have_no_torch() -> None:
    done = run("import torch; print(hasattr(torch, 'holdfast'))", HOLDFAST_ENGINE="torch")
    assert (done.returncode, done.stdout) == (0, "False\n")
    assert "the device cannot compute with the engine 'torch'" in done.stderr
    assert "RuntimeWarning" in done.stderr


@pytest.mark.slow
def test_a_setting_that_cannot_be_used_is_a_warning_with_what_can() -> None:
    done = run("import torch", HOLDFAST_TORCH_SHIM="nonsense")
    assert done.returncode == 0
    assert (
        "RuntimeWarning: torch.device('holdfast') is not there: cannot use "
        "HOLDFAST_TORCH_SHIM='nonsense'; expected one of auto, on, off (" in done.stderr
    )


@pytest.mark.slow
def test_a_shim_that_is_wanted_and_not_there_is_refused_again_when_asked(tmp_path: Path) -> None:
    done = run(  # torch's entry point has tried, and warned
        "import holdfast.torch", HOLDFAST_TORCH_SHIM="on", HOLDFAST_BUILD_DIR=str(tmp_path)
    )
    assert done.returncode == 1
    assert "RuntimeWarning: torch.device('holdfast') is not there" in done.stderr
    assert done.stderr.splitlines()[-3].startswith("holdfast.base.errors.Unsupported: there is no ")


# ---- which torch


@pytest.mark.parametrize(("name", "why"), torch_requirements.PRIVATE.items())
def test_torch_still_has(name: str, why: str) -> None:
    assert torch_requirements.found(name) is not None, f"this torch has no {name}: it {why}"


def test_a_torch_without_one_of_them_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        torch_requirements.PRIVATE, "torch._C.nothing_like_that", "does what is asked here"
    )
    with pytest.raises(Unsupported) as caught:
        torch_requirements.check()
    assert str(caught.value) == (
        f"torch {torch.__version__} has no torch._C.nothing_like_that, which does what is asked "
        f"here\n  expected: {torch_requirements.WORKS}\n"
        f"  try: pip install 'torch=={torch_requirements.RECOMMENDED}'"
    )


@pytest.mark.slow
def test_a_place_that_is_taken_is_said_to_be() -> None:
    program = """
import torch
torch.utils.rename_privateuse1_backend("other")
try:
    import holdfast.torch
except RuntimeError as exc:
    print(exc)
"""
    assert result(program, TORCH_DEVICE_BACKEND_AUTOLOAD="0") == (
        "torch has room for one device from outside, and 'other' is it in this process\n"
        "  expected: a process in which no other package has registered a device\n"
        "  try: TORCH_DEVICE_BACKEND_AUTOLOAD=0, and import holdfast.torch alone"
    )


# ---- holdfast.torch


def test_registering_twice_changes_nothing() -> None:
    before = list(registration._libraries)
    registration.register()
    autoload.autoload()
    assert registration._libraries == before


def test_the_numpy_engine_computes() -> None:
    holdfast.torch.use("numpy")
    assert holdfast.torch.engine() == "numpy"


@pytest.mark.parametrize("name", ["abacus", "torch"])
def test_an_engine_that_cannot_compute_on_the_device_is_refused(name: str) -> None:
    with pytest.raises(Unsupported) as caught:
        holdfast.torch.use(name)
    assert str(caught.value) == (
        f"the device cannot compute with the engine {name!r}\n"
        "  expected: one of numpy, opencl\n"
        "  try: holdfast.torch.use('numpy'), or HOLDFAST_ENGINE=numpy"
    )
    assert holdfast.torch.engine() == "numpy"


@pytest.mark.slow
def test_the_engine_is_the_one_that_the_setting_names() -> None:
    environ = {"HOLDFAST_ENGINE": "torch", "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    done = run("import holdfast.torch", **environ)
    assert done.returncode == 1
    assert "Unsupported: the device cannot compute with the engine 'torch'" in done.stderr
    program = (
        "import holdfast.torch, sys; print(holdfast.torch.engine(), 'pyopencl' in sys.modules)"
    )
    assert result(program, HOLDFAST_ENGINE="opencl") == "opencl False"


@pytest.mark.usefixtures("python_device")
def test_a_fallback_is_counted_and_can_be_forbidden() -> None:
    x = torch.ones(3, device="holdfast")
    holdfast.torch.clear_fallbacks()
    torch.poisson(x)
    torch.poisson(x)
    assert holdfast.torch.fallbacks() == {"poisson": 2}
    with holdfast.torch.strict(), pytest.raises(Unsupported) as caught:
        torch.poisson(x)
    assert str(caught.value) == (
        "engine 'numpy' has no kernel for poisson, and falling back is forbidden\n"
        "  expected: a native kernel, or a decomposition into ops that have one\n"
        "  try: with strict(False): ..."
    )
    assert holdfast.torch.fallbacks() == {"poisson": 2}
    holdfast.torch.clear_fallbacks()
    assert holdfast.torch.fallbacks() == {}


@pytest.mark.slow
def test_the_setting_forbids_falling_back() -> None:
    program = "import torch; torch.poisson(torch.ones(3, device='holdfast'))"
    done = run(program, HOLDFAST_STRICT="1")
    assert done.returncode == 1
    assert "has no kernel for poisson, and falling back is forbidden" in done.stderr


# ---- coverage


def test_coverage_says_how_each_overload_is_computed() -> None:
    rows = {row.name: row for row in holdfast.torch.coverage()}
    assert rows["add.Tensor"] == ("add.Tensor", "functional", "native", "add.Tensor")
    assert rows["add_.Tensor"] == ("add_.Tensor", "in place", "native", "add.Tensor")
    assert rows["add.out"] == ("add.out", "out", "native", "add.Tensor")
    assert rows["as_strided"] == ("as_strided", "view", "native", None)
    assert rows["_copy_from"] == ("_copy_from", "special", "native", None)
    assert rows["poisson"] == ("poisson", "", "fallback", None)
    assert list(rows) == sorted(rows)


def test_counts_of_coverage_add_up_and_most_is_native() -> None:
    rows = coverage.coverage()
    counts = coverage.counts(rows)
    assert counts == {way: Counter(row.way for row in rows)[way] for way in coverage.WAYS}
    assert sum(counts.values()) == len(rows) > 1000
    assert counts["native"] > 950


def test_coverage_of_an_engine_that_is_not_there_is_an_error() -> None:
    with pytest.raises(NotFound, match="unknown engine 'abacus'"):
        holdfast.torch.coverage("abacus")

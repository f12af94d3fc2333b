"""The C++ shim: building, loading, and everything it computes, in processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.base.errors import BadInput, Unsupported
from holdfast.compute.torch_device.shim import build
from holdfast.memory.core import native_build
from tests.conftest import BUILD_DIR

ROOT = Path(__file__).parents[3]
CHECKS = ROOT / "tests/compute/torch_device/shim_checks.py"
NAMES = [
    line.removeprefix("def ").partition("(")[0]
    for before, line in zip(
        ["", *CHECKS.read_text().splitlines()], CHECKS.read_text().splitlines(), strict=False
    )
    if before == "@check"
]


def run(*arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    """A program with the shim loaded."""
    environment = {**os.environ, "HOLDFAST_TORCH_SHIM": "on", **settings}
    return subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True
    )


@pytest.fixture(scope="session")
def built() -> None:
    """The shim, compiled once for all tests and kept in the checkout's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOLDFAST_BUILD_DIR", str(BUILD_DIR))
        try:
            native_build.compiler("c++")
        except Unsupported as exc:
            pytest.skip(exc.what)
        build.build()


@pytest.fixture(scope="session")
def outcomes(built: None) -> dict[str, str | None]:
    """What each check said, in one process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOLDFAST_BUILD_DIR", str(BUILD_DIR))
        done = run("-W", "error::RuntimeWarning", "-m", "tests.compute.torch_device.shim_checks")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_with_the_shim(name: str, outcomes: dict[str, str | None]) -> None:
    assert outcomes[name] is None, outcomes[name]


@pytest.mark.slow
def test_all_checks_are_run(outcomes: dict[str, str | None]) -> None:
    assert sorted(outcomes) == sorted(NAMES)


@pytest.mark.slow
def test_tensors_that_outlive_python_do_no_harm(built: None) -> None:
    code = (
        "import torch\n"
        "kept = torch.ones(1 << 20, device='holdfast').view(-1)[5:]\n"
        "torch.Tensor.kept = [kept + 1, torch.Generator(device='holdfast'), kept.cpu()]\n"
        "kept.requires_grad_().sin().sum().backward()\n"
    )
    done = run("-W", "error", "-c", code)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
def test_strict_by_setting_computes_with_the_engine(built: None) -> None:
    code = (
        "import torch, holdfast.torch\n"
        "x = torch.ones(3, device='holdfast')\n"
        "print((x + 1).tolist(), hasattr((x + 1).untyped_storage(), 'held'))\n"
    )
    assert run("-c", code, HOLDFAST_STRICT="1").stdout == "[2.0, 2.0, 2.0] True\n"
    assert run("-c", code).stdout == "[2.0, 2.0, 2.0] False\n"


@pytest.mark.slow
def test_importing_loads_nothing_that_computes_and_strictness_is_kept_from_before(
    built: None,
) -> None:
    code = (
        "import sys, torch\n"
        "print({'holdfast.compute.ops', 'holdfast.compute.engine'} & set(sys.modules))\n"
        "from holdfast.compute import engine\n"
        "with engine.strict():\n"
        "    x = torch.ones(3, device='holdfast')\n"
        "    print(hasattr((x + 1).untyped_storage(), 'held'))\n"
        "print(hasattr((x + 1).untyped_storage(), 'held'))\n"
    )
    assert run("-c", code).stdout == "set()\nTrue\nFalse\n"


# ---- without building it


def test_a_word_that_is_no_choice_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_TORCH_SHIM", "maybe")
    with pytest.raises(BadInput) as caught:
        build.load(lambda: None)
    assert str(caught.value) == (
        "cannot use HOLDFAST_TORCH_SHIM='maybe'\n  expected: one of auto, on, off"
    )


def test_a_shim_that_is_wanted_and_not_built_says_how_to_build_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOLDFAST_TORCH_SHIM", "on")
    monkeypatch.setenv("HOLDFAST_BUILD_DIR", str(tmp_path))
    with pytest.raises(Unsupported) as caught:
        build.load(lambda: None)
    version = build.torch.__version__
    assert str(caught.value) == (
        f"there is no C++ shim for torch {version} and this Python\n"
        f"  expected: {build.path()}\n"
        "  try: holdfast device build, or holdfast.torch.build_shim()"
    )
    assert build.path().parent == tmp_path


@pytest.mark.usefixtures("python_device")
def test_without_a_shim_the_python_device_is_used_without_a_word(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOLDFAST_TORCH_SHIM", "auto")
    monkeypatch.setenv("HOLDFAST_BUILD_DIR", str(tmp_path))
    assert build.load(lambda: None) is False


@pytest.mark.usefixtures("python_device")
def test_a_broken_library_is_warned_about_and_the_python_device_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOLDFAST_TORCH_SHIM", "auto")
    monkeypatch.setenv("HOLDFAST_BUILD_DIR", str(tmp_path))
    build.path().write_bytes(b"no library")
    with pytest.warns(RuntimeWarning) as caught:
        assert build.load(lambda: None) is False
    assert [str(w.message) for w in caught] == [
        f"cannot load the C++ shim: {build.path()}: file too short; the Python device is used"
    ]


def test_building_without_a_compiler_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOLDFAST_BUILD_DIR", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    said: list[str] = []
    with pytest.raises(Unsupported) as caught:
        build.build(said.append)
    assert str(caught.value) == (
        "the C++ shim cannot be built: there is no C++ compiler on this machine\n"
        "  expected: c++ or g++ or clang++ on the path, or $CXX\n"
        "  try: apt-get install g++, or leave it: the Python device works without"
    )
    assert len(said) == 1
    assert list(tmp_path.iterdir()) == []

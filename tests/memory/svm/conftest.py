"""What the tests of shared virtual memory share."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import holdfast
from tests.guest.initramfs import build_initramfs
from tests.guest.machine import THREE_NODES, run
from tests.memory.svm.retryix import build


@pytest.fixture(scope="session")
def built_libraries(tmp_path_factory: pytest.TempPathFactory) -> Callable[[list[str]], Path]:
    """Compile a variant of the library, each once."""
    folder = tmp_path_factory.mktemp("retryix")
    built: dict[tuple[str, ...], Path] = {}

    def library(definitions: list[str]) -> Path:
        key = tuple(definitions)
        if key not in built:
            built[key] = build.build(folder / f"{len(built)}.so", definitions)
        return built[key]

    return library


@pytest.fixture
def retryix_library(
    built_libraries: Callable[[list[str]], Path], tmp_path: Path
) -> Callable[..., Path]:
    """A library of the provider `retryix`: a variant by its name, or by what is defined for it.

    Each call gives another copy, with counters and memory of its own.
    """
    reason = build.no_compiler()
    if reason is not None and not os.environ.get("CI"):
        pytest.skip(reason)
    numbers = itertools.count()

    def library(variant: str | list[str] = "whole") -> Path:
        definitions = build.VARIANTS[variant] if isinstance(variant, str) else variant
        return build.copy(built_libraries(definitions), tmp_path / f"retryix{next(numbers)}")

    return library


GUEST_SCRIPTS = [
    Path(__file__).with_name(f"{n}.py") for n in ("guest_script", "process_guest_script")
]


@pytest.fixture(scope="session")
def guest_results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the scripts print last, by name; one guest with three NUMA nodes runs both."""
    sources = [(path.stem, path.read_text()) for path in GUEST_SCRIPTS]
    script = f"for name, text in {sources!r}:\n    exec(compile(text, name, 'exec'), {{}})\n"
    disk = tmp_path_factory.mktemp("guest") / "initramfs.cpio"
    build_initramfs(disk, packages=[Path(holdfast.__file__).parent], script=script)
    result = run(THREE_NODES, disk, timeout_s=300)
    assert result.rc == 0, result.output
    answers = result.output.splitlines()[-len(sources) :]
    return {name: json.loads(answer) for (name, _), answer in zip(sources, answers, strict=True)}

"""What the tests of machines that we do not have share."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.topology import trees


@pytest.fixture(scope="session")
def machine_root(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A function from the name of a machine to its tree, which is written once: leave it whole."""

    @functools.cache
    def root(name: str) -> Path:
        return trees.MACHINES[name](tmp_path_factory.mktemp(name) / "root")

    return root

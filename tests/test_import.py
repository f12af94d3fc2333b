"""`import holdfast` is cheap: it brings in little, and nothing heavy."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import holdfast

PROGRAM = """
import json, sys
before = set(sys.modules)
import holdfast
print(json.dumps(sorted(set(sys.modules) - before)))
"""


def _imported_in_a_fresh_interpreter() -> list[str]:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, check=True)
    return json.loads(done.stdout)


def test_import_brings_in_few_modules() -> None:
    """Its time is theirs."""
    assert len(_imported_in_a_fresh_interpreter()) < 100


def test_import_loads_no_heavy_package() -> None:
    roots = {name.partition(".")[0] for name in _imported_in_a_fresh_interpreter()}
    assert roots & {"numpy", "torch", "jax", "pyopencl", "pynvml", "psutil", "rich"} == set()


def test_sub_packages_load_on_first_use() -> None:
    assert holdfast.topology.discover is not None  # type: ignore[attr-defined]
    assert "topology" in dir(holdfast)


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'topologie'"):
        holdfast.topologie  # noqa: B018  # type: ignore[attr-defined]

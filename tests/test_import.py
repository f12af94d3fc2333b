"""`import holdfast` is cheap: it costs little time and brings in nothing heavy."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import holdfast

PROGRAM = """
import json, sys, time
start = time.perf_counter()
import holdfast
elapsed = time.perf_counter() - start
print(json.dumps({"elapsed_ms": elapsed * 1000, "modules": sorted(sys.modules)}))
"""


def _import_in_a_fresh_interpreter() -> dict:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, check=True)
    return json.loads(done.stdout)


def test_import_takes_under_50_ms_over_a_bare_interpreter() -> None:
    # The best of a few, because a busy machine is not what is asked about.
    assert min(_import_in_a_fresh_interpreter()["elapsed_ms"] for _ in range(5)) < 50


def test_import_loads_no_heavy_package() -> None:
    modules = _import_in_a_fresh_interpreter()["modules"]
    roots = {name.partition(".")[0] for name in modules}
    assert roots & {"numpy", "torch", "jax", "pyopencl", "pynvml", "psutil", "rich"} == set()


def test_sub_packages_load_on_first_use() -> None:
    assert holdfast.topology.discover is not None  # type: ignore[attr-defined]
    assert "topology" in dir(holdfast)


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'topologie'"):
        holdfast.topologie  # noqa: B018  # type: ignore[attr-defined]

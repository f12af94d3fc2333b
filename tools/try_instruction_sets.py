"""Run tests with other instruction sets and other numbers of threads.

python -m tools.try_instruction_sets tests/compute tests/xla/test_ops.py
python -m tools.try_instruction_sets --only sse,avx2 tests/compute/opencl

One run for each row of VARIANTS, one after the other. Prints the tests that failed, with the
variants they failed in, and then the comparisons that came near their bounds in any
(`tests/tolerance.py` has the rule for bounds). Covers torch's own kernels and oneDNN, OpenBLAS,
NumPy's loops, XLA, PoCL, and our kernels in C. For instructions that the processor lacks, libraries
use the best it has.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from xml.etree import ElementTree

HERE = Path(__file__).parent
# The same for every run: compiled files are named by the path of the compiler.
FOLDER = HERE.parent / ".cache" / "instruction_sets"
NO_AVX = "X86_V3,X86_V4,AVX512_ICL,AVX512_SPR"
# Variables of libraries. "march" is for our own C, "hidden" for PoCL, "threads" for all.
VARIANTS: dict[str, dict[str, str]] = {
    "avx512": {
        "ATEN_CPU_CAPABILITY": "avx512", "ONEDNN_MAX_CPU_ISA": "AVX512_CORE",
        "OPENBLAS_CORETYPE": "SkylakeX", "threads": "1",
    },
    "avx2": {
        "ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2",
        "OPENBLAS_CORETYPE": "Haswell", "XLA_FLAGS": "--xla_cpu_max_isa=AVX2",
        "NPY_DISABLE_CPU_FEATURES": NO_AVX.partition(",")[2],
        "march": "haswell", "hidden": "avx512", "threads": "2",
    },
    "avx": {
        "ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX",
        "OPENBLAS_CORETYPE": "Zen", "XLA_FLAGS": "--xla_cpu_max_isa=AVX",
        "NPY_DISABLE_CPU_FEATURES": NO_AVX,
        "march": "sandybridge", "hidden": "avx512,avx2,fma", "threads": "1",
    },
    "sse": {
        "ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41",
        "OPENBLAS_CORETYPE": "Nehalem", "XLA_FLAGS": "--xla_cpu_max_isa=SSE4_2",
        "NPY_DISABLE_CPU_FEATURES": NO_AVX,
        "march": "nehalem", "hidden": "avx,fma,f16c", "threads": "4",
    },
}  # fmt: skip
NEAR = 1 / 3  # of a bound


def main() -> int:
    """Nonzero where a test failed in any variant."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--only", default=",".join(VARIANTS), help="variants, with commas")
    parser.add_argument("tests", nargs="+", help="what pytest is given")
    options = parser.parse_args()
    failed: dict[str, list[str]] = defaultdict(list)
    near: dict[str, tuple[float, str]] = {}
    for name in options.only.split(","):
        place = FOLDER / name
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        _run(place, VARIANTS[name], options.tests)
        for test in _failures(place / "report.xml"):
            failed[test].append(name)
        for where, share in _shares(place / "margins"):
            near[where] = max(near.get(where, (0.0, "")), (share, name))
    _say(f"\n{len(failed)} tests failed in some variant")
    for test, names in sorted(failed.items()):
        _say(f"  {', '.join(names):<24} {test}")
    close = sorted(((share, name, where) for where, (share, name) in near.items()), reverse=True)
    _say(f"comparisons that used more than {NEAR:.0%} of their bound")
    for share, name, where in close:
        if share > NEAR:
            _say(f"  {share:4.0%} {name:<8} {where}")
    return int(bool(failed))


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _run(place: Path, variant: dict[str, str], tests: list[str]) -> None:
    """Run pytest; writes report.xml and margins/ into `place`."""
    variables = {name: value for name, value in variant.items() if name.isupper()}
    # numpy and torch are imported before the settings of the tests.
    variables |= dict.fromkeys(("OMP_NUM_THREADS", "HOLDFAST_TEST_THREADS"), variant["threads"])
    variables["OMP_WAIT_POLICY"] = "passive"  # no spinning with more threads than cores
    variables["HOLDFAST_TEST_MARGINS"] = str(place / "margins")
    if "march" in variant:
        variables["CC"] = str(_compiler(variant["march"]))
    if "hidden" in variant:
        variables["HIDDEN_FEATURES"] = variant["hidden"]
    _say(f"---- {place.name}")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.harness.margins"]
    command += [f"--junitxml={place / 'report.xml'}"]
    with tempfile.TemporaryDirectory() as folder:  # LD_PRELOAD cannot have spaces in paths
        if "hidden" in variant:
            variables["LD_PRELOAD"] = _build_hiding_library(folder)
        subprocess.run([*command, *tests], env=os.environ | variables, check=False)


def _compiler(march: str) -> Path:
    """A C compiler whose -march=native is another processor."""
    script = FOLDER / f"cc-{march}"
    script.write_text(f'#!/bin/bash\nexec cc "${{@/#-march=native/-march={march}}}"\n')
    script.chmod(0o755)
    return script


def _build_hiding_library(folder: str) -> str:
    library = f"{folder}/hide_features.so"
    source = HERE / "hide_features.c"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    return library


def _failures(report: Path) -> list[str]:
    if not report.exists():
        return ["(pytest itself)"]
    cases = ElementTree.parse(report).iter("testcase")
    return [
        f"{case.get('classname')}::{case.get('name')}"
        for case in cases
        if case.find("failure") is not None or case.find("error") is not None
    ]


def _shares(folder: Path) -> list[tuple[str, float]]:
    lines = [line for file in folder.glob("*") for line in file.read_text().splitlines()]
    return [(found["place"], found["share"]) for found in map(json.loads, lines)]


if __name__ == "__main__":
    sys.exit(main())

from __future__ import annotations

import subprocess
import sys


def run(script: str) -> list[str]:
    child = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert child.returncode == 0, child.stderr
    return child.stdout.splitlines()


def test_what_a_run_does_not_use_is_not_imported_and_works_when_it_is_used() -> None:
    script = """
import sys
from holdfast.pipeline.model.quick_imports import quick_imports
quick_imports()
import holdfast.pipeline.run.families.flux
import diffusers, torch
print(sorted(name for name in sys.modules if name.startswith("scipy.stats.")))
print("torch._dynamo.symbolic_convert" in sys.modules)
beta = diffusers.FlowMatchEulerDiscreteScheduler(use_beta_sigmas=True)
beta.set_timesteps(4)
print(len(beta.timesteps), "scipy.stats._stats_py" in sys.modules)
print(torch.compile(lambda x: x + 1, backend="eager")(torch.ones(1)).item())
print("torch._dynamo.symbolic_convert" in sys.modules)
"""
    assert run(script) == ["[]", "False", "4 True", "2.0", "True"]


def test_a_program_with_torch_is_left_alone() -> None:
    script = """
import sys, torch
from holdfast.pipeline.model.quick_imports import quick_imports
before = dict(sys.modules)
quick_imports()
print(sys.modules == before)
"""
    assert run(script) == ["True"]

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.topology import amx, native


@pytest.fixture(autouse=True)
def asked_anew() -> None:
    amx.flag_without_tiles.cache_clear()


@pytest.fixture
def claims_amx(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text("flags : sse2 amx_bf16 amx_tile amx_int8\n")
    return tmp_path


@pytest.mark.parametrize(("palettes", "false_flag"), [(0, True), (1, False)])
def test_a_flag_is_false_when_there_is_no_palette(
    palettes: int, false_flag: bool, claims_amx: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native, "make_function", lambda *code: lambda leaf: palettes)
    assert amx.flag_without_tiles(claims_amx) is false_flag


def test_a_machine_without_the_flag_or_without_proc_has_nothing_to_fear(tmp_path: Path) -> None:
    assert amx.flag_without_tiles(tmp_path) is False
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text("flags : sse2 avx2\n")
    amx.flag_without_tiles.cache_clear()
    assert amx.flag_without_tiles(tmp_path) is False


def test_what_the_user_set_stays(claims_amx: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(amx, "flag_without_tiles", lambda: True)
    monkeypatch.setenv(amx.VARIABLE, "AVX2")
    assert amx.disable_broken_amx()
    assert os.environ[amx.VARIABLE] == "AVX2"


@pytest.mark.slow
def test_a_bf16_product_on_the_cpu_survives() -> None:
    """Which it does not, without our care, on a virtual machine that claims too much."""
    code = (
        "from holdfast.pipeline.devices.torch_devices import Cpu; Cpu(); import torch\n"
        "x = torch.ones(64, 64, dtype=torch.bfloat16)\n"
        "print(torch.nn.functional.linear(x, x).sum().item())"
    )
    env = {k: v for k, v in os.environ.items() if k != amx.VARIABLE}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env)
    assert (done.returncode, done.stdout.strip()) == (0, str(64.0**3)), done.stderr

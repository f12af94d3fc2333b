"""Detects virtual machines that set the CPU flag of AMX but have no AMX tiles.

Libraries that trust the flag (oneDNN up to 3.12, and so torch up to 2.13) crash there with an
illegal instruction in the first bf16 matrix product (oneDNN issue 5689).
"""

from __future__ import annotations

import ctypes
import functools
import os
from pathlib import Path

from holdfast.topology import native

# push rbx; mov eax, edi; xor ecx, ecx; cpuid; pop rbx; ret
_CPUID_EAX = "53 89f8 31c9 0fa2 5b c3"
_TILE_INFORMATION = 0x1D

# oneDNN may use everything below AMX.
VARIABLE, WITHOUT_AMX = "ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16"


@functools.cache
def flag_without_tiles(root: Path = Path("/")) -> bool:
    """Whether this machine claims AMX and has no tile palette; False if that is unknown."""
    try:
        flags = (root / "proc/cpuinfo").read_text()
    except OSError:
        return False
    if " amx_tile" not in flags:
        return False
    cpuid = native.make_function(_CPUID_EAX, ctypes.c_uint32, ctypes.c_uint32)
    return cpuid is not None and cpuid(_TILE_INFORMATION) == 0


def disable_broken_amx() -> bool:
    """Keep oneDNN from using AMX if it would crash, unless the user set it; returns whether."""
    if not flag_without_tiles():
        return False
    os.environ.setdefault(VARIABLE, WITHOUT_AMX)
    return True

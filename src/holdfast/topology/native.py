"""Machine code as a Python function, on x86-64 with the System V calling convention."""

from __future__ import annotations

import ctypes
import mmap
import platform
import sys
from typing import Any


def make_function(code: str, result: Any, *arguments: Any) -> Any:
    """A function from `code` in hexadecimal, or None where it cannot run."""
    if sys.platform not in ("linux", "darwin") or platform.machine() != "x86_64":
        return None
    try:
        page = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    except OSError:  # the system forbids executable memory
        return None
    page.write(bytes.fromhex(code))
    kind = ctypes.CFUNCTYPE(result, *arguments)
    made: Any = kind(ctypes.addressof(ctypes.c_char.from_buffer(page)))
    made.memory = page  # keeps the page alive
    return made

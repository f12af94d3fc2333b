"""A few bytes of machine code as a Python function, where the system lets us.

Only for x86-64 under the System V calling convention; everywhere else there is None, and the
caller has another way.
"""

from __future__ import annotations

import ctypes
import mmap
import platform
import sys
from typing import Any


def function(code: str, result: Any, *arguments: Any) -> Any:
    """The function whose code is `code` in hexadecimal, or None where it cannot run."""
    if sys.platform not in ("linux", "darwin") or platform.machine() != "x86_64":
        return None
    try:
        page = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    except OSError:  # a hardened system
        return None
    page.write(bytes.fromhex(code))
    kind = ctypes.CFUNCTYPE(result, *arguments)
    made: Any = kind(ctypes.addressof(ctypes.c_char.from_buffer(page)))
    made.memory = page  # lives as long as the function
    return made

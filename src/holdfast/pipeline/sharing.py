"""Being bearable on a machine that does other work too.

OpenMP's threads spin while they wait for each other. That is the fastest way on idle cores and the
slowest on busy ones: a thread spins on the core that the one it waits for needs. A model of many
small steps can then be thirty times slower, against about twice when threads sleep on idle cores.
"""

from __future__ import annotations

import os
import sys

_SETTINGS = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")


def share_cores() -> bool:
    """Have threads sleep while they wait, if the cores are busy now; True if they will.

    Does nothing once torch is imported, which is when OpenMP reads its settings, and nothing
    where the user has set one of them. Results are the same to the last bit.
    """
    if "torch" in sys.modules or any(name in os.environ for name in _SETTINGS) or not _busy():
        return False
    os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
    return True


def _busy() -> bool:
    """Whether about half of the cores have had something to do in the last minute."""
    try:
        load = os.getloadavg()[0]
    except (AttributeError, OSError):  # Windows, and containers that hide it
        return False
    return load >= (os.cpu_count() or 1) / 2

"""Make OpenMP threads sleep instead of spin on busy machines.

OpenMP threads spin while they wait for each other. That is fastest on idle cores and slowest on
busy ones, where a thread spins on the core that the awaited one needs: a model of many small steps
can then be thirty times slower. Sleeping costs about a factor of two on idle cores.
"""

from __future__ import annotations

import os
import sys

_SETTINGS = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")


def share_cores() -> bool:
    """Make OpenMP threads sleep while they wait if the cores are busy; True if they will.

    Does nothing once torch is imported (OpenMP reads its settings then) or where the user has set
    one of them. Results stay the same bit for bit.
    """
    try:
        load = os.getloadavg()[0]  # of the last minute
    except (AttributeError, OSError):  # Windows, and containers that hide it
        return False
    is_busy = load >= (os.cpu_count() or 1) / 2
    if "torch" in sys.modules or any(name in os.environ for name in _SETTINGS) or not is_busy:
        return False
    os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
    return True

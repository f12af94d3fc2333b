"""Shared virtual memory by topology: allocate, look up, move, free.

    from holdfast.memory import svm

    with svm.alloc("256MB", near="gpu:0") as memory:
        array = memory.array("float32")           # NumPy over the same bytes
        print(memory.where().pages)               # pages by domain
        del array
        memory.migrate(0, 1)

Four providers are tried in this order unless one is named: `retryix`, `opencl`, `numa` and
`simulated`.
"""

from __future__ import annotations

from holdfast.memory.svm.allocation import Allocation
from holdfast.memory.svm.choice import (
    PROVIDERS,
    Report,
    alloc,
    discover,
    free,
    metrics,
    migrate,
    provider,
    reports,
    set_affinity,
    statistics,
    where,
)
from holdfast.memory.svm.interface import Provider
from holdfast.memory.svm.model import (
    Domain,
    Layout,
    Metrics,
    Migration,
    Placement,
    Sample,
    Statistics,
    Where,
)
from holdfast.memory.svm.resource import Svm

__all__ = [
    "PROVIDERS",
    "Allocation",
    "Domain",
    "Layout",
    "Metrics",
    "Migration",
    "Placement",
    "Provider",
    "Report",
    "Sample",
    "Statistics",
    "Svm",
    "Where",
    "alloc",
    "discover",
    "free",
    "metrics",
    "migrate",
    "provider",
    "reports",
    "set_affinity",
    "statistics",
    "where",
]

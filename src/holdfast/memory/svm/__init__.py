"""Shared virtual memory placed by topology: allocate, look up pages, migrate, free.

    from holdfast.memory import svm

    with svm.alloc("256MB", near="gpu:0") as memory:
        array = memory.array("float32")           # NumPy over the same bytes
        print(memory.where().pages)               # pages by domain
        del array
        memory.migrate(0, 1)

Four providers are tried in this order unless one is named: `retryix`, `opencl`, `numa` and
`simulated`.

    model           frozen values: Domain, Layout, Placement, Where, Migration, Statistics, Metrics
    choice          selects a provider; the module-level functions alloc, free, migrate, ...
    interface       Provider, the base class: checks, migration in chunks; Allocation, the handle
    providers/      the four providers
    placement       decides which domains an allocation goes to
    ledger          all allocations of a provider (Record, Backing); rejects stale handles
    affinity        binds the threads of this process to CPUs
    locality        metrics: local and remote pages, free memory, bandwidth
    policy          proposes which pages to move
    balance         autobalance: applies the policy, once or in a thread
    process         pages of other processes by NUMA node, and moving them
    resource        Svm: a provider as a resource for pools and limits
    describe        text for nodes and the command line
"""

from __future__ import annotations

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
from holdfast.memory.svm.interface import Allocation, Provider
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

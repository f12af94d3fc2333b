"""The smallest budget that the modules of a group can run in, cached per plan.

A look searches at once for small plans. Large ones take some hundredths of a second: they are
searched once the plan is stable, or when a budget is changed.
"""

from __future__ import annotations

import time
import weakref
from typing import Any

QUICK_USES = 32  # plans of that many layers take about a millisecond
SETTLED_S = 1.0  # larger plans are searched once they are that old
_found: weakref.WeakKeyDictionary[Any, tuple[Any, int]] = weakref.WeakKeyDictionary()
_seen: weakref.WeakKeyDictionary[Any, tuple[Any, float]] = weakref.WeakKeyDictionary()


def known_budget_bytes(group: Any) -> int | None:
    """Minimum budget of planned members (after two runs), as far as it is known; else None."""
    return _for_all(group, searching=False)


def min_budget_bytes(group: Any) -> int | None:
    """Minimum budget, searched now if unknown; a member without a plan needs its largest weight."""
    return _for_all(group, searching=True)


def _for_all(group: Any, searching: bool) -> int | None:
    # Others can be evicted while one runs: the maximum, not the sum.
    least = [_for_one(member, searching) for member in list(group.members)]
    return max((one for one in least if one is not None), default=None)


def _for_one(member: Any, searching: bool) -> int | None:
    problem = member.schedule.planned_for
    if problem is None:
        sizes = (one.numel() * one.element_size() for one in member.module.parameters())
        return max(sizes, default=None) if searching else None
    known = _found.get(member)
    if known is None or known[0] is not problem:
        if not searching and not _should_search(member, problem):
            return None
        from holdfast.residency.plan import find_smallest_bytes

        known = _found[member] = (problem, find_smallest_bytes(problem, member.memory.keep_bytes))
    return member.memory.budget_for(known[1])


def _should_search(member: Any, problem: Any) -> bool:
    """Whether a look should search now: the first plans of a module change with each pass."""
    if len(problem.uses) <= QUICK_USES:
        return True
    seen = _seen.get(member)
    if seen is None or seen[0] is not problem:
        seen = _seen[member] = (problem, time.monotonic())
    return time.monotonic() - seen[1] >= SETTLED_S

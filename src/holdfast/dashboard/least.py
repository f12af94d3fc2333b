"""The smallest budget that the modules of a group can run in.

Covers: finding it from the plan at work, and keeping it until the plan changes.
Leaves to others: what weights need at least (residency.plan), changing budgets (acting).
Promise: looking searches once for each plan: at once for a small one, and for a large one (some
hundredths of a second) when it has settled, or when a budget is changed.
"""

from __future__ import annotations

import time
import weakref
from typing import Any

QUICK_USES = 32  # layers of a plan for which the search takes about a millisecond
SETTLED_S = 1.0  # a plan of more layers is searched once it was at work that long
_found: weakref.WeakKeyDictionary[Any, tuple[Any, int]] = weakref.WeakKeyDictionary()
_seen: weakref.WeakKeyDictionary[Any, tuple[Any, float]] = weakref.WeakKeyDictionary()


def known_budget_bytes(group: Any) -> int | None:
    """The least for the members of a group that ran twice, as a plan is made then; else None."""
    return _for_all(group, searching=False)


def least_budget_bytes(group: Any) -> int | None:
    """The same, searched for now where it is not known; for a member without a plan, the least
    that is certain: its largest weight has to fit.
    """
    return _for_all(group, searching=True)


def _for_all(group: Any, searching: bool) -> int | None:
    # While one runs, the others may have to leave: so it is the largest, not the sum.
    least = [_for_one(member, searching) for member in list(group.members)]
    return max((one for one in least if one is not None), default=None)


def _for_one(member: Any, searching: bool) -> int | None:
    problem = member.planned_for
    if problem is None:
        return _largest_weight_bytes(member) if searching else None
    known = _found.get(member)
    if known is None or known[0] is not problem:
        if not searching and not _is_time(member, problem):
            return None
        from holdfast.residency.plan import smallest_bytes

        known = _found[member] = (problem, smallest_bytes(problem, member.keep_bytes))
    return member.budget_for(known[1])


def _is_time(member: Any, problem: Any) -> bool:
    """Whether a look should search: the first plans of a module are remade with each pass."""
    if len(problem.uses) <= QUICK_USES:
        return True
    seen = _seen.get(member)
    if seen is None or seen[0] is not problem:
        seen = _seen[member] = (problem, time.monotonic())
    return time.monotonic() - seen[1] >= SETTLED_S


def _largest_weight_bytes(member: Any) -> int | None:
    sizes = (weight.numel() * weight.element_size() for weight in member.module.parameters())
    return max(sizes, default=None)

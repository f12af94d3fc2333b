"""The prompt that ComfyUI runs in this process, as a run.

Nothing runs between looks, so times are approximate: a node counts from the first look that saw
it, a prompt from when it was sent, or from the last look that saw another one.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from holdfast.dashboard.snapshot.snapshot import RunNow
from holdfast.dashboard.snapshot.sources import get

_LEAST = 0.02  # fraction of a node before a remaining time is estimated


@dataclass(frozen=True, slots=True)
class _Seen:
    """What looks have seen so far. Replaced as a whole, for thread safety."""

    prompt: str | None = None
    began_s: float = 0.0  # of the prompt, since 1970
    node: str | None = None
    since: float = 0.0  # of the node, by the monotonic clock
    fraction: float = 0.0  # fraction done at that time
    at_s: float = 0.0  # the last look, since 1970


class _State:
    seen = _Seen()


def current() -> RunNow | None:
    """ComfyUI's current prompt; None if it is idle or not in this process."""
    ask = get("holdfast.nodes.host.following", "moment")
    if ask is None:
        return None
    moment, now = ask(), time.perf_counter()
    _State.seen = seen = _look(_State.seen, moment, now)
    if moment is None:
        return None
    return RunNow(
        id=moment.prompt,
        model=moment.model or "ComfyUI",
        prompt=moment.text,
        stage="node",
        done=moment.done,
        total=moment.total,
        label=moment.name,
        began_s=seen.began_s,
        stage_s=now - seen.since,
        left_s=_left_s(_fraction(moment), now, seen),
    )


def _look(before: _Seen, moment: Any, now: float) -> _Seen:
    at_s = time.time()
    if moment is None:
        return _Seen(at_s=at_s)
    began_s = before.began_s
    if moment.prompt != before.prompt:
        began_s = min(max(moment.sent_s or at_s, before.at_s), at_s)
    elif moment.node == before.node:
        return _Seen(before.prompt, began_s, before.node, before.since, before.fraction, at_s)
    return _Seen(moment.prompt, began_s, moment.node, now, _fraction(moment), at_s)


def _fraction(moment: Any) -> float:
    return moment.done / moment.total if moment.total else 0.0


def _left_s(fraction: float, now: float, seen: _Seen) -> float | None:
    done = fraction - seen.fraction
    return None if done < _LEAST else max(0.0, 1.0 - fraction) * (now - seen.since) / done

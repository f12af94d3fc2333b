"""The prompt that ComfyUI runs in this process, as a run.

Covers: the node under way, how far it is and how long it will take yet.
Leaves to others: runs of pipelines (pipeline.runs), reading ComfyUI (nodes.host.following),
stopping (acting).
Promise: nothing runs while nobody looks. So times are by looks: a node counts from the first look
that has seen it, and a prompt from when it was sent, or from the last look that saw another.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from holdfast.dashboard.snapshot import RunNow
from holdfast.dashboard.sources import of

_LEAST = 0.02  # of a node that was seen to be done, before anybody says how long it takes


@dataclass(frozen=True, slots=True)
class _Seen:
    """What looks have seen so far. Replaced as a whole: several may look at once."""

    prompt: str | None = None
    began_s: float = 0.0  # of the prompt, since 1970
    node: str | None = None
    since: float = 0.0  # of the node, on the clock that does not jump
    part: float = 0.0  # of it that was over by then
    at_s: float = 0.0  # the last look, since 1970


class _State:
    """Of this process."""

    seen = _Seen()


def current() -> RunNow | None:
    """What ComfyUI does; None where it rests, or is not in this process."""
    ask = of("holdfast.nodes.host.following", "moment")
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
        left_s=_left_s(_part(moment), now, seen),
    )


def _look(before: _Seen, moment: Any, now: float) -> _Seen:
    at_s = time.time()
    if moment is None:
        return _Seen(at_s=at_s)
    began_s = before.began_s
    if moment.prompt != before.prompt:
        began_s = min(max(moment.sent_s or at_s, before.at_s), at_s)
    elif moment.node == before.node:
        return _Seen(before.prompt, began_s, before.node, before.since, before.part, at_s)
    return _Seen(moment.prompt, began_s, moment.node, now, _part(moment), at_s)


def _part(moment: Any) -> float:
    return moment.done / moment.total if moment.total else 0.0


def _left_s(part: float, now: float, seen: _Seen) -> float | None:
    done = part - seen.part
    return None if done < _LEAST else max(0.0, 1.0 - part) * (now - seen.since) / done

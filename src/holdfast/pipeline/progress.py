"""What a pipeline tells while it works.

A listener is any callable that takes an `Event`. It may raise: the run stops there, the exception
comes out of the call, and the pipeline can be used again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

Stage = Literal["load", "text", "denoise", "decode"]


@dataclass(frozen=True, slots=True)
class Event:
    """`done` of `total` parts of a stage are over; `label` is the part that comes next.

    Where weights are read into memory of our own, the bytes of all networks are told as well.
    """

    stage: Stage
    done: int
    total: int | None = None
    label: str | None = None
    done_bytes: int | None = None
    total_bytes: int | None = None


Listener = Callable[[Event], None]


def nobody(event: Event) -> None:
    """The listener that does not care."""

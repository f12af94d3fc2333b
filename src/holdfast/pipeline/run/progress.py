"""Progress events of a pipeline.

A listener is any callable that takes an `Event`. It may raise: the run stops, the exception comes
out of the call, and the pipeline can be used again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

Stage = Literal["load", "text", "denoise", "decode"]
STAGES = ("text", "denoise", "decode")  # those of drawing, in order


@dataclass(frozen=True, slots=True)
class Event:
    """`done` of `total` parts of a stage are finished; `label` names the next one.

    The bytes cover the weights of all networks, where they are read into our slabs.
    """

    stage: Stage
    done: int
    total: int | None = None
    label: str | None = None
    done_bytes: int | None = None
    total_bytes: int | None = None


Listener = Callable[[Event], None]


def ignore(event: Event) -> None:
    """The default listener: does nothing."""

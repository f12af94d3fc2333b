"""Asking parts of this process that may be absent, or in the middle of something.

Promise: nothing is imported; a part that fails is as good as absent, and the others are asked all
the same.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")
failures: deque[str] = deque(maxlen=20)  # the latest, in words, for whoever looks for a reason


def of(module: str, name: str) -> Any:
    """An attribute of a module that this process has imported; None where it has not."""
    return getattr(sys.modules.get(module), name, None)


def asked(question: Callable[[], T], otherwise: T) -> T:
    """The answer; `otherwise` where asking fails."""
    try:
        return question()
    except Exception as exc:  # noqa: BLE001  the promise above
        # In words: a traceback would keep what its frames hold alive.
        failures.append(f"{getattr(question, '__qualname__', question)}: {exc!r}")
        return otherwise

"""Safe access to parts of this process that may not be imported, or may fail.

Imports nothing; a part that raises counts as absent.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")
failures: deque[str] = deque(maxlen=20)  # the latest, for debugging


def get(module: str, name: str) -> Any:
    """An attribute of a module if it is imported, else None."""
    return getattr(sys.modules.get(module), name, None)


def call(module: str, name: str, otherwise: Any = ()) -> Any:
    """What a function of a module returns if the module is imported, else `otherwise`."""
    function = get(module, name)
    return otherwise if function is None else function()


def try_call(question: Callable[[], T], otherwise: T) -> T:
    """Call `question`; returns `otherwise` if it raises."""
    try:
        return question()
    except Exception as exc:  # noqa: BLE001  the promise above
        # As text: a traceback would keep local variables alive.
        failures.append(f"{getattr(question, '__qualname__', question)}: {exc!r}")
        return otherwise

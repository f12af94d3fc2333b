"""Ctrl-C that comes out as something else."""

from __future__ import annotations


def is_interrupt(exc: BaseException) -> bool:
    """Whether Ctrl-C is behind an exception: libraries that import lazily wrap what they catch."""
    seen: BaseException | None = exc
    while seen is not None:
        if isinstance(seen, KeyboardInterrupt):
            return True
        seen = seen.__cause__ or seen.__context__
    return False

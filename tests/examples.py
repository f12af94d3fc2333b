"""How many examples Hypothesis tries: fewer in the quick run."""

from __future__ import annotations

from hypothesis import settings


def examples(count: int) -> int:
    """This many where all tests run; in the quick run a share, as its profile has of the 100."""
    return max(min(count, 5), count * settings().max_examples // 100)

"""What a test needs and how much of it is run: skips, which set-up avoids wherever it can; ALL."""

from __future__ import annotations

import os

import pytest

ALL = bool(os.environ.get("HOLDFAST_TEST_ALL"))  # `make test-all`: more rounds, longer runs


def needs(reason: str | None) -> pytest.MarkDecorator:
    """Skip with `reason`, unless there is none; in CI, where set-up has run, fail instead."""
    return pytest.mark.skipif(reason is not None and not os.environ.get("CI"), reason=str(reason))

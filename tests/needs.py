"""Skipping a test for want of something, which set-up installs wherever it can."""

from __future__ import annotations

import os

import pytest


def needs(reason: str | None) -> pytest.MarkDecorator:
    """Skip with `reason`, unless there is none; in CI, where set-up has run, fail instead."""
    return pytest.mark.skipif(reason is not None and not os.environ.get("CI"), reason=str(reason))

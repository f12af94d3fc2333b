"""What tests that look at pictures share."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

TRAINING = Path(__file__).parents[2] / "training"


@pytest.fixture(scope="session")
def judge() -> ModuleType:
    """Who recognises digits, trained on real ones alone."""
    sys.path.insert(0, str(TRAINING))
    try:
        import judge
    finally:
        sys.path.remove(str(TRAINING))
    return judge

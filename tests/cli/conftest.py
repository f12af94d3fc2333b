"""Fixtures of other layers that the commands are tested with."""

from __future__ import annotations

from tests.memory.svm.conftest import built_libraries, retryix_library

__all__ = ["built_libraries", "retryix_library"]

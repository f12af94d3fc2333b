"""Fixtures of other layers that the nodes are tested with."""

from __future__ import annotations

from tests.memory.svm.conftest import built_libraries, retryix_library

__all__ = ["built_libraries", "retryix_library"]

"""What the tests of the device share.

HOLDFAST_TORCH_SHIM=on pytest tests/compute/torch_device    # all of them with the C++ shim
"""

from __future__ import annotations

import pytest

from holdfast.compute.torch_device import shim


@pytest.fixture
def python_device() -> None:
    """For a test of what the handlers in Python do and torch's own kernels do not."""
    if shim.is_loaded():
        pytest.skip("the C++ shim is loaded: torch's own kernels compute, choose and word errors")

"""Every way to shared virtual memory that can run here, for tests that all of them have to pass."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from holdfast.memory import svm
from holdfast.memory.svm.providers.numa import NumaProvider
from holdfast.memory.svm.providers.simulated import SimulatedProvider


def _opencl(tier: str) -> Callable[[pytest.FixtureRequest], svm.Provider]:
    def make_opencl(_: pytest.FixtureRequest) -> svm.Provider:
        from holdfast.memory.svm.providers.opencl import OpenclProvider

        return OpenclProvider(tier=tier)

    return make_opencl


def _retryix(request: pytest.FixtureRequest) -> svm.Provider:
    from holdfast.memory.svm.providers.retryix import RetryixProvider

    return RetryixProvider(library=request.getfixturevalue("retryix_library")("whole"))


_MAKERS: dict[str, Callable[[pytest.FixtureRequest], svm.Provider]] = {
    "numa": lambda _: NumaProvider(),
    "simulated": lambda _: SimulatedProvider(),
    "opencl, fine_buffer": _opencl("fine_buffer"),
    "opencl, coarse": _opencl("coarse"),
    "opencl, host_pointer": _opencl("host_pointer"),
    "opencl, copy": _opencl("copy"),
    "retryix": _retryix,
}
NAMES = list(_MAKERS)
# Whose memory the host has to leave alone while it is used by a device, or moved.
LEFT_ALONE = ("opencl, coarse", "opencl, host_pointer", "opencl, copy", "retryix")


def make(name: str, request: pytest.FixtureRequest) -> svm.Provider:
    """A new provider, with nothing allocated."""
    return _MAKERS[name](request)

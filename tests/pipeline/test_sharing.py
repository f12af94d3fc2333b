from __future__ import annotations

import os
import sys

import pytest

from holdfast.pipeline.devices import omp_policy


@pytest.fixture(autouse=True)
def before_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    for name in omp_policy._SETTINGS:
        monkeypatch.setenv(name, "")  # so that what is set here is undone
        monkeypatch.delenv(name)
    monkeypatch.setattr(os, "cpu_count", lambda: 4)


def load(monkeypatch: pytest.MonkeyPatch, average: float) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (average, 0.0, 0.0))


def test_threads_sleep_on_a_busy_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    load(monkeypatch, 2.0)
    assert omp_policy.share_cores()
    assert os.environ["OMP_WAIT_POLICY"] == "PASSIVE"


def test_threads_spin_on_an_idle_one(monkeypatch: pytest.MonkeyPatch) -> None:
    load(monkeypatch, 1.9)
    assert not omp_policy.share_cores()
    assert "OMP_WAIT_POLICY" not in os.environ


def test_what_the_user_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    load(monkeypatch, 4.0)
    monkeypatch.setenv("GOMP_SPINCOUNT", "5")
    assert not omp_policy.share_cores()
    assert "OMP_WAIT_POLICY" not in os.environ


def test_a_torch_that_is_there_already_would_not_listen(monkeypatch: pytest.MonkeyPatch) -> None:
    load(monkeypatch, 4.0)
    monkeypatch.setitem(sys.modules, "torch", sys)
    assert not omp_policy.share_cores()


def test_a_system_that_hides_its_load_counts_as_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    def hidden() -> tuple[float, float, float]:
        raise OSError

    monkeypatch.setattr(os, "getloadavg", hidden)
    assert not omp_policy.share_cores()

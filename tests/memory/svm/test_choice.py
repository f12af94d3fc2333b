"""Which provider is chosen: by name, by settings, the first that can; and why the others not."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest

from holdfast import memory
from holdfast.base.config import Config
from holdfast.base.errors import Absent, ForeignPointer, NotFound, Unsupported
from holdfast.base.registry import Entry, Registry
from holdfast.memory import svm
from holdfast.memory.svm import choice
from holdfast.memory.svm.providers.simulated import SimulatedProvider
from holdfast.topology import numa
from tests.needs import needs

NO_NUMA = None if numa.is_supported() else "there are no NUMA calls here"
ORDER = ["retryix", "opencl", "numa", "simulated"]


class Works(SimulatedProvider):
    """A provider that works everywhere, under another name."""

    name = "works"


class Fails(SimulatedProvider):
    """A provider that works nowhere."""

    name = "fails"
    asked = 0

    def __init__(self, config: Config | None = None) -> None:
        type(self).asked += 1
        raise Unsupported("this one never works", expected="a miracle", hint="the provider 'works'")


class FailsInFewWords(SimulatedProvider):
    """Another one, that gives no advice."""

    name = "terse"

    def __init__(self, config: Config | None = None) -> None:
        raise Absent("nothing is there")


class Broken(SimulatedProvider):
    """A provider with a mistake in it."""

    name = "broken"

    def __init__(self, config: Config | None = None) -> None:
        raise ZeroDivisionError


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """No provider was made yet; those of other tests are kept from these."""
    monkeypatch.setattr(choice, "_made", {})
    monkeypatch.setattr(Fails, "asked", 0)


def providers(monkeypatch: pytest.MonkeyPatch, *classes: type[SimulatedProvider]) -> None:
    """Have these be all the providers there are."""
    entries = {c.name: Entry(f"{__name__}:{c.__name__}") for c in classes}
    monkeypatch.setattr(choice, "PROVIDERS", Registry("provider", entries))


# ---- in order


def test_they_are_tried_in_the_order_of_the_specification() -> None:
    assert list(svm.PROVIDERS) == ORDER


def test_listing_them_imports_none_of_their_libraries() -> None:
    program = (
        "import sys; from holdfast.memory import svm; list(svm.PROVIDERS); "
        "print(sorted({'numpy', 'torch', 'pyopencl'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert done.stdout == b"[]\n"


def test_the_first_that_can_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    providers(monkeypatch, Fails, FailsInFewWords, Works, SimulatedProvider)
    assert svm.provider().name == "works"
    assert Fails.asked == 1


def test_a_mistake_in_a_provider_is_shown_and_not_passed_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    providers(monkeypatch, Broken, SimulatedProvider)
    with pytest.raises(ZeroDivisionError):
        svm.provider()


# ---- by name


@pytest.mark.parametrize("name", ["numa", "simulated"])
@needs(NO_NUMA)
def test_a_provider_that_is_named_is_taken(name: str) -> None:
    assert svm.provider(name).name == name
    with svm.alloc("1MB", provider=name) as handle:
        assert handle.provider is svm.provider(name)
        assert svm.statistics(provider=name).current_bytes == 1_000_000
        assert svm.metrics(provider=name).provider == name


def test_a_provider_that_is_named_and_cannot_work_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    providers(monkeypatch, Fails, Works)
    with pytest.raises(Unsupported) as error:
        svm.provider("fails")
    assert str(error.value) == (
        "this one never works\n  expected: a miracle\n  try: the provider 'works'"
    )
    monkeypatch.setenv("HOLDFAST_SVM_PROVIDER", "fails")
    with pytest.raises(Unsupported, match="this one never works"):
        svm.provider()


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(NotFound) as error:
        svm.provider("simulate")
    assert str(error.value) == (
        "unknown provider 'simulate'\n"
        "  expected: one of retryix, opencl, numa, simulated\n"
        "  try: simulated"
    )
    with pytest.raises(NotFound, match="unknown provider 'magic'"):
        svm.alloc("1MB", provider="magic")


def test_an_unknown_name_in_the_settings_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_SVM_PROVIDER", "magic")
    with pytest.raises(NotFound) as error:
        svm.provider()
    assert str(error.value) == (
        "unknown provider 'magic'\n  expected: one of retryix, opencl, numa, simulated"
    )


# ---- by settings


def test_the_settings_name_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_SVM_PROVIDER", "simulated")
    assert svm.provider().name == "simulated"
    with svm.alloc("1MB") as handle:
        assert handle.provider.name == "simulated"


def test_a_name_comes_before_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    providers(monkeypatch, Works, SimulatedProvider)
    monkeypatch.setenv("HOLDFAST_SVM_PROVIDER", "simulated")
    assert svm.provider("works").name == "works"


def test_a_made_up_machine_has_made_up_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_SIMULATE", "4x2GB")
    chosen = svm.provider()
    assert chosen.name == "simulated"
    assert [d.total_bytes for d in chosen.discover().domains] == [2 * 10**9] * 4


@needs(NO_NUMA)
def test_real_numa_is_not_to_be_had_on_a_made_up_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_SIMULATE", "4x2GB")
    with pytest.raises(Unsupported) as error:
        svm.provider("numa")
    assert str(error.value) == (
        "NUMA calls need a real Linux machine\n"
        "  expected: Linux, and no simulated machine in the settings\n"
        "  try: the provider 'simulated'"
    )


def test_settings_that_are_passed_come_before_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HOLDFAST_SIMULATE", "4x2GB")
    passed = svm.provider(config=Config.load(simulate="3x1GB"))
    assert len(passed.discover().domains) == 3


# ---- kept


def test_one_is_made_for_each_name_and_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    first = svm.provider("simulated")
    assert svm.provider("simulated") is first
    monkeypatch.setenv("HOLDFAST_SVM_PROVIDER", "simulated")
    assert svm.provider() is first, "however it was named"
    monkeypatch.setenv("HOLDFAST_SIMULATE", "2x1GB")
    second = svm.provider()
    assert second is not first
    assert svm.provider("simulated") is second
    monkeypatch.delenv("HOLDFAST_SIMULATE")
    assert svm.provider() is first


def test_one_that_cannot_work_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    providers(monkeypatch, Fails, Works)
    svm.provider()
    svm.provider()
    assert Fails.asked == 2


# ---- reports


def test_reports_say_who_was_chosen_and_why_the_others_were_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    providers(monkeypatch, Fails, FailsInFewWords, Works, SimulatedProvider)
    assert svm.reports() == (
        svm.Report("fails", "unavailable", "this one never works (try: the provider 'works')"),
        svm.Report("terse", "unavailable", "nothing is there"),
        svm.Report("works", "chosen"),
        svm.Report("simulated", "available"),
    )


def test_reports_follow_the_settings() -> None:
    reports = svm.reports(config=Config.load(svm_provider="simulated"))
    assert [r.name for r in reports] == ORDER
    assert [r.name for r in reports if r.status == "chosen"] == ["simulated"]
    assert all((r.reason is None) == (r.status != "unavailable") for r in reports)


# ---- who made a handle


def test_functions_find_the_provider_by_the_handle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_SIMULATE", "2x1GB")
    handle = svm.alloc("1MiB", domain=0)
    monkeypatch.delenv("HOLDFAST_SIMULATE")  # another would be chosen now
    assert svm.migrate(handle, 0, 1).pages_moved == 256
    assert svm.where(handle).pages == svm.metrics(handle).pages == {1: 256}
    svm.free(handle)
    assert handle.freed


@pytest.mark.parametrize(("what", "shown"), [(4096, "0x1000"), ("0x1000", "'0x1000'")])
def test_what_is_no_handle_has_no_provider(what: object, shown: str) -> None:
    for call in (svm.free, svm.where, svm.metrics, lambda h: svm.migrate(h, 0, 1)):
        with pytest.raises(ForeignPointer) as error:
            call(what)  # type: ignore[operator]
        assert str(error.value) == (
            f"{shown} is no allocation of this process\n"
            "  expected: the handle that alloc() returned; a number, from a file for "
            "example, is never taken for an address"
        )


def test_the_package_is_reached_from_memory() -> None:
    assert memory.svm is svm
    assert "svm" in dir(memory)
    assert memory.autobalance is not None


# ---- those that need something


def test_without_a_library_retryix_says_how_to_name_one() -> None:
    [report] = [r for r in svm.reports() if r.name == "retryix"]
    assert report == svm.Report(
        "retryix",
        "unavailable",
        "no library is named for the provider 'retryix' "
        "(try: set HOLDFAST_RETRYIX_LIBRARY to its path)",
    )


WITHOUT = """
import sys
sys.modules["pyopencl"] = None
from holdfast.memory import svm
[report] = [r for r in svm.reports() if r.name == "opencl"]
print(report.status, report.reason, sep=": ")
print(svm.provider().name in ("numa", "simulated"))
"""


def test_without_its_package_opencl_is_passed_over(script: Callable[..., str]) -> None:
    assert script(WITHOUT) == (
        "unavailable: cannot load provider 'opencl': the package 'pyopencl' is not installed "
        "(try: pip install 'holdfast[opencl]')\n"
        "True\n"
    )

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from holdfast.base.errors import Absent, AlreadyRegistered, MissingDependency, NotFound
from holdfast.base.registry import Entry, Registry


@pytest.fixture
def registry() -> Registry[object]:
    return Registry(
        "shape",
        {
            "circle": Entry("math:pi", "a round one"),
            "square": Entry("math:sqrt"),
            "ghost": Entry("no_such_package_at_all.deep:thing", extra="opencl"),
        },
    )


def test_an_entry_is_imported_when_it_is_first_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lazy_thing.py").write_text("value = object()")
    monkeypatch.syspath_prepend(str(tmp_path))
    registry: Registry[object] = Registry("shape", {"lazy": Entry("lazy_thing:value")})
    assert list(registry) == ["lazy"]
    assert "lazy" in registry
    assert "lazy_thing" not in sys.modules
    assert registry["lazy"] is registry["lazy"]
    assert "lazy_thing" in sys.modules


def test_an_unknown_name_is_refused_with_the_nearest_one(registry: Registry[object]) -> None:
    with pytest.raises(NotFound) as caught:
        registry["circel"]
    assert str(caught.value) == (
        "unknown shape 'circel'\n  expected: one of circle, square, ghost\n  try: circle"
    )


def test_a_name_cannot_be_taken_twice(registry: Registry[object]) -> None:
    with pytest.raises(AlreadyRegistered) as caught:
        registry.register("circle", Entry("math:e"))
    assert str(caught.value) == (
        "cannot register shape 'circle': the name is taken by math:pi\n"
        "  expected: a shape name not among circle, square, ghost"
    )
    assert registry.entry("circle").target == "math:pi"


def test_a_new_name_can_be_registered(registry: Registry[object]) -> None:
    registry.register("line", Entry("math:e"))
    assert len(registry) == 4
    assert registry["line"] == pytest.approx(2.718, abs=1e-3)


def test_a_missing_package_names_the_extra_to_install(registry: Registry[object]) -> None:
    with pytest.raises(MissingDependency) as caught:
        registry["ghost"]
    assert str(caught.value) == (
        "cannot load shape 'ghost': the package 'no_such_package_at_all' is not installed\n"
        "  expected: the packages of the extra 'opencl'\n"
        "  try: pip install 'holdfast[opencl]'"
    )


def test_a_broken_package_is_distinguished_from_a_missing_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_vendor.py").write_text("raise ImportError('libvendor.so.1: no such file')")
    monkeypatch.syspath_prepend(str(tmp_path))
    registry: Registry[object] = Registry(
        "shape", {"broken": Entry("broken_vendor:x", extra="opencl")}
    )
    with pytest.raises(MissingDependency) as caught:
        registry["broken"]
    assert str(caught.value) == (
        "cannot load shape 'broken': importing 'broken_vendor' failed: "
        "libvendor.so.1: no such file\n"
        "  expected: a working installation of the extra 'opencl'\n"
        "  try: pip install 'holdfast[opencl]' --force-reinstall"
    )


def vendor(folder: Path, monkeypatch: pytest.MonkeyPatch, **modules: str) -> None:
    """Modules that can be imported, by name and source."""
    for name, source in modules.items():
        (folder / f"{name}.py").write_text(source)
    monkeypatch.syspath_prepend(str(folder))


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("raise OSError('libcl.so.1: no such file')", "OSError: libcl.so.1: no such file"),
        ("import math; math.tau_squared",
         "AttributeError: module 'math' has no attribute 'tau_squared'"),
        ("{}['AMDSMI']", "KeyError: 'AMDSMI'"),
    ],
)  # fmt: skip
def test_a_package_that_breaks_in_any_other_way_is_a_missing_dependency_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, reason: str
) -> None:
    vendor(tmp_path, monkeypatch, our_part="import broken_inside", broken_inside=source)
    entries = {"broken": Entry("our_part:x", extra="opencl")}
    for module in ("our_part", "broken_inside"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    with pytest.raises(MissingDependency) as caught:
        Registry("shape", entries)["broken"]
    assert str(caught.value) == (
        f"cannot load shape 'broken': importing 'broken_inside' failed: {reason}\n"
        "  expected: a working installation of the extra 'opencl'\n"
        "  try: pip install 'holdfast[opencl]' --force-reinstall"
    )
    assert caught.value.__cause__ is not None


def test_what_says_itself_what_is_missing_is_not_wrapped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = (
        "from holdfast.base.errors import MissingDependency\n"
        "raise MissingDependency('this needs that', hint='pip install that')\n"
    )
    vendor(tmp_path, monkeypatch, says_so_itself=source)
    with pytest.raises(MissingDependency) as caught:
        Registry("shape", {"one": Entry("says_so_itself", extra="opencl")})["one"]
    assert str(caught.value) == "this needs that\n  try: pip install that"


def test_our_own_module_that_a_package_does_not_suit_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def old_version(_: str) -> None:
        exec("import math; math.tau_squared", {"__name__": "holdfast.shapes"})

    monkeypatch.setattr("holdfast.base.registry.importlib.import_module", old_version)
    entries = {"broken": Entry("holdfast.shapes:x", extra="opencl")}
    with pytest.raises(MissingDependency) as caught:
        Registry("shape", entries)["broken"]
    assert caught.value.what == (
        "cannot load shape 'broken': importing 'holdfast.shapes' failed: "
        "AttributeError: module 'math' has no attribute 'tau_squared'"
    )


@pytest.mark.parametrize(
    ("source", "error"),
    [
        ("raise KeyboardInterrupt", KeyboardInterrupt),
        ("raise RuntimeError('wrapped') from KeyboardInterrupt()", RuntimeError),
        ("raise MemoryError", MemoryError),
        ("from holdfast.base.errors import Absent; raise Absent('no bus')", Absent),
    ],
    ids=["Ctrl-C", "Ctrl-C in disguise", "no memory", "an error of ours"],
)
def test_what_says_nothing_about_the_package_passes(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    source: str,
    error: type[BaseException],
) -> None:
    vendor(tmp_path, monkeypatch, passes_through=source)
    monkeypatch.delitem(sys.modules, "passes_through", raising=False)
    with pytest.raises(error) as caught:
        Registry("shape", {"x": Entry("passes_through", extra="opencl")})["x"]
    assert type(caught.value) is error


def test_a_mistake_in_a_module_that_needs_no_extra_stays_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vendor(tmp_path, monkeypatch, mistaken="raise OSError('ours')")
    with pytest.raises(OSError, match=r"^ours$"):
        Registry("shape", {"x": Entry("mistaken")})["x"]


def test_our_own_import_mistakes_are_not_dressed_up_as_missing_packages() -> None:
    registry: Registry[object] = Registry(
        "shape", {"ours": Entry("holdfast.no_such_module", extra="opencl")}
    )
    with pytest.raises(ModuleNotFoundError) as caught:
        registry["ours"]
    assert not isinstance(caught.value, MissingDependency)


def test_ctrl_c_does_not_break_into_the_import_of_an_optional_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "large_library.py").write_text(
        "import os, signal, time\n"
        "os.kill(os.getpid(), signal.SIGINT)\n"
        "time.sleep(0.2)\n"
        "value = 'whole'\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    registry = Registry("shape", {"large": Entry("large_library:value", extra="run")})
    with pytest.raises(KeyboardInterrupt):
        registry["large"]
    assert registry["large"] == "whole"  # the same import, which went on

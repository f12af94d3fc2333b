from __future__ import annotations

import ctypes
import functools
import gc
import mmap
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from holdfast.base.errors import BadInput, Unsupported
from holdfast.memory.core import native_build
from holdfast.memory.core import pool_core as python_core

NO_COMPILER = (
    "there is no C compiler on this machine\n"
    "  expected: cc or gcc or clang on the path, or $CC\n"
    "  try: apt-get install g++, or leave it: the Python core works without one"
)


@pytest.fixture(autouse=True)
def nothing_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """The choice is made once in a process; here it is made in each test."""
    for name in ("core", "load_core"):
        monkeypatch.setattr(native_build, name, getattr(native_build, name).__wrapped__)


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.delenv("CXX", raising=False)


@pytest.fixture
def source(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A small source of our own, and an empty folder for what it is compiled to."""
    folder = tmp_path / "sources"
    folder.mkdir()
    path = folder / "small.c"
    path.write_text("int seven(void) { return 7; }\n")
    monkeypatch.setattr(native_build, "SOURCES", folder)
    monkeypatch.setenv("HOLDFAST_BUILD_DIR", str(tmp_path / "build"))
    return path


# ---- which core


def test_the_compiled_core_is_used_where_it_can_be_had() -> None:
    module = native_build.core()
    assert module is not python_core
    assert isinstance(module, ModuleType)
    missing = [name for name in python_core.__all__ if not hasattr(module, name)]
    assert not missing
    calls = {name for name in vars(python_core.Core) if not name.startswith("_")}
    assert calls - set(dir(module.Core)) <= {"holds", "settle"}
    assert native_build.module_of(module.Core()) is module
    assert native_build.module_of(python_core.Core()) is python_core


def test_without_a_compiler_the_python_core_is_used(
    no_compiler: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert native_build.core() is python_core
    monkeypatch.setenv("HOLDFAST_CORE", "compiled")
    with pytest.raises(Unsupported) as caught:
        native_build.core()
    assert str(caught.value) == NO_COMPILER


def test_the_python_core_can_be_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_CORE", "python")
    assert native_build.core() is python_core


def test_a_core_that_there_is_not_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_CORE", "rust")
    with pytest.raises(BadInput) as caught:
        native_build.core()
    assert str(caught.value) == (
        "cannot use HOLDFAST_CORE='rust'\n  expected: one of ('auto', 'compiled', 'python')"
    )


def test_without_python_s_headers_the_python_core_is_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    paths = {"include": str(tmp_path)}
    monkeypatch.setattr("sysconfig.get_paths", lambda: paths)
    assert native_build.core() is python_core
    with pytest.raises(Unsupported) as caught:
        native_build.load_core()
    assert str(caught.value) == (
        "the compiled core needs Python's C headers\n"
        f"  expected: {tmp_path}/Python.h\n"
        "  try: apt-get install python3-dev, or leave it: the Python core works without"
    )


def test_a_core_that_does_not_compile_is_warned_about_once(source: Path) -> None:
    broken = source.with_name("module.c")
    broken.write_text("int one(void) { return 1; }\n#error not today\n#error nor tomorrow\n")
    core = functools.cache(native_build.core)
    with pytest.warns(RuntimeWarning) as caught:
        assert [core(), core()] == [python_core] * 2
    said = f"{broken}:2:2: error: #error not today"
    assert [str(one.message) for one in caught] == [
        f"the compiled core does not compile here, the slower Python core is used: {said}\n"
        "  try: another compiler, named by $CC; HOLDFAST_CORE=python says that this is wanted"
    ]


def test_a_core_that_does_not_compile_is_an_error_if_it_was_chosen(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source.with_name("module.c").write_text("#error not today\n")
    monkeypatch.setenv("HOLDFAST_CORE", "compiled")
    with pytest.raises(Unsupported, match="not today"):
        native_build.core()
    monkeypatch.setenv("HOLDFAST_CORE", "python")
    assert native_build.core() is python_core


def test_a_compiler_that_says_nothing_is_warned_about_too(
    source: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    source.with_name("module.c").write_text("")
    silent = tmp_path / "silent"
    silent.write_text("#!/bin/sh\nexit 3\n")
    silent.chmod(0o755)
    monkeypatch.setenv("CC", str(silent))
    with pytest.warns(RuntimeWarning, match="is used: it ended with status 3\n"):
        assert native_build.core() is python_core


def test_without_a_header_of_the_system_the_python_core_is_used(source: Path) -> None:
    source.with_name("module.c").write_text("#include <no/such/header.h>\n")
    assert native_build.core() is python_core


def test_a_header_of_ours_that_is_missing_is_warned_about(source: Path) -> None:
    source.with_name("module.c").write_text('#include "lost.h"\n')
    with pytest.warns(RuntimeWarning, match=r"fatal error: '?lost\.h"):
        assert native_build.core() is python_core


# ---- compiling


def test_the_compiler_of_the_environment_comes_first(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    mine = tmp_path / "mycc"
    mine.symlink_to(str(shutil.which("cc")))
    monkeypatch.setenv("CC", str(mine))
    assert native_build.compiler() == str(mine)
    monkeypatch.setenv("CC", "no-such-compiler")
    assert native_build.compiler() == shutil.which("cc")


def test_a_source_is_compiled_once_and_again_when_it_changes(source: Path) -> None:
    first = native_build.library("small.c")
    assert ctypes.CDLL(str(first)).seven() == 7
    stamp = first.stat().st_mtime_ns
    assert native_build.library("small.c") == first
    assert first.stat().st_mtime_ns == stamp
    assert native_build.library("small.c", ("-DX",)) != first
    source.write_text("int seven(void) { return 8; }\n")
    second = native_build.library("small.c")
    assert second != first
    assert ctypes.CDLL(str(second)).seven() == 8
    assert sorted(path.suffix for path in first.parent.iterdir()) == [".so"] * 3


def test_a_source_is_compiled_again_when_a_header_beside_it_changes(source: Path) -> None:
    source.write_text('#include "number.h"\nint seven(void) { return NUMBER; }\n')
    header = source.with_name("number.h")
    header.write_text("#define NUMBER 7\n")
    first = native_build.library("small.c")
    assert ctypes.CDLL(str(first)).seven() == 7
    header.write_text("#define NUMBER 8\n")
    second = native_build.library("small.c")
    assert second != first
    assert ctypes.CDLL(str(second)).seven() == 8
    header.rename(header.with_name("other.h"))
    with pytest.raises(Unsupported, match=r"could not compile small\.c"):
        native_build.library("small.c")


def test_every_part_that_the_core_includes_is_beside_it_and_none_is_left_over() -> None:
    parts = re.findall(r'#include "([^"]+)"', (native_build.SOURCES / "module.c").read_text())
    assert sorted(parts) == sorted(path.name for path in native_build.SOURCES.glob("*.h"))


def test_a_source_that_does_not_compile_raises_the_compilers_message(source: Path) -> None:
    source.write_text("int seven(void) { return nothing; }\n")
    with pytest.raises(Unsupported) as caught:
        native_build.library("small.c")
    first, *rest = str(caught.value).splitlines()
    assert first.startswith("cc could not compile small.c: ")
    assert "‘nothing’ undeclared" in str(caught.value) or "'nothing'" in str(caught.value)
    assert rest[-1] == "  expected: a C compiler that works"
    assert list((source.parents[1] / "build").iterdir()) == [], "a draft was left"


@pytest.mark.parametrize("folder", ["/proc/holdfast", "{tmp}/file", "{tmp}/file/below"])
def test_a_folder_that_cannot_be_written_to_is_named(
    source: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    (source.parent / "file").write_text("")
    folder = folder.format(tmp=source.parent)
    monkeypatch.setenv("HOLDFAST_BUILD_DIR", folder)
    with pytest.raises(Unsupported) as caught:
        native_build.library("small.c")
    first, *rest = str(caught.value).splitlines()
    assert first.startswith(f"cannot write compiled code to {folder}: ")
    assert rest == [
        "  expected: a folder that can be written to",
        "  try: HOLDFAST_BUILD_DIR=FOLDER",
    ]


def test_where_nothing_can_be_written_the_python_core_is_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HOLDFAST_BUILD_DIR", str(tmp_path / "file"))
    assert native_build.core() is python_core


def test_what_is_no_library_of_this_python_is_refused(source: Path, monkeypatch: Any) -> None:
    shutil.copy(source, source.with_name("module.c"))
    with pytest.raises(Unsupported) as caught:
        native_build.load_core()
    assert caught.value.what.startswith(f"cannot load {source.parents[1] / 'build'}/module-")
    assert native_build.core() is python_core


@pytest.mark.slow
def test_two_processes_that_compile_at_once_do_not_disturb_each_other(tmp_path: Path) -> None:
    text = (
        "from holdfast.memory.core import native_build as b; print(b.load_core().Core().counters())"
    )
    environ = os.environ | {"HOLDFAST_BUILD_DIR": str(tmp_path / "build")}
    both = [
        subprocess.Popen([sys.executable, "-c", text], env=environ, stdout=subprocess.PIPE)
        for _ in range(2)
    ]
    assert all(b"'live': 0" in one.communicate(timeout=120)[0] for one in both)
    assert len(list((tmp_path / "build").iterdir())) == 1


def test_nothing_is_compiled_at_import(script: Any) -> None:
    text = """
import subprocess, sys
subprocess.run = subprocess.Popen = None
import holdfast.memory.core.native_build, holdfast.memory.pools.pool, holdfast.memory.core.tags
print(sorted({"numpy", "torch"} & set(sys.modules)))
"""
    assert script(text) == "[]\n"


# ---- what C has to see to by itself


def test_no_callback_is_said_by_none_too() -> None:
    core = native_build.load_core().Core()
    core.add_segment(1, 0, 1 << 30, 0, 1 << 24)
    core.grow = core.trim = None
    with pytest.raises(MemoryError) as caught:
        core.take(1 << 25)
    assert str(caught.value) == f"no room for {1 << 25} bytes"
    core.cache_limit = 0
    assert core.give(core.take(1 << 23)) == 1 << 23
    assert core.counters()["reserved"] == 0, "with no trim() the core gives pages back by itself"


def test_any_number_of_free_segments_is_dropped_at_once() -> None:
    core = native_build.load_core().Core()
    ranges = [((1 << 40) + (number << 22), 1 << 21) for number in range(1500)]
    for base, length in ranges:
        core.add_segment(1, 2, base, length, length)
    assert core.drop_free_segments(0) == ranges
    assert core.counters()["reserved"] == 0


def test_a_core_that_could_not_grow_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^a core cannot grow by steps of 0 bytes$"):
        native_build.load_core().Core(small_step=0)


def test_callbacks_may_close_the_core_that_calls_them() -> None:
    core = native_build.load_core().Core()
    calls: list[int] = []

    def callback(size: int) -> None:
        core.close()  # the core refers to the callback no more; we do not either
        calls.append(size)

    core.add_segment(1, 2, 1 << 30, 1 << 22, 1 << 22)
    core.cache_limit = 0
    address = core.take(1 << 21)
    core.grow, core.trim = callback, callback
    del callback
    assert core.give(address) == 1 << 21
    with pytest.raises(MemoryError):
        core.take(1 << 24)
    assert calls == [0]


def test_a_closed_core_leaves_the_pages_alone() -> None:
    """They may be somebody else's by then."""
    page = mmap.PAGESIZE
    with mmap.mmap(-1, 256 * page, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        core = native_build.load_core().Core(small_limit=0)
        view = (ctypes.c_char * len(memory)).from_buffer(memory)
        base = -(-ctypes.addressof(view) // page) * page
        core.add_segment(1, 1, base, len(memory), len(memory))
        address = core.take(128 * page)
        core.close()
        view[:] = b"x" * len(memory)
        core.cache_limit = 0
        assert core.give(address) == 128 * page
        assert core.give_back_pages(0) == 0
        untouched = view[:] == b"x" * len(memory)
        del view
    assert untouched
    assert not core.fits(page)


def test_a_log_that_is_closed_while_its_stacks_are_read_is_read_to_the_end() -> None:
    log = native_build.load_core().Log(8)
    for size in range(300):
        exec(f"log.add(0, 4096, {size}, 0)", {"log": log})  # a code object each
    assert len(log.stacks()) == 301

    class Closing:
        def __init__(self) -> None:
            self.me = self

        def __del__(self) -> None:
            log.close()

    Closing()
    before = gc.get_threshold()
    gc.set_threshold(gc.get_count()[0] + 50, 1, 1)  # a collection in the middle of the next call
    try:
        stacks = log.stacks()
    finally:
        gc.set_threshold(*before)
    gc.collect()
    assert log.count == 0
    assert len(stacks) == 301
    assert {len(stack) for stack in stacks[1:]} <= set(range(1, 9))
    assert log.stacks() == [[]]
    assert log.columns() == (b"",) * 7


@pytest.mark.slow
def test_a_log_may_be_taken_away_while_a_stack_is_read_for_it() -> None:
    module = native_build.load_core()
    core = module.Core()
    core.add_segment(0, 0, 1 << 30, 0, 1 << 24)

    class Unwatching:
        def __init__(self) -> None:
            self.me = self

        def __del__(self) -> None:
            core.watch(None, 0)

    def deep(levels: int) -> int:
        return deep(levels - 1) if levels else core.take(10)

    before = gc.get_threshold()
    for wait in range(1, 60):
        core.watch(module.Log(60), 0)  # nobody else refers to it
        Unwatching()
        gc.set_threshold(gc.get_count()[0] + wait, 1, 1)  # a collection on the way down the frames
        try:
            assert core.give(deep(50)) == 10
        finally:
            gc.set_threshold(*before)
        gc.collect()
    assert core.counters()["live"] == 0

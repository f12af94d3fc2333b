"""The provider `retryix` over a small C library, and over ones that lack, fail or talk nonsense."""

from __future__ import annotations

import ctypes
import errno
import gc
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from holdfast.base.config import Config
from holdfast.base.errors import (
    Absent,
    BadInput,
    DoubleFree,
    HoldfastError,
    InUse,
    OutOfMemory,
    Unsupported,
    UseAfterFree,
)
from holdfast.base.registry import Entry, Registry
from holdfast.memory import svm
from holdfast.memory.svm import choice
from holdfast.memory.svm.model import PAGE_BYTES
from holdfast.memory.svm.providers.retryix import PLACED, REPORTED, STAYED, RetryixProvider
from holdfast.memory.svm.providers.retryix_library import METRICS, SIGNATURES
from tests.memory.svm.retryix import build
from tests.needs import needs

pytestmark = needs(build.no_compiler())

MIB = 1 << 20
LibraryMaker = Callable[..., Path]


class Counters:
    """What the library of a provider counted, as attributes."""

    def __init__(self, path: Path) -> None:
        object.__setattr__(self, "_library", ctypes.CDLL(str(path)))

    def __getattr__(self, name: str) -> int:
        return ctypes.c_long.in_dll(self._library, f"test_{name}").value

    def __setattr__(self, name: str, value: int) -> None:
        ctypes.c_long.in_dll(self._library, f"test_{name}").value = value

    def bytes_in_use(self) -> int:
        function = self._library.test_bytes_in_use
        function.restype = ctypes.c_long
        return function()


@pytest.fixture
def opened(retryix_library: LibraryMaker) -> Callable[..., tuple[RetryixProvider, Counters]]:
    """A provider over a variant of the library, and the library's counters."""

    def open_variant(variant: str | list[str] = "whole") -> tuple[RetryixProvider, Counters]:
        path = retryix_library(variant)
        return RetryixProvider(library=path), Counters(path)

    return open_variant


def refused(wanted: type[HoldfastError], work: Callable[[], object]) -> str:
    """The whole text of the error, of exactly that class."""
    with pytest.raises(wanted) as caught:
        work()
    assert type(caught.value) is wanted
    return str(caught.value)


# ---- the library


def test_every_function_of_the_header_has_the_types_it_is_called_with() -> None:
    header = " ".join(build.HEADER.read_text().split())
    words = {
        ctypes.c_void_p: "void *",
        ctypes.c_size_t: "size_t ",
        ctypes.c_int: "int ",
    }
    assert len(SIGNATURES) == 7
    for name, (result, arguments) in SIGNATURES.items():
        _, _, rest = header.partition(f"{name}(")
        stated = rest.partition(")")[0].split(", ")
        assert len(stated) == max(1, len(arguments)), name
        for argument, text in zip(arguments, stated, strict=False):
            assert text.startswith(words[argument]), (name, text)
        kinds = ("char *", "void *") if result is ctypes.c_void_p else ("int ",)
        assert any(f"{kind}{name}(" in header for kind in kinds), name


def test_without_a_library_it_says_what_to_set() -> None:
    assert refused(Absent, RetryixProvider) == (
        "no library is named for the provider 'retryix'\n"
        "  expected: a shared library with the functions of retryix.h\n"
        "  try: set HOLDFAST_RETRYIX_LIBRARY to its path"
    )


def test_the_library_comes_from_the_settings(
    retryix_library: LibraryMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = retryix_library()
    monkeypatch.setenv("HOLDFAST_RETRYIX_LIBRARY", str(path))
    assert RetryixProvider().library.path == path
    named = RetryixProvider(Config.load({}, retryix_library=path))
    assert named.library is RetryixProvider(library=str(path)).library


def test_a_library_that_is_not_there_is_named(tmp_path: Path) -> None:
    for path in (tmp_path / "libgone.so", tmp_path):
        assert refused(Absent, lambda path=path: RetryixProvider(library=path)) == (
            f"there is no file {path}\n"
            "  expected: the shared library of the provider 'retryix'\n"
            "  try: HOLDFAST_RETRYIX_LIBRARY, or --library, names it"
        )


@pytest.mark.skipif(sys.platform != "linux", reason="the words are those of its loader")
def test_a_file_that_is_no_library_is_refused_in_the_loaders_words(tmp_path: Path) -> None:
    path = tmp_path / "notes.so"
    path.write_text("this is a text, and long enough to be looked at as a library\n" * 20)
    assert refused(Unsupported, lambda: RetryixProvider(library=path)) == (
        f"cannot load {path}: invalid ELF header\n  expected: a shared library for this machine"
    )


@pytest.mark.parametrize(
    ("variant", "missing"),
    [
        ("lacks", "retryix_svm_migrate_between_domains"),
        ("lacks two", "retryix_svm_free, retryix_svm_migrate_between_domains"),
    ],
)
def test_every_function_that_is_missing_is_named(
    retryix_library: LibraryMaker, variant: str, missing: str
) -> None:
    path = retryix_library(variant)
    assert refused(Unsupported, lambda: RetryixProvider(library=path)) == (
        f"{path} lacks {missing}\n  expected: a library with the seven functions of retryix.h"
    )


# ---- the choice


@pytest.fixture
def two_providers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The choice between this provider and the one that always works."""
    entries = {name: choice.PROVIDERS.entry(name) for name in ("retryix", "simulated")}
    registry: Registry[type[svm.Provider]] = Registry(
        "provider", {name: Entry(entry.target) for name, entry in entries.items()}
    )
    monkeypatch.setattr(choice, "PROVIDERS", registry)
    monkeypatch.setattr(choice, "_made", {})


@pytest.mark.usefixtures("two_providers")
def test_a_library_that_works_is_chosen(retryix_library: LibraryMaker) -> None:
    config = Config.load(retryix_library=retryix_library())
    assert svm.provider(config=config).name == "retryix"
    assert [r.status for r in svm.reports(config=config)] == ["chosen", "available"]


@pytest.mark.usefixtures("two_providers")
def test_without_a_library_the_choice_goes_on() -> None:
    config = Config.load()
    assert svm.provider(config=config).name == "simulated"
    assert svm.reports(config=config)[0] == svm.Report(
        "retryix",
        "unavailable",
        "no library is named for the provider 'retryix' "
        "(try: set HOLDFAST_RETRYIX_LIBRARY to its path)",
    )


@pytest.mark.usefixtures("two_providers")
@pytest.mark.parametrize("variant", ["lacks", "null"])
def test_a_broken_library_is_passed_over_and_the_report_says_why(
    retryix_library: LibraryMaker, variant: str
) -> None:
    path = retryix_library(variant)
    config = Config.load(retryix_library=path)
    assert svm.provider(config=config).name == "simulated"
    assert (
        svm.reports(config=config)[0].reason
        == {
            "lacks": f"{path} lacks retryix_svm_migrate_between_domains",
            "null": f"retryix_discover_svm_topology_json() of {path} returned NULL",
        }[variant]
    )
    with pytest.raises(Unsupported):
        svm.provider("retryix", config=config)


# ---- topology


def test_the_topology_is_read_and_the_rest_is_kept(opened: Any) -> None:
    provider, _ = opened()
    layout = provider.discover()
    assert layout.domains[1] == svm.Domain(
        id=1,
        name="node:1",
        kind="dram",
        total_bytes=4 << 30,
        free_bytes=4 << 30,
        cpus=(1,),
        distances=(21, 10, 31),
    )
    assert layout.document["vendor"] == "RetryIX 拓撲"
    assert layout.document["domains"][1]["slot"] == "B2"
    assert layout.distance(0, 2) == 31
    assert not layout.simulated


def test_what_is_free_is_asked_every_time(opened: Any) -> None:
    provider, _ = opened()
    with provider.alloc(MIB, domain=2):
        assert provider.discover().domain(2).free_bytes == (4 << 30) - MIB
    assert provider.discover().domain(2).free_bytes == 4 << 30


def test_only_the_number_of_a_domain_is_required(opened: Any) -> None:
    text = '{"domains": [{"id": 7}, {"id": 2, "name": null, "free_bytes": null}]}'
    provider, _ = opened(build.topology(text))
    assert provider.discover().domains == (
        svm.Domain(id=7, name="domain:7"),
        svm.Domain(id=2, name="domain:2"),
    )


@pytest.mark.parametrize(
    ("variant", "what", "begins"),
    [
        (
            "broken",
            "Expecting property name enclosed in double quotes: character 23",
            '\'{"domains": [{"id": 0, ' + "x" * 37 + "'...",
        ),
        ("not utf-8", "byte 0xff at 10 is not UTF-8", '\'{"name": "\\\\xff"}\''),
        ("list", "no object", "'[1, 2]'"),
        ("deep", "nested too deeply", "'" + "[" * 60 + "'..."),
        (
            "digits",
            "a number with thousands of digits",
            '\'{"domains": ' + "1" * 48 + "'...",
        ),
        (
            "huge and broken",
            "Unterminated string starting at: character 36",
            '\'{"domains": [{"id": 0}], "padding": "' + "x" * 23 + "'...",
        ),
    ],
)
def test_a_topology_that_cannot_be_read_is_quoted_and_freed(
    retryix_library: LibraryMaker, variant: str, what: str, begins: str
) -> None:
    path = retryix_library(variant)
    assert refused(Unsupported, lambda: RetryixProvider(library=path)) == (
        f"retryix_discover_svm_topology_json() of {path} returned a text that cannot be used: "
        f"{what}\n"
        "  expected: a JSON object in UTF-8\n"
        f"  try: report it to the library's vendor; the text begins with {begins}"
    )
    counters = Counters(path)
    assert (counters.texts, counters.freed_texts) == (1, 1)


def test_no_topology_at_all_is_an_error(retryix_library: LibraryMaker) -> None:
    path = retryix_library("null")
    assert refused(Unsupported, lambda: RetryixProvider(library=path)) == (
        f"retryix_discover_svm_topology_json() of {path} returned NULL\n"
        "  expected: a text with a JSON object"
    )
    assert Counters(path).freed_texts == 0


@pytest.mark.parametrize(
    ("text", "what", "expected"),
    [
        ("{}", "it lists no domains", 'a list under "domains"'),
        ('{"domains": []}', "it lists no domains", 'a list under "domains"'),
        ('{"domains": {"id": 0}}', "it lists no domains", 'a list under "domains"'),
        ('{"domains": [5]}', "domains[0] is 5", "an object"),
        (
            '{"domains": [{"name": "a"}]}',
            "the field 'domains[0].id' is missing",
            "Domain with id, name",
        ),
        ('{"domains": [{"id": "0"}]}', "domains[0].id is '0'", "a value of type integer"),
        ('{"domains": [{"id": true}]}', "domains[0].id is True", "a value of type integer"),
        ('{"domains": [{"id": -1}]}', "domains[0].id has -1", "no negative numbers"),
        ('{"domains": [{"id": 2147483648}]}', "domains[0].id is 2147483648", "at most 2147483647"),
        ('{"domains": [{"id": 3}, {"id": 3}]}', "domains[1].id is 3 again", "each id once"),
        (
            '{"domains": [{"id": 0, "free_bytes": -5}]}',
            "domains[0].free_bytes has -5",
            "no negative numbers",
        ),
        (
            '{"domains": [{"id": 0, "cpus": "0-3"}]}',
            "domains[0].cpus is '0-3'",
            "a list",
        ),
    ],
)
def test_domains_that_cannot_be_are_refused(
    retryix_library: LibraryMaker, text: str, what: str, expected: str
) -> None:
    path = retryix_library(build.topology(text))
    assert refused(Unsupported, lambda: RetryixProvider(library=path)) == (
        f"retryix_discover_svm_topology_json() of {path} returned a bad topology: {what}\n"
        f"  expected: {expected}\n"
        "  try: report it to the library's vendor; retryix.h states what it returns"
    )
    assert Counters(path).freed_texts == 1


def test_a_huge_text_is_read_and_freed_by_the_c_library(opened: Any) -> None:
    provider, counters = opened("huge")
    before, texts = counters.bytes_in_use(), counters.texts
    for _ in range(20):
        assert len(provider.discover().document["padding"]) > 4 * MIB - 100
    assert counters.texts == texts + 20
    assert counters.bytes_in_use() - before < 40 * MIB, "texts are not freed"


# ---- memory


def test_memory_is_the_librarys_and_goes_back_to_it(opened: Any) -> None:
    provider, counters = opened()
    with provider.alloc(5 * PAGE_BYTES + 1, domain=1) as memory:
        array = memory.array("uint8")
        array[:] = 7
        assert memory.size == array.size == 5 * PAGE_BYTES + 1
        assert memory.placement.reason == "node:1 was asked for"
        where = memory.where()
        assert (where.pages, where.method, where.verified) == ({1: 6}, REPORTED, False)
        del array
    assert (counters.allocs, counters.frees, counters.strange_frees) == (1, 1, 0)
    assert counters.texts == counters.freed_texts > 0


def test_any_alignment_will_do(opened: Any) -> None:
    provider, counters = opened("odd")
    with provider.alloc(4096) as memory:
        assert memory.address % 2 == 1
        array = memory.array("float32")
        array[:] = np.arange(1024)
        assert array.sum() == 1023 * 512
        del array
    assert counters.frees == 1


def test_memory_is_not_spread_over_domains(opened: Any) -> None:
    provider, counters = opened()
    assert refused(Unsupported, lambda: provider.alloc(MIB, domain=[2, 0])) == (
        "memory of 'retryix' cannot be spread over several domains\n"
        "  expected: one domain, which is what the library takes\n"
        "  try: domain=2, or a smaller size"
    )
    assert counters.frees == 0


def test_memory_that_the_library_has_not_is_refused_and_counted(opened: Any) -> None:
    provider, counters = opened("no memory")
    assert refused(OutOfMemory, lambda: provider.alloc("3MB", domain=1)) == (
        f"{provider.library.path} has no 3.0 MB on domain 1\n"
        "  expected: that much memory there\n"
        "  try: a smaller size, another domain, or freeing something first"
    )
    statistics = provider.statistics()
    assert (statistics.refused_count, statistics.current_count, counters.frees) == (1, 0, 0)


@pytest.mark.parametrize(("variant", "offset"), [("same", 0), ("overlapping", 64)])
def test_memory_that_another_allocation_has_is_refused(
    opened: Any, variant: str, offset: int
) -> None:
    provider, counters = opened(variant)
    memory = provider.alloc(4096)
    memory.array("uint8")[:] = 3
    text = refused(Unsupported, lambda: provider.alloc(100))
    assert text == (
        f"retryix_svm_alloc_topology_aware() of {provider.library.path} returned "
        f"{memory.address + offset:#x} for 100 bytes, while the 4096 bytes it returned at "
        f"{memory.address:#x} were not freed\n"
        "  expected: memory that overlaps no other\n"
        "  try: report it to the library's vendor; both would write to the same bytes"
    )
    assert bytes(memory) == b"\x03" * 4096
    assert provider.statistics().current_count == 1
    memory.free()
    assert counters.frees == 1


def test_another_provider_over_the_same_library_does_not_get_that_memory_either(
    retryix_library: LibraryMaker,
) -> None:
    path = retryix_library("same")
    one, other = RetryixProvider(library=path), RetryixProvider(library=path)
    with one.alloc(64), pytest.raises(Unsupported, match="were not freed"):
        other.alloc(64)
    assert Counters(path).frees == 1


def test_a_second_free_never_reaches_the_library(opened: Any) -> None:
    provider, counters = opened()
    memory = provider.alloc(MIB)
    memory.free()
    for _ in range(3):
        with pytest.raises(DoubleFree):
            memory.free()
        with pytest.raises(DoubleFree):
            provider.free(memory)
    assert (counters.frees, counters.strange_frees) == (1, 0)


def test_an_old_handle_does_not_stand_for_new_memory_at_its_address(opened: Any) -> None:
    provider, counters = opened()
    old = provider.alloc(MIB)
    address = old.address
    old.free()
    new = provider.alloc(MIB)
    assert new.address == address, "this library gives the last one out again"
    for use in (old.view, old.where, lambda: old.migrate(0, 1), lambda: provider.metrics(old)):
        with pytest.raises(UseAfterFree):
            use()
    with pytest.raises(DoubleFree):
        old.free()
    assert counters.frees == 1
    new.free()
    assert (counters.frees, counters.strange_frees) == (2, 0)


def test_memory_that_nobody_refers_to_goes_back(opened: Any) -> None:
    provider, counters = opened()
    memory = provider.alloc(MIB)
    array = memory.array("uint8")
    del memory
    gc.collect()
    assert counters.frees == 0, "the array holds it"
    array[-1] = 1
    del array
    gc.collect()
    assert (counters.frees, provider.statistics().current_bytes) == (1, 0)


def test_memory_that_the_library_does_not_take_back_is_still_there(opened: Any) -> None:
    provider, counters = opened("errors")
    memory = provider.alloc(MIB)
    memory.array("uint8")[:] = 5
    assert refused(Unsupported, memory.free) == (
        f"the memory at {memory.address:#x} was not freed: retryix_svm_free() of "
        f"{provider.library.path} returned -22 (Invalid argument)\n"
        "  expected: 0\n"
        "  try: free it again; until then it is allocated and counted"
    )
    assert not memory.freed
    assert provider.statistics().current_bytes == MIB
    assert set(bytes(memory)) == {5}
    counters.free_result = 0
    memory.free()
    assert (counters.frees, counters.strange_frees) == (1, 0)
    assert provider.statistics().current_bytes == 0


def test_memory_that_is_not_taken_back_from_nobody_stays_counted(
    opened: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[str] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda event: shown.append(str(event.exc_value)))
    provider, counters = opened("errors")
    memory = provider.alloc(MIB)
    address = memory.address
    del memory
    gc.collect()
    assert shown == [
        f"the memory at {address:#x} was not freed: retryix_svm_free() of "
        f"{provider.library.path} returned -22 (Invalid argument)\n"
        "  expected: 0\n"
        "  try: free it again; until then it is allocated and counted"
    ]
    assert provider.statistics().current_bytes == MIB
    counters.free_result = 0
    provider.alloc(MIB).free()  # it is tried again
    assert (counters.frees, counters.strange_frees) == (2, 0)
    assert provider.statistics().current_bytes == 0


def test_a_library_of_threads_is_called_one_at_a_time(opened: Any) -> None:
    provider, counters = opened()
    counters.slow_us = 50
    failures: list[BaseException] = []
    start = threading.Barrier(16)

    def work(number: int) -> None:
        try:
            start.wait()
            for turn in range(6):
                with provider.alloc(4096 + number, domain=turn % 3, set_affinity=turn == 0) as held:
                    array = held.array("uint8")
                    array[:] = number
                    assert held.where().pages == {turn % 3: -(-held.size // PAGE_BYTES)}
                    assert (array == number).all()
                    del array
                    assert held.migrate(turn % 3, 2).complete
                    provider.metrics(held)
        except BaseException as exc:  # noqa: BLE001  shown by the main thread
            failures.append(exc)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert counters.overlaps == 0, "two calls were inside the library at once"
    assert counters.allocs == counters.frees == 16 * 6
    assert (counters.strange_frees, counters.strange_affinities) == (0, 0)
    assert counters.workload_domain == -1
    assert provider.statistics().current_count == 0
    assert counters.texts == counters.freed_texts


# ---- where it is, and moving it


def test_a_library_may_name_the_one_domain(opened: Any) -> None:
    provider, _ = opened("one domain")
    with provider.alloc(3 * PAGE_BYTES, domain=0) as memory:
        assert memory.where() == svm.Where(pages={2: 3}, method=REPORTED)


@pytest.mark.parametrize("variant", ["silent", "no figures"])
def test_where_the_library_says_nothing_it_is_where_it_was_put(opened: Any, variant: str) -> None:
    provider, _ = opened(variant)
    with provider.alloc(3 * PAGE_BYTES, domain=1) as memory:
        assert memory.where() == svm.Where(pages={1: 3}, method=PLACED)
        moved = memory.migrate(1, 2)
        assert (moved.pages_moved, moved.complete) == (3, True)
        assert memory.where() == svm.Where(pages={2: 3}, method=PLACED)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"pages": [1, 2]}', '"pages": [1, 2]'),
        ('{"pages": {"a": 1}}', "\"pages\": {'a': 1}"),
        ('{"pages": {"0": -1}}', "\"pages\": {'0': -1}"),
        ('{"pages": {"0": 1.5}}', "\"pages\": {'0': 1.5}"),
        ('{"domain": -1}', '"domain": -1'),
        ('{"domain": "far"}', "\"domain\": 'far'"),
    ],
)
def test_places_that_cannot_be_are_refused(opened: Any, text: str, said: str) -> None:
    provider, counters = opened(build.metrics(text))
    with provider.alloc(MIB) as memory:
        assert refused(Unsupported, memory.where) == (
            f"retryix_svm_get_topology_metrics() of {provider.library.path} returned {said}\n"
            '  expected: "pages": {"0": 12}, or "domain": 0, with integers from 0 on\n'
            "  try: report it to the library's vendor; retryix.h states what it returns"
        )
    assert (counters.frees, counters.texts) == (1, counters.freed_texts)


def test_the_library_moves_all_in_one_call(opened: Any) -> None:
    provider, counters = opened()
    size = 40 * MIB  # three parts for a provider that moves in parts
    told: list[tuple[int, int]] = []
    asked: list[int] = []
    with provider.alloc(size, domain=0) as memory:
        memory.array("uint8")[::4096] = 9
        moved = memory.migrate(
            0,
            2,
            progress=lambda done, total: told.append((done, total)),
            stop=lambda: bool(asked.append(len(told))),
        )
        assert set(bytes(memory)[::4096]) == {9}
    assert (moved.pages_moved, moved.pages_elsewhere) == (size // PAGE_BYTES, 0)
    assert moved.complete
    assert moved.after.pages == {2: size // PAGE_BYTES}
    assert counters.migrations == 1
    assert told[-1] == (size, size)
    assert asked == [0], "once it has begun the library cannot be stopped"


def test_a_migration_can_be_stopped_before_it_begins(opened: Any) -> None:
    provider, counters = opened()
    with provider.alloc(MIB, domain=0) as memory:
        moved = memory.migrate(0, 1, stop=lambda: True)
        assert (moved.interrupted, moved.pages_moved, memory.where().pages) == (True, 0, {0: 256})
    assert counters.migrations == 0


def test_memory_that_is_elsewhere_is_not_moved(opened: Any) -> None:
    provider, counters = opened()
    with provider.alloc(MIB, domain=0) as memory:
        moved = memory.migrate(1, 2)
        assert (moved.pages_moved, moved.pages_elsewhere, moved.not_moved) == (0, 256, {})
        assert memory.where().pages == {0: 256}
    assert counters.migrations == 0


@pytest.mark.parametrize(
    ("variant", "reason"),
    [
        ("errors", "the library returned -5 (Input/output error)"),
        ("full", "the library returned -12 (Cannot allocate memory)"),
        ("no errno", "the library returned 7 (neither 0 nor a negative errno)"),
        ("stays", STAYED),
    ],
)
def test_what_could_not_be_moved_is_whole_and_where_it_was(
    opened: Any, variant: str, reason: str
) -> None:
    provider, counters = opened(variant)
    size = 20 * MIB
    memory = provider.alloc(size, domain=0)
    memory.array("uint8")[:] = 4
    moved = memory.migrate(0, 1)
    assert moved.not_moved == {reason: size // PAGE_BYTES}
    assert (moved.pages_moved, moved.complete) == (0, False)
    assert memory.where().pages == {0: size // PAGE_BYTES}
    assert set(bytes(memory)) == {4}
    counters.free_result = 0
    memory.free()


def test_a_domain_that_is_not_there_never_reaches_the_library(opened: Any) -> None:
    provider, counters = opened()
    with provider.alloc(MIB, domain=0) as memory:
        text = "'retryix' has no domain 9\n  expected: one of 0 (node:0), 1 (node:1), 2 (far)"
        assert refused(BadInput, lambda: memory.migrate(0, 9)) == text
        assert refused(BadInput, lambda: provider.alloc(MIB, domain=9)) == text
    assert (counters.allocs, counters.migrations) == (1, 0)


def test_memory_that_somebody_looks_at_is_not_moved(opened: Any) -> None:
    provider, counters = opened()
    with provider.alloc(MIB, domain=0) as memory:
        array = memory.array("uint8")
        with pytest.raises(InUse):
            memory.migrate(0, 1)
        del array
    assert counters.migrations == 0


# ---- affinity


def test_the_work_runs_beside_the_memory_until_it_is_freed(opened: Any) -> None:
    provider, counters = opened()
    with provider.alloc(MIB, domain=1, set_affinity=True) as memory:
        assert counters.workload_domain == 1
        grant = provider.set_affinity(memory)
        assert grant is provider.set_affinity(memory)
        assert counters.affinity_calls == 1
    assert (counters.workload_domain, counters.affinity_calls) == (-1, 2)
    grant.release()
    assert counters.affinity_calls == 2


def test_the_affinity_of_others_comes_back(opened: Any) -> None:
    provider, counters = opened()
    one = provider.alloc(MIB, domain=1, set_affinity=True)
    two = provider.alloc(MIB, domain=2, set_affinity=True)
    assert counters.workload_domain == 2
    two.free()
    assert counters.workload_domain == 1
    one.free()
    assert counters.workload_domain == -1
    assert counters.strange_affinities == 0


def test_memory_that_was_freed_is_never_named_for_an_affinity(opened: Any) -> None:
    provider, counters = opened()
    one = provider.alloc(MIB, domain=1, set_affinity=True)
    two = provider.alloc(MIB, domain=2, set_affinity=True)
    provider.ledger.record(one).backing.close()  # as far as another thread may be in freeing it
    two.free()
    assert (counters.workload_domain, counters.strange_affinities) == (-1, 0)
    one.free()
    assert (counters.frees, counters.strange_frees) == (2, 0)


def test_after_a_migration_the_work_runs_beside_the_new_place(opened: Any) -> None:
    provider, counters = opened()
    with provider.alloc(MIB, domain=0) as memory:
        memory.migrate(0, 2)
        provider.set_affinity(memory)
        assert counters.workload_domain == 2


def test_without_its_affinity_memory_is_given_back(opened: Any) -> None:
    provider, counters = opened("errors")
    counters.free_result = 0
    assert refused(Unsupported, lambda: provider.alloc(MIB, domain=1, set_affinity=True)) == (
        "the work cannot run next to domain 1: retryix_set_workload_topology_affinity() of "
        f"{provider.library.path} returned -1 (Operation not permitted)\n"
        "  expected: 0\n"
        "  try: allocate without set_affinity"
    )
    assert (counters.allocs, counters.frees) == (1, 1)
    assert provider.statistics().current_count == 0
    assert counters.affinity_calls == 1, "there was nothing to give back"


def test_an_affinity_that_was_refused_can_be_had_later(opened: Any) -> None:
    provider, counters = opened()
    with provider.alloc(MIB, domain=1) as memory:
        counters.affinity_result = -errno.EPERM
        with pytest.raises(Unsupported):
            provider.set_affinity(memory)
        counters.affinity_result = 0
        provider.set_affinity(memory)
        assert counters.workload_domain == 1
    assert counters.workload_domain == -1


def test_an_affinity_that_is_not_given_back_becomes_a_remark(opened: Any) -> None:
    provider, counters = opened()
    memory = provider.alloc(MIB, domain=1, set_affinity=True)
    counters.affinity_result = -errno.EPERM
    memory.free()
    assert provider.statistics().current_count == 0
    assert provider.discover().remarks == (
        "an affinity was not reset: retryix_set_workload_topology_affinity() returned "
        "-1 (Operation not permitted)",
    )


# ---- figures


def test_the_figures_hold_what_the_library_says(opened: Any) -> None:
    provider, _ = opened()
    with provider.alloc(MIB, domain=1) as memory:
        statistics = provider.statistics()
        assert (statistics.current_bytes, statistics.document) == (MIB, {"allocs": 1, "frees": 0})
        metrics = provider.metrics(memory)
        assert metrics.document == {"pages": {"1": 256}, "heat": 0.5}
        assert (metrics.pages, metrics.verified, metrics.simulated) == ({1: 256}, False, False)
        assert provider.metrics().document == {"used": [0, MIB, 0]}


@pytest.mark.parametrize(
    ("variant", "statistics", "metrics"),
    [
        (
            "broken figures",
            "returned a text that cannot be used: Expecting value: character 11\n"
            "  expected: a JSON object in UTF-8\n"
            "  try: report it to the library's vendor; the text begins with '{\"allocs\": '",
            "returned a text that cannot be used: Expecting property name enclosed in double "
            "quotes: character 1\n"
            "  expected: a JSON object in UTF-8\n"
            "  try: report it to the library's vendor; the text begins with '{]'",
        ),
        (
            "no figures",
            "returned NULL\n  expected: a text with a JSON object",
            "returned NULL\n  expected: a text with a JSON object",
        ),
    ],
)
def test_figures_that_cannot_be_read_name_their_function(
    opened: Any, variant: str, statistics: str, metrics: str
) -> None:
    provider, counters = opened(variant)
    path = provider.library.path
    assert refused(Unsupported, provider.statistics) == (
        f"retryix_svm_get_statistics() of {path} {statistics}"
    )
    with provider.alloc(MIB):
        assert refused(Unsupported, lambda: provider.library.document(METRICS, None)) == (
            f"retryix_svm_get_topology_metrics() of {path} {metrics}"
        )
        with pytest.raises(Unsupported):
            provider.metrics()
    assert (counters.frees, counters.texts) == (1, counters.freed_texts)


# ---- Ctrl-C while the library is busy: it comes out when the call is over


def test_ctrl_c_during_an_allocation_gives_it_back(opened: Any) -> None:
    provider, counters = opened()
    counters.interrupt = 3  # after the topology and freeing its text
    with pytest.raises(KeyboardInterrupt):
        provider.alloc(MIB)
    assert (counters.allocs, counters.frees) == (1, 1)
    assert provider.statistics().current_count == 0


def test_ctrl_c_during_a_text_frees_it(opened: Any) -> None:
    provider, counters = opened()
    counters.interrupt = 1
    with pytest.raises(KeyboardInterrupt):
        provider.discover()
    assert counters.texts == counters.freed_texts == 2


def test_ctrl_c_during_a_free_does_not_free_twice(opened: Any) -> None:
    provider, counters = opened()
    memory = provider.alloc(MIB)
    counters.interrupt = 1
    with pytest.raises(KeyboardInterrupt):
        memory.free()
    assert memory.freed
    with pytest.raises(DoubleFree):
        memory.free()
    assert (counters.frees, counters.strange_frees) == (1, 0)
    assert provider.statistics().current_count == 0


def test_ctrl_c_during_a_migration_does_not_forget_where_it_went(opened: Any) -> None:
    provider, counters = opened("silent")
    with provider.alloc(MIB, domain=0) as memory:
        counters.interrupt = 7  # after three texts
        with pytest.raises(KeyboardInterrupt):
            memory.migrate(0, 1)
        assert counters.migrations == 1
        assert memory.where().pages == {1: 256}
    assert (counters.migrations, counters.frees) == (1, 1)

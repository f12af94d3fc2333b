from __future__ import annotations

import ctypes
from typing import Any, cast

import pytest

from holdfast.base.errors import BadInput, ForeignPointer, OutOfMemory, Unsupported
from holdfast.memory.core import system_pages
from holdfast.memory.resources.resource import (
    Growable,
    Host,
    Numa,
    Pinned,
    Resource,
    Virtual,
)
from holdfast.topology import numa

PAGE = 4096
RESOURCES = {"Host()": Host, "Host(huge=True)": lambda: Host(huge=True), "Pinned()": Pinned}


@pytest.mark.parametrize("name", RESOURCES)
def test_memory_of_the_host_is_zero_and_can_be_written(name: str) -> None:
    made: Any = RESOURCES[name]()
    assert repr(made) == name
    assert isinstance(made, Resource)
    address = made.allocate(10_000)
    assert address % PAGE == 0
    assert ctypes.string_at(address, 3 * PAGE) == bytes(3 * PAGE)
    ctypes.memset(address, 7, 3 * PAGE)
    assert made.owns(address)
    assert not made.owns(address + 1)
    assert (made.device, made.pinned) == ("cpu", name == "Pinned()")
    made.free(address)
    assert not made.owns(address)


@pytest.mark.parametrize("made", [Host(), Pinned(), Virtual()], ids=repr)
def test_an_address_is_freed_once(made: Any) -> None:
    address = made.allocate(0)
    assert address != made.allocate(0)
    made.free(address)
    with pytest.raises(ForeignPointer) as caught:
        made.free(address)
    assert str(caught.value) == (
        f"{made!r} did not allocate {address:#x}, or freed it before\n"
        "  expected: an address that allocate() returned and that was not freed since"
    )
    with pytest.raises(BadInput, match="cannot allocate -1 bytes"):
        made.allocate(-1)


@pytest.mark.parametrize("size", [None, "4KB", 1.5])
def test_what_is_no_number_of_bytes_is_refused(size: Any) -> None:
    with pytest.raises(BadInput) as refused:
        Host().allocate(size)
    assert str(refused.value) == f"cannot allocate {size!r}\n  expected: a number of bytes"


def test_a_value_that_is_no_address_was_not_allocated() -> None:
    with pytest.raises(ForeignPointer) as refused:
        Host().free(cast("int", None))
    assert str(refused.value).startswith("Host() did not allocate None, or freed it before\n")
    assert not Host().owns(cast("int", "x"))


def test_only_some_resources_grow_in_place() -> None:
    assert isinstance(Host(), Growable)
    assert isinstance(Virtual(), Growable)
    assert not isinstance(Pinned(), Growable)


def test_pinned_pages_are_there_before_they_are_touched() -> None:
    pinned, plain = Pinned(), Host()
    address, other = pinned.allocate(64 * PAGE), plain.allocate(64 * PAGE)
    assert system_pages.pages_touched(address, 64 * PAGE) == 64
    assert system_pages.pages_touched(other, 64 * PAGE) == 0
    pinned.free(address)
    plain.free(other)


def test_memory_that_cannot_be_locked_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    freed: list[int] = []
    pinned = Pinned()
    monkeypatch.setattr(system_pages, "lock", lambda address, length: False)
    release = system_pages.release
    monkeypatch.setattr(
        system_pages,
        "release",
        lambda address, length: (freed.append(length), release(address, length)),
    )
    with pytest.raises(OutOfMemory) as caught:
        pinned.allocate(5000)
    assert str(caught.value) == (
        "cannot lock 5.0 KB in memory\n"
        "  expected: a limit on locked memory that allows it (ulimit -l)\n"
        "  try: ulimit -l unlimited, or memory that is not pinned"
    )
    assert 2 * PAGE in freed


def test_memory_that_the_system_does_not_have_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system_pages, "make_usable", lambda address, length: False)
    with pytest.raises(OutOfMemory) as caught:
        Host().allocate(5000)
    assert str(caught.value) == (
        "the system has no 5.0 KB of memory\n"
        "  expected: memory, and no limit on it (ulimit -v, vm.overcommit_memory)"
    )


def test_made_up_addresses_do_not_overlap() -> None:
    virtual = Virtual()
    first, second = virtual.allocate(5 << 20), virtual.allocate(1)
    assert second >= first + (5 << 20)
    assert virtual.owns(first)
    virtual.free(first)
    assert not virtual.owns(first)


def test_a_node_that_is_not_there_is_refused_and_leaves_no_range(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out: dict[int, int] = {}
    reserve, release = system_pages.reserve, system_pages.release

    def reserving(length: int) -> int:
        address = reserve(length)
        out[address] = length
        return address

    def releasing(address: int, length: int) -> None:
        out.pop(address, None)
        release(address, length)

    monkeypatch.setattr(system_pages, "reserve", reserving)
    monkeypatch.setattr(system_pages, "release", releasing)

    def refuse(address: int, length: int, nodes: list[int]) -> None:
        raise Unsupported(f"no node {nodes[0]}")

    monkeypatch.setattr(numa, "bind", refuse)
    with pytest.raises(Unsupported, match="no node 7"):
        Numa(7)
    assert out == {}


def test_a_node_gets_its_pages_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    bound: list[tuple[int, list[int]]] = []
    monkeypatch.setattr(numa, "bind", lambda address, length, nodes: bound.append((length, nodes)))
    node = Numa(3)
    assert repr(node) == "Numa(3)"
    node.free(node.allocate(PAGE))
    assert bound == [(PAGE, [3])] * 2

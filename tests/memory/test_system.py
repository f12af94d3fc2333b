from __future__ import annotations

import ctypes
from pathlib import Path

import pytest

from holdfast.base.errors import OutOfMemory
from holdfast.memory.core import system_pages

PAGE = 4096


def test_a_reserved_range_begins_at_a_huge_page_and_leaves_nothing_over() -> None:
    def mapped(low: int, high: int) -> int:
        """How many bytes of a range are mapped."""
        total = 0
        for line in Path("/proc/self/maps").read_text().splitlines():
            start, stop = (int(text, 16) for text in line.split()[0].split("-"))
            total += max(0, min(stop, high) - max(start, low))
        return total

    length = 5 * system_pages.HUGE_PAGE
    address = system_pages.reserve(length)
    assert address % system_pages.HUGE_PAGE == 0
    assert mapped(address, address + length) == length
    system_pages.release(address, length)
    assert mapped(address, address + length) == 0


def test_pages_come_when_touched_and_go_when_discarded() -> None:
    length = 16 * PAGE
    address = system_pages.reserve(length)
    assert system_pages.make_usable(address, length)
    assert system_pages.pages_touched(address, length) == 0
    ctypes.memset(address, 1, 4 * PAGE)
    assert system_pages.pages_touched(address, length) == 4
    assert system_pages.discard_pages(address, 2 * PAGE)
    assert system_pages.pages_touched(address, length) == 2
    assert ctypes.string_at(address, 1) == b"\0"
    assert ctypes.string_at(address + 2 * PAGE, 1) == b"\1"
    assert system_pages.lock(address, length)
    assert system_pages.pages_touched(address, length) == 16
    system_pages.release(address, length)


def test_what_is_not_mapped_is_answered_with_no() -> None:
    length = 4 * PAGE
    address = system_pages.reserve(length)
    system_pages.release(address, length)
    assert not system_pages.make_usable(address, length)
    assert not system_pages.discard_pages(address, length)
    assert not system_pages.lock(address, length)
    assert system_pages.pages_touched(address, length) == 0
    system_pages.release(address, 0)


def test_more_than_there_is_address_space_is_refused() -> None:
    with pytest.raises(OutOfMemory) as caught:
        system_pages.reserve(1 << 60)
    assert str(caught.value) == (
        "the system has no 1153 PB of address space: Cannot allocate memory\n"
        "  expected: room in the address space (ulimit -v)"
    )


@pytest.mark.parametrize("usable", [True, False])
def test_a_range_that_may_not_be_touched_ends_the_process(usable: bool, script) -> None:
    text = f"""
import ctypes, os, signal
from holdfast.memory.core import system_pages
address = system_pages.reserve(4096)
assert system_pages.make_usable(address, 4096)
if not {usable}:
    assert system_pages.make_unusable(address, 4096)
child = os.fork()
if not child:
    import faulthandler
    faulthandler.disable()
    ctypes.memset(address, 1, 1)
    os._exit(0)
status = os.waitpid(child, 0)[1]
print(os.WTERMSIG(status) == signal.SIGSEGV if os.WIFSIGNALED(status) else "fine")
"""
    assert script(text) == ("fine\n" if usable else "True\n")

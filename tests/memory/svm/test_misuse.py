"""Shared virtual memory used against its rules: with every provider a clear error, nothing lost."""

from __future__ import annotations

import contextlib
import copy
import gc
import pickle
import threading
import zlib
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from holdfast.base.errors import (
    BadInput,
    DoubleFree,
    ForeignPointer,
    HoldfastError,
    InUse,
    OutOfMemory,
    UseAfterFree,
)
from holdfast.memory import svm
from holdfast.memory.svm.providers.simulated import SimulatedProvider
from tests.memory.svm.providers import LEFT_ALONE, NAMES, make

MIB = 1 << 20
SIZE = 40 * MIB  # three parts of a migration
SELDOM = ("opencl, host_pointer", "opencl, copy")  # like coarse, by other calls


@pytest.fixture(
    params=[pytest.param(name, marks=pytest.mark.slow if name in SELDOM else ()) for name in NAMES]
)
def provider(request: pytest.FixtureRequest) -> Iterator[svm.Provider]:
    made = make(request.param, request)
    yield made
    if made.statistics().current_count:
        gc.collect()
    assert made.statistics().current_count == 0, "a test left memory behind"


def filled(memory: svm.Allocation) -> int:
    """The checksum of what was written into it."""
    array = memory.array("uint32")
    array[:] = np.arange(array.size, dtype="uint32")
    return zlib.crc32(array)


def two_domains(provider: svm.Provider) -> tuple[int, int]:
    """Two domains of a provider; the same one twice where there is one only."""
    numbers = [d.id for d in provider.discover().domains]
    return numbers[0], numbers[-1]


def home(memory: svm.Allocation) -> int:
    return next(iter(memory.where().pages))


# ---- handles


def test_a_double_free_is_refused(provider: svm.Provider) -> None:
    memory = provider.alloc(MIB)
    memory.free()
    with pytest.raises(DoubleFree) as caught:
        memory.free()
    assert str(caught.value) == (
        f"{memory!r} was freed before\n"
        "  expected: an allocation that is not freed yet\n"
        "  try: free each allocation once, or use it as a context manager"
    )
    assert repr(memory).endswith("freed>")


@pytest.mark.parametrize(
    "use",
    [
        svm.Allocation.view,
        svm.Allocation.where,
        svm.Allocation.array,
        svm.Allocation.tensor,
        bytes,
        lambda memory: memory.migrate(0, 0),
        lambda memory: memory.exports,
        lambda memory: memory.provider.set_affinity(memory),
        lambda memory: memory.provider.metrics(memory),
        np.asarray,
        np.from_dlpack,
    ],
)
def test_use_after_free_is_refused(
    provider: svm.Provider, use: Callable[[svm.Allocation], object]
) -> None:
    memory = provider.alloc(MIB)
    memory.free()
    with pytest.raises(UseAfterFree) as caught:
        use(memory)
    assert str(caught.value) == (
        f"{memory!r} was freed and cannot be used\n"
        "  expected: an allocation that is not freed yet\n"
        "  try: allocate again; what was in it is gone"
    )


def test_an_old_handle_does_not_reach_new_memory_at_its_address(provider: svm.Provider) -> None:
    old = provider.alloc(MIB)
    address = old.address
    old.free()
    others = []
    for _ in range(50):
        new = provider.alloc(MIB)
        others.append(new)
        if new.address == address:
            break
    else:
        pytest.skip("the system did not hand out the same address again")
    before = filled(new)
    with pytest.raises(DoubleFree):
        old.free()
    with pytest.raises(UseAfterFree):
        old.view()
    assert zlib.crc32(new.view()) == before
    for memory in others:
        memory.free()


def test_the_handle_of_another_provider_is_refused(provider: svm.Provider) -> None:
    other = SimulatedProvider()
    with other.alloc(MIB) as memory:
        for use in (provider.free, provider.where, provider.metrics, provider.set_affinity):
            with pytest.raises(ForeignPointer) as caught:
                use(memory)
            assert str(caught.value) == (
                f"{memory!r} was not made by {provider.name!r}\n"
                f"  expected: a handle of {provider.name!r}\n"
                "  try: use the provider that made it: 'simulated', or handle.free()"
            )
        with pytest.raises(ForeignPointer):
            provider.migrate(memory, 0, 0)
        assert not memory.freed


@pytest.mark.parametrize("pointer", [0, 0x7F0000001000, -1, None, "0x1000", 1.5, object()])
def test_what_is_no_handle_is_refused(provider: svm.Provider, pointer: object) -> None:
    for use in (provider.free, provider.where, provider.set_affinity, svm.free, svm.where):
        with pytest.raises(ForeignPointer):
            use(pointer)  # type: ignore[arg-type]


def test_an_address_is_no_handle_also_where_it_is_right(provider: svm.Provider) -> None:
    with provider.alloc(MIB) as memory:
        with pytest.raises(ForeignPointer) as caught:
            provider.free(int(memory))  # type: ignore[arg-type]
        assert str(caught.value) == (
            f"{int(memory):#x} is no allocation of {provider.name!r}\n"
            "  expected: the handle that alloc() returned; several allocations may have had an "
            "address, one after the other"
        )
        assert not memory.freed


def test_a_handle_is_not_copied(provider: svm.Provider) -> None:
    with provider.alloc(MIB) as memory:
        for duplicate in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(TypeError, match="cannot pickle"):
                duplicate(memory)


# ---- views


def test_memory_that_is_looked_at_is_not_freed(provider: svm.Provider) -> None:
    memory = provider.alloc(MIB)
    array = memory.array()
    array[:] = 3
    with pytest.raises(InUse) as caught:
        memory.free()
    assert str(caught.value) == (
        f"the allocation at {memory.address:#x} cannot be freed: 1 view uses it\n"
        "  expected: no array, tensor or memoryview over it\n"
        "  try: del the arrays and tensors first; the last one frees the memory"
    )
    part = array[100:200]
    del array
    assert memory.exports == 1
    assert part.sum() == 300
    del part
    assert memory.exports == 0
    memory.free()


def test_an_error_inside_the_block_is_not_hidden_by_a_view(provider: svm.Provider) -> None:
    def divide() -> None:
        with provider.alloc(MIB) as memory:
            array = memory.array()
            array[0] = 1 / 0

    with pytest.raises(ZeroDivisionError):
        divide()
    gc.collect()  # the traceback held the array


@pytest.mark.parametrize(
    ("shape", "text"),
    [
        ((1025, 1024), "at least 1049600 bytes"),
        ((-1, 4), "sizes from 0"),
    ],
)
def test_an_array_larger_than_the_memory_is_refused(
    provider: svm.Provider, shape: tuple[int, ...], text: str
) -> None:
    with provider.alloc(MIB) as memory, pytest.raises(BadInput) as caught:
        memory.array("uint8", shape)
    assert str(caught.value) == (
        f"cannot view a block of 1048576 bytes as a uint8 array of shape {shape}\n"
        f"  expected: {text}"
    )


# ---- sizes and places


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "cannot allocate 0 bytes\n  expected: at least 1 byte"),
        ("0MB", "cannot allocate 0 bytes\n  expected: at least 1 byte"),
        (
            -1,
            'a size cannot be negative: -1\n  expected: a size such as "2GB", "512MiB" or "80%"',
        ),
        (
            "-1GB",
            "cannot read '-1GB' as a size in bytes\n"
            '  expected: a size such as "2GB", "512MiB" or "80%"',
        ),
        (
            1.5,
            "cannot read 1.5 as a size in bytes\n"
            '  expected: a size such as "2GB", "512MiB" or "80%"',
        ),
        (
            True,
            "cannot read True as a size in bytes\n"
            '  expected: a size such as "2GB", "512MiB" or "80%"',
        ),
        (
            None,
            "cannot read None as a size in bytes\n"
            '  expected: a size such as "2GB", "512MiB" or "80%"',
        ),
    ],
)
def test_what_is_no_size_is_refused(provider: svm.Provider, size: object, text: str) -> None:
    with pytest.raises(BadInput) as caught:
        provider.alloc(size)  # type: ignore[arg-type]
    assert str(caught.value) == text


@pytest.mark.parametrize("size", ["1000TB", 1 << 61, 1 << 62, 1 << 80])
def test_more_than_there_is_is_refused(provider: svm.Provider, size: int | str) -> None:
    with pytest.raises(OutOfMemory):
        provider.alloc(size)
    assert provider.statistics().total_count == 0
    provider.alloc(MIB).free()


def test_one_byte_is_memory_too(provider: svm.Provider) -> None:
    with provider.alloc(1) as memory:
        memory.view()[0] = 255
        assert bytes(memory) == b"\xff"


@pytest.mark.parametrize("number", [99, -1, "0", None, 1.5, True, {0}, [[0]]])
def test_a_domain_that_does_not_exist_is_refused(provider: svm.Provider, number: object) -> None:
    there = ", ".join(f"{d.id} ({d.name})" for d in provider.discover().domains)
    text = f"{provider.name!r} has no domain {number!r}\n  expected: one of {there}"
    with provider.alloc(MIB) as memory:
        before = filled(memory)
        for source, target in ((number, home(memory)), (home(memory), number)):
            with pytest.raises(BadInput) as caught:
                memory.migrate(source, target)  # type: ignore[arg-type]
            assert str(caught.value) == text
        assert zlib.crc32(memory.view()) == before
    if number is not None:  # which is to leave it to the topology
        with pytest.raises(BadInput):
            provider.alloc(MIB, domain=number)  # type: ignore[arg-type]


def test_nothing_is_no_list_of_domains(provider: svm.Provider) -> None:
    with pytest.raises(BadInput) as caught:
        provider.alloc(MIB, domain=[])
    assert str(caught.value) == (
        "the list of domains is empty\n  expected: a domain, or a list with one or more"
    )


# ---- migration


def away(provider: svm.Provider, memory: svm.Allocation) -> int:
    """Another domain than the one the memory is in."""
    numbers = [d.id for d in provider.discover().domains if d.id != home(memory)]
    if not numbers:
        pytest.skip("this machine has one domain; the guest has three")
    return numbers[0]


def test_memory_that_is_being_migrated_is_not_freed(provider: svm.Provider) -> None:
    memory = provider.alloc(SIZE)
    before = filled(memory)
    errors: list[HoldfastError] = []

    def meddle(done: int, total: int) -> None:
        for work in (memory.free, lambda: memory.migrate(0, 0)):
            try:
                work()
            except HoldfastError as exc:
                errors.append(exc)

    result = memory.migrate(home(memory), away(provider, memory), progress=meddle)
    assert result.complete
    assert {str(exc) for exc in errors} == {
        f"the allocation at {memory.address:#x} cannot be freed: it is being migrated\n"
        "  expected: an allocation with no operation in progress\n"
        "  try: wait until that is over, or stop it",
        f"the allocation at {memory.address:#x} cannot be migrated: it is being migrated\n"
        "  expected: one operation at a time",
    }
    assert {type(exc) for exc in errors} == {InUse}
    assert zlib.crc32(memory.view()) == before
    memory.free()


@pytest.mark.parametrize(
    ("error", "place"),
    [
        (KeyboardInterrupt, "progress"),
        (ZeroDivisionError, "stop"),
        pytest.param(KeyboardInterrupt, "stop", marks=pytest.mark.slow),
        pytest.param(ZeroDivisionError, "progress", marks=pytest.mark.slow),
    ],
)
def test_a_migration_that_is_broken_off_leaves_the_data_whole(
    provider: svm.Provider, error: type[BaseException], place: str
) -> None:
    memory = provider.alloc(SIZE)
    before = filled(memory)
    source, target = home(memory), away(provider, memory)

    def fail(*_: object) -> bool:
        raise error

    told = {"progress": fail} if place == "progress" else {"stop": fail}
    with pytest.raises(error):
        memory.migrate(source, target, **told)  # type: ignore[arg-type]
    assert zlib.crc32(memory.view()) == before
    assert memory.where().total == SIZE // 4096
    assert memory.migrate(source, target).complete
    assert memory.where().pages == {target: SIZE // 4096}
    memory.free()


def test_migrating_to_where_it_is_does_nothing(provider: svm.Provider) -> None:
    with provider.alloc(MIB) as memory:
        result = memory.migrate(home(memory), home(memory))
        assert (result.pages_moved, result.complete, result.bandwidth_gb_s) == (0, True, None)


def looked_at(provider: svm.Provider) -> tuple[svm.Allocation, np.ndarray, int, int]:
    """Memory with an array over it, and where it can be moved from and to."""
    memory = provider.alloc(MIB)
    array = memory.array("uint32")
    array[:] = 5
    return memory, array, home(memory), away(provider, memory)


@pytest.mark.parametrize("name", [name for name in NAMES if name not in LEFT_ALONE])
def test_memory_moves_under_an_array(name: str, request: pytest.FixtureRequest) -> None:
    memory, array, source, target = looked_at(make(name, request))
    assert memory.migrate(source, target).complete
    assert (array == 5).all()


@pytest.mark.parametrize("name", LEFT_ALONE)
def test_memory_that_is_mapped_is_not_migrated(name: str, request: pytest.FixtureRequest) -> None:
    memory, array, source, target = looked_at(make(name, request))
    with pytest.raises(InUse) as caught:
        memory.migrate(source, target)
    assert str(caught.value) == (
        f"the allocation at {memory.address:#x} cannot be migrated: 1 view uses it\n"
        "  expected: no array, tensor or memoryview over it\n"
        "  try: del the arrays and tensors first; the last one frees the memory"
    )
    assert (array == 5).all()
    del array
    assert memory.migrate(home(memory), target).complete
    assert (memory.array("uint32") == 5).all()


# ---- sixteen threads


def in_threads(work: Callable[[int], object], count: int = 16) -> list[BaseException]:
    """Run it in so many threads at once; what they raised."""
    errors: list[BaseException] = []
    gate = threading.Barrier(count)

    def run(number: int) -> None:
        gate.wait()
        try:
            work(number)
        except BaseException as exc:  # noqa: BLE001  looked at below
            errors.append(exc)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return errors


def test_sixteen_threads_each_have_their_own_memory(provider: svm.Provider) -> None:
    first, last = two_domains(provider)

    def work(number: int) -> None:
        for turn in range(6):
            memory = provider.alloc(64 * 1024 + 4096 * number)
            array = memory.array("uint8")
            array[:] = number
            del array
            if turn % 2:
                memory.migrate(first, last)
            assert memory.where().total == 16 + number
            assert set(bytes(memory)) == {number}
            if turn % 3:
                memory.free()
            else:
                del memory

    assert in_threads(work) == []
    gc.collect()
    counted = provider.statistics()
    assert (counted.current_bytes, counted.current_count, counted.total_count) == (0, 0, 96)


def test_of_sixteen_threads_one_frees(provider: svm.Provider) -> None:
    memory = provider.alloc(MIB)
    errors = in_threads(lambda _: memory.free())
    assert [type(exc) for exc in errors] == [DoubleFree] * 15
    assert provider.statistics().current_bytes == 0


def test_threads_that_look_and_one_that_frees_never_crash(provider: svm.Provider) -> None:
    for _ in range(10):
        memory = provider.alloc(MIB)

        def work(number: int, memory: svm.Allocation = memory) -> None:
            if number == 0:
                with contextlib.suppress(InUse):
                    memory.free()
                return
            with contextlib.suppress(UseAfterFree):
                view = memory.view()
                view[number] = number
                assert view[number] == number

        assert in_threads(work) == []
        gc.collect()
        if not memory.freed:
            memory.free()

from __future__ import annotations

import copy
import ctypes
import pickle
import sys
import weakref
from types import ModuleType
from typing import Any

import numpy
import pytest
import torch

from holdfast.base.errors import BadInput, MissingDependency
from holdfast.memory.pools.memory_pool import MemoryPool
from holdfast.memory.pools.pool import Pool
from tests.memory.conftest import audit

WAYS = {
    "view": lambda block: numpy.frombuffer(block.view(), "uint8"),
    "array": lambda block: block.array(),
    "asarray": numpy.asarray,
    "tensor": lambda block: block.tensor(),
    "torch.frombuffer": lambda block: torch.frombuffer(block.view(), dtype=torch.uint8),
    "numpy.from_dlpack": numpy.from_dlpack,
    "torch.from_dlpack": torch.from_dlpack,
    "as_tensor": lambda block: torch.as_tensor(block.array()),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_view_shares_the_memory_and_keeps_the_block(people: MemoryPool, way: str) -> None:
    block = people.allocate(1000)
    ctypes.memset(block.address, 3, 1000)
    made: Any = WAYS[way](block)
    assert made.shape == (1000,)
    ctypes.memset(block.address + 10, 9, 1)
    assert [int(made[9]), int(made[10])] == [3, 9], "a copy"
    made[11] = 8
    assert ctypes.string_at(block.address + 11, 1) == b"\x08"
    assert block.exports >= 1
    gone = weakref.ref(block)
    address = block.address
    del block
    assert gone() is not None
    assert audit(people.pool.core) == {address: 1000}
    assert int(made[999]) == 3
    del made
    assert gone() is None
    assert audit(people.pool.core) == {}


def test_a_view_of_a_view_keeps_the_block(people: MemoryPool) -> None:
    part = people.allocate(4096).array("float32").reshape(32, 32)[3:5].T
    tensor = torch.from_numpy(part)
    del part
    people.allocate(4096).array("float32")[:] = 7  # somebody else's memory
    tensor.zero_()
    assert len(audit(people.pool.core)) == 1


def test_a_block_of_the_compiled_core_is_a_buffer_everywhere(core: ModuleType) -> None:
    block = Pool(core=core).core.allocate(10)
    if core.__name__.endswith("pool_core") and sys.version_info < (3, 12):
        with pytest.raises(TypeError, match="a bytes-like object is required"):
            memoryview(block)
        return
    memoryview(block)[:] = b"0123456789"
    assert bytes(block) == b"0123456789"
    assert block.exports == 0


def test_bytes_can_be_read_and_written(people: MemoryPool) -> None:
    block = people.allocate(16)
    view = block.view()
    assert (view.format, view.nbytes, view.readonly, view.contiguous) == ("B", 16, False, True)
    view[:] = bytes(range(16))
    assert block.array("<u4", (2, 2)).tolist() == [
        [0x03020100, 0x07060504],
        [0x0B0A0908, 0x0F0E0D0C],
    ]
    assert block.tensor("int16", 2).tolist() == [0x0100, 0x0302]
    assert block.tensor(torch.float64).shape == (2,)
    assert block.array("float32").shape == (4,)


def test_what_is_left_over_at_the_end_is_not_in_the_array(people: MemoryPool) -> None:
    assert people.allocate(10).array("int32").shape == (2,)
    assert people.allocate(10).tensor("int64").shape == (1,)


@pytest.mark.parametrize("size", [0, 3])
def test_an_array_of_nothing_is_one(people: MemoryPool, size: int) -> None:
    block = people.allocate(size)
    assert block.array("int32").shape == (0,)
    assert block.tensor("int32", (3, 0)).shape == (3, 0)
    assert len(block) == size


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((3, 4), "of shape (3, 4)\n  expected: at least 48 bytes"),
        (13, "of shape (13,)\n  expected: at least 52 bytes"),
        ((-1,), "of shape (-1,)\n  expected: sizes from 0"),
        ((-1, -1), "of shape (-1, -1)\n  expected: sizes from 0"),
    ],
)
def test_a_shape_that_does_not_fit_is_refused(people: MemoryPool, shape: Any, message: str) -> None:
    block = people.allocate(40)
    with pytest.raises(BadInput) as caught:
        block.array("int32", shape)
    assert str(caught.value) == f"cannot view a block of 40 bytes as a int32 array {message}"
    with pytest.raises(BadInput) as caught:
        block.tensor("int32", shape)
    assert str(caught.value) == f"cannot view a block of 40 bytes as a torch.int32 array {message}"


PLAIN = "\n  expected: a plain dtype with elements of at least 1 byte"
NUMPY = '\n  expected: a dtype such as "uint8" or "float32"'
TORCH = '\n  expected: a dtype such as "uint8" or torch.float32'


@pytest.mark.parametrize(
    ("dtype", "message"),
    [
        ("V0", "cannot view memory as elements of dtype '|V0'" + PLAIN),
        ("S0", "cannot view memory as elements of dtype '|S0'" + PLAIN),
        ("O", "cannot view memory as elements of dtype 'object'" + PLAIN),
        ("(2,)i4", "cannot view memory as elements of dtype \"('<i4', (2,))\"" + PLAIN),
        ("nope", "NumPy has no dtype 'nope'" + NUMPY),
        (3, "NumPy has no dtype 3" + NUMPY),
    ],
)
def test_a_type_that_numpy_does_not_have_over_memory_is_refused(
    people: MemoryPool, dtype: Any, message: str
) -> None:
    with pytest.raises(BadInput) as caught:
        people.allocate(40).array(dtype)
    assert str(caught.value) == message


@pytest.mark.parametrize("dtype", ["nope", "", "nn", 3, numpy.dtype("uint8")])
def test_a_type_that_torch_does_not_have_is_refused(people: MemoryPool, dtype: Any) -> None:
    with pytest.raises(BadInput) as caught:
        people.allocate(40).tensor(dtype)
    assert str(caught.value) == f"torch has no dtype {dtype!r}{TORCH}"


@pytest.mark.parametrize("shape", [1.5, ("a",), "12", (2, None), object])
def test_what_is_no_shape_is_refused(people: MemoryPool, shape: Any) -> None:
    block = people.allocate(40)
    for look in (block.array, block.tensor):
        with pytest.raises(BadInput) as caught:
            look("int32", shape)
        assert str(caught.value) == (
            f"cannot read {shape!r} as a shape\n  expected: an integer, or several"
        )


def test_a_shape_is_made_of_any_whole_numbers(people: MemoryPool) -> None:
    block = people.allocate(40)
    assert block.array("int32", numpy.int64(3)).shape == (3,)
    assert block.tensor("int32", [numpy.int8(2), 5]).shape == (2, 5)
    assert block.array("int32", ()).shape == ()
    with pytest.raises(BadInput) as caught:
        people.allocate(4).array("int64", ())
    assert str(caught.value) == (
        "cannot view a block of 4 bytes as a int64 array of shape ()\n  expected: at least 8 bytes"
    )


def test_a_shape_that_a_library_has_no_room_for_is_refused(people: MemoryPool) -> None:
    block = people.allocate(40)
    for look, name in ((block.array, "NumPy"), (block.tensor, "torch")):
        with pytest.raises(BadInput) as caught:
            look("int32", (0, 1 << 70))
        assert caught.value.what.startswith(
            f"{name} cannot make an array of shape (0, 1180591620717411303424): "
        )
        assert caught.value.expected == "a smaller shape"


def test_a_freed_block_cannot_be_viewed(people: MemoryPool) -> None:
    block = people.allocate(100)
    people.deallocate(block)
    for look in (block.view, block.array, block.tensor, block.__dlpack__):
        with pytest.raises(BufferError, match=r"^this block was freed$"):
            look()
    with pytest.raises(BufferError):
        numpy.asarray(block)
    other = people.allocate(100)
    people.deallocate(other.address)
    with pytest.raises(BufferError, match=r"^this block was freed$"):
        other.view()
    assert audit(people.pool.core) == {}


def test_memory_that_the_cpu_cannot_reach_cannot_be_viewed(core: ModuleType) -> None:
    class Owner:
        def give(self, address: int) -> None:
            pass

    block = core.make_block(Owner(), 4096, 100, host=False)
    for look in (block.view, block.array):
        with pytest.raises(BufferError, match=r"^this block is not in host memory$"):
            look()
    assert not hasattr(block, "__array_interface__")
    assert block.__cuda_array_interface__ == {
        "version": 3,
        "shape": (100,),
        "typestr": "|u1",
        "data": (4096, False),
        "strides": None,
    }
    host = core.make_block(Owner(), 4096, 100)
    assert not hasattr(host, "__cuda_array_interface__")
    assert host.__dlpack_device__() == (1, 0)


def test_a_block_tells_what_it_is(people: MemoryPool) -> None:
    block = people.allocate(2000)
    address = block.address
    assert (int(block), block.ptr, len(block), block.size) == (address, address, 2000, 2000)
    assert hex(block) == hex(address)
    assert (block.host, block.pinned, block.freed, block.exports) == (True, False, False, 0)
    assert repr(block) == f"<Block of 2.0 KB at {address:#x}>"
    people.deallocate(block)
    assert repr(block) == f"<Block of 2.0 KB at {address:#x}, freed>"
    assert block.freed


def test_views_that_are_gone_are_not_counted(people: MemoryPool) -> None:
    block = people.allocate(100)
    first, second = block.array(), block.view()
    assert block.exports == 2
    del first
    second.release()
    del second
    assert block.exports == 0


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_block_is_never_copied_unseen(people: MemoryPool, duplicate: Any) -> None:
    block = people.allocate(100)
    with pytest.raises(TypeError, match=r"^cannot pickle '(holdfast\.memory\.)?Block' object$"):
        duplicate(block)
    assert not block.freed
    people.deallocate(block)
    with pytest.raises(TypeError, match="cannot pickle"):
        duplicate(block)


def test_a_weak_reference_does_not_keep_a_block(people: MemoryPool) -> None:
    block = people.allocate(100)
    seen: list[str] = []
    reference = weakref.ref(block, lambda _: seen.append("gone"))
    weakref.finalize(block, seen.append, "finalized")
    del block
    assert reference() is None
    assert sorted(seen) == ["finalized", "gone"]


@pytest.mark.parametrize(
    ("package", "method", "message"),
    [
        ("numpy", "array", "arrays over a block need NumPy\n  expected: numpy\n"
         "  try: pip install numpy"),
        ("torch", "tensor", "tensors over a block need torch\n  expected: torch\n"
         "  try: pip install 'holdfast[torch]'"),
    ],
)  # fmt: skip
def test_a_missing_package_is_named(
    people: MemoryPool, monkeypatch: pytest.MonkeyPatch, package: str, method: str, message: str
) -> None:
    block = people.allocate(100)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingDependency) as caught:
        getattr(block, method)()
    assert str(caught.value) == message

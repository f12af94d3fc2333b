"""Memory of OpenCL devices as a resource: buffers and shared virtual memory, on a real runtime."""

from __future__ import annotations

from typing import Any

import numpy
import pytest

from holdfast.base.errors import BadInput, ForeignPointer, OutOfMemory, Unsupported
from holdfast.memory.pools.memory_pool import MemoryPool
from holdfast.memory.pools.pool import Pool
from tests.needs import needs
from tests.topology.test_probes import _no_opencl

cl = pytest.importorskip("pyopencl")

from holdfast.memory.resources import opencl as opencl_resources  # noqa: E402
from holdfast.memory.resources import opencl_devices  # noqa: E402
from holdfast.memory.resources.opencl import KINDS, resource  # noqa: E402

pytestmark = [pytest.mark.opencl, needs(_no_opencl())]

BUMP = """__kernel void bump(__global uchar *x_, ulong x_at, int by) {
    ((__global int *)(x_ + x_at))[get_global_id(0)] += by;
}"""


@pytest.fixture(params=KINDS)
def made(request: pytest.FixtureRequest) -> Any:
    return KINDS[request.param](opencl_devices.open_device(0))


@pytest.fixture(scope="module")
def bump() -> Any:
    program = cl.Program(opencl_devices.open_device(0).context, BUMP).build(cache_dir=False)
    return cl.Kernel(program, "bump")


def test_bytes_go_to_the_device_and_come_back(made: Any):
    address = made.allocate(4096)
    handle, start = made.locate(address + 64)
    assert start == 64
    sent = numpy.arange(100, dtype=numpy.uint8)
    event = made.write(handle, start, sent, wait=False)
    found = numpy.zeros(100, numpy.uint8)
    made.read(handle, start, found)
    event.wait()
    made.free(address)
    assert found.tolist() == sent.tolist()


def test_a_kernel_works_on_a_part_of_an_allocation(made: Any, bump: Any):
    address = made.allocate(4096)
    handle, start = made.locate(address + 256)
    made.write(handle, start, numpy.arange(8, dtype=numpy.int32).view(numpy.uint8))
    bump.set_arg(0, handle)
    bump.set_arg(1, numpy.uint64(start))
    bump.set_arg(2, numpy.int32(5))
    cl.enqueue_nd_range_kernel(made.place.queue, bump, (8,), None)
    found = numpy.zeros(8, numpy.int32)
    made.read(handle, start, found.view(numpy.uint8))
    made.free(address)
    assert found.tolist() == list(range(5, 13))


def test_freed_memory_outlives_the_work_that_was_queued(made: Any, bump: Any):
    kept = made.allocate(4 << 20)
    handle, _ = made.locate(kept)
    zero = numpy.zeros(4 << 20, numpy.uint8)
    made.write(handle, 0, zero)
    other = made.allocate(4 << 20)
    for address in (other, kept):
        bump.set_arg(0, made.locate(address)[0])
        bump.set_arg(1, numpy.uint64(0))
        bump.set_arg(2, numpy.int32(1))
        cl.enqueue_nd_range_kernel(made.place.queue, bump, (1 << 20,), None)
    made.free(other)
    made.read(handle, 0, zero)
    made.free(kept)
    assert set(zero.view(numpy.int32).tolist()) == {1}


def test_two_allocations_share_no_address(made: Any):
    one, other = made.allocate(3 << 20), made.allocate(3 << 20)
    assert abs(one - other) >= 3 << 20
    assert made.locate(one)[0] is not made.locate(other)[0]
    assert (made.owns(one), made.owns(one + 1)) == (True, False)
    made.free(one)
    assert not made.owns(one)
    made.free(other)


def test_an_address_that_is_not_its_own_is_refused(made: Any):
    with pytest.raises(ForeignPointer) as caught:
        made.free(4096)
    assert str(caught.value) == (
        f"{made!r} did not allocate 0x1000, or freed it before\n"
        "  expected: an address that allocate() returned and that was not freed since"
    )


def test_more_than_the_device_gives_in_one_piece_is_refused(
    made: Any, monkeypatch: pytest.MonkeyPatch
):
    class Small:
        max_mem_alloc_size = 1_000_000

    monkeypatch.setattr(made.place, "device", Small)
    with pytest.raises(OutOfMemory) as caught:
        made.allocate(2_000_000)
    assert str(caught.value) == ("opencl:0 has no 2.0 MB in one piece\n  expected: at most 1.0 MB")


def test_pools_cut_it_up(made: Any):
    pool = MemoryPool("opencl:0", resource=made, limit="16MB")
    blocks = [pool.allocate(1000) for _ in range(10)]
    handles = {id(made.locate(block.address)[0]) for block in blocks}
    assert (len(handles), pool.total_allocated) == (1, 10_000)
    assert pool.stats().reserved_bytes > 0
    del blocks
    pool.empty_cache()
    assert pool.stats().reserved_bytes == 0


def test_a_block_cannot_be_read_as_memory_of_the_host():
    pool = MemoryPool("opencl:0", resource=KINDS["buffers"](opencl_devices.open_device(0)))
    with pytest.raises((BadInput, Unsupported, BufferError)):
        memoryview(pool.allocate(100))


def test_a_setting_says_which_kind_is_used(monkeypatch: pytest.MonkeyPatch):
    assert repr(resource(0)) == "Buffers('opencl:0')"
    monkeypatch.setenv("HOLDFAST_OPENCL_MEMORY", "svm")
    assert repr(resource(0)) == "SharedVirtualMemory('opencl:0')"
    assert isinstance(MemoryPool("opencl:0").pool, Pool)
    monkeypatch.setenv("HOLDFAST_OPENCL_MEMORY", "paper")
    with pytest.raises(BadInput) as caught:
        resource(0)
    assert str(caught.value) == (
        "HOLDFAST_OPENCL_MEMORY is 'paper'\n  expected: one of buffers, svm"
    )


def test_shared_memory_is_refused_where_the_device_has_none(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(opencl_resources, "_capabilities", lambda device: 0)
    place = opencl_devices.open_device(0)
    with pytest.raises(Unsupported) as caught:
        KINDS["svm"](place)
    assert str(caught.value) == (
        f"opencl:0 ({place.device.name.strip()}) has no shared virtual memory\n"
        "  expected: a device with coarse-grained buffers of OpenCL 2.0\n"
        "  try: HOLDFAST_OPENCL_MEMORY=buffers"
    )


def test_a_device_that_is_not_there_is_refused():
    count = len(opencl_devices.devices())
    known = "opencl:0" if count == 1 else f"opencl:0 to opencl:{count - 1}"
    with pytest.raises(BadInput) as caught:
        MemoryPool("opencl:99")
    assert str(caught.value) == (
        f"there is no device opencl:99\n  expected: {known}\n"
        "  try: holdfast device shows every OpenCL device"
    )

"""The CUDA part on a real device. Skipped where there is none; the messages for that are not."""

from __future__ import annotations

import gc

import pytest

torch = pytest.importorskip("torch")

import holdfast  # noqa: E402
from holdfast import memory  # noqa: E402
from holdfast.base.errors import (  # noqa: E402
    BadInput,
    DoubleFree,
    ForeignPointer,
    OutOfMemory,
    Unsupported,
)

HERE = torch.cuda.is_available()
MB = 1 << 20
gpu = [pytest.mark.gpu, pytest.mark.skipif(not HERE, reason="torch sees no CUDA device here")]


def on_gpu(test):
    for mark in gpu:
        test = mark(test)
    return test


@pytest.fixture(autouse=True)
def clean_device():
    yield
    if HERE:
        gc.collect()
        torch.cuda.set_per_process_memory_fraction(1.0)
        torch.cuda.empty_cache()
    holdfast.cuda.memory_fraction = holdfast.cuda.cache_bytes = None


@pytest.mark.skipif(HERE, reason="there is a CUDA device here")
def test_without_a_device_a_pool_says_what_is_missing():
    with pytest.raises(Unsupported) as caught:
        memory.CUDAMemoryPool(0)
    assert str(caught.value) == (
        "there is no CUDA device that torch can use\n"
        "  expected: an NVIDIA GPU, its driver and a CUDA build of torch\n"
        "  try: holdfast doctor, or device='cpu'"
    )


@pytest.mark.parametrize("fraction", [0, -1, 1.5])
def test_a_fraction_that_is_none_is_refused(fraction):
    with pytest.raises(BadInput) as caught:
        holdfast.cuda.set_memory_fraction(fraction)
    assert str(caught.value) == (
        f"cannot use {fraction} of the memory\n  expected: a number above 0, up to 1"
    )


@on_gpu
def test_a_device_number_that_is_not_there_is_refused():
    with pytest.raises(BadInput, match="there is no device cuda:99"):
        memory.Cuda(99)


@on_gpu
def test_a_pool_takes_its_fraction_when_it_is_made():
    total = torch.cuda.mem_get_info(0)[1]
    pool = memory.CUDAMemoryPool(0, memory_fraction=0.1)
    reserved = pool.stats().reserved_bytes
    assert abs(reserved - total * 0.1) < 8 * MB
    assert torch.cuda.memory_allocated(0) >= reserved


@on_gpu
def test_blocks_are_reused_and_misuse_is_named():
    pool = memory.CUDAMemoryPool(0, 0.1, preallocate=False)
    block = pool.allocate("4MB")
    address = block.ptr
    pool.deallocate(block)
    assert pool.allocate("4MB").ptr == address
    with pytest.raises(DoubleFree):
        pool.deallocate(block)
    with pytest.raises(ForeignPointer):
        pool.deallocate(12345)


@on_gpu
def test_a_block_is_a_tensor_without_a_copy_and_computes():
    pool = memory.CUDAMemoryPool(0, 0.1, preallocate=False)
    block = pool.allocate(4 * 1024 * 1024)
    tensor = block.tensor(torch.float32, (1024, 1024))
    assert tensor.data_ptr() == block.ptr
    tensor.normal_()
    assert torch.equal(tensor @ tensor, tensor.clone() @ tensor.clone())
    again = torch.from_dlpack(block)
    assert again.data_ptr() == block.ptr
    with pytest.raises(BufferError, match="not in host memory"):
        memoryview(block)
    live = pool.stats().num_allocs - pool.stats().num_frees
    del block, again
    assert pool.stats().num_allocs - pool.stats().num_frees == live  # the tensor keeps it
    del tensor
    gc.collect()
    assert pool.total_allocated == 0


@on_gpu
def test_tensors_of_the_package_live_on_the_device():
    x = holdfast.tensor([1.0, 2.0, 3.0], device="cuda")
    y = x + 1
    assert y.device == "cuda:0"
    assert y.tolist() == [2.0, 3.0, 4.0]
    x.add_(y).mul_(0.5)
    assert x.tolist() == [1.5, 2.5, 3.5]
    out = holdfast.empty((2, 2), device="cuda")
    holdfast.matmul(holdfast.tensor([[1.0, 2.0]] * 2, "float32", "cuda"), [[1.0, 0], [0, 1]], out)
    assert out.tolist() == [[1.0, 2.0]] * 2


@on_gpu
def test_the_fraction_holds_for_torch_too():
    holdfast.cuda.set_memory_fraction(0.02)
    total = torch.cuda.mem_get_info(0)[1]
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(int(total * 0.03), dtype=torch.uint8, device="cuda")
    with pytest.raises(OutOfMemory) as caught:
        memory.Cuda(0).allocate(int(total * 0.03))
    assert str(caught.value).startswith("cuda:0 has no ")


@on_gpu
def test_figures_count_torch_and_our_pools_once():
    torch.cuda.empty_cache()
    before = holdfast.memory_stats("cuda")
    tensor = torch.empty(64 * MB, dtype=torch.uint8, device="cuda")
    pool = memory.CUDAMemoryPool(0, 0.05)
    block = pool.allocate("10MB")
    stats = holdfast.memory_stats("cuda")
    assert stats.allocated_bytes - before.allocated_bytes == tensor.numel() + block.size
    assert stats.reserved_bytes == torch.cuda.memory_reserved(0)
    assert stats.active_bytes + stats.inactive_bytes == stats.reserved_bytes
    assert "cuda:0" in holdfast.detailed_memory_stats().by_device


@on_gpu
def test_the_cache_of_torch_is_cut_down_to_its_size():
    holdfast.cuda.set_cache_size("16MB")
    kept = [torch.empty(64 * MB, dtype=torch.uint8, device="cuda") for _ in range(4)]
    del kept
    assert torch.cuda.memory_reserved(0) - torch.cuda.memory_allocated(0) >= 256 * MB
    holdfast.memory_stats("cuda")
    assert torch.cuda.memory_reserved(0) - torch.cuda.memory_allocated(0) <= 32 * MB


@on_gpu
def test_out_of_memory_goes_through_the_chain_and_names_the_holders():
    pool = memory.MemoryPool("cuda:0", limit="64MB")
    called = []
    cached = pool.allocate("30MB")

    class Cycle:
        pass

    garbage = Cycle()
    garbage.self, garbage.block = garbage, pool.allocate("30MB")
    del garbage
    kept = pool.allocate("30MB")  # garbage is collected to make room
    pool.pool.on_pressure.append(lambda pool, size: called.append(size))
    with memory.tag("weights"), pytest.raises(OutOfMemory) as caught:
        pool.allocate("50MB")
    assert called == [50_000_000]
    text = str(caught.value)
    assert text.startswith("cannot allocate 50.0 MB on cuda:0: 60.0 MB are in use in 2 blocks")
    assert text.count("30.0 MB on cuda:0 from") == 2
    del cached
    pool.allocate("30MB")
    assert kept.size == 30_000_000


@on_gpu
def test_a_recording_has_torch_and_pool_on_one_axis_and_each_byte_once():
    pool = memory.CUDAMemoryPool(0, 0.05)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    base = torch.cuda.memory_allocated(0)
    with memory.memory_profiler.record() as record:
        with memory.tag("pool"):
            block = pool.allocate("8MB")
        with memory.tag("torch"):
            tensors = [torch.empty(n * MB, dtype=torch.uint8, device="cuda") for n in range(1, 9)]
        del tensors[2:5]
        torch.cuda.synchronize()
    recording = record.recording
    places = {place.source + " " + place.device for place in recording.places_table}
    assert {"pool cuda:0", "torch cuda:0"} <= places
    # What was there before (a workspace of a library, say) has no stack.
    made = [b for b in recording.lifetimes() if b.size >= MB and b.stack]
    assert sorted(b.size for b in made) == sorted([8_000_000, *(n * MB for n in range(1, 9))])
    ended = [b.size for b in made if b.end_ns is not None]
    assert sorted(ended) == [3 * MB, 4 * MB, 5 * MB]
    tags = {b.size: recording.tags_table[b.tag] for b in made}
    assert tags == {8_000_000: "pool"} | {n * MB: "torch" for n in range(1, 9)}
    before = sum(b.size for b in recording.lifetimes() if not b.stack)
    peak = record.report().peak_bytes - before
    assert abs(peak - (torch.cuda.max_memory_allocated(0) - base) - block.size) < MB
    assert any("test_torch_cuda" in f.file for stack in recording.stacks_table for f in stack)


@on_gpu
def test_tensors_can_have_segments_of_their_own():
    from holdfast.memory.resources.torch_cuda import OwnSegments

    with OwnSegments() as own:
        tensor = torch.empty(32 * MB, dtype=torch.uint8, device="cuda")
    other = torch.empty(32 * MB, dtype=torch.uint8, device="cuda")
    assert own.allocated_bytes == 32 * MB
    assert own.reserved_bytes >= 32 * MB
    del tensor, other


@on_gpu
def test_pinned_memory_is_known_to_cuda():
    block = memory.CPUMemoryPool().allocate_pinned("4MB")
    assert block.tensor().is_pinned()


@on_gpu
def test_plan_mode_serves_steps_on_the_device():
    pool = memory.MemoryPool("cuda:0", limit="1GB")
    for _ in range(3):
        with pool.step() as plan:
            for size in (1, 5, 3, 8):
                pool.allocate(size * MB).tensor().fill_(size)
    assert (plan.hits, plan.misses) == (8, 0)

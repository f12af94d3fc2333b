"""Shared virtual memory of OpenCL, on a real runtime (PoCL where there is no other)."""

from __future__ import annotations

import hashlib
import itertools
import threading
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from holdfast.base.config import Config
from holdfast.base.errors import Absent, BadInput, InUse, OutOfMemory, Unsupported
from holdfast.memory.svm.model import PAGE_BYTES
from holdfast.topology import Gpu, OpenclDevice, Topology
from tests.needs import needs
from tests.topology.test_probes import _no_opencl

cl = pytest.importorskip("pyopencl")

from holdfast.memory.svm.providers import opencl, opencl_tiers  # noqa: E402
from holdfast.memory.svm.providers.opencl import OpenclProvider  # noqa: E402

pytestmark = [
    pytest.mark.opencl,
    needs(_no_opencl()),
    pytest.mark.filterwarnings("ignore::pyopencl.CompilerWarning"),  # remarks of NVIDIA's compiler
]

TIERS = list(opencl_tiers.TIERS)
FINE = ["fine_system", "fine_buffer"]
TAKING_TURNS = ["coarse", "host_pointer", "copy"]
SAME_ADDRESSES = [*FINE, "coarse"]
MIB = 2**20
SOURCE = """
kernel void add(global int *p, int what) { p[get_global_id(0)] += what; }

// A node is two words: the address of the next one, and a value.
kernel void follow(global ulong *node, global ulong *sum) {
    *sum = 0;
    while (node) { *sum += node[1]; node[1] += 1000; node = (global ulong *)node[0]; }
}

kernel void count(volatile global int *counters) { atomic_inc(counters + get_global_id(0) % 16); }

kernel void count_by_c11(volatile global atomic_int *counters) {
    atomic_fetch_add_explicit(
        counters + get_global_id(0) % 16, 1, memory_order_relaxed, memory_scope_device);
}

kernel void long_work(global int *p) {
    int x = 0;
    for (int i = 0; i < 20000000; i++) x = x * 1664525 + i;
    p[get_global_id(0)] = x | 1;
}
"""
Make = Callable[..., OpenclProvider]


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Make:
    """A provider whose device says of itself what is given here."""

    def made(tier: str | None = None, **said: Any) -> OpenclProvider:
        devices = opencl.probe(Config.load()).opencl
        wanted = "fine_buffer" if tier == "fine_system" else tier
        if wanted in TIERS and wanted not in opencl_tiers.tiers_of(devices[0]):
            pytest.skip(f"{devices[0].name} does not offer {wanted}")
        if tier == "fine_system":  # the CPU reaches every page, though not every runtime says so
            said["svm"] = (*devices[0].svm, "fine_system")
        changed = Topology(opencl=(replace(devices[0], **said),))
        with monkeypatch.context() as patch:
            patch.setattr(opencl, "probe", lambda config: changed)
            return OpenclProvider(tier=tier)

    return made


@pytest.fixture
def provider(make: Make, request: pytest.FixtureRequest) -> OpenclProvider:
    return make(request.param)


def for_each(tiers: list[str]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("provider", tiers, indirect=True)


def kernel(provider: OpenclProvider, name: str) -> Any:
    return cl.Kernel(cl.Program(provider.context, SOURCE).build(), name)


def add(provider: OpenclProvider, memory: Any, what: int, queue: Any = None) -> None:
    run = kernel(provider, "add")
    with memory.on_device(queue) as argument:
        run(queue or provider.queue, (memory.size // 4,), None, argument, np.int32(what))


# ---- host and device on the same bytes


@for_each(TIERS)
def test_a_kernel_adds_to_what_numpy_wrote_and_numpy_reads_it(provider: OpenclProvider) -> None:
    with provider.alloc(MIB + 4) as memory:
        memory.array("int32")[:] = np.arange(memory.size // 4)
        add(provider, memory, 7)
        assert (memory.array("int32") == np.arange(memory.size // 4) + 7).all()
        add(provider, memory, -7)
        assert (memory.array("int32") == np.arange(memory.size // 4)).all()


@for_each(TIERS)
def test_arrays_and_tensors_are_the_memory_itself(provider: OpenclProvider) -> None:
    torch = pytest.importorskip("torch")
    with provider.alloc(MIB) as memory:
        array, tensor = memory.array("int32"), memory.tensor("int32")
        assert array.ctypes.data == tensor.data_ptr() == memory.address
        array[:] = 1
        assert tensor.sum().item() == array.size
        del array, tensor
        add(provider, memory, 2)
        tensor = memory.tensor(torch.int32)
        assert tensor.data_ptr() == memory.address
        assert bool((tensor == 3).all())
        del tensor


@for_each(FINE)
def test_who_looks_at_fine_grained_memory_sees_what_a_kernel_does(provider: OpenclProvider) -> None:
    with provider.alloc(MIB) as memory:
        array = memory.array("int32")
        array[:] = 1
        add(provider, memory, 2)
        assert (array == 3).all()
        del array


@for_each(SAME_ADDRESSES)
def test_a_kernel_follows_pointers_inside_one_allocation(provider: OpenclProvider) -> None:
    count = 1000
    order = np.random.default_rng(1).permutation(count)
    with provider.alloc(count * 16) as memory, provider.alloc(8) as result:
        addresses = memory.address + 16 * order.astype(np.uint64)
        nodes = memory.array("uint64", (count, 2))
        nodes[order[:-1], 0] = addresses[1:]
        nodes[order[-1], 0] = 0
        nodes[:, 1] = np.arange(count)
        del nodes
        run = kernel(provider, "follow")
        with memory.on_device() as argument, result.on_device() as sum_:
            assert argument.svm_ptr == memory.address
            head = cl.SVM(opencl_tiers.bytes_at(int(addresses[0]), 16))
            run(provider.queue, (1,), None, head, sum_)
        assert result.array("uint64")[0] == sum(range(count))
        assert (memory.array("uint64", (count, 2))[:, 1] == np.arange(count) + 1000).all()


@pytest.mark.parametrize("name", ["count", "count_by_c11"])
@for_each(TIERS)
def test_many_work_items_count_by_atomics_and_none_is_lost(
    provider: OpenclProvider, name: str
) -> None:
    run = kernel(provider, name)
    with provider.alloc(64) as memory:
        memory.array("int32")[:] = np.arange(16)
        with memory.on_device() as argument:
            run(provider.queue, (160_000,), None, argument)
        assert memory.array("int32").tolist() == [10_000 + n for n in range(16)]


@for_each(TIERS)
def test_every_address_begins_a_page_and_no_two_share_one(provider: OpenclProvider) -> None:
    held = [provider.alloc(size) for size in (1, 3, 4095, 4096, 4097, 100_000, 1, MIB)]
    ranges = sorted((m.address, m.address + m.size) for m in held)
    assert all(start % PAGE_BYTES == 0 for start, _ in ranges)
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(ranges))
    for memory in held:
        memory.array()[:] = 255
        memory.free()
    assert provider.runtime.held_bytes == 0


@for_each(TIERS)
def test_a_kernel_may_run_on_a_queue_of_ones_own(provider: OpenclProvider) -> None:
    queue = cl.CommandQueue(provider.context)
    with provider.alloc(MIB) as memory:
        memory.array("int32")[:] = 1
        add(provider, memory, 1, queue)
        assert (memory.array("int32") == 2).all()


def test_a_queue_of_another_context_is_refused(make: Make) -> None:
    provider = make("coarse")
    other = cl.CommandQueue(cl.Context(provider.context.devices))
    with provider.alloc(1) as memory, pytest.raises(BadInput) as caught, memory.on_device(other):
        pass
    assert str(caught.value) == (
        "the queue belongs to another context than the memory\n"
        "  expected: a queue made for provider.context\n"
        "  try: cl.CommandQueue(provider.context)"
    )


# ---- taking turns


@for_each(TAKING_TURNS)
def test_a_kernel_waits_for_the_host_to_look_away(provider: OpenclProvider) -> None:
    with provider.alloc(MIB) as memory:
        array = memory.array("int32")
        with pytest.raises(InUse) as caught, memory.on_device():
            pass
        assert str(caught.value) == (
            f"the allocation at {memory.address:#x} cannot be used by a device: "
            "1 view uses it\n"
            "  expected: no array, tensor or memoryview over it\n"
            "  try: del the arrays and tensors first; the last one frees the memory"
        )
        array[:] = 5  # it is the host's still
        del array
        add(provider, memory, 1)
        assert (memory.array("int32") == 6).all()


@for_each(TAKING_TURNS)
def test_the_host_waits_for_the_kernel(provider: OpenclProvider) -> None:
    with provider.alloc(MIB) as memory:
        with memory.on_device(), pytest.raises(InUse) as caught:
            memory.array()
        assert str(caught.value) == (
            f"the host cannot access {memory!r}: it is being used by a device\n"
            "  expected: memory that the device does not use"
        )
        memory.array()[:] = 1


@for_each(["coarse", "host_pointer"])
def test_memory_is_mapped_by_the_first_view_and_unmapped_before_a_kernel(
    provider: OpenclProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    backing_type = opencl_tiers.TIERS[provider.tier]
    done: list[str] = []
    for name in ("_map", "_unmap"):
        original = getattr(backing_type, name)

        def noted(self: Any, name: str = name, original: Any = original) -> None:
            original(self)
            done.append(name)

        monkeypatch.setattr(backing_type, name, noted)
    with provider.alloc(4096) as memory:
        assert done == []
        first = memory.array("int32")
        second = memory.array("int32")
        first[:] = 1
        del first, second
        third = memory.array("int32")
        assert done == ["_map"]
        del third
        add(provider, memory, 1)
        assert done == ["_map", "_unmap"]
        assert (memory.array("int32") == 2).all()
        assert done == ["_map", "_unmap", "_map"]
    assert done == ["_map", "_unmap", "_map", "_unmap"]


@for_each(TIERS)
def test_an_error_in_the_block_leaves_the_memory_usable(provider: OpenclProvider) -> None:
    with provider.alloc(4096) as memory:
        with pytest.raises(ZeroDivisionError), memory.on_device():
            raise ZeroDivisionError
        memory.array("int32")[:] = 1
        add(provider, memory, 1)
        assert (memory.array("int32") == 2).all()


@pytest.mark.slow
@for_each(TIERS)
def test_memory_is_not_given_back_under_a_kernel(provider: OpenclProvider) -> None:
    run = kernel(provider, "long_work")
    memory = provider.alloc(4096)
    with memory.on_device() as argument:
        event = run(provider.queue, (16,), None, argument)
        with pytest.raises(InUse, match="cannot be freed: it is being used by a device"):
            memory.free()
    assert event.command_execution_status == cl.command_execution_status.COMPLETE
    assert (memory.array("int32")[:16] & 1).all()
    memory.free()


@pytest.mark.slow
@for_each(TIERS)
def test_giving_back_waits_for_a_kernel_that_was_left_behind(provider: OpenclProvider) -> None:
    run = kernel(provider, "long_work")
    memory = provider.alloc(4096)
    with memory.on_device() as argument:
        kept = argument
    event = run(provider.queue, (16,), None, kept)  # against the rules, and harmless
    memory.free()
    assert event.command_execution_status == cl.command_execution_status.COMPLETE


@pytest.mark.slow
@for_each(TIERS)
def test_eight_threads_share_one_provider(provider: OpenclProvider) -> None:
    failures: list[BaseException] = []
    program = cl.Program(provider.context, SOURCE).build()

    def work(number: int) -> None:
        try:
            run = cl.Kernel(program, "add")  # a kernel holds its arguments: one for each thread
            for turn in range(10):
                with provider.alloc(64 * 1024 + number * 4) as memory:
                    memory.array("int32")[:] = number
                    with memory.on_device() as argument:
                        run(provider.queue, (memory.size // 4,), None, argument, np.int32(turn))
                    memory.migrate(1, 0)
                    assert (memory.array("int32") == number + turn).all()
        except BaseException as exc:
            failures.append(exc)
            raise

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert provider.statistics().total_count == 80
    assert provider.statistics().current_bytes == provider.runtime.held_bytes == 0


# ---- domains and moving


@for_each(TIERS)
def test_the_domains_are_the_host_and_the_device(provider: OpenclProvider) -> None:
    layout = provider.discover()
    host, device = layout.domains
    assert (host.id, host.name) == (0, "host")
    assert (device.id, device.name) == (1, provider.device.id)
    assert host.free_bytes
    assert host.cpus
    assert layout.remarks[0].endswith(f"memory is shared as {provider.tier!r}")
    if provider.device.kind == "cpu":
        assert layout.remarks[1] == (
            f"{device.name} is a CPU: its memory is that of the host, and counted there"
        )
        assert (device.free_bytes, device.cpus) == (None, host.cpus)


@for_each(TIERS)
def test_memory_is_the_hosts_unless_another_place_is_named(provider: OpenclProvider) -> None:
    with provider.alloc(3 * PAGE_BYTES) as here, provider.alloc(5000, domain=1) as there:
        assert here.where().pages == {0: 3}
        assert there.where().pages == {1: 2}
        assert here.where().method == "where they were last sent"
        assert not here.where().verified
        assert there.placement.reason == f"{provider.device.id} was asked for"


@for_each(TIERS)
def test_data_goes_to_the_device_and_back_unharmed(provider: OpenclProvider) -> None:
    size = 33 * MIB + 5  # three parts, and a page that is not full
    pages = -(-size // PAGE_BYTES)
    with provider.alloc(size) as memory:
        content = np.random.default_rng(2).integers(0, 256, size, dtype=np.uint8)
        memory.array()[:] = content
        seen: list[tuple[int, int]] = []
        there = memory.migrate(0, 1, progress=lambda *done: seen.append(done))
        assert (there.pages_moved, there.pages_elsewhere, there.not_moved) == (pages, 0, {})
        assert there.after.pages == {1: pages}
        parts = [(16 * MIB, size), (32 * MIB, size), (size, size)]
        assert seen == (parts[-1:] if provider.tier == "host_pointer" else parts)
        back = memory.migrate(1, 0)
        assert (back.pages_moved, back.after.pages) == (pages, {0: pages})
        assert back.same_memory == (provider.runtime.is_host and provider.tier != "copy")
        assert (back.bandwidth_gb_s is None) == back.same_memory
        found = hashlib.sha256(memory.view()).hexdigest()
        assert found == hashlib.sha256(content.tobytes()).hexdigest()
        again = memory.migrate(1, 0)
        assert (again.pages_moved, again.pages_elsewhere) == (0, pages)


@for_each(TAKING_TURNS)
def test_what_the_host_looks_at_is_not_migrated(provider: OpenclProvider) -> None:
    with provider.alloc(4096) as memory:
        arrays = [memory.array(), memory.array()]
        with pytest.raises(InUse) as caught:
            memory.migrate(0, 1)
        assert str(caught.value) == (
            f"the allocation at {memory.address:#x} cannot be migrated: 2 views use it\n"
            "  expected: no array, tensor or memoryview over it\n"
            "  try: del the arrays and tensors first; the last one frees the memory"
        )
        arrays.clear()
        assert memory.migrate(0, 1).complete


@for_each(FINE)
def test_fine_grained_memory_is_migrated_under_who_looks_at_it(provider: OpenclProvider) -> None:
    with provider.alloc(MIB) as memory:
        array = memory.array()
        array[:] = 9
        assert memory.migrate(0, 1).after.pages == {1: 256}
        assert (array == 9).all()
        del array


@for_each(TAKING_TURNS)
def test_a_kernel_takes_memory_to_the_device_and_a_view_brings_it_back(
    provider: OpenclProvider,
) -> None:
    with provider.alloc(PAGE_BYTES) as memory:
        memory.array()[:] = 0
        add(provider, memory, 1)
        assert memory.where().pages == {1: 1}
        memory.array()
        assert memory.where().pages == {0: 1}


@for_each(["coarse", "copy"])
def test_a_migration_that_is_stopped_leaves_each_part_whole(provider: OpenclProvider) -> None:
    answers = iter([False, True])
    with provider.alloc(32 * MIB) as memory:
        memory.array("int32")[:] = np.arange(8 * MIB)
        half = memory.migrate(0, 1, stop=lambda: next(answers))
        assert half.interrupted
        assert half.after.pages == {0: 4096, 1: 4096}
        add(provider, memory, 1)  # both halves are there for the device
        assert (memory.array("int32") == np.arange(8 * MIB) + 1).all()  # and for the host
        rest = memory.migrate(0, 1)
        assert rest.after.pages == {1: 8192}


def test_a_buffer_is_sent_whole(make: Make) -> None:
    answers = iter([False, True])
    with make("host_pointer").alloc(32 * MIB) as memory:
        done = memory.migrate(0, 1, stop=lambda: next(answers))
        assert (done.complete, done.pages_moved) == (True, 8192)


def test_opencl_2_0_cannot_migrate_shared_memory_and_says_so(make: Make) -> None:
    reason = "OpenCL before 2.1 has no call that migrates shared virtual memory"
    provider = make("coarse", version="OpenCL 2.0 of yesterday")
    with provider.alloc(PAGE_BYTES * 3) as memory:
        memory.array()[:] = 4
        done = memory.migrate(0, 1)
        assert (done.pages_moved, done.not_moved, done.complete) == (0, {reason: 3}, False)
        assert (memory.array() == 4).all()
    with pytest.raises(Unsupported) as caught:
        provider.alloc(4096, domain=1)
    assert str(caught.value) == (
        f"cannot place 4.1 KB on {provider.device.id}: {reason}\n"
        "  expected: a device that memory can be sent to\n"
        "  try: leave it to the host: domain=0"
    )
    with provider.alloc(4096, domain=1, mode="preferred") as memory:
        assert memory.where().pages == {0: 1}
    assert provider.runtime.held_bytes == 0


def test_buffers_are_migrated_by_older_runtimes_too(make: Make) -> None:
    with make("host_pointer", version="OpenCL 1.2 of old").alloc(4096) as memory:
        assert memory.migrate(0, 1).complete


def test_memory_is_not_spread_over_host_and_device(make: Make) -> None:
    provider = make("coarse")
    with pytest.raises(Unsupported) as caught:
        provider.alloc(4096, domain=[0, 1])
    assert str(caught.value) == (
        "memory of 'opencl' cannot be spread over the host and a device\n"
        "  expected: one domain\n"
        "  try: domain=0 for the host, domain=1 for the device"
    )


def test_near_a_gpu_is_on_the_device_that_it_is(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider = make("coarse", pci_address="0000:01:00.0")
    machine = provider.discover().topology
    assert machine is not None
    gpus = (Gpu(id=0, pci_address="0000:01:00.0"), Gpu(id=1, pci_address="0000:02:00.0"))
    monkeypatch.setattr(opencl, "discover", lambda *_, **__: replace(machine, gpus=gpus))
    with provider.alloc(1, near="gpu:0") as own, provider.alloc(1, near="gpu:1") as other:
        assert (own.placement.domains, own.placement.near) == ((1,), "gpu:0")
        assert own.placement.reason == f"gpu:0 is {provider.device.id}"
        assert (other.placement.domains, other.placement.near) == ((0,), "gpu:1")
    with pytest.raises(BadInput, match="there is no GPU 2"):
        provider.alloc(1, near="gpu:2")


# ---- no more than there is


def test_more_than_the_device_gives_at_a_time_is_refused(make: Make) -> None:
    provider = make("coarse", max_allocation_bytes=MIB)
    with pytest.raises(OutOfMemory) as caught:
        provider.alloc(MIB)  # with the page that aligning takes it is too much
    assert str(caught.value) == (
        f"cannot allocate 1.0 MB on {provider.device.id}: one allocation has at most 1.0 MB\n"
        "  expected: that much on both sides, with 67.1 MB left on the host\n"
        "  try: a smaller size, or freeing something first"
    )
    assert provider.statistics().refused_count == 1
    provider.alloc(MIB - PAGE_BYTES).free()


def test_all_together_get_no_more_than_the_device_has(make: Make) -> None:
    provider = make("host_pointer", memory_bytes=3 * MIB)
    held = [provider.alloc(MIB), provider.alloc(MIB)]
    with pytest.raises(OutOfMemory, match=r"2\.1 MB of its 3\.1 MB are in use"):
        provider.alloc(MIB)
    held.pop().free()
    provider.alloc(MIB).free()


@for_each(TIERS)
def test_more_than_the_machine_has_is_refused_before_the_runtime_promises_it(
    provider: OpenclProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opencl, "host_free", lambda machine: 100 * MIB)
    with pytest.raises(OutOfMemory) as caught:
        provider.alloc(64 * MIB, domain=1)
    assert str(caught.value) == (
        f"cannot allocate 67.1 MB on {provider.device.id}: "
        "the host, which maps it, has 105 MB free\n"
        "  expected: that much on both sides, with 67.1 MB left on the host\n"
        "  try: a smaller size, or freeing something first"
    )
    with pytest.raises(OutOfMemory):
        provider.alloc(64 * MIB)
    with pytest.raises(OutOfMemory, match="on host: free are host 105 MB"):
        provider.alloc(64 * MIB, domain=0)
    assert provider.runtime.held_bytes == 0


@pytest.mark.parametrize(
    ("tier", "said"),
    [
        ("coarse", "clSVMAlloc: OUT_OF_RESOURCES"),
        ("fine_buffer", "clSVMAlloc: OUT_OF_RESOURCES"),
        ("copy", "create_buffer: INVALID_BUFFER_SIZE"),
    ],
)
def test_what_the_runtime_refuses_is_told_in_our_words(
    make: Make, monkeypatch: pytest.MonkeyPatch, tier: str, said: str
) -> None:
    provider = make(tier, memory_bytes=None, max_allocation_bytes=None)
    if "PoCL" not in provider.device.platform and "Portable" not in provider.device.platform:
        pytest.skip("another runtime may take it for a promise, which nobody can keep")
    monkeypatch.setattr(opencl, "host_free", lambda machine: None)
    with pytest.raises(OutOfMemory) as caught:
        provider.alloc(2**45)
    assert str(caught.value) == (
        f"cannot allocate 35.2 TB on {provider.device.id}: OpenCL says {said}\n"
        "  expected: a device with 35.2 TB to give\n"
        "  try: a smaller size, or freeing something first"
    )
    assert isinstance(caught.value.__cause__, cl.Error)
    assert provider.runtime.held_bytes == 0


@for_each(TIERS)
def test_memory_that_could_not_be_given_back_is_still_held(provider: OpenclProvider) -> None:
    memory = provider.alloc(4096)
    real = provider.runtime.queue

    def broken() -> None:
        cl.Buffer(provider.context, cl.mem_flags.READ_WRITE, 0)  # an error of pyopencl

    provider.runtime.queue = SimpleNamespace(finish=broken)
    with pytest.raises(Unsupported) as caught:
        memory.free()
    assert str(caught.value) == (
        "cannot free the memory: OpenCL says create_buffer: INVALID_BUFFER_SIZE\n"
        "  expected: a device and a driver in working order"
    )
    provider.runtime.queue = real
    assert not memory.freed
    assert (provider.statistics().current_count, provider.runtime.held_bytes) == (1, 4096)
    memory.free()
    assert (provider.statistics().current_count, provider.runtime.held_bytes) == (0, 0)


@for_each(TIERS)
def test_memory_that_nobody_refers_to_is_given_back(provider: OpenclProvider) -> None:
    array = provider.alloc(4096).array("int32")
    array[:] = 1
    assert provider.runtime.held_bytes == 4096  # the array keeps it
    del array
    assert provider.statistics().current_count == provider.runtime.held_bytes == 0


# ---- which device and which tier


def test_shared_memory_is_asked_for_with_the_flags_of_its_tier(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags, real = cl.svm_mem_flags, cl.SVMAllocation
    asked: list[int] = []

    def noted(context: Any, size: int, alignment: int, flags: int) -> Any:
        asked.append(flags)
        assert alignment == 0  # none above 128 bytes works
        return real(context, size, alignment, flags)

    monkeypatch.setattr(cl, "SVMAllocation", noted)
    svm = ("coarse_buffer", "fine_buffer")
    make("coarse").alloc(1).free()
    make("fine_buffer", svm=svm).alloc(1).free()
    make("fine_buffer", svm=(*svm, "atomics")).alloc(1).free()
    fine = flags.READ_WRITE | flags.SVM_FINE_GRAIN_BUFFER
    assert asked == [flags.READ_WRITE, fine, fine | flags.SVM_ATOMICS]


def _made_up(number: int, kind: Any, *svm: str) -> OpenclDevice:
    return OpenclDevice(id=f"opencl:0:{number}", platform="p", name="n", kind=kind, svm=svm)


def test_a_gpu_comes_before_a_cpu_and_then_the_better_tier() -> None:
    cpu = _made_up(0, "cpu", "coarse_buffer", "fine_buffer", "fine_system")
    plain, coarse = _made_up(1, "gpu"), _made_up(2, "gpu", "coarse_buffer")
    fine = _made_up(3, "accelerator", "coarse_buffer", "fine_buffer")
    assert opencl._device([cpu, plain, coarse, fine], None) is fine
    assert opencl._device([cpu, plain, coarse], None) is coarse
    assert opencl._device([cpu, plain], None) is plain
    assert opencl._device([cpu], None) is cpu
    assert opencl._device([cpu, plain], "opencl:0:0") is cpu


def test_tiers_go_by_what_the_device_says_of_itself() -> None:
    said = ("coarse_buffer", "fine_buffer", "fine_system", "atomics")
    assert opencl_tiers.tiers_of(_made_up(0, "gpu", *said)) == tuple(TIERS)
    nvidia = opencl_tiers.tiers_of(_made_up(0, "gpu", "coarse_buffer"))
    assert nvidia == ("coarse", "host_pointer", "copy")
    assert opencl_tiers.tiers_of(_made_up(0, "gpu")) == ("host_pointer", "copy")


def test_the_best_tier_of_the_device_is_taken(make: Make) -> None:
    provider = make()
    assert provider.tier == opencl_tiers.tiers_of(provider.device)[0] != "copy"
    assert make(svm=()).tier == "host_pointer"
    assert make(svm=("coarse_buffer",)).tier == "coarse"


def test_a_tier_the_device_lacks_is_refused_with_those_it_has(make: Make) -> None:
    with pytest.raises(Unsupported) as caught:
        make("fine_buffer", svm=("coarse_buffer",), name="a card")
    assert str(caught.value) == (
        "opencl:0:0 (a card) does not offer 'fine_buffer'\n"
        "  expected: one of those it has: coarse, host_pointer, copy"
    )


def test_a_tier_or_a_device_that_is_not_there_is_refused(make: Make) -> None:
    with pytest.raises(BadInput) as caught:
        make("finest")
    assert str(caught.value) == (
        "there is no tier 'finest'\n"
        "  expected: one of fine_system, fine_buffer, coarse, host_pointer, copy"
    )
    with pytest.raises(BadInput) as caught:
        opencl._device([_made_up(0, "cpu"), _made_up(1, "gpu")], "opencl:3:0")
    assert str(caught.value) == (
        "there is no OpenCL device 'opencl:3:0'\n  expected: one of opencl:0:0 (n), opencl:0:1 (n)"
    )


def test_a_machine_with_no_device_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opencl, "probe", lambda config: Topology())
    with pytest.raises(Absent) as caught:
        OpenclProvider()
    assert str(caught.value) == (
        "no OpenCL runtime has a device on this machine\n"
        "  expected: a GPU with its vendor's OpenCL driver, or PoCL for the CPU\n"
        "  try: apt install pocl-opencl-icd"
    )


def test_a_made_up_machine_has_no_opencl() -> None:
    with pytest.raises(Unsupported) as caught:
        OpenclProvider(Config.load(simulate="2x16GB"))
    assert str(caught.value) == (
        "OpenCL devices are real, but the settings simulate a machine\n"
        "  expected: no simulated machine in the settings\n"
        "  try: the provider 'simulated'"
    )

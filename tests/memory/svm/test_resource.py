"""Pools and limits on shared virtual memory."""

from __future__ import annotations

import pytest

from holdfast.base.errors import ForeignPointer, OutOfMemory, Unsupported
from holdfast.memory import Limit, MemoryPool, Resource
from holdfast.memory.svm import Svm
from holdfast.memory.svm.providers.simulated import SimulatedProvider
from tests.memory.svm.providers import LEFT_ALONE, NAMES, make

MIB = 1 << 20


def test_a_pool_hands_out_pieces_of_one_allocation() -> None:
    provider = SimulatedProvider()
    resource = Svm(provider, domain=1)
    assert isinstance(resource, Resource)
    pool = MemoryPool(resource=resource)
    blocks = [pool.allocate(64 * 1024) for _ in range(100)]
    for number, block in enumerate(blocks):
        block.array()[:] = number
    assert [set(bytes(b)) for b in blocks] == [{n} for n in range(100)]
    assert provider.statistics().current_count < 10
    assert provider.metrics().pages.keys() == {1}
    for handle in resource.handles():
        handle.migrate(1, 2)  # under the blocks
    assert [set(bytes(b)) for b in blocks] == [{n} for n in range(100)]
    assert provider.metrics().pages.keys() == {2}
    del blocks, block
    pool.empty_cache()
    assert provider.statistics().current_bytes == 0


def test_a_limit_holds() -> None:
    pool = MemoryPool(resource=Limit(Svm(SimulatedProvider()), 8 * MIB))
    with pytest.raises(OutOfMemory):
        pool.allocate(9 * MIB)


def test_an_address_from_elsewhere_is_refused() -> None:
    with pytest.raises(ForeignPointer) as caught:
        Svm(SimulatedProvider()).free(0x1000)
    assert str(caught.value) == (
        "Svm('simulated') did not allocate 0x1000, or freed it before\n"
        "  expected: an address that allocate() returned and that was not freed since"
    )


@pytest.mark.parametrize("name", [name for name in NAMES if name not in LEFT_ALONE])
def test_a_pool_goes_on_memory_the_host_may_always_look_at(
    name: str, request: pytest.FixtureRequest
) -> None:
    pool = MemoryPool(resource=Svm(make(name, request)))
    block = pool.allocate(1000)
    block.array()[:] = 7
    assert block.array().sum() == 7000


@pytest.mark.parametrize("name", LEFT_ALONE)
def test_a_pool_does_not_go_on_other_memory(name: str, request: pytest.FixtureRequest) -> None:
    provider = make(name, request)
    with pytest.raises(Unsupported) as caught:
        Svm(provider)
    assert str(caught.value) == (
        f"memory of {provider!r} cannot be handed out by address: "
        "the host must not access it while a device uses it or it is moved\n"
        "  expected: memory of numa, simulated, or fine-grained OpenCL\n"
        "  try: Provider.alloc, whose handles track the views"
    )
    assert provider.statistics().current_count == 0

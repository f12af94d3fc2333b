"""Blocks that torch.compile runs, in a managed module."""

from __future__ import annotations

import pytest
import torch

from holdfast.residency import manage, unmanage
from tests.residency.models import device, some_input, stack, weight_bytes


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize(
    "pack",
    [pytest.param(False, id="plain"), pytest.param(True, id="packed", marks=pytest.mark.slow)],
)
@pytest.mark.parametrize("way", ["compile()", "torch.compile"])
def test_compiled_blocks_stream_as_one_layer_each(way, pack):
    dtype = torch.bfloat16 if pack else torch.float32
    module, x = stack(dtype=dtype, depth=5), some_input(dtype=dtype)
    for number, block in enumerate(module.blocks):
        if way == "compile()":
            block.compile(backend="aot_eager")
        else:
            module.blocks[number] = torch.compile(block, backend="aot_eager")
    with torch.no_grad():
        wanted = module(x)
        calls = [block._compiled_call_impl for block in module.blocks]
        carrier = device()
        managed = manage(
            module, budget=weight_bytes(module) * 2 // 3 + 60_000, device=carrier, pack=pack
        )
        for _ in range(8):
            assert torch.equal(module(x), wanted)
        assert managed.plan is not None
        assert managed.plan.streamed_bytes > 0
        assert carrier.peak_bytes <= managed.group.budget_bytes
        unmanage(module)
        assert carrier.held_bytes == 0
        assert [block._compiled_call_impl for block in module.blocks] == calls
        assert torch.equal(module(x), wanted)


def test_a_compiled_block_is_not_compiled_again_when_its_weights_move():
    counts: list[int] = []

    def backend(graph, inputs):
        counts.append(len(inputs))
        return graph.forward

    module, x = stack(depth=4), some_input()
    for block in module.blocks:
        block.compile(backend=backend)
    with torch.no_grad():
        module(x)
        manage(module, budget=weight_bytes(module) * 2 // 3 + 60_000, device=device())
        for _ in range(4):
            module(x)
        before = len(counts)
        for _ in range(6):
            module(x)
        assert len(counts) == before
        unmanage(module)

"""Cases that once gave another result or were refused, each as it was found."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.attention.flex_attention import flex_attention

from holdfast.residency import Group, manage, unmanage
from holdfast.residency.carriers import carrier_for


def stack(wide: int, layers: int) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(wide, wide) for _ in range(layers))).requires_grad_(False)


def weight_bytes(module: nn.Module) -> int:
    return sum(p.numel() * p.element_size() for p in module.parameters())


class Changes(nn.Module):
    """Takes from a list it is given, writes to inputs, or draws random numbers."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.ran = 0
        self.layers = nn.ModuleList(nn.Linear(256, 256) for _ in range(12))

    def forward(self, x: Any, more: list[Any], generator: Any) -> Any:
        self.ran += 1
        for i, layer in enumerate(self.layers):
            x = layer(x)
            if self.how == "draws":
                x = x + 0.1 * torch.randn(1, 256, generator=generator)
            elif i % 2 == 0:
                x = x + (more.pop(0) if self.how == "pops" else more[i // 2].mul_(2))
        return x


@pytest.mark.parametrize("how", ["pops", "writes", "draws"])
def test_a_call_that_computes_more_uses_its_inputs_once(how: str) -> None:
    torch.manual_seed(0)
    module = Changes(how).requires_grad_(False)
    given = [torch.randn(1, 256) for _ in range(6)]
    small, large = torch.randn(4, 256), torch.randn(400, 256)

    def run(x: torch.Tensor) -> torch.Tensor:
        return module(x, [r.clone() for r in given], torch.Generator().manual_seed(7))

    wanted = run(small), run(large)
    manage(module, weight_bytes(module) + 200_000, "simulated")  # all fits beside a small input
    for _ in range(3):
        assert torch.equal(run(small), wanted[0])
    for _ in range(3):
        assert torch.equal(run(large), wanted[1])
    assert module.ran == 8
    unmanage(module)


@pytest.mark.parametrize("tokens", [60, 140])
def test_a_cache_gets_its_keys_once(tokens: int) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=8,
        num_attention_heads=4,
        vocab_size=100,
    )
    module = transformers.LlamaModel(config).eval().requires_grad_(False)
    short, long = torch.randint(100, (1, 8)), torch.randint(100, (1, tokens))

    def run(ids: torch.Tensor) -> tuple[torch.Tensor, list[int]]:
        cache = transformers.DynamicCache()
        module(short, past_key_values=cache)
        found = module(ids, past_key_values=cache).last_hidden_state
        return found, [layer.keys.shape[-2] for layer in cache.layers]

    with torch.no_grad():
        wanted, lengths = run(long)
        manage(module, weight_bytes(module) + 300_000, "simulated")
        for _ in range(3):
            run(short)
        for _ in range(2):
            got, found = run(long)
            assert torch.equal(got, wanted)
            assert found == lengths
    unmanage(module)


def test_an_idle_member_leaves_for_one_that_computes_more() -> None:
    big, small = stack(256, 12), stack(64, 6)
    group = Group(carrier_for("simulated"), 4_000_000)
    x, few, many = torch.randn(1, 256), torch.randn(100, 64), torch.randn(4000, 64)
    wanted = small(many)
    for module in (big, small):
        manage(module, group=group)
    for _ in range(3):
        big(x)
        small(few)
    assert torch.equal(small(many), wanted)
    for module in (big, small):
        unmanage(module)


class Encoder(nn.Module):
    """Most of it is a layer that pipelines call by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(10_000, 64)
        self.layers = stack(64, 4)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.layers(self.embed(ids))


@pytest.mark.parametrize("share", [1.2, 1.6, 2.4])
def test_a_layer_called_from_outside_gets_room_from_the_ring(share: float) -> None:
    torch.manual_seed(0)
    module, ids = Encoder().requires_grad_(False), torch.tensor([[1, 2, 3]])
    wanted = module(ids), module.embed(ids)
    nbytes = weight_bytes(module)
    group = Group(carrier_for("simulated"), int(share * nbytes) + 100_000)
    manage(module, group=group, keep_bytes=nbytes // 3)
    for _ in range(4):
        assert torch.equal(module(ids), wanted[0])
        assert torch.equal(module.embed(ids), wanted[1])
    unmanage(module)


def test_a_layer_called_from_outside_gets_room_from_other_members() -> None:
    encoder, denoiser = Encoder().requires_grad_(False), stack(256, 12)
    ids, x = torch.tensor([[1, 2, 3]]), torch.randn(1, 256)
    wanted = encoder.embed(ids)
    group = Group(carrier_for("simulated"), 3_500_000)
    for module in (encoder, denoiser):
        manage(module, group=group)
    for _ in range(3):
        encoder(ids)
        denoiser(x)
        denoiser(x)
        assert torch.equal(encoder.embed(ids), wanted)
    for module in (encoder, denoiser):
        unmanage(module)


class Flexible(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q = nn.Linear(32, 32)

    def forward(self, x: torch.Tensor) -> Any:
        q = self.q(x).view(1, -1, 2, 16).transpose(1, 2)
        return flex_attention(q, q, q)


class Conditional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(32, 32)

    def forward(self, x: torch.Tensor) -> Any:
        return torch.cond(x.sum() > 0, torch.sin, torch.cos, (self.a(x),))


@pytest.mark.filterwarnings("ignore")  # torch would rather compile attention
@pytest.mark.parametrize("device", ["simulated", "cpu"])
@pytest.mark.parametrize("kind", [Flexible, Conditional])
def test_higher_order_operators_run(kind: type[nn.Module], device: str) -> None:
    torch.manual_seed(0)
    module, x = kind().requires_grad_(False), torch.randn(1, 32, 32)
    with torch.no_grad():
        wanted = module(x)
        manage(module, "1GB", device)
        for _ in range(3):
            assert torch.equal(module(x), wanted)
        unmanage(module)
        assert torch.equal(module(x), wanted)


class Embeds(nn.Module):
    """One weight is nearly all of it."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(16_000, 128)
        self.layers = stack(128, 8)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.layers(self.embed(ids))


@pytest.mark.parametrize("budget", [4_150_000, 4_300_000, 5_000_000, 7_500_000])
@pytest.mark.parametrize("pack", [False, "auto", True])
def test_packing_runs_wherever_its_absence_does(pack: Any, budget: int) -> None:
    torch.manual_seed(0)
    module = Embeds().to(torch.bfloat16).requires_grad_(False)
    ids = torch.randint(16_000, (1, 8))
    wanted = module(ids)
    manage(module, budget, "simulated", pack=pack)
    for _ in range(4):
        assert torch.equal(module(ids), wanted)
    unmanage(module)

"""LoRA: merged where weights stay, beside them where they stream, gone without a trace."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from holdfast.base.errors import BadInput, NotFound
from holdfast.residency import add_lora, manage, remove_lora, unmanage
from tests.residency.models import device, some_input, stack, weight_bytes


def low_rank(module: nn.Module, rank: int = 3, seed: int = 2) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    found: dict[str, torch.Tensor] = {}
    for name, part in module.named_modules():
        if isinstance(part, nn.Linear) and name.startswith("blocks"):
            rows, columns = part.weight.shape
            down = torch.randn(rank, columns, generator=generator) / 8
            up = torch.randn(rows, rank, generator=generator) / 8
            found[f"transformer.{name}.lora_A.weight"] = down
            found[f"transformer.{name}.lora_B.weight"] = up
    return found


def merged_by_hand(lora: dict[str, torch.Tensor], strength: float) -> nn.Module:
    module = stack()
    for name, down in lora.items():
        if name.endswith("lora_A.weight"):
            up = lora[name.replace("lora_A", "lora_B")]
            layer = module.get_submodule(name[len("transformer.") : -len(".lora_A.weight")])
            layer.weight += strength * (up @ down)
    return module


@pytest.mark.parametrize("share", [0.3, 0.6, 3.0])
def test_it_adds_what_merging_adds_and_leaves_no_trace(share):
    module, x = stack(), some_input()
    wanted = module(x)
    lora = low_rank(module)
    changed = merged_by_hand(lora, 0.7)(x)
    managed = manage(module, budget=int(weight_bytes(module) * share) + 60_000, device=device())
    module(x)
    number = add_lora(module, lora, 0.7)
    for _ in range(4):
        torch.testing.assert_close(module(x), changed, rtol=1e-4, atol=1e-5)
        assert managed.carrier.peak_bytes <= managed.group.budget_bytes
    merged = sum(stretch.merged for stretch in managed.weights.stretches)
    assert merged == 16 if share > 1 else merged < 16
    remove_lora(module, number)
    for _ in range(3):
        assert torch.equal(module(x), wanted)
    unmanage(module)
    assert torch.equal(module(x), wanted)


def test_nothing_is_merged_again_in_every_pass(monkeypatch):
    from holdfast.residency.managed import weight_set

    module, x = stack(), some_input()
    managed = manage(module, budget=weight_bytes(module) // 2 + 60_000, device=device())
    add_lora(module, low_rank(module))
    for _ in range(5):
        module(x)
    merges: list[object] = []
    monkeypatch.setattr(weight_set, "merge_into", lambda *a: merges.append(a))
    streamed = managed.plan.streamed_bytes
    before = managed.carrier.copied_bytes
    for _ in range(3):
        module(x)
    assert merges == []
    assert managed.carrier.copied_bytes - before <= 3 * streamed
    unmanage(module)


def test_two_of_them_add_up_and_go_one_by_one():
    module, x = stack(), some_input()
    first, second = low_rank(module, seed=2), low_rank(module, seed=3)
    plain = module(x)
    manage(module, budget=weight_bytes(module) * 2, device=device())
    one = add_lora(module, first)
    alone = module(x)
    add_lora(module, second, 0.5)
    assert not torch.equal(module(x), alone)
    remove_lora(module, one)
    assert not torch.equal(module(x), alone)
    remove_lora(module)
    assert torch.equal(module(x), plain)
    unmanage(module)


def test_alpha_and_the_other_names_of_files():
    module = nn.Sequential(nn.Linear(6, 5, bias=False), nn.Conv2d(2, 3, 3, bias=False))
    module.requires_grad_(False)
    before = module[0].weight.clone()
    down, up = torch.randn(2, 6), torch.randn(5, 2)
    lora = {
        "unet.0.lora_down.weight": down,
        "unet.0.lora_up.weight": up,
        "unet.0.alpha": torch.tensor(1.0),
    }
    add_lora(module, lora)
    x = torch.randn(4, 6)
    torch.testing.assert_close(module[0](x), x @ (before + up @ down / 2).T)
    remove_lora(module)
    down, up = torch.randn(2, 2, 3, 3), torch.randn(3, 2, 1, 1)
    picture = torch.randn(1, 2, 8, 8)
    delta = (up.flatten(1) @ down.flatten(1)).reshape(3, 2, 3, 3)
    wanted = torch.conv2d(picture, module[1].weight + delta)
    add_lora(module, {"1.lora_A.weight": down, "1.lora_B.weight": up})
    torch.testing.assert_close(module[1](picture), wanted, rtol=1e-4, atol=1e-5)
    remove_lora(module)


def test_what_does_not_fit_is_refused_and_nothing_is_added():
    module = nn.Sequential(nn.Linear(6, 5)).requires_grad_(False)
    down, up = torch.zeros(2, 6), torch.zeros(5, 2)
    cases = [
        (
            {},
            "this LoRA has no low-rank pairs\n"
            "  expected: tensors called PATH.lora_A.weight and PATH.lora_B.weight",
        ),
        (
            {"0.lora_A.weight": down},
            "the LoRA for '0' is not whole\n  expected: a pair of tensors",
        ),
        (
            {"0.lora_A.weight": down, "0.lora_B.weight": torch.zeros(4, 2)},
            "the LoRA for '0' does not fit: 4 x 2 and 2 x 6 for a weight of 5 x 6\n"
            "  expected: a LoRA made for this model",
        ),
        (
            {"7.lora_A.weight": down, "7.lora_B.weight": up},
            "the LoRA changes '7', and Sequential has no such layer\n"
            "  expected: paths of linear or convolution layers of this model",
        ),
    ]
    for lora, text in cases:
        with pytest.raises((BadInput, NotFound)) as caught:
            add_lora(module, lora)
        assert str(caught.value) == text
    with pytest.raises(NotFound) as caught:
        remove_lora(module, 3)
    assert str(caught.value) == "Sequential has no LoRA 3\n  expected: one that was added"
    assert not module[0]._forward_hooks

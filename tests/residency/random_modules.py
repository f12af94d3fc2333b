"""Modules and calls made at random from a seed: all that code of others does to tensors.

A part takes `(x, more)` and gives something like x. `more` is what a caller hands over beside it: a
list, a dict, a generator, a cache, a tensor. Parts change these, as pipelines of others do.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import return_and_correct_aliasing


class Cache:
    """Keys of earlier calls, as transformers' DynamicCache has them."""

    def __init__(self) -> None:
        self.keys: dict[int, torch.Tensor] = {}

    def update(self, layer: int, new: torch.Tensor) -> torch.Tensor:
        old = self.keys.get(layer)
        self.keys[layer] = new if old is None else torch.cat((old, new))
        return self.keys[layer]


class Scaled(torch.Tensor):
    """A tensor that wraps another and a factor, as quantized weights do."""

    held: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Scaled:
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    def __init__(self, inner: torch.Tensor) -> None:
        self.held = inner

    def __deepcopy__(self, memo: dict[int, Any]) -> torch.Tensor:
        return nn.Parameter(Scaled(self.held.clone()), requires_grad=False)

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["held"], None

    @staticmethod
    def __tensor_unflatten__(inner: dict[str, torch.Tensor], *_: Any) -> Scaled:
        return Scaled(inner["held"])

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in (torch.ops.aten.detach.default, torch.ops.aten.clone.default):
            made = Scaled(func(args[0].held, **kwargs))
            return return_and_correct_aliasing(func, args, kwargs, made)
        plain = [a.held * 2 if isinstance(a, Scaled) else a for a in args]
        return func(*plain, **kwargs)


class Part(nn.Module):
    """A part of a model; `ran` counts the runs of its code."""

    def __init__(self, wide: int, rng: random.Random) -> None:
        super().__init__()
        self.wide = wide
        self.number = rng.randrange(1 << 30)
        self.ran = 0
        self.layer = nn.Linear(wide, wide)

    def forward(self, x: torch.Tensor, more: dict[str, Any]) -> torch.Tensor:
        self.ran += 1
        return self.run(x, more)

    def run(self, x: torch.Tensor, more: dict[str, Any]) -> torch.Tensor:
        return torch.relu(self.layer(x))


class Deep(Part):
    """Layers in layers, wide inside, with weights of its own."""

    def __init__(self, wide: int, rng: random.Random) -> None:
        super().__init__(wide, rng)
        self.up, self.down = nn.Linear(wide, 4 * wide), nn.Linear(4 * wide, wide)
        self.gate = nn.Parameter(torch.rand(wide))

    def run(self, x: torch.Tensor, more: dict[str, Any]) -> torch.Tensor:
        return x * self.gate + self.down(F.silu(self.up(self.layer(x)))) * self.gate


class Convolves(Part):
    """A convolution, for which libraries want a workspace."""

    def __init__(self, wide: int, rng: random.Random) -> None:
        super().__init__(wide, rng)
        self.mix = nn.Conv1d(wide, wide, 3, padding=1)

    def run(self, x: torch.Tensor, more: dict[str, Any]) -> torch.Tensor:
        return self.mix(self.layer(x).t()[None])[0].t()


class Pops(Part):
    """Takes from a list it is given, as a UNet does with adapters' features."""

    def run(self, x: torch.Tensor, more: dict[str, Any]) -> torch.Tensor:
        x = self.layer(x)
        return x + more["list"].pop(0) if more["list"] else x * 2


class Puts(Part):
    """Puts what it computed where its caller finds it."""

    def run(self, x: torch.Tensor, more: dict[str, Any]) -> torch.Tensor:
        x = self.layer(x)
        more["dict"].setdefault("seen", []).append(x.mean(0))
        more["dict"]["last"] = x
        return x + more["dict"]["seen"][0]


class Writes(Part):
    """Changes inputs in place."""

    def run(self, x: torch.Tensor, more: dict[str, Any]) -> torch.Tensor:
        x = self.layer(x)
        more["tensor"].mul_(1.5).add_(x.mean(0))
        return x.add_(more["tensor"])


class Draws(Part):
    """Draws random numbers from a generator, and from that of the process."""

    def run(self, x: torch.Tensor, more: dict[str, Any]) -> torch.Tensor:
        x = self.layer(x) + torch.randn(x.shape, generator=more["generator"])
        return F.dropout(x, 0.3, training=True) + torch.rand(self.wide)


class Caches(Part):
    """Adds to a cache and reads all of it."""

    def run(self, x: torch.Tensor, more: dict[str, Any]) -> torch.Tensor:
        keys = more["cache"].update(self.number, self.layer(x))
        return F.scaled_dot_product_attention(x[None], keys[None], keys[None])[0]


class Chooses(Part):
    """Goes a way that values decide, and makes shapes that values decide."""

    def __init__(self, wide: int, rng: random.Random) -> None:
        super().__init__(wide, rng)
        self.other = nn.Linear(wide, wide)

    def run(self, x: torch.Tensor, more: dict[str, Any]) -> torch.Tensor:
        if x.sum().item() > 0:
            x = self.other(torch.cat((x, x)))[: len(x)]
        rows = x[x[:, 0] > 0]
        return self.layer(x) + rows.sum(0)


class Counts(Part):
    """Buffers that runs change: in place, by another tensor, by a kernel."""

    def __init__(self, wide: int, rng: random.Random) -> None:
        super().__init__(wide, rng)
        self.norm = nn.BatchNorm1d(wide).train()
        self.register_buffer("total", torch.zeros(wide))
        self.register_buffer("latest", torch.zeros(1))

    def run(self, x: torch.Tensor, more: dict[str, Any]) -> torch.Tensor:
        self.total += x.mean(0)
        self.latest = x.max().reshape(1)
        return self.layer(self.norm(torch.cat((x, x)))[: len(x)]) + self.total


class Tied(Part):
    """One weight for two layers, and views of one storage."""

    def __init__(self, wide: int, rng: random.Random) -> None:
        super().__init__(wide, rng)
        self.again = nn.Linear(wide, wide)
        self.again.weight = self.layer.weight
        both = torch.randn(2 * wide, wide) / wide
        self.first, self.second = nn.Parameter(both[:wide]), nn.Parameter(both[wide // 2 :][:wide])

    def run(self, x: torch.Tensor, more: dict[str, Any]) -> torch.Tensor:
        x = F.linear(self.again(torch.relu(self.layer(x))), self.first)
        return F.linear(x, self.second.t().contiguous().view_as(self.second))


class Borrows(Part):
    """Uses weights without calling their layer, and keeps a view of one over others' runs."""

    def __init__(self, wide: int, rng: random.Random) -> None:
        super().__init__(wide, rng)
        self.never, self.inner = nn.Linear(wide, wide), nn.Linear(wide, wide)

    def run(self, x: torch.Tensor, more: dict[str, Any]) -> torch.Tensor:
        view = self.never.weight.t()
        x = self.inner(self.layer(x))
        return x @ view + self.never.bias


class Recurs(Part):
    """Calls itself, and gives a weight back as its result."""

    def __init__(self, wide: int, rng: random.Random) -> None:
        super().__init__(wide, rng)
        self.scale = nn.Parameter(torch.rand(wide))
        self.giver = Gives(wide)

    def run(self, x: torch.Tensor, more: dict[str, Any], depth: int = 2) -> torch.Tensor:
        x = self.layer(x) * self.scale + self.giver()
        return x if depth == 0 else self.run(x, more, depth - 1)


class Gives(nn.Module):
    """Its result is its weight."""

    def __init__(self, wide: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(wide))

    def forward(self) -> torch.Tensor:
        return self.weight


class Wraps(Part):
    """A weight of a class of its own."""

    def __init__(self, wide: int, rng: random.Random) -> None:
        super().__init__(wide, rng)
        self.wrapped = nn.Parameter(Scaled(torch.randn(wide, wide) / wide), requires_grad=False)

    def run(self, x: torch.Tensor, more: dict[str, Any]) -> torch.Tensor:
        return F.linear(self.layer(x), self.wrapped)


class Forgives(Part):
    """Catches an error of its own layer and goes on."""

    def run(self, x: torch.Tensor, more: dict[str, Any]) -> torch.Tensor:
        try:
            return self.layer(torch.cat((x, x), 1))
        except torch.OutOfMemoryError:
            raise
        except RuntimeError:
            return self.layer(x) - 1


class Conditional(Part):
    """A higher-order operator."""

    def run(self, x: torch.Tensor, more: dict[str, Any]) -> torch.Tensor:
        return torch.cond(x.sum() > 0, torch.sin, torch.cos, (self.layer(x),))


PARTS = (
    Convolves,
    *(Part, Deep, Pops, Puts, Writes, Draws, Caches, Chooses, Counts, Tied, Borrows, Recurs),
    *(Wraps, Forgives),
)


class Model(nn.Module):
    """Parts one after the other; some run twice, some are skipped in some steps."""

    def __init__(self, rng: random.Random, kinds: tuple[type[Part], ...] = PARTS) -> None:
        super().__init__()
        wide = rng.choice((8, 24, 48))
        self.wide = wide
        self.ran = 0
        self.parts = nn.ModuleList(rng.choice(kinds)(wide, rng) for _ in range(rng.randint(1, 6)))
        self.order = [rng.randrange(len(self.parts)) for _ in range(rng.randint(1, 8))]
        self.skipped = rng.choice((None, None, 0, 1))

    def forward(self, x: torch.Tensor, more: dict[str, Any], step: int = 0) -> torch.Tensor:
        self.ran += 1
        for at, number in enumerate(self.order):
            if self.skipped is not None and at == step % 3 == self.skipped:
                continue
            x = F.layer_norm(self.parts[number](x, more), (self.wide,))
        return x


def inputs(rng: random.Random, wide: int) -> tuple[torch.Tensor, dict[str, Any]]:
    """What one call gets."""
    draw = torch.Generator().manual_seed(rng.randrange(1 << 30))
    rows = rng.choice((1, 3, 3, 20, 150))
    more = {
        "list": [torch.randn(wide, generator=draw) for _ in range(rng.randint(0, 4))],
        "dict": {},
        "tensor": torch.randn(wide, generator=draw),
        "generator": torch.Generator().manual_seed(rng.randrange(1 << 30)),
        "cache": Cache(),
    }
    return torch.randn(rows, wide, generator=draw), more


def hook_by_others(model: Model, rng: random.Random) -> None:
    """Hooks that look, and hooks that change what goes through."""
    layers = [m for m in model.modules() if isinstance(m, nn.Linear)]
    for layer in rng.sample(layers, min(2, len(layers))):
        change: Callable[..., Any] = rng.choice((_look, _double))
        layer.register_forward_hook(change)
        layer.register_forward_pre_hook(_halve)


def _look(*_: Any) -> None:
    return None


def _double(module: nn.Module, args: Any, output: torch.Tensor) -> torch.Tensor:
    return output * 2


def _halve(module: nn.Module, args: Any) -> Any:
    return (args[0] / 2, *args[1:])

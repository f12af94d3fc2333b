"""Models made of odd parts, for tests that look for one which streaming cannot stand.

Every part takes `(x, step)` and gives something like x. What it does may depend on `step`, never
on chance, so that a copy of the model does the same.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn


class Part(nn.Module):
    """A part of a model; `wide` is the size of what goes through."""

    changes = False  # whether running it changes it

    def __init__(self, wide: int) -> None:
        super().__init__()
        self.wide = wide


class Plain(Part):
    def __init__(self, wide: int) -> None:
        super().__init__(wide)
        self.layer = nn.Linear(wide, wide)

    def forward(self, x: torch.Tensor, step: int) -> torch.Tensor:
        return self.layer(x)


class Nested(Part):
    """Layers in layers, with a parameter of its own that is used before and after them."""

    def __init__(self, wide: int) -> None:
        super().__init__(wide)
        self.norm = nn.LayerNorm(wide)
        self.inner = nn.Sequential(nn.Linear(wide, 2 * wide), nn.GELU(), nn.Linear(2 * wide, wide))
        self.gate = nn.Parameter(torch.randn(wide))

    def forward(self, x: torch.Tensor, step: int) -> torch.Tensor:
        x = x * self.gate
        return x + self.inner(self.norm(x)) * self.gate


class Tied(Part):
    """One weight in two layers, and one layer in two places."""

    def __init__(self, wide: int) -> None:
        super().__init__(wide)
        self.one = nn.Linear(wide, wide)
        self.two = nn.Linear(wide, wide)
        self.two.weight = self.one.weight
        self.again = nn.ModuleDict({"one": self.one})

    def forward(self, x: torch.Tensor, step: int) -> torch.Tensor:
        return self.again["one"](self.two(self.one(x)))


class Views(Part):
    """Parameters and a buffer that are views of one storage; some overlap."""

    last: torch.Tensor

    def __init__(self, wide: int) -> None:
        super().__init__(wide)
        whole = torch.randn(3 * wide, wide) / wide
        self.first = nn.Parameter(whole[:wide])
        self.second = nn.Parameter(whole[wide : 2 * wide])
        self.both = nn.Parameter(whole[: 2 * wide])
        self.register_buffer("last", whole[2 * wide :])

    def forward(self, x: torch.Tensor, step: int) -> torch.Tensor:
        y = F.linear(x, self.both)
        return F.linear(x, self.first) + y[..., : self.wide] @ self.last + self.second[0]


class Strided(Part):
    """Weights that are not contiguous."""

    wide_open: torch.Tensor

    def __init__(self, wide: int) -> None:
        super().__init__(wide)
        self.turned = nn.Parameter((torch.randn(wide, wide) / wide).t())
        self.register_buffer("wide_open", torch.randn(1, wide).expand(3, wide))
        self.conv = nn.Conv2d(4, 4, 3, padding=1).to(memory_format=torch.channels_last)

    def forward(self, x: torch.Tensor, step: int) -> torch.Tensor:
        y = F.linear(x, self.turned) + self.wide_open[1]
        return y + self.conv(y.reshape(-1, 4, 2, self.wide // 8)).reshape(y.shape)


class Batches(Part):
    """Statistics that every run changes."""

    changes = True

    def __init__(self, wide: int) -> None:
        super().__init__(wide)
        self.norm = nn.BatchNorm1d(wide)

    def forward(self, x: torch.Tensor, step: int) -> torch.Tensor:
        return self.norm(x)


class Counts(Part):
    """Buffers changed in place, and one replaced by another tensor; used twice in a pass."""

    changes = True

    seen: torch.Tensor
    large: torch.Tensor
    runs: torch.Tensor

    def __init__(self, wide: int) -> None:
        super().__init__(wide)
        self.register_buffer("seen", torch.zeros(wide))
        self.register_buffer("large", torch.zeros(wide, wide))
        self.register_buffer("runs", torch.zeros((), dtype=torch.int64))
        self.layer = nn.Linear(wide, wide)

    def forward(self, x: torch.Tensor, step: int) -> torch.Tensor:
        self.seen += x.detach().mean(0)
        self.large[step % self.wide].add_(1)
        self.runs = self.runs + 1
        return self.layer(x) + self.seen + self.large.sum(0) * 0.01 + self.runs


class CountsTwice(Part):
    changes = True

    def __init__(self, wide: int) -> None:
        super().__init__(wide)
        self.counts = Counts(wide)
        self.between = nn.Linear(wide, wide)

    def forward(self, x: torch.Tensor, step: int) -> torch.Tensor:
        return self.counts(self.between(self.counts(x, step)), step)


class Attends(Part):
    """Takes the weights of its inner layer without calling it."""

    def __init__(self, wide: int) -> None:
        super().__init__(wide)
        self.attention = nn.MultiheadAttention(wide, 2, batch_first=True)

    def forward(self, x: torch.Tensor, step: int) -> torch.Tensor:
        y = x.unsqueeze(0)
        return self.attention(y, y, y)[0].squeeze(0)


class Borrows(Part):
    """Uses weights of layers that it never calls, and of one that it also calls."""

    def __init__(self, wide: int) -> None:
        super().__init__(wide)
        self.never = nn.Linear(wide, wide)
        self.called = nn.Linear(wide, wide)

    def forward(self, x: torch.Tensor, step: int) -> torch.Tensor:
        x = F.linear(x, self.never.weight, self.called.bias)
        return self.called(x) + F.linear(x, self.called.weight)


class BorrowsSometimes(Part):
    """A layer that takes another weight in some passes only."""

    def __init__(self, wide: int) -> None:
        super().__init__(wide)
        self.own = nn.Linear(wide, wide)
        self.other = nn.Linear(wide, wide)

    def forward(self, x: torch.Tensor, step: int) -> torch.Tensor:
        x = self.own(x)
        return F.linear(x, self.other.weight) if step % 3 == 1 else x


class Skips(Part):
    """Leaves layers out, in some passes."""

    def __init__(self, wide: int) -> None:
        super().__init__(wide)
        self.layers = nn.ModuleList(nn.Linear(wide, wide) for _ in range(4))

    def forward(self, x: torch.Tensor, step: int) -> torch.Tensor:
        for i, layer in enumerate(self.layers):
            if (step * 7 + i * 5) % 3:
                x = layer(x)
        return x


class Swaps(Part):
    """Changes the order of its layers."""

    def __init__(self, wide: int) -> None:
        super().__init__(wide)
        self.layers = nn.ModuleList(nn.Linear(wide, wide) for _ in range(3))

    def forward(self, x: torch.Tensor, step: int) -> torch.Tensor:
        for i in range(3):
            x = self.layers[(i * (1 + step % 2) + step) % 3](x)
        return x


class Loops(Part):
    """Runs a few layers over and over, from not at all to many times, and leaves early."""

    def __init__(self, wide: int) -> None:
        super().__init__(wide)
        self.layers = nn.ModuleList(nn.Linear(wide, wide) for _ in range(2))

    def forward(self, x: torch.Tensor, step: int) -> torch.Tensor:
        for i in range((step * 5 + 2) % 4):
            x = torch.tanh(self.layers[0](x))
            if (step + i) % 3 == 2:
                return x
            x = self.layers[1](x)
        return x


class Wraps(Part):
    """A layer with a weight of its own that calls another layer in some passes only."""

    def __init__(self, wide: int) -> None:
        super().__init__(wide)
        self.weight = nn.Parameter(torch.randn(wide, wide) / wide)
        self.inner = nn.Linear(wide, wide)

    def forward(self, x: torch.Tensor, step: int) -> torch.Tensor:
        y = F.linear(x, self.weight)
        if step % 2:
            y = self.inner(y)
        return y + F.linear(x, self.weight)


class Positions(Part):
    """A layer whose result is a view of its weights."""

    class Table(nn.Module):
        def __init__(self, wide: int) -> None:
            super().__init__()
            self.table = nn.Parameter(torch.randn(64, wide))

        def forward(self, count: int) -> torch.Tensor:
            return self.table[:count]

    def __init__(self, wide: int) -> None:
        super().__init__(wide)
        self.table = self.Table(wide)
        self.layers = nn.ModuleList(nn.Linear(wide, wide) for _ in range(3))

    def forward(self, x: torch.Tensor, step: int) -> torch.Tensor:
        places = self.table(len(x))
        for layer in self.layers:
            x = layer(x)
        return x + places


class Casts(Part):
    """Weights stored in eight bits and cast when they are used."""

    whole: torch.Tensor
    flags: torch.Tensor

    def __init__(self, wide: int) -> None:
        super().__init__(wide)
        weight = torch.randn(wide, wide) / wide
        self.small = nn.Parameter(weight.to(torch.float8_e4m3fn), requires_grad=False)
        self.register_buffer("whole", (weight * 100).to(torch.int8))
        self.register_buffer("flags", torch.arange(wide) % 2 == 0)

    def forward(self, x: torch.Tensor, step: int) -> torch.Tensor:
        y = F.linear(x, self.small.to(x.dtype)) + F.linear(x, self.whole.to(x.dtype)) / 100
        return torch.where(self.flags, y, -y)


class Empty(Part):
    """Parameters and buffers without elements, and names without tensors."""

    unsaved: torch.Tensor

    def __init__(self, wide: int) -> None:
        super().__init__(wide)
        self.nothing = nn.Parameter(torch.empty(0, wide))
        self.register_buffer("none", torch.empty(0))
        self.register_parameter("absent", None)
        self.register_buffer("unsaved", torch.ones(wide), persistent=False)
        self.layer = nn.Linear(wide, wide, bias=False)

    def forward(self, x: torch.Tensor, step: int) -> torch.Tensor:
        return torch.cat((self.layer(x), self.nothing)) * self.unsaved


class Forgives(Part):
    """A layer that fails in some passes, and a model that goes on without it."""

    class Fails(nn.Module):
        def __init__(self, wide: int) -> None:
            super().__init__()
            self.layer = nn.Linear(wide, wide)
            self.scale = nn.Parameter(torch.randn(wide))

        def forward(self, x: torch.Tensor, step: int) -> torch.Tensor:
            if step % 3 == 2:
                raise ValueError("not this time")
            return self.layer(x) * self.scale

    def __init__(self, wide: int) -> None:
        super().__init__(wide)
        self.before = nn.Linear(wide, wide)
        self.fails = self.Fails(wide)
        self.after = nn.Linear(wide, wide)

    def forward(self, x: torch.Tensor, step: int) -> torch.Tensor:
        x = self.before(x)
        try:
            x = self.fails(x, step)
        except ValueError:
            x = -x
        return self.after(x)


PARTS: tuple[type[Part], ...] = (
    Plain,
    Nested,
    Tied,
    Views,
    Strided,
    Batches,
    Counts,
    CountsTwice,
    Attends,
    Borrows,
    BorrowsSometimes,
    Skips,
    Swaps,
    Loops,
    Wraps,
    Positions,
    Casts,
    Empty,
    Forgives,
)
STEADY = tuple(part for part in PARTS if not part.changes)


class Net(nn.Module):
    """Parts one after the other; with `direct`, weights of the model itself around them."""

    def __init__(self, parts: Sequence[type[Part]], wide: int, direct: bool = False) -> None:
        super().__init__()
        self.parts = nn.ModuleList(part(wide) for part in parts)
        self.direct = nn.Parameter(torch.randn(wide, wide) / wide) if direct else None

    def forward(self, x: torch.Tensor, step: int = 0) -> torch.Tensor:
        for part in self.parts:
            x = part(x, step)
        return x if self.direct is None else F.linear(x, self.direct)


def net(
    parts: Sequence[type[Part]], wide: int = 32, dtype: torch.dtype = torch.float32, **how: Any
) -> Net:
    """A model of those parts with the same weights every time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(len(parts))
        made = Net(parts, wide, **how)
    for module in made.modules():
        for table in (module._parameters, module._buffers):
            for name, tensor in table.items():
                if tensor is not None and tensor.dtype == torch.float32:
                    _convert(table, name, tensor, dtype)
    return made


def _convert(table: dict[str, Any], name: str, tensor: torch.Tensor, dtype: torch.dtype) -> None:
    """In place for parameters, so that tied ones stay tied."""
    if dtype != torch.float32:
        tensor.data = tensor.data.to(dtype)


def inputs(wide: int, dtype: torch.dtype, rows: int = 8) -> torch.Tensor:
    return torch.randn(rows, wide, generator=torch.Generator().manual_seed(1)).to(dtype)


class Picture:
    """Everything about a module that has to be the same when it is given back."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.keys = list(module.state_dict())
        self.parts = dict(module.named_modules(remove_duplicate=False))
        self.dicts = {name: dict(part.__dict__) for name, part in self.parts.items()}
        self.tables = {
            name: [dict(part.__dict__[table]) for table in self._tables]
            for name, part in self.parts.items()
        }
        self.tensors = {n: (t, self._form(t)) for n, t in self._all()}
        self.values = {n: copy.deepcopy(t.detach()) for n, t in self._all()}

    _tables = (
        "_parameters",
        "_buffers",
        "_modules",
        "_forward_hooks",
        "_forward_pre_hooks",
        "_forward_hooks_always_called",
        "_forward_hooks_with_kwargs",
        "_forward_pre_hooks_with_kwargs",
        "_state_dict_hooks",
        "_state_dict_pre_hooks",
        "_load_state_dict_pre_hooks",
        "_load_state_dict_post_hooks",
        "_backward_hooks",
    )

    def _all(self) -> list[tuple[str, torch.Tensor]]:
        found: list[tuple[str, torch.Tensor]] = []
        for name, part in self.parts.items():
            for table in (part._parameters, part._buffers):
                found += [(f"{name}.{key}", t) for key, t in table.items() if t is not None]
        return found

    def _form(self, tensor: torch.Tensor) -> tuple[Any, ...]:
        return (
            type(tensor),
            tensor.dtype,
            tuple(tensor.shape),
            tensor.stride(),
            tensor.device,
            tensor.requires_grad,
            tensor.grad is None,
        )

    def check(self, like: nn.Module | None = None) -> None:
        """Raises AssertionError for anything that is not as it was; values are those of `like`."""
        module = self.module
        assert list(module.state_dict()) == self.keys
        assert {n: id(m) for n, m in module.named_modules(remove_duplicate=False)} == {
            n: id(m) for n, m in self.parts.items()
        }
        for name, part in self.parts.items():
            assert part.__dict__.keys() == self.dicts[name].keys(), name
            for table, before in zip(self._tables, self.tables[name], strict=True):
                now = part.__dict__[table]
                assert list(now) == list(before), (name, table)
                if table != "_buffers":  # a forward may put other tensors there
                    assert all(now[key] is before[key] for key in before), (name, table)
        expected = self.values if like is None else dict(Picture(like).values)
        for name, tensor in self._all():
            before, form = self.tensors[name]
            if like is None:
                assert tensor is before, name
            assert self._form(tensor) == form, name
            assert same(tensor, expected[name]), name


def same(one: torch.Tensor, two: torch.Tensor) -> bool:
    """Whether they are equal bit for bit."""
    if one.dtype != two.dtype or one.shape != two.shape:
        return False
    return torch.equal(*(t.detach().contiguous().view(-1).view(torch.uint8) for t in (one, two)))


def leaves(module: nn.Module) -> list[nn.Module]:
    """Layers that a test can lie in wait in: those with parameters of their own, but the whole.

    Hooks of the whole module run before anything that manages it.
    """
    return [part for part in module.modules() if part._parameters and part is not module]


def wait_in(module: nn.Module, at: int, action: Callable[[], None]) -> list[Any]:
    """Call `action` when the `at`-th run of a layer of the module begins. Returns the hooks."""
    left = [at]

    def look(*_: Any) -> None:
        left[0] -= 1
        if left[0] == -1:
            action()

    return [part.register_forward_pre_hook(look) for part in leaves(module)]

"""Products that sum over chosen dimensions: outer, inner, tensordot, kron, multi_dot, einsum."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from holdfast.base.errors import BadInput
from holdfast.compute import functional as F
from holdfast.compute.ops.elementwise.complex_numbers import conjugate
from holdfast.compute.ops.layout import shapes
from holdfast.compute.ops.rules import normalize_dim
from holdfast.compute.ops.schema import describe
from holdfast.compute.ops.table import composite


@composite("outer(Tensor self, Tensor vec2) -> Tensor")
def outer(self: Any, vec2: Any) -> Any:
    if self.ndim != 1 or vec2.ndim != 1:
        raise BadInput(
            f"cannot compute outer({describe(self)}, {describe(vec2)})", expected="two vectors"
        )
    return F.unsqueeze(self, 1) * vec2


@composite("inner(Tensor self, Tensor other) -> Tensor")
def inner(self: Any, other: Any) -> Any:
    if self.ndim == 0 or other.ndim == 0:
        return self * other
    return tensordot(self, other, [-1], [-1])


@composite("linalg_vecdot(Tensor x, Tensor y, *, int dim=-1) -> Tensor")
def vecdot(x: Any, y: Any, dim: int = -1) -> Any:
    return F.sum(conjugate(x) * y, [dim])


@composite("tensordot(Tensor self, Tensor other, int[] dims_self, int[] dims_other) -> Tensor")
def tensordot(self: Any, other: Any, dims_self: Any, dims_other: Any) -> Any:
    first, second = _to_list(dims_self, self), _to_list(dims_other, other)
    for i, j in zip(first, second, strict=False):
        # Size 1 broadcasts: the other dimension can be summed before the product.
        if self.shape[i] == 1 != other.shape[j]:
            other = F.sum(other, [j], True)
        elif other.shape[j] == 1 != self.shape[i]:
            self = F.sum(self, [i], True)
    sizes = [self.shape[d] for d in first], [other.shape[d] for d in second]
    if sizes[0] != sizes[1]:
        raise BadInput(
            f"cannot compute tensordot({describe(self)}, {describe(other)}) over {first} and "
            f"{second}",
            expected=f"equal sizes where it sums; these are {sizes[0]} and {sizes[1]}",
        )
    kept = [d for d in range(self.ndim) if d not in first]
    left = [d for d in range(other.ndim) if d not in second]
    count = math.prod(sizes[0])
    shape = [self.shape[d] for d in kept] + [other.shape[d] for d in left]
    rows = F.reshape(F.permute(self, kept + first), (math.prod(self.shape[d] for d in kept), count))
    columns = F.permute(other, second + left)
    columns = F.reshape(columns, (count, math.prod(other.shape[d] for d in left)))
    return F.reshape(F.mm(rows, columns), shape)


@composite("tensordot.dims(Tensor self, Tensor other, Any dims=2) -> Tensor")
def tensordot_dims(self: Any, other: Any, dims: Any = 2) -> Any:
    """`dims`: how many, the last of one and the first of the other; or two lists of them."""
    if isinstance(dims, int):
        return tensordot(self, other, list(range(-dims, 0)), list(range(dims)))
    return tensordot(self, other, *dims)


def _to_list(dims: Any, of: Any) -> list[int]:
    return [normalize_dim(d, of.ndim) for d in shapes.as_list(dims)]


@composite("kron(Tensor self, Tensor other) -> Tensor")
def kron(self: Any, other: Any) -> Any:
    ndim = max(self.ndim, other.ndim)
    one = (*[1] * (ndim - self.ndim), *self.shape)
    two = (*[1] * (ndim - other.ndim), *other.shape)
    first = F.reshape(self, [n for size in one for n in (size, 1)])
    second = F.reshape(other, [n for size in two for n in (1, size)])
    return F.reshape(first * second, [a * b for a, b in zip(one, two, strict=True)])


@composite("bilinear(Tensor input1, Tensor input2, Tensor weight, Tensor? bias=None) -> Tensor")
def bilinear(input1: Any, input2: Any, weight: Any, bias: Any = None) -> Any:
    shape = (*input1.shape[:-1], weight.shape[0])
    count = math.prod(input1.shape[:-1])
    rows = [F.reshape(x, (count, x.shape[-1])) for x in (input1, input2)]
    out = F._trilinear(rows[0], weight, rows[1], [1, 3], [0], [1, 2], [2, 3])
    out = F.reshape(out, shape)
    return out if bias is None else out + bias


# ---- several matrices


@composite("linalg_multi_dot(Tensor[] tensors) -> Tensor")
def multi_dot(tensors: Any) -> Any:
    if len(tensors) < 2:
        raise BadInput(f"multi_dot of {len(tensors)} tensors", expected="two or more")
    matrices = list(tensors)
    row, column = matrices[0].ndim == 1, matrices[-1].ndim == 1
    if row:
        matrices[0] = F.unsqueeze(matrices[0], 0)
    if column:
        matrices[-1] = F.unsqueeze(matrices[-1], -1)
    sizes = [m.shape[0] for m in matrices] + [matrices[-1].shape[1]]
    found = _in_order(matrices, _best_splits(sizes), 0, len(matrices) - 1)
    shape = (() if row else (sizes[0],)) + (() if column else (sizes[-1],))
    return F.reshape(found, shape) if row or column else found


def _best_splits(sizes: list[int]) -> dict[tuple[int, int], int]:
    """Where to split each part of the chain for the fewest multiplications."""
    count = len(sizes) - 1
    cost = {(i, i): 0 for i in range(count)}
    split: dict[tuple[int, int], int] = {}
    for length in range(1, count):
        for i in range(count - length):
            j = i + length
            cost[i, j], split[i, j] = min(
                (cost[i, k] + cost[k + 1, j] + sizes[i] * sizes[k + 1] * sizes[j + 1], k)
                for k in range(i, j)
            )
    return split


def _in_order(matrices: list[Any], split: dict[tuple[int, int], int], i: int, j: int) -> Any:
    if i == j:
        return matrices[i]
    cut = split[i, j]
    return F.mm(_in_order(matrices, split, i, cut), _in_order(matrices, split, cut + 1, j))


@composite("chain_matmul(Tensor[] matrices) -> Tensor")
def chain_matmul(matrices: Any) -> Any:
    return F.clone(matrices[0]) if len(matrices) == 1 else multi_dot(matrices)


@composite("linalg_matrix_power(Tensor self, int n) -> Tensor")
def matrix_power(self: Any, n: int) -> Any:
    if self.ndim < 2 or self.shape[-1] != self.shape[-2]:
        raise BadInput(f"cannot raise {describe(self)} to a power", expected="square matrices")
    if n == 0:
        nothing = F.tril(F.triu(self, 1))
        return F.tril(F.triu(F.ones_like(self))) + nothing
    if n == 1:
        return F.clone(self)
    if n < 0:
        self, n = F.linalg_inv_ex(self, check_errors=True)[0], -n
    found = None
    while True:
        if n & 1:
            found = self if found is None else F.matmul(found, self)
        n >>= 1
        if not n:
            return found
        self = F.matmul(self, self)


# ---- einsum("bij,bjk->bik", [a, b]): parsed, then two tensors at a time by one batched product

Labels = list[str]  # a letter for each dimension, or "...0", "...1" for those of an ellipsis


class _Refused(Exception):
    """Why an equation is invalid."""


@composite("einsum(str equation, Tensor[] tensors, *, int[]? path=None) -> Tensor")
def einsum(equation: str, tensors: Any, path: Any = None) -> Any:
    try:
        return _einsum(equation, list(tensors), path)
    except _Refused as exc:
        shown = ", ".join(describe(t) for t in tensors)
        raise BadInput(
            f"cannot compute einsum({equation!r}, [{shown}]): {exc}",
            expected='a letter for each dimension of each tensor, as in "bij,bjk->bik"',
        ) from exc


def _einsum(equation: str, tensors: list[Any], path: Any) -> Any:
    operands, out = _read(equation, [t.ndim for t in tensors])
    work = [_with_diagonals(t, labels) for t, labels in zip(tensors, operands, strict=True)]
    _check_sizes(work)
    places = list(path or ())
    while len(work) > 1:
        i, j = sorted(places[:2]) if places else (0, 1)
        places = places[2:]
        second, first = work.pop(j), work.pop(i)
        needed = {label for _, labels in work for label in labels}.union(out)
        # With a path, torch puts the product at the end; from left to right it stays in front.
        work.insert(len(work) if path else 0, _contract_pair(first, second, needed))
    return _arrange(*work[0], out)


# ---- the equation


def _read(equation: str, ranks: list[int]) -> tuple[list[Labels], Labels]:
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != len(ranks):
        raise _Refused(f"{len(terms)} terms for {len(ranks)} tensors")
    operands = [_labels(term, rank) for term, rank in zip(terms, ranks, strict=True)]
    dots = sorted({s for labels in operands for s in labels if s.startswith(".")}, key=_place)
    if arrow:
        return operands, _result(right, dots, {s for labels in operands for s in labels})
    every = [s for labels in operands for s in labels]
    return operands, dots + sorted(s for s in set(every) if every.count(s) == 1 and s not in dots)


def _place(label: str) -> int:
    return -int(label[3:])


def _labels(term: str, rank: int) -> Labels:
    before, dots, after = term.partition("...")
    letters = before + after
    strange = [c for c in letters if not (c.isascii() and c.isalpha())]
    if strange:
        raise _Refused(f"{strange[0]!r} is no letter")
    hidden = rank - len(letters)
    if hidden < 0 or (hidden and not dots):
        raise _Refused(f"{term!r} names {len(letters)} dimensions of {rank}")
    # An ellipsis is aligned on the right: "...0" is its last dimension.
    return [*before, *(f"...{i}" for i in reversed(range(hidden))), *after]


def _result(term: str, dots: Labels, known: set[str]) -> Labels:
    before, ellipsis, after = term.partition("...")
    out = [*before, *(dots if ellipsis else ()), *after]
    for label in out:
        if label not in known:
            raise _Refused(f"{label!r} of the result is in none of the terms")
        if out.count(label) > 1:
            raise _Refused(f"{label!r} is in the result twice")
    return out


def _with_diagonals(tensor: Any, labels: Labels) -> tuple[Any, Labels]:
    """A label that occurs twice takes the diagonal, which comes last."""
    labels = list(labels)
    for label in dict.fromkeys(labels):
        while labels.count(label) > 1:
            i = labels.index(label)
            j = labels.index(label, i + 1)
            if tensor.shape[i] != tensor.shape[j]:
                raise _Refused(f"{label!r} is {tensor.shape[i]} and {tensor.shape[j]}")
            tensor = F.diagonal(tensor, 0, i, j)
            labels = [s for k, s in enumerate(labels) if k not in (i, j)] + [label]
    return tensor, labels


def _check_sizes(work: Iterable[tuple[Any, Labels]]) -> None:
    sizes: dict[str, int] = {}
    for tensor, labels in work:
        for label, size in zip(labels, tensor.shape, strict=True):
            known = sizes.setdefault(label, size)
            if known == 1:
                sizes[label] = size
            elif size not in (1, known):
                raise _Refused(f"{label!r} is {known} and {size}")


# ---- two tensors


def _contract_pair(
    first: tuple[Any, Labels], second: tuple[Any, Labels], needed: set[str]
) -> tuple[Any, Labels]:
    """The product of two tensors, summed over labels that nothing else needs."""
    (a, one), (b, two) = first, second
    a, one = _sum_labels(a, one, {s for s in one if s not in two and s not in needed})
    b, two = _sum_labels(b, two, {s for s in two if s not in one and s not in needed})
    # Size 1 broadcasts: the other dimension can be summed before the product.
    both = {s: (a.shape[one.index(s)], b.shape[two.index(s)]) for s in one if s in two}
    alone = {s for s, (m, n) in both.items() if m != n and s not in needed}
    a, one = _sum_labels(a, one, alone)
    b, two = _sum_labels(b, two, alone)
    shared = [s for s in one if s in two and s in needed]
    inner = [s for s in one if s in two and s not in needed]
    left = [s for s in one if s not in two]
    right = [s for s in two if s not in one]
    labels = shared + left + right
    sizes = {**dict(zip(two, b.shape, strict=True)), **dict(zip(one, a.shape, strict=True))}
    for s in shared:
        sizes[s] = b.shape[two.index(s)] if sizes[s] == 1 else sizes[s]
    a = _permute(a, one, shared + left + inner)
    if not inner:
        b = _permute(b, two, shared + right)
        a = F.reshape(a, (*a.shape, *[1] * len(right)))
        b = F.reshape(b, (*b.shape[: len(shared)], *[1] * len(left), *b.shape[len(shared) :]))
        return a * b, labels
    b = _permute(b, two, shared + inner + right)
    a = _flatten_groups(a, [shared, left, inner], sizes)
    b = _flatten_groups(b, [shared, inner, right], sizes)
    return F.reshape(F.matmul(a, b), [sizes[s] for s in labels]), labels


def _flatten_groups(tensor: Any, groups: Sequence[Labels], sizes: dict[str, int]) -> Any:
    """Flatten each group of dimensions; the batch group is dropped if empty."""
    full = [sizes[s] for group in groups for s in group]
    if tuple(full) != tuple(tensor.shape):
        tensor = F.expand(tensor, full)
    counts = [math.prod(sizes[s] for s in group) for group in groups]
    return F.reshape(tensor, counts if groups[0] else counts[1:])


def _sum_labels(tensor: Any, labels: Labels, away: set[str]) -> tuple[Any, Labels]:
    dims = [i for i, s in enumerate(labels) if s in away]
    if not dims:
        return tensor, labels
    return F.sum(tensor, dims), [s for s in labels if s not in away]


def _permute(tensor: Any, labels: Labels, order: Labels) -> Any:
    return tensor if labels == order else F.permute(tensor, [labels.index(s) for s in order])


def _arrange(tensor: Any, labels: Labels, out: Labels) -> Any:
    tensor, labels = _sum_labels(tensor, labels, set(labels).difference(out))
    return _permute(tensor, labels, out)

"""`einsum("bij,bjk->bik", [a, b])`: parsed, then two tensors at a time by one batched matrix
product.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from holdfast.base.errors import BadInput
from holdfast.compute import functional as F
from holdfast.compute.ops.schema import describe
from holdfast.compute.ops.table import composite

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
        work.insert(len(work) if path else 0, _joined(first, second, needed))
    return _arranged(*work[0], out)


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


def _joined(
    first: tuple[Any, Labels], second: tuple[Any, Labels], needed: set[str]
) -> tuple[Any, Labels]:
    """The product of two tensors, summed over labels that nothing else needs."""
    (a, one), (b, two) = first, second
    a, one = _summed(a, one, {s for s in one if s not in two and s not in needed})
    b, two = _summed(b, two, {s for s in two if s not in one and s not in needed})
    # Size 1 broadcasts: the other dimension can be summed before the product.
    both = {s: (a.shape[one.index(s)], b.shape[two.index(s)]) for s in one if s in two}
    alone = {s for s, (m, n) in both.items() if m != n and s not in needed}
    a, one = _summed(a, one, alone)
    b, two = _summed(b, two, alone)
    shared = [s for s in one if s in two and s in needed]
    inner = [s for s in one if s in two and s not in needed]
    left = [s for s in one if s not in two]
    right = [s for s in two if s not in one]
    labels = shared + left + right
    sizes = {**dict(zip(two, b.shape, strict=True)), **dict(zip(one, a.shape, strict=True))}
    for s in shared:
        sizes[s] = b.shape[two.index(s)] if sizes[s] == 1 else sizes[s]
    a = _permuted(a, one, shared + left + inner)
    if not inner:
        b = _permuted(b, two, shared + right)
        a = F.reshape(a, (*a.shape, *[1] * len(right)))
        b = F.reshape(b, (*b.shape[: len(shared)], *[1] * len(left), *b.shape[len(shared) :]))
        return a * b, labels
    b = _permuted(b, two, shared + inner + right)
    a = _grouped(a, [shared, left, inner], sizes)
    b = _grouped(b, [shared, inner, right], sizes)
    return F.reshape(F.matmul(a, b), [sizes[s] for s in labels]), labels


def _grouped(tensor: Any, groups: Sequence[Labels], sizes: dict[str, int]) -> Any:
    """Flatten each group of dimensions; the batch group is dropped if empty."""
    full = [sizes[s] for group in groups for s in group]
    if tuple(full) != tuple(tensor.shape):
        tensor = F.expand(tensor, full)
    counts = [math.prod(sizes[s] for s in group) for group in groups]
    return F.reshape(tensor, counts if groups[0] else counts[1:])


def _summed(tensor: Any, labels: Labels, away: set[str]) -> tuple[Any, Labels]:
    dims = [i for i, s in enumerate(labels) if s in away]
    if not dims:
        return tensor, labels
    return F.sum(tensor, dims), [s for s in labels if s not in away]


def _permuted(tensor: Any, labels: Labels, order: Labels) -> Any:
    return tensor if labels == order else F.permute(tensor, [labels.index(s) for s in order])


def _arranged(tensor: Any, labels: Labels, out: Labels) -> Any:
    tensor, labels = _summed(tensor, labels, set(labels).difference(out))
    return _permuted(tensor, labels, out)

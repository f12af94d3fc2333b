"""Products that sum over chosen dimensions: outer, inner, tensordot, kron, multi_dot."""

from __future__ import annotations

import math
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
    first, second = _listed(dims_self, self), _listed(dims_other, other)
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


def _listed(dims: Any, of: Any) -> list[int]:
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

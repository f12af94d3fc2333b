"""Histograms, unique elements, searchsorted, covariance."""

from __future__ import annotations

from typing import Any

from holdfast.compute import dtype as dtypes
from holdfast.compute import functional as F
from holdfast.compute.ops.elementwise.complex_numbers import conjugate
from holdfast.compute.ops.rules import Meta, checked, meta_of, rule, sized
from holdfast.compute.ops.table import Op, composite, op

# ---- histograms


op("histc(Tensor self, int bins=100, Scalar min=0, Scalar max=0) -> Tensor",
   rule(lambda _, b: Meta((b["bins"],), b["self"].dtype)))  # fmt: skip


def _infer_by_edges(_: Op, bound: dict[str, Any]) -> tuple[Meta, Meta]:
    edges = bound["bins"]
    return Meta((edges.shape[0] - 1,), bound["self"].dtype), meta_of(edges)


def _infer_by_count(_: Op, bound: dict[str, Any]) -> tuple[Meta, Meta]:
    count, kind = bound["bins"], bound["self"].dtype
    return Meta((count,), kind), Meta((count + 1,), kind)


op("histogram.bins_tensor(Tensor self, Tensor bins, *, Tensor? weight=None, "
   "bool density=False) -> (Tensor hist, Tensor bin_edges)", rule(_infer_by_edges))  # fmt: skip
op("histogram.bin_ct(Tensor self, int bins=100, *, float[]? range=None, Tensor? weight=None, "
   "bool density=False) -> (Tensor hist, Tensor bin_edges)", rule(_infer_by_count))  # fmt: skip
op("_histogramdd_bin_edges(Tensor self, int[] bins, *, float[]? range=None, "
   "Tensor? weight=None, bool density=False) -> Tensor[]")  # fmt: skip
op("_histogramdd_from_bin_cts(Tensor self, int[] bins, *, float[]? range=None, "
   "Tensor? weight=None, bool density=False) -> Tensor", sized("bins", "self"))  # fmt: skip
op("_histogramdd_from_bin_tensors(Tensor self, Tensor[] bins, *, Tensor? weight=None, "
   "bool density=False) -> Tensor")  # fmt: skip
op("bincount(Tensor self, Tensor? weights=None, int minlength=0) -> Tensor")


@composite(
    "histogramdd(Tensor self, int[] bins, float[]? range=None, Tensor? weight=None, "
    "bool density=False) -> (Tensor hist, Tensor[] bin_edges)"
)
def _histogramdd(
    self: Any, bins: Any, range: Any = None, weight: Any = None, density: bool = False
) -> Any:
    counts = [bins] * self.shape[-1] if isinstance(bins, int) else list(bins)
    edges = F._histogramdd_bin_edges(self, counts, range=range)
    found = F._histogramdd_from_bin_cts(self, counts, range=range, weight=weight, density=density)
    return found, edges


# ---- unique

op("_unique(Tensor self, bool sorted=True, bool return_inverse=False) -> (Tensor, Tensor)")
op("_unique2(Tensor self, bool sorted=True, bool return_inverse=False, "
   "bool return_counts=False) -> (Tensor, Tensor, Tensor)")  # fmt: skip
op("unique_dim(Tensor self, int dim, bool sorted=True, bool return_inverse=False, "
   "bool return_counts=False) -> (Tensor, Tensor, Tensor)")  # fmt: skip
op("unique_consecutive(Tensor self, bool return_inverse=False, bool return_counts=False, "
   "int? dim=None) -> (Tensor, Tensor, Tensor)")  # fmt: skip


@composite(
    "unique(Tensor self, bool sorted=True, bool return_inverse=False, "
    "bool return_counts=False, int? dim=None) -> Tensor[]"
)
def _unique(
    self: Any, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False,
    dim: int | None = None,
) -> Any:  # fmt: skip
    """As `torch.unique`: the elements alone, or a tuple with what was requested."""
    if dim is None:
        found = F._unique2(self, sorted, return_inverse, return_counts)
    else:
        found = F.unique_dim(self, dim, sorted, return_inverse, return_counts)
    asked = (True, return_inverse, return_counts)
    chosen: Any = tuple(one for one, wanted in zip(found, asked, strict=True) if wanted)
    return chosen if len(chosen) > 1 else chosen[0]


def _infer_unique(op: Op, bound: dict[str, Any]) -> Meta:
    elements = bound[op.schema.parameters[0].name]
    return Meta(tuple(getattr(elements, "shape", ())), dtypes.BOOL)


_ISIN = "isin.{0}({1}, *, bool assume_unique=False, bool invert=False) -> Tensor"
for _name, _arguments in {
    "Tensor_Tensor": "Tensor elements, Tensor test_elements",
    "Tensor_Scalar": "Tensor elements, Scalar test_element",
    "Scalar_Tensor": "Scalar element, Tensor test_elements",
}.items():
    op(_ISIN.format(_name, _arguments), rule(_infer_unique))


# ---- searchsorted


def _infer_searchsorted(_: Op, bound: dict[str, Any]) -> Meta:
    kind = dtypes.DTYPES["int32"] if bound["out_int32"] else dtypes.INT64
    return Meta(tuple(getattr(bound["self"], "shape", ())), kind)


def _check_bucketize(self: Any, boundaries: Any, *_: Any, **__: Any) -> None:
    if boundaries.ndim != 1:
        raise ValueError(f"the boundaries have {boundaries.ndim} dimensions, one is expected")


def _check_search(
    sorted_sequence: Any, self: Any, out_int32: bool = False, right: bool = False,
    side: str | None = None, sorter: Any = None,
) -> None:  # fmt: skip
    if side not in (None, "left", "right"):
        raise ValueError(f"there is no side {side!r}; left and right are")
    if side == "left" and right:
        raise ValueError("side='left' and right=True contradict each other")
    order, shape = sorted_sequence.shape, getattr(self, "shape", ())
    if len(order) != 1 and (not shape or order[:-1] != shape[:-1]):
        raise ValueError(
            f"the order of shape {list(order)} and the values of shape {list(shape)} differ "
            "before the last dimension"
        )


_SEARCH = rule(
    _infer_searchsorted,
    "numbers in ascending order along the last dimension, of the same leading dimensions as what "
    "is looked for, or of one dimension",
    _check_search,
)
_BUCKETS = checked(_SEARCH, _check_bucketize)
_HOW = "bool out_int32=False, bool right=False"
op(f"bucketize.Tensor(Tensor self, Tensor boundaries, *, {_HOW}) -> Tensor", _BUCKETS)
op(f"bucketize.Scalar(Scalar self, Tensor boundaries, *, {_HOW}) -> Tensor", _BUCKETS)
op(f"searchsorted.Tensor(Tensor sorted_sequence, Tensor self, *, {_HOW}, str? side=None, "
   "Tensor? sorter=None) -> Tensor", _SEARCH)  # fmt: skip
op(f"searchsorted.Scalar(Tensor sorted_sequence, Scalar self, *, {_HOW}, str? side=None, "
   "Tensor? sorter=None) -> Tensor", _SEARCH)  # fmt: skip


# ---- covariance


@composite(
    "cov(Tensor self, *, int correction=1, Tensor? fweights=None, Tensor? aweights=None) -> Tensor"
)
def _cov(self: Any, *, correction: int = 1, fweights: Any = None, aweights: Any = None) -> Any:
    """Rows are variables, columns are observations."""
    rows = self if self.ndim == 2 else F.reshape(self, [1, -1])
    given = [one for one in (fweights, aweights) if one is not None]
    if given:
        weights = given[0] if len(given) == 1 else F.mul(*given)
        total = F.sum(weights)
        lost: Any = correction  # from the number of observations
        if aweights is not None:
            lost = F.mul(F.div(F.sum(F.mul(weights, aweights)), total), correction)
        free = F.clamp(F.sub(total, lost), 0)
    else:
        weights, total = None, rows.shape[1]
        free = float(max(total - correction, 0))
    weighted = rows if weights is None else F.mul(rows, weights)
    centred = F.sub(rows, F.div(F.sum(weighted, [1], True), total))
    other = centred if weights is None else F.mul(centred, weights)
    found = F.div(F.matmul(other, F.transpose(conjugate(centred), 0, 1)), free)
    return found if self.ndim == 2 else F.reshape(found, [])


@composite("corrcoef(Tensor self) -> Tensor")
def _corrcoef(self: Any) -> Any:
    together = F.cov(self)
    if together.ndim == 0:
        return F.div(together, together)
    alone = F.sqrt(F.diagonal(together))
    scaled = F.div(F.div(together, F.unsqueeze(alone, 1)), F.unsqueeze(alone, 0))
    return scaled if dtypes.is_complex(scaled.dtype) else F.clamp(scaled, -1, 1)

"""Histograms, unique elements, searchsorted, covariance."""

from __future__ import annotations

from typing import Any

from holdfast.compute import dtype as dtypes
from holdfast.compute import functional as F
from holdfast.compute.ops.elementwise.complex_numbers import conjugate
from holdfast.compute.ops.rules import Meta, meta_of, rule, sized
from holdfast.compute.ops.table import Op, composite, op

# ---- histograms


def _infer_bins(_: Op, bound: dict[str, Any]) -> Meta:
    return Meta((bound["bins"],), bound["self"].dtype)


op("histc(Tensor self, int bins=100, Scalar min=0, Scalar max=0) -> Tensor", rule(_infer_bins))


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
    self: Any,
    sorted: bool = True,
    return_inverse: bool = False,
    return_counts: bool = False,
    dim: int | None = None,
) -> Any:
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


_SEARCH = rule(
    _infer_searchsorted,
    "numbers in ascending order along the last dimension, of the same leading dimensions as what "
    "is looked for, or of one dimension",
)
_HOW = "bool out_int32=False, bool right=False"
op(f"bucketize.Tensor(Tensor self, Tensor boundaries, *, {_HOW}) -> Tensor", _SEARCH)
op(f"bucketize.Scalar(Scalar self, Tensor boundaries, *, {_HOW}) -> Tensor", _SEARCH)
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
    weights = fweights if aweights is None else aweights
    if fweights is not None and aweights is not None:
        weights = F.mul(fweights, aweights)
    count = rows.shape[1]
    if weights is None:
        free = float(max(count - correction, 0))
        centred, weighted = _centred(rows, None, count), None
    else:
        total = F.sum(weights)
        free = F.clamp(F.sub(total, _lost(weights, total, aweights, correction)), 0)
        centred, weighted = _centred(rows, weights, total), weights
    other = centred if weighted is None else F.mul(centred, weighted)
    found = F.div(F.matmul(other, F.transpose(conjugate(centred), 0, 1)), free)
    return found if self.ndim == 2 else F.reshape(found, [])


def _centred(rows: Any, weights: Any, total: Any) -> Any:
    weighted = rows if weights is None else F.mul(rows, weights)
    return F.sub(rows, F.div(F.sum(weighted, [1], True), total))


def _lost(weights: Any, total: Any, aweights: Any, correction: int) -> Any:
    """What the correction subtracts from the number of observations."""
    if aweights is None:
        return correction
    return F.mul(F.div(F.sum(F.mul(weights, aweights)), total), correction)


@composite("corrcoef(Tensor self) -> Tensor")
def _corrcoef(self: Any) -> Any:
    together = F.cov(self)
    if together.ndim == 0:
        return F.div(together, together)
    alone = F.sqrt(F.diagonal(together))
    scaled = F.div(F.div(together, F.unsqueeze(alone, 1)), F.unsqueeze(alone, 0))
    return scaled if dtypes.is_complex(scaled.dtype) else F.clamp(scaled, -1, 1)

"""Fourier transforms: ATen's three (complex, real to complex, complex to real), and torch.fft's
functions, which call one of them.
"""

from __future__ import annotations

from typing import Any

from holdfast.compute import dtype as dtypes
from holdfast.compute import functional as F
from holdfast.compute.ops.rules import Meta, like, normalize_dim, rule
from holdfast.compute.ops.table import Op, composite, op


def _resize(of: Any, dim: int, size: int, kind: Any) -> Meta:
    shape = list(of.shape)
    shape[normalize_dim(dim, len(shape))] = size
    return Meta(tuple(shape), kind)


def _infer_r2c(_: Op, bound: dict[str, Any]) -> Meta:
    of, last = bound["self"], bound["dim"][-1]
    size = of.shape[last] // 2 + 1 if bound["onesided"] else of.shape[last]
    return _resize(of, last, size, dtypes.complex_of(of.dtype))


def _infer_c2r(_: Op, bound: dict[str, Any]) -> Meta:
    of = bound["self"]
    return _resize(of, bound["dim"][-1], bound["last_dim_size"], dtypes.real_of(of.dtype))


op("_fft_c2c(Tensor self, int[] dim, int normalization, bool forward) -> Tensor",
   like("self", expects="complex numbers"),
   {"self": "_fft_c2c(grad, dim, normalization, not forward)"})  # fmt: skip
op("_fft_r2c(Tensor self, int[] dim, int normalization, bool onesided) -> Tensor",
   rule(_infer_r2c, "real floating-point numbers"),
   {"self": "fft_r2c_gradient(grad, self.shape, dim, normalization, onesided)"})  # fmt: skip
op("_fft_c2r(Tensor self, int[] dim, int normalization, int last_dim_size) -> Tensor",
   rule(_infer_c2r, "complex numbers"),
   {"self": "fft_c2r_gradient(grad, dim, normalization)"})  # fmt: skip


for _name in ("fft_fftfreq", "fft_rfftfreq"):
    op(f"{_name}(int n, float d=1.0, *, ScalarType? dtype=None) -> Tensor",
       rule(lambda op, bound: Meta(
           (bound["n"] // 2 + 1 if op.name == "fft_rfftfreq" else bound["n"],),
           dtypes.dtype_or(bound["dtype"], dtypes.FLOAT32))))  # fmt: skip


# ---- torch.fft

_NORMS = ("backward", "ortho", "forward")


def _norm(word: str | None, forward: bool) -> int:
    """ATen's code for a normalization name."""
    if word is not None and word not in _NORMS:
        raise ValueError(f"norm {word!r} is none of {_NORMS}")
    place = _NORMS.index(word or "backward")
    return place if forward else 2 - place


def _fit(of: Any, dims: Any, sizes: Any) -> Any:
    """Crop or zero-pad to these sizes."""
    for dim, size in zip(dims, sizes, strict=True):
        if size is None or size == -1:
            continue
        if size < 1:
            raise ValueError(f"a transform of {size} elements")
        have = of.shape[dim]
        if have > size:
            of = F.narrow(of, dim, 0, size)
        elif have < size:
            of = F.constant_pad_nd(of, [0, 0] * (of.ndim - 1 - dim) + [0, size - have], 0)
    return of


def _as_complex(of: Any) -> Any:
    return of if dtypes.is_complex(of.dtype) else of.to(dtypes.complex_of(_as_real(of).dtype))


def _as_real(of: Any) -> Any:
    if dtypes.is_complex(of.dtype):
        raise TypeError(f"{of.dtype} is not real")
    return of if dtypes.is_floating(of.dtype) else of.to(dtypes.FLOAT32)


def _dims(of: Any, sizes: Any, dims: Any) -> tuple[list[int], list[Any]]:
    """The dimensions to transform, and their sizes."""
    if dims is None:
        count = of.ndim if sizes is None else len(sizes)
        dims = list(range(of.ndim - count, of.ndim))
    dims = [dims] if isinstance(dims, int) else list(dims)
    found = [normalize_dim(d, of.ndim) for d in dims]
    if len(set(found)) != len(found):
        raise ValueError(f"a dimension is named twice in {dims}")
    sizes = [None] * len(found) if sizes is None else list(sizes)
    if len(sizes) != len(found):
        raise ValueError(f"{len(sizes)} sizes for {len(found)} dimensions")
    return found, sizes


def _complex(of: Any, sizes: Any, dims: Any, norm: str | None, forward: bool) -> Any:
    dims, sizes = _dims(of, sizes, dims)
    of = _fit(_as_complex(of), dims, sizes)
    return F._fft_c2c(of, dims, _norm(norm, forward), forward)


def _to_half(of: Any, sizes: Any, dims: Any, norm: str | None) -> Any:
    dims, sizes = _dims(of, sizes, dims)
    return F._fft_r2c(_fit(_as_real(of), dims, sizes), dims, _norm(norm, True), True)


def _from_half(of: Any, sizes: Any, dims: Any, norm: str | None) -> Any:
    dims, sizes = _dims(of, sizes, dims)
    last = sizes[-1] or 2 * (of.shape[dims[-1]] - 1)
    of = _fit(_as_complex(of), dims, [*sizes[:-1], last // 2 + 1])
    return F._fft_c2r(of, dims, _norm(norm, False), last)


def _to_real(of: Any, sizes: Any, dims: Any, norm: str | None) -> Any:
    """Forward transform of half of a Hermitian signal."""
    dims, sizes = _dims(of, sizes, dims)
    last = sizes[-1] or 2 * (of.shape[dims[-1]] - 1)
    of = _fit(_as_complex(of), dims, [*sizes[:-1], last // 2 + 1])
    if dims[:-1]:
        of = F._fft_c2c(of, dims[:-1], _norm(norm, True), True)
    return F._fft_c2r(F._conj(of), dims[-1:], _norm(norm, True), last)


def _to_mirror(of: Any, sizes: Any, dims: Any, norm: str | None) -> Any:
    """The inverse of `_to_real`."""
    dims, sizes = _dims(of, sizes, dims)
    number = _norm(norm, False)
    half = F._conj(F._fft_r2c(_fit(_as_real(of), dims, sizes), dims[-1:], number, True))
    return F._fft_c2c(half, dims[:-1], number, False) if dims[:-1] else half


def _family(name: str, transform: Any) -> None:
    one = f"fft_{name}(Tensor self, int? n=None, int dim=-1, str? norm=None) -> Tensor"
    two = f"fft_{name}2(Tensor self, int[1]? s=None, int[1] dim=[-2,-1], str? norm=None) -> Tensor"
    many = f"fft_{name}n(Tensor self, int[1]? s=None, int[1]? dim=None, str? norm=None) -> Tensor"

    @composite(one)
    def along_one(self: Any, n: Any = None, dim: int = -1, norm: Any = None) -> Any:
        return transform(self, None if n is None else [n], [dim], norm)

    @composite(two)
    def along_two(self: Any, s: Any = None, dim: Any = (-2, -1), norm: Any = None) -> Any:
        return transform(self, s, dim, norm)

    @composite(many)
    def along_many(self: Any, s: Any = None, dim: Any = None, norm: Any = None) -> Any:
        return transform(self, s, dim, norm)


_family("fft", lambda of, sizes, dims, norm: _complex(of, sizes, dims, norm, True))
_family("ifft", lambda of, sizes, dims, norm: _complex(of, sizes, dims, norm, False))
_family("rfft", _to_half)
_family("irfft", _from_half)
_family("hfft", _to_real)
_family("ihfft", _to_mirror)


@composite("fft_fftshift(Tensor self, int[1]? dim=None) -> Tensor")
def fftshift(self: Any, dim: Any = None) -> Any:
    dims, _ = _dims(self, None, dim)
    return F.roll(self, [self.shape[d] // 2 for d in dims], dims)


@composite("fft_ifftshift(Tensor self, int[1]? dim=None) -> Tensor")
def ifftshift(self: Any, dim: Any = None) -> Any:
    dims, _ = _dims(self, None, dim)
    return F.roll(self, [(self.shape[d] + 1) // 2 for d in dims], dims)

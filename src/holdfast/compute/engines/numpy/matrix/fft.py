"""Fourier transforms; float32 and complex64 keep their precision."""

from __future__ import annotations

from typing import Any

import numpy

from holdfast.compute import dtype as dtypes
from holdfast.compute.engines.numpy.kernels import kernel, widen
from holdfast.compute.ops.rules import normalize_dims

# Index: ATen's normalization, by 1, by the root of the size, by the size. Value: NumPy's `norm`,
# which names the direction that is scaled.
_FORWARD = ("backward", "ortho", "forward")
_INVERSE = ("forward", "ortho", "backward")


@kernel("_fft_c2c")
def c2c(self: Any, dim: Any, normalization: int, forward: bool) -> Any:
    if not dtypes.is_complex(self.dtype):
        raise TypeError(f"{self.dtype} is not complex")
    if not len(dim):
        return self.copy()
    axes = normalize_dims(dim, self.ndim)
    if not self.size:
        return self.copy()
    if forward:
        return numpy.fft.fftn(self, axes=axes, norm=_FORWARD[normalization])
    return numpy.fft.ifftn(self, axes=axes, norm=_INVERSE[normalization])


@kernel("_fft_r2c")
def r2c(self: Any, dim: Any, normalization: int, onesided: bool) -> Any:
    kind = dtypes.complex_of(self.dtype)
    if not dtypes.is_floating(self.dtype):
        raise TypeError(f"{self.dtype} is not floating-point")
    axes = normalize_dims(dim, self.ndim)
    if not onesided:
        return c2c(self.astype(kind), dim, normalization, True)
    if not self.size:
        shape = list(self.shape)
        shape[axes[-1]] = shape[axes[-1]] // 2 + 1
        return numpy.zeros(shape, kind)
    wide = widen(self)
    return numpy.fft.rfftn(wide, axes=axes, norm=_FORWARD[normalization])


@kernel("_fft_c2r")
def c2r(self: Any, dim: Any, normalization: int, last_dim_size: int) -> Any:
    if not dtypes.is_complex(self.dtype):
        raise TypeError(f"{self.dtype} is not complex")
    axes = normalize_dims(dim, self.ndim)
    sizes = [*(self.shape[d] for d in axes[:-1]), last_dim_size]
    if not self.size:
        shape = list(self.shape)
        shape[axes[-1]] = last_dim_size
        return numpy.zeros(shape, dtypes.real_of(self.dtype))
    return numpy.fft.irfftn(self, s=sizes, axes=axes, norm=_INVERSE[normalization])


@kernel("fft_fftfreq")
def fftfreq(n: int, d: float = 1.0, dtype: Any = None) -> Any:
    return numpy.fft.fftfreq(n, d).astype(dtypes.dtype_or(dtype, dtypes.FLOAT32))


@kernel("fft_rfftfreq")
def rfftfreq(n: int, d: float = 1.0, dtype: Any = None) -> Any:
    return numpy.fft.rfftfreq(n, d).astype(dtypes.dtype_or(dtype, dtypes.FLOAT32))

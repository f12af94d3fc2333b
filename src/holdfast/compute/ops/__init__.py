"""One table of ops, keyed by ATen name; see `table`."""

from __future__ import annotations

# The families fill the table when they are imported.
from holdfast.compute.ops import (  # noqa: F401
    activation,
    aliases,
    assemble,
    attention,
    batchnorm,
    comparison,
    complex_numbers,
    contract,
    convolution,
    counting,
    ctc,
    cumulate,
    distance,
    dropout,
    einsum,
    embedding,
    factory,
    fft,
    indexing,
    linalg,
    loss,
    loss_classes,
    matrix,
    norm,
    normalize,
    padding,
    parting,
    patches,
    pointwise,
    pooling,
    quantize,
    random,
    recurrent,
    reduce,
    resample,
    reshaping,
    sampling,
    scattering,
    softmax,
    solve,
    sorting,
    special,
    views,
)
from holdfast.compute.ops.table import OPS, PACKETS, Op, find

aliases.add()

__all__ = ["OPS", "PACKETS", "Op", "find"]

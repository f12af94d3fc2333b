"""The op table, keyed by ATen name: signatures, shape rules, gradients, decompositions.

Importing this package fills the table.

    aliases         other names for ops: NumPy's, `special_`, old `linalg` names
    elementwise/    arithmetic, comparison, activations, special functions, complex, quantize
    index/          indexing, masks, scatter, embedding
    layers/         attention, convolution, normalization, pooling, losses, recurrent layers …
    layout/         views, reshape, cat, padding, factories
    matrix/         products, einsum, linear algebra, Fourier transforms
    random          ops that draw random numbers
    reduce/         sums, norms, softmax, sorting, counting
    rules           result shapes and dtypes without computing
    schema          ATen signatures: parsing, binding arguments
    table           `Op`, the table itself, `op` and `composite` to add to it
"""

# ruff: noqa: F401 (importing a module registers what is in it)
from __future__ import annotations

from holdfast.compute.ops import aliases, random

# The families fill the table when they are imported.
from holdfast.compute.ops.elementwise import (
    activation,
    comparison,
    complex_numbers,
    pointwise,
    quantize,
    special,
)
from holdfast.compute.ops.index import embedding, indexing, scatter
from holdfast.compute.ops.layers import (
    attention,
    convolution,
    dropout,
    grid_sample,
    loss,
    normalize,
    pooling,
    recurrent,
    resample,
)
from holdfast.compute.ops.layout import (
    assemble,
    factory,
    padding,
    patches,
    reshape,
    split_stack,
    views,
)
from holdfast.compute.ops.matrix import contract, distance, fft, linalg, products, solve
from holdfast.compute.ops.reduce import counting, cumulate, norm, reduce, softmax, sorting
from holdfast.compute.ops.table import OPS, PACKETS, Op, find

aliases.add()

__all__ = ["OPS", "PACKETS", "Op", "find"]

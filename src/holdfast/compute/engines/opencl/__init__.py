"""The OpenCL engine: GPUs of any vendor, and CPUs through PoCL, without CUDA.

Covers: the engine, its arrays and its kernels, a file for each family.
Leaves to others: ops and their shapes (`ops`), devices and memory pools (holdfast.memory).
Promise: importing this starts no device.
"""

from __future__ import annotations

from holdfast.compute.engines.opencl import (  # noqa: F401
    activation,
    arithmetic,
    assemble,
    attention,
    batchnorm,
    comparison,
    complex_numbers,
    convolution,
    copies,
    cumulate,
    distance,
    embedding,
    expressions,
    factory,
    indexing,
    loss,
    matrix,
    moments,
    norm,
    normalize,
    padding,
    pointwise,
    pooling,
    quantize,
    random,
    reduce,
    resample,
    scattering,
    softmax,
    sorting,
    special,
    views,
)
from holdfast.compute.engines.opencl.array import Array
from holdfast.compute.engines.opencl.engine import OpenCLEngine, engine_at

__all__ = ["Array", "OpenCLEngine", "engine"]

engine = engine_at(0)

"""The OpenCL engine: GPUs of any vendor, and CPUs through PoCL, without CUDA.

Importing it registers all kernels and starts no device.

    engine          `OpenCLEngine`: arrays, transfers, calls of kernels, fallback to the host
    runtime/        memory, programs, launches, kernel parameters
    elementwise/    pointwise ops: C expressions, and the kernels generated from them
    layout/         creating, viewing, copying and joining arrays
    index/          gather, scatter, masks, embeddings
    reduce/         reductions, scans, softmax, sorting
    matrix/         matrix products, int8, tuning of their parameters
    conv/           convolution, pooling, resampling
    layers/         attention, normalization, losses
    random          random numbers, from the host or the device
    kernels         OpenCL C sources (.cl)
"""

# ruff: noqa: F401 (importing a module registers what is in it)
from __future__ import annotations

from holdfast.compute.engines.opencl import random
from holdfast.compute.engines.opencl.conv import convolution, pooling, resample
from holdfast.compute.engines.opencl.elementwise import (
    activation,
    arithmetic,
    comparison,
    complex_numbers,
    expressions,
    pointwise,
    special,
)
from holdfast.compute.engines.opencl.engine import OpenCLEngine, engine_at
from holdfast.compute.engines.opencl.index import embedding, indexing, scatter
from holdfast.compute.engines.opencl.layers import attention, loss, normalize
from holdfast.compute.engines.opencl.layout import assemble, factory, padding
from holdfast.compute.engines.opencl.matrix import distance, products, quantize
from holdfast.compute.engines.opencl.reduce import cumulate, moments, norm, reduce, softmax, sorting
from holdfast.compute.engines.opencl.runtime.array import Array

__all__ = ["Array", "OpenCLEngine", "engine"]

engine = engine_at(0)

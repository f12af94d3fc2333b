"""Quantization: integers in place of floats.

    quant.quantize_weights(model)            # int8 weights, float arithmetic
    quant.quantize_dynamic(model)            # int8 products, ranges found on the fly
    prepared = quant.prepare(model)          # run data through it, then
    quant.convert(prepared)                  # int8 products, fixed ranges
    quant.prepare_qat(model)                 # train it further, then convert
    print(quant.compare(model, quantized, batch))

Modules:

    flows           from a float model to a quantized one
    layers          QuantizedLinear, QuantizedConv2d
    observers       ranges of what passes through a layer
    report          the error and the bytes saved, layer by layer
    scheme          scales, zero points, rounding, packing
    training        layers that are trained with fake quantization
"""

from __future__ import annotations

from holdfast.compute.quant.flows import (
    convert,
    fold,
    prepare,
    prepare_qat,
    quantize_dynamic,
    quantize_weights,
)
from holdfast.compute.quant.layers import QuantizedConv2d, QuantizedLinear
from holdfast.compute.quant.observers import Histogram, MinMax, MovingAverage
from holdfast.compute.quant.report import Report, Row, compare, nbytes
from holdfast.compute.quant.scheme import (
    INT4,
    INT8,
    INT8_ACTIVATIONS,
    INT8_CHANNELS,
    Quantized,
    Scheme,
    quantize,
)

__all__ = ["INT4", "INT8", "INT8_ACTIVATIONS", "INT8_CHANNELS", "Histogram", "MinMax"]
__all__ += ["MovingAverage", "Quantized", "QuantizedConv2d", "QuantizedLinear", "Report", "Row"]
__all__ += ["Scheme", "compare", "convert", "fold", "nbytes", "prepare", "prepare_qat", "quantize"]
__all__ += ["quantize_dynamic", "quantize_weights"]

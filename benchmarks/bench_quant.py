"""Whole numbers against floats: products, a quantized layer, and what a model takes.

Ours, NumPy's float32 product and torch's `_int_mm` in one process, run by run in turn, on one
thread. Accuracy on digits is a matter of the tests.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before NumPy and torch are loaded

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy
import torch
from report import Measured, Row, arguments, exact, middle, publish

from holdfast.compute import from_numpy, functional, nn, no_grad, quant
from holdfast.compute.engines.numpy import c_kernels
from holdfast.compute.engines.numpy.elementwise import quantize as kernels
from holdfast.topology import discover

SHAPES = ((1, 1024, 1024), (64, 512, 512), (512, 1024, 1024), (512, 3072, 768))


def in_turn(works: dict[str, Callable[[], Any]], repeats: int = 15) -> dict[str, Measured]:
    """Median milliseconds of each, one run of each after the other."""
    times: dict[str, list[float]] = {name: [] for name in works}
    for turn in range(repeats + 1):
        for name, work in works.items():
            start = time.perf_counter()
            work()
            if turn:
                times[name].append((time.perf_counter() - start) * 1000)
    return {name: middle(found) for name, found in times.items()}


def products(shapes: Sequence[tuple[int, int, int]]) -> list[Row]:
    rows = []
    for m, n, k in shapes:
        draw = numpy.random.default_rng(0)
        a, b = (draw.integers(-127, 128, shape).astype("int8") for shape in ((m, k), (n, k)))
        floats = a.astype("float32"), b.astype("float32")
        theirs = torch.from_numpy(a), torch.from_numpy(b)
        ours = from_numpy(a), from_numpy(b)
        found = in_turn(
            {
                "holdfast int8": lambda t=ours: functional._int_mm(t[0], t[1].T),
                "holdfast int8, NumPy alone": lambda a=a, b=b: kernels._multiply_blocks(a, b),
                "NumPy float32": lambda f=floats: f[0] @ f[1].T,
                "torch _int_mm": lambda t=theirs: torch._int_mm(t[0], t[1].T),
            }
        )
        subject = f"product {m}x{k} by {k}x{n}"
        rows += [Row(subject, name, value, "ms") for name, value in found.items()]
    return rows


def layers() -> list[Row]:
    model = nn.Sequential(nn.Linear(1024, 1024))
    made = quant.quantize_dynamic(model)
    x = from_numpy(numpy.random.default_rng(0).normal(size=(128, 1024)).astype("float32"))
    with no_grad():
        found = in_turn({"int8 dynamic": lambda: made(x), "float32": lambda: model(x)})
    rows = [Row("Linear(1024, 1024), 128 rows", name, v, "ms") for name, v in found.items()]
    subject = "bytes of Linear(1024, 1024)"
    models = {"int8 dynamic": made, "int4 weights": quant.quantize_weights(model, quant.INT4)}
    models["float32"] = model
    return rows + [Row(subject, n, exact(quant.nbytes(m)), "B") for n, m in models.items()]


if __name__ == "__main__":
    options = arguments("quant", __doc__ or "")
    torch.set_num_threads(1)
    ready = c_kernels.kernels() is not None and bool(kernels._library().holdfast_int8_ready())
    rows = products(SHAPES[:2] if options.quick else SHAPES) + layers()
    more = {"quick": options.quick, "dot_products_of_bytes": ready}
    publish("quant", rows, discover(), options.out, **more)

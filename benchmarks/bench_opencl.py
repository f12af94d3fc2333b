"""The OpenCL engine against NumPy, torch and tinygrad on the same machine, run by run in turn.

    python benchmarks/bench_opencl.py                     here: PoCL, NumPy, torch's CPU
    python benchmarks/bench_opencl.py --device 0 --large  a GPU beside CUDA, large arrays

Subjects: products of matrices, an addition, softmax, LayerNorm (alone, and with GELU), attention,
convolutions. float32 throughout, TF32 off. A figure is the median over rounds; in each round every
system does the work several times and waits once. Systems that cannot run are named with the
reason. The difference to NumPy's (or torch's) numbers is in the remark of our row.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy
from report import RUNS, Row, add_quick, middle, publish

from holdfast.compute.engine import ENGINES, fallbacks, run
from holdfast.compute.ops import OPS

SMALL = {
    "matmul": ((512, 512, 512), (1024, 1024, 1024), (2048, 2048, 2048), (4096, 320, 320)),
    "add": ((1 << 24,),),
    "softmax": ((1024, 1024), (8192, 77)),
    "layer_norm": ((1024, 1024),),
    "layer_norm+gelu": ((1024, 1024),),
    "attention": ((1, 8, 1024, 64), (2, 8, 512, 40)),
    "convolution": ((1, 64, 56, 64), (2, 320, 32, 320)),
}
LARGE = {
    "matmul": ((1024,) * 3, (2048,) * 3, (4096,) * 3, (8192,) * 3, (4608, 3072, 3072)),
    "add": ((1 << 28,), (1 << 26,)),
    "softmax": ((8192, 8192), (32768, 1024), (65536, 77)),
    "layer_norm": ((16384, 4096), (65536, 1024)),
    "layer_norm+gelu": ((16384, 4096),),
    "attention": ((1, 24, 4096, 128), (2, 16, 2048, 64), (1, 8, 4608, 64)),
    "convolution": ((2, 320, 64, 320), (8, 64, 56, 64), (1, 512, 128, 512)),
}


class Work(NamedTuple):
    """One subject on one system: do it once (queued), wait until it is done, the result."""

    system: str
    do: Callable[[], Any]
    wait: Callable[[], None]
    numbers: Callable[[Any], Any]


def arrays(family: str, shape: tuple[int, ...]) -> list[Any]:
    """What a subject computes with."""
    draw = numpy.random.default_rng(0).standard_normal
    if family == "matmul":
        m, k, n = shape
        shapes: list[tuple[int, ...]] = [(m, k), (k, n)]
    elif family == "attention":
        shapes = [shape] * 3
    elif family == "convolution":
        batch, channels, side, out = shape
        shapes = [(batch, channels, side, side), (out, channels, 3, 3), (out,)]
    elif family.startswith("layer_norm"):
        shapes = [shape, shape[-1:], shape[-1:]]
    else:
        shapes = [shape] * (2 if family == "add" else 1)
    return [draw(s, numpy.float32) for s in shapes]


# ---- systems


def ours(family: str, given: list[Any], engine: Any) -> Work:
    there = [engine.upload(array) for array in given]

    def op(name: str, *args: Any, **named: Any) -> Any:
        return run(OPS[name], engine, args, named)

    def do() -> Any:
        match family:
            case "matmul":
                return op("mm", *there)
            case "add":
                return op("add.Tensor", *there)
            case "softmax":
                return op("_softmax", there[0], -1, False)
            case "layer_norm":
                return op("native_layer_norm", there[0], given[1].shape, *there[1:], 1e-5)[0]
            case "layer_norm+gelu":
                made = op("native_layer_norm", there[0], given[1].shape, *there[1:], 1e-5)[0]
                return op("gelu", made)
            case "attention":
                return op("_scaled_dot_product_flash_attention_for_cpu", *there)[0]
            case _:
                return op("convolution", *there, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)

    return Work("holdfast, OpenCL", do, engine.synchronize, engine.download)


def with_torch(family: str, given: list[Any], place: str) -> Work:
    import torch
    from torch.nn import functional as F

    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    there = [torch.from_numpy(array).to(place) for array in given]

    def normed() -> Any:
        return F.layer_norm(there[0], given[1].shape, *there[1:])

    work: dict[str, Callable[[], Any]] = {
        "matmul": lambda: there[0] @ there[1],
        "add": lambda: there[0] + there[1],
        "softmax": lambda: there[0].softmax(-1),
        "layer_norm": normed,
        "layer_norm+gelu": lambda: F.gelu(normed()),
        "attention": lambda: F.scaled_dot_product_attention(*there),
        "convolution": lambda: F.conv2d(*there, padding=1),
    }
    wait = torch.cuda.synchronize if place == "cuda" else lambda: None
    return Work(f"torch, {place}", work[family], wait, lambda t: t.cpu().numpy())


def with_numpy(family: str, given: list[Any]) -> Work | None:
    def normed() -> Any:
        x, weight, bias = given
        off = x - x.mean(-1, keepdims=True)
        return off / numpy.sqrt((off * off).mean(-1, keepdims=True) + 1e-5) * weight + bias

    def softmax(x: Any) -> Any:
        e = numpy.exp(x - x.max(-1, keepdims=True))
        return e / e.sum(-1, keepdims=True)

    def attention() -> Any:
        q, k, v = given
        return softmax(q @ k.swapaxes(-1, -2) * numpy.float32(q.shape[-1] ** -0.5)) @ v

    def gelu(x: Any) -> Any:
        """By tanh: NumPy has no erf."""
        return 0.5 * x * (1 + numpy.tanh(0.7978845608 * (x + 0.044715 * x * x * x)))

    work: dict[str, Callable[[], Any]] = {
        "matmul": lambda: given[0] @ given[1],
        "add": lambda: given[0] + given[1],
        "softmax": lambda: softmax(given[0]),
        "layer_norm": normed,
        "layer_norm+gelu": lambda: gelu(normed()),
        "attention": attention,
    }
    if family not in work:
        return None
    return Work("numpy", work[family], lambda: None, lambda array: array)


def with_tinygrad(family: str, given: list[Any]) -> Work:
    from tinygrad import Device, Tensor, TinyJit

    Device["CL"]  # raises where it cannot be
    there = [Tensor(array, device="CL").realize() for array in given]
    work: dict[str, Callable[[], Any]] = {
        "matmul": lambda: there[0] @ there[1],
        "add": lambda: there[0] + there[1],
        "softmax": lambda: there[0].softmax(-1),
        "layer_norm": lambda: there[0].layernorm() * there[1] + there[2],
        "layer_norm+gelu": lambda: (there[0].layernorm() * there[1] + there[2]).gelu(),
        "attention": lambda: Tensor.scaled_dot_product_attention(*there),
        "convolution": lambda: there[0].conv2d(*there[1:], padding=1),
    }
    replayed = TinyJit(lambda: work[family]().realize())  # else most of the time is its compiler's
    for _ in range(3):
        replayed()
    return Work(
        "tinygrad, CL",
        replayed,
        Device["CL"].synchronize,
        lambda t: t.numpy(),
    )


# ---- measuring


def milliseconds(work: Work, least_s: float) -> float:
    """One round: as often as it takes to last a while, then one wait."""
    count = 1
    while True:
        start = time.perf_counter()
        for _ in range(count):
            work.do()
        work.wait()
        elapsed = time.perf_counter() - start
        if elapsed >= least_s or count >= 1 << 14:
            return elapsed * 1000 / count
        count = max(count * 2, int(count * least_s / max(elapsed, 1e-6)))


def measured(family: str, shape: tuple[int, ...], options: argparse.Namespace) -> list[Row]:
    subject = f"{family} {'x'.join(map(str, shape))}"
    given = arrays(family, shape)
    engine = ENGINES["opencl"].on(options.device)
    systems, rows = [ours(family, given, engine)], []
    makers: list[tuple[str, Callable[[], Work | None]]] = [
        ("numpy", lambda: None if options.large else with_numpy(family, given)),
        ("torch", lambda: with_torch(family, given, "cuda" if options.large else "cpu")),
    ]
    if not options.without_tinygrad:
        makers.append(("tinygrad", lambda: with_tinygrad(family, given)))
    for name, make in makers:
        try:
            made = make()
            if made is not None:
                made.do()
                made.wait()
                systems.append(made)
        except Exception as exc:  # noqa: BLE001  (a peer that cannot is named, and the rest goes on)
            print(f"{subject}: {name} does not run: {type(exc).__name__}: {str(exc)[:200]}")
    before = sum(fallbacks.values())
    results = [work.numbers(work.do()) for work in systems]
    wanted = results[1]
    off = float(numpy.abs(results[0] - wanted).max() / numpy.abs(wanted).max())
    on_host = sum(fallbacks.values()) - before
    times: list[list[float]] = [[] for _ in systems]
    for _ in range(options.rounds):
        for work, found in zip(systems, times, strict=True):
            found.append(milliseconds(work, options.least_s))
    for number, (work, found) in enumerate(zip(systems, times, strict=True)):
        remark = (
            f"differs by {off:.1e}" + (", ON THE HOST" if on_host else "") if not number else ""
        )
        rows.append(Row(subject, work.system, middle(found), "ms", remark))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", type=int, default=0, help="N of opencl:N")
    parser.add_argument("--large", action="store_true", help="sizes for a GPU; torch by CUDA")
    parser.add_argument("--only", default=",".join(SMALL), help="families, comma-separated")
    parser.add_argument("--rounds", type=int, help="default 7; quick: 3")
    parser.add_argument("--least-s", type=float, default=0.1, help="seconds of a round")
    parser.add_argument("--without-tinygrad", action="store_true")
    parser.add_argument("--out", type=Path, default=RUNS / "opencl.json")
    add_quick(parser)
    options = parser.parse_args()
    options.rounds = options.rounds or (3 if options.quick else 7)
    rows = []
    for family in options.only.split(","):
        shapes = (LARGE if options.large else SMALL)[family]
        for shape in shapes[:1] if options.quick else shapes:
            rows += measured(family, shape, options)
            print(*(f"{row.system}: {row.value:.3f} ms" for row in rows[-3:]), sep="; ", flush=True)
    from holdfast.topology import discover

    device = ENGINES["opencl"].on(options.device).place.device
    about = {
        "name": device.name.strip(),
        "version": device.version,
        "driver": device.driver_version,
    }
    publish("opencl", rows, discover(), options.out, quick=options.quick, device=about)


if __name__ == "__main__":
    main()

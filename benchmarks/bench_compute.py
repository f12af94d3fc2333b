"""The NumPy engine against torch on the CPU, in one process, run by run in turn.

Subjects with a target: products of matrices, convolutions, attention, a chain of 20 pointwise ops
on a million numbers, what a small sum costs over NumPy's. For the picture: softmax, layer_norm,
gelu, batch_norm, max_pool, a training step of a small CNN, a transformer block. Each with one
thread, by time on the CPU, and with two, by the clock. A ratio is the median over pairs of runs,
ours over torch's; `remark` has the smallest times' ratio too, which a busy machine disturbs least.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from report import RUNS, Row, add_quick, best_us, middle, publish

CONVOLUTIONS = {
    "3x3 64->64, 56x56, batch 8": ((8, 64, 56, 56), (64, 64, 3, 3), 1, 1, 1),
    "3x3 128->128, 28x28, batch 8": ((8, 128, 28, 28), (128, 128, 3, 3), 1, 1, 1),
    "1x1 256->64, 56x56, batch 8": ((8, 256, 56, 56), (64, 256, 1, 1), 1, 0, 1),
    "7x7 stride 2 3->64, 224x224, batch 4": ((4, 3, 224, 224), (64, 3, 7, 7), 2, 3, 1),
    "3x3 stride 2 128->128, 56x56, batch 8": ((8, 128, 56, 56), (128, 128, 3, 3), 2, 1, 1),
    "3x3 depthwise 128, 56x56, batch 8": ((8, 128, 56, 56), (128, 1, 3, 3), 1, 1, 128),
    "3x3 320->320, 64x64, batch 2": ((2, 320, 64, 64), (320, 320, 3, 3), 1, 1, 1),
}
ATTENTION = {
    "B1 H8 L1024 D64": ((1, 8, 1024, 64), 1024, False),
    "B1 H8 L1024 D64, causal": ((1, 8, 1024, 64), 1024, True),
    "B2 H8 L512 D40": ((2, 8, 512, 40), 512, False),
    "B2 H8 L4096 D40, 77 keys": ((2, 8, 4096, 40), 77, False),
}
TARGETS = {"matmul": 1.05, "convolution": 1.3, "attention": 1.5, "fused chain": 0.5}
FAMILIES = ("matmul", "convolution", "attention", "fused chain", "small sum", "picture")


class Pair(NamedTuple):
    """The same work, ours and torch's; each returns its result."""

    subject: str
    ours: Callable[[], Any]
    theirs: Callable[[], Any]


def tensor(array: Any) -> Any:
    """A tensor of ours."""
    from holdfast.compute import CustomTensor

    return CustomTensor(array)


def numbers(*shape: int) -> Any:
    import numpy

    return numpy.random.default_rng(0).standard_normal(shape).astype("float32")


def both(*shapes: tuple[int, ...]) -> tuple[list[Any], list[Any]]:
    """The same arrays as tensors of ours and of torch's."""
    import torch

    arrays = [numbers(*shape) for shape in shapes]
    return [tensor(a) for a in arrays], [torch.from_numpy(a) for a in arrays]


# ---- subjects


def matmuls() -> list[Pair]:
    pairs = []
    for side in (100, 500, 1000, 2000):
        (a, b), (x, y) = both((side, side), (side, side))
        pairs.append(Pair(f"matmul {side}", lambda a=a, b=b: a @ b, lambda x=x, y=y: x @ y))
    return pairs


def convolutions() -> list[Pair]:
    import torch

    from holdfast.compute import functional

    pairs = []
    for name, (image, weight, stride, padding, groups) in CONVOLUTIONS.items():
        ours, theirs = both(image, weight, (weight[0],))
        more = {"stride": stride, "padding": padding, "groups": groups}
        pairs.append(
            Pair(
                f"convolution {name}",
                lambda t=ours, m=more: functional.conv2d(*t, **m),
                lambda t=theirs, m=more: torch.conv2d(*t, **m),
            )
        )
    return pairs


def attentions() -> list[Pair]:
    import torch

    from holdfast.compute import functional

    pairs = []
    for name, (queries, keys, causal) in ATTENTION.items():
        other = (*queries[:2], keys, queries[3])
        ours, theirs = both(queries, other, other)
        attend = torch.nn.functional.scaled_dot_product_attention
        pairs.append(
            Pair(
                f"attention {name}",
                lambda t=ours, c=causal: functional.scaled_dot_product_attention(*t, is_causal=c),
                lambda t=theirs, c=causal, f=attend: f(*t, is_causal=c),
            )
        )
    return pairs


def chain(x: Any, y: Any) -> Any:
    """20 pointwise ops."""
    z = x * y
    for _ in range(3):
        z = (z * 0.5 + x - y).abs() * 0.7 + y
    return z.abs()


def chains() -> list[Pair]:
    from holdfast.compute import fuse

    ours, theirs = both((1 << 20,), (1 << 20,))
    fused = fuse(chain)
    return [
        Pair("fused chain, 20 ops on 1M", lambda: fused(*ours), lambda: chain(*theirs)),
        Pair("same chain, not fused", lambda: chain(*ours), lambda: chain(*theirs)),
    ]


def pictures() -> list[Pair]:
    import torch

    from holdfast.compute import functional as f

    t = torch.nn.functional
    (x, gain, shift), (tx, tgain, tshift) = both((64, 128, 768), (768,), (768,))
    (image, mean, spread), (timage, tmean, tspread) = both((16, 64, 56, 56), (64,), (64,))
    spread, tspread = spread.abs(), tspread.abs()
    return [
        Pair("softmax 64x128x768", lambda: f.softmax(x, -1), lambda: t.softmax(tx, -1)),
        Pair(
            "layer_norm 64x128x768",
            lambda: f.layer_norm(x, [768], gain, shift),
            lambda: t.layer_norm(tx, [768], tgain, tshift),
        ),
        Pair("gelu 64x128x768", lambda: f.gelu(x), lambda: t.gelu(tx)),
        Pair(
            "batch_norm 16x64x56x56, running statistics",
            lambda: f.batch_norm(image, mean, spread, mean, spread, False, 0.1, 1e-5, False),
            lambda: t.batch_norm(timage, tmean, tspread, tmean, tspread),
        ),
        Pair(
            "max_pool 2x2 16x64x56x56",
            lambda: f.max_pool2d(image, [2, 2]),
            lambda: t.max_pool2d(timage, 2),
        ),
        training_step(),
        transformer_block(),
    ]


def training_step() -> Pair:
    """Forward, backward and a step of Adam of a CNN with two convolutions, on 32 small images."""
    import torch

    from holdfast.compute import nn, optim

    images, labels = numbers(32, 3, 32, 32), numbers(32, 10)

    def made(kit: Any, steps: Any, given: Callable[[Any], Any]) -> Callable[[], Any]:
        model = kit.Sequential(
            kit.Conv2d(3, 32, 3, padding=1), kit.ReLU(), kit.MaxPool2d(2),
            kit.Conv2d(32, 64, 3, padding=1), kit.ReLU(), kit.MaxPool2d(2),
            kit.Flatten(), kit.Linear(64 * 64, 10),
        )  # fmt: skip
        step, x, y = steps.Adam(model.parameters(), lr=1e-3), given(images), given(labels)

        def work() -> Any:
            step.zero_grad()
            loss = ((model(x) - y) ** 2).mean()
            loss.backward()
            step.step()
            return None  # weights begin at random: there is nothing to compare

        return work

    return Pair(
        "training step, small CNN, batch 32",
        made(nn, optim, tensor),
        made(torch.nn, torch.optim, torch.from_numpy),
    )


def transformer_block() -> Pair:
    """Attention and two layers, each after a norm, on 2 x 256 words of 512 numbers."""
    import torch

    from holdfast.compute import functional, no_grad

    width, heads = 512, 8
    shapes = [(2, 256, width), (3 * width, width), (width, width), (4 * width, width)]
    ours, theirs = both(*shapes, (width, 4 * width), (width,), (width,))

    def block(f: Any, tensors: list[Any]) -> Any:
        x, mix, join, up, down, gain, shift = tensors
        y = f.linear(f.layer_norm(x, [width], gain, shift), mix * 0.05)
        parts = y.reshape((2, 256, 3, heads, width // heads)).permute((2, 0, 3, 1, 4))
        seen = f.scaled_dot_product_attention(parts[0], parts[1], parts[2])
        x = x + f.linear(seen.transpose(1, 2).reshape((2, 256, width)), join * 0.05)
        y = f.gelu(f.linear(f.layer_norm(x, [width], gain, shift), up * 0.05))
        return x + f.linear(y, down * 0.05)

    def run_ours() -> Any:
        with no_grad():
            return block(functional, ours)

    return Pair("transformer block, forward", run_ours, lambda: block(torch.nn.functional, theirs))


SUBJECTS: dict[str, Callable[[], list[Pair]]] = {
    "matmul": matmuls,
    "convolution": convolutions,
    "attention": attentions,
    "fused chain": chains,
    "picture": pictures,
}


# ---- measuring


def equal(ours: Any, theirs: Any) -> bool:
    """Whether two results are the same within the error of float32 sums."""
    import numpy

    if ours is None:
        return True
    one, other = ours.data, theirs.detach().numpy()
    size = float(numpy.abs(other).max()) or 1.0
    return bool(numpy.abs(one - other).max() <= 1e-4 * size)


def measure(pair: Pair, count: int, rounds: int) -> tuple[list[float], list[float]]:
    """Milliseconds of each, in turn; enough calls in one round to be a millisecond or more."""
    clock = time.process_time if count == 1 else time.perf_counter
    works = (pair.ours, pair.theirs)
    counts = []
    for work in works:
        work()
        start = time.perf_counter()
        work()
        counts.append(max(1, math.ceil(0.002 / (time.perf_counter() - start + 1e-9))))
    times: tuple[list[float], list[float]] = ([], [])
    for number in range(rounds):
        for which in (0, 1) if number % 2 else (1, 0):
            start = clock()
            for _ in range(counts[which]):
                works[which]()
            times[which].append((clock() - start) * 1000 / counts[which])
    return times


def compared(pair: Pair, count: int, rounds: int, about: dict[str, Any]) -> list[Row]:
    ours, theirs = measure(pair, count, rounds)
    ratio = statistics.median(a / b for a, b in zip(ours, theirs, strict=True))
    least = min(ours) / min(theirs)
    subject = f"{pair.subject}, {count} thread{'s' if count > 1 else ''}"
    same = equal(pair.ours(), pair.theirs())
    about["ratios"][subject] = {"median": ratio, "least": least, "equal": same}
    remark = f"{ratio:.2f} by pairs of runs, {least:.2f} by the smallest"
    return [
        Row(subject, "holdfast", middle(ours), "ms", remark),
        Row(subject, "torch", middle(theirs), "ms", "" if same else "NOT EQUAL"),
    ]


def small_sum() -> list[Row]:
    """What a sum of 16 numbers costs, ours and NumPy's and torch's."""
    import torch

    array = numbers(16)
    ours, theirs = tensor(array), torch.from_numpy(array)
    works = {
        "holdfast": lambda: ours + ours,
        "numpy": lambda: array + array,
        "torch": lambda: theirs + theirs,
    }
    return [
        Row("sum of 16 numbers", name, best_us(work, 2000, 60), "µs")
        for name, work in works.items()
    ]


def geometric(ratios: list[float]) -> float:
    return math.exp(statistics.mean(map(math.log, ratios)))


def summary(about: dict[str, Any]) -> list[str]:
    """A line for each family with a target: the geometric mean of its ratios, and the target."""
    lines = []
    for family, target in TARGETS.items():
        for ending in (", 1 thread", ", 2 threads"):
            found = [
                r for s, r in about["ratios"].items() if s.startswith(family) and s.endswith(ending)
            ]
            if not found:
                continue
            median, least = (geometric([r[k] for r in found]) for k in ("median", "least"))
            about["means"][f"{family}{ending}"] = {"median": median, "least": least}
            lines.append(
                f"{family}{ending}: {median:.2f} x torch (smallest times {least:.2f}), "
                f"target {target}"
            )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    default = RUNS / "compute.json"
    parser.add_argument("--out", type=Path, default=default, help=f"JSON file (default {default})")
    parser.add_argument("--only", choices=FAMILIES, help="this family alone")
    parser.add_argument("--threads", type=int, nargs="+", help="default 1 and 2; quick: 1")
    parser.add_argument("--rounds", type=int, help="pairs of runs (default 15; quick: 5)")
    add_quick(parser)
    args = parser.parse_args()
    args.threads = args.threads or ([1] if args.quick else [1, 2])
    args.rounds = (5 if args.quick else 15) if args.rounds is None else args.rounds
    if args.rounds < 1 or min(args.threads) < 1:
        parser.error("--rounds and --threads are at least 1")
    from holdfast.base.config import Config
    from holdfast.topology import amx, discover

    amx.disable_broken_amx()
    import torch

    from holdfast.compute import set_num_threads
    from holdfast.compute.engines.numpy.c_kernels import kernels

    torch.manual_seed(0)
    torch.set_grad_enabled(True)
    about: dict[str, Any] = {"ratios": {}, "means": {}, "compiled": kernels() is not None}
    rows = small_sum() if args.only in (None, "small sum") else []
    for family, subjects in SUBJECTS.items():
        if args.only not in (None, family):
            continue
        for pair in subjects():
            for count in args.threads:
                set_num_threads(count)
                torch.set_num_threads(count)
                rows += compared(pair, count, args.rounds, about)
    lines = summary(about)
    machine = discover(config=Config.load(probes=("linux",)))
    publish("compute", rows, machine, args.out, quick=args.quick, **about)
    print("\n".join(lines))
    if not all(found["equal"] for found in about["ratios"].values()):
        raise SystemExit("the results are not equal")


if __name__ == "__main__":
    main()

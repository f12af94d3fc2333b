"""Searches the fastest parameters of matrix products on a device, by measuring.

A candidate that cannot be built, or computes a wrong result, is skipped. After each size class the
result is on disk; an interrupted search leaves parameters that work.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy

from holdfast.base.errors import HoldfastError
from holdfast.compute.engine import strict
from holdfast.compute.engines.opencl.matrix import clblast
from holdfast.compute.engines.opencl.matrix.gemm import as_batch, gemm
from holdfast.compute.engines.opencl.runtime import tuned_parameters
from holdfast.compute.engines.opencl.runtime.array import NotHere
from holdfast.compute.engines.opencl.runtime.engine_protocol import CLEngine
from holdfast.compute.engines.opencl.runtime.tuned_parameters import Settings

_SHARE = 0.03  # by how much a candidate must be faster to replace another
_LEAST_S = 0.02  # of one measurement
_TIMES = 3

# m, n, k by mapping; the second of each is for the quick search
_SIZES = {
    "cpu": {
        "small": ((128, 128, 256), (128, 128, 256)),
        "square": ((1024, 1024, 1024), (512, 512, 512)),
        "tall": ((4096, 256, 512), (2048, 128, 256)),
        "wide": ((256, 4096, 512), (128, 2048, 256)),
    },
    "gpu": {
        "small": ((256, 256, 1024), (256, 256, 512)),
        "square": ((4096, 4096, 4096), (1024, 1024, 1024)),
        "tall": ((8192, 1024, 1024), (4096, 512, 512)),
        "wide": ((1024, 8192, 1024), (512, 4096, 512)),
    },
}


class Found(NamedTuple):
    """The result for one size class."""

    name: str
    size: tuple[int, int, int]
    before_ms: float
    after_ms: float
    settings: Settings
    tried: int
    failed: int

    def gflop_s(self, ms: float) -> float:
        m, n, k = self.size
        return 2e-6 * m * n * k / ms


Progress = Callable[[str, int, int], None]  # size class, candidates done, candidates in all


def candidates(engine: CLEngine, name: str, quick: bool = False) -> list[Settings]:
    """The settings to try for a size class, besides the current ones."""
    ways = list(_cpu(engine) if engine.mapping == "cpu" else _gpu(engine))
    if quick:
        ways = ways[:4]
    if clblast.is_available():
        ways.append({**tuned_parameters.defaults(engine)[name], "CLBLAST": 1})
    return ways


def _cpu(engine: CLEngine) -> Iterator[Settings]:
    vector = tuned_parameters.defaults(engine)["square"]["VEC"]
    tiles = [(12, 2), (14, 2), (8, 3)] if vector == 16 else [(6, 2), (4, 3), (4, 2)]
    for vec, (rows, vectors) in [*((vector, t) for t in tiles), (8, (6, 2))]:
        for block in ((8, 4), (16, 2), (4, 8)):
            yield {
                "VEC": vec, "MR": rows, "NV": vectors, "ROWS": block[0], "COLUMNS": block[1],
            }  # fmt: skip


def _gpu(engine: CLEngine) -> Iterator[Settings]:
    tiles = (
        (128, 128, 8, 8, 8), (64, 64, 16, 8, 4), (128, 128, 16, 8, 8), (256, 128, 8, 16, 8),
        (128, 64, 8, 8, 4), (64, 128, 8, 4, 8), (64, 64, 8, 4, 4), (32, 32, 16, 4, 4),
    )  # fmt: skip
    for bm, bn, bk, tm, tn in tiles:
        local = 2 * 4 * bk * (bm + bn + 8)
        if bm // tm * (bn // tn) <= engine.most_items and local <= engine.local_bytes:
            yield {"BM": bm, "BN": bn, "BK": bk, "TM": tm, "TN": tn}


def search(
    engine: CLEngine, quick: bool = False, progress: Progress | None = None
) -> Iterator[Found]:
    """Search each size class; a result is in use, and on disk, when it is yielded."""
    for name in tuned_parameters.CLASSES:
        found = _search_class(engine, name, quick, progress or (lambda *_: None))
        tuned_parameters.save(engine, {name: found.settings})
        yield found


def _search_class(engine: CLEngine, name: str, quick: bool, progress: Progress) -> Found:
    size = _SIZES[engine.mapping][name][int(quick)]
    trial, chosen = _Trial(engine, size), tuned_parameters.current(engine)
    first = best = chosen[name]
    ways = [way for way in candidates(engine, name, quick) if way != first]
    failed = 0
    try:
        fastest = trial.time_s(name, first)
        for done, way in enumerate(ways):
            progress(name, done, len(ways))
            taken = trial.time_s(name, way)
            failed += taken is None
            if taken is not None and (fastest is None or taken < fastest):
                best, fastest = way, taken
        before, after = _compare_again(trial, name, first, best)
        if before is not None and after is not None and after > before * (1 - _SHARE):
            best, after = first, before
    finally:
        chosen[name] = first
    progress(name, len(ways), len(ways))
    if after is None:
        raise NotHere(f"no kernel for products works on {engine.place.name}")
    chosen[name] = best
    before = after if before is None else before
    return Found(name, size, before * 1e3, after * 1e3, best, len(ways), failed)


def _compare_again(trial: _Trial, name: str, first: Settings, best: Settings) -> tuple[Any, Any]:
    """Measure both again in turns: other processes may have slowed one of them down."""
    taken: list[list[float]] = [[], []]
    for _ in range(_TIMES if first != best else 1):
        for times, way in zip(taken, (first, best), strict=True):
            found = trial.time_s(name, way)
            times += [] if found is None else [found]
    return min(taken[0], default=None), min(taken[1], default=None)


class _Trial:
    """Matrices of a size, and their product."""

    def __init__(self, engine: CLEngine, size: tuple[int, int, int]) -> None:
        m, n, k = size
        random = numpy.random.default_rng(0)
        self.engine = engine
        host = [random.standard_normal(s, numpy.float32) for s in ((m, k), (k, n))]
        self.a, self.b = (as_batch(engine.upload(x)) for x in host)
        self.expected = host[0] @ host[1]
        self.out = as_batch(engine.alloc((m, n), self.a.dtype))

    def time_s(self, name: str, way: Settings) -> float | None:
        """Seconds for a product with these settings; None if it fails or is wrong."""
        tuned_parameters.current(self.engine)[name] = way
        try:
            with strict():
                return self._time_s() if self._is_right() else None
        except (HoldfastError, NotHere):
            return None

    def _multiply(self) -> None:
        gemm(self.engine, self.a, self.b, self.out)

    def _is_right(self) -> bool:
        self.engine.write(self.out, numpy.full((), numpy.nan, numpy.float32))
        self._multiply()
        found = self.engine.download(self.out)[0, 0]
        allowed = 1e-5 * self.a.shape[3]
        return bool(numpy.allclose(found, self.expected, rtol=1e-3, atol=allowed))

    def _time_s(self) -> float:
        """The best of some measurements, each over enough products to be measurable."""
        count, taken = 1, self._take(1)
        while taken < _LEAST_S:
            count *= max(2, int(_LEAST_S / max(taken, 1e-5)) + 1)
            taken = self._take(count)
        return min(taken, *(self._take(count) for _ in range(_TIMES - 1))) / count

    def _take(self, count: int) -> float:
        start = time.perf_counter()
        for _ in range(count):
            self._multiply()
        self.engine.synchronize()
        return time.perf_counter() - start

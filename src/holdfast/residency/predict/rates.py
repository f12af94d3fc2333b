"""How long the layers of a profiled pass take on a device.

Times are measured with random weights (identical submodules share one set), estimated from the
speed of the device where that is not possible, or computed by the simulated device. Measurements
are cached on disk; a cache that cannot be read or written is no error. Measuring frees the device
memory it took.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import gc
import hashlib
import json
import platform
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from holdfast.base.config import Config
from holdfast.base.errors import OutOfMemory
from holdfast.base.files import write_whole
from holdfast.residency.carriers.carrier import Carrier, Mark
from holdfast.residency.carriers.simulated import Simulated
from holdfast.residency.packing.pack import decoder
from holdfast.residency.plan import Rates
from holdfast.residency.predict.dry_run import ATTENTION, Repeats, TracedOp, listen
from holdfast.residency.predict.profile import Profile
from holdfast.residency.predict.shadow import on_device, randomize_inputs, shadow

# In a longer pass, each of its repeated submodules runs only twice.
_WHOLE_MS = 400.0
_MATRIX = 4096
_MATRIX_ON_CPU = 512
_SAMPLE_BYTES = 64 << 20
_REPEATS = 3
_CYCLES_PER_MS = 2_000_000  # at 2 GHz; a slower clock only sleeps longer

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Facts:
    """The speed of a device. `gflops` of matrix products by dtype name."""

    rates: Rates
    schemes: tuple[str, ...]
    memory_gb_s: float
    gflops: dict[str, float]


@dataclass(frozen=True, slots=True)
class Times:
    """A pass on a device: milliseconds of each layer, and before the first one.

    `way` is "measured", "estimated" or "simulated"; `activation_bytes` is None if not measured.
    """

    layers_ms: tuple[float, ...]
    before_ms: float
    activation_bytes: int | None
    way: str


def time_layers(profile: Profile, carrier: Carrier, progress: Progress | None = None) -> Times:
    """The time of each layer, from the cache if it was measured before."""
    if isinstance(carrier, Simulated):
        return _price_layers(profile, price_by_simulation(carrier), "simulated")
    if carrier.device.type == "cpu":  # one pass of a large model would take minutes
        return estimate_times(profile, carrier)
    file = _file("times", device_name(carrier), profile.key)
    known = _read(file)
    with contextlib.suppress(KeyError, TypeError):
        layers_ms, activation_bytes = tuple(known["layers_ms"]), known["activation_bytes"]
        return Times(layers_ms, known["before_ms"], activation_bytes, "measured")
    if progress is not None:
        progress(f"timing {profile.name} on {carrier.name}")
    try:
        times = measure_times(profile, carrier)
    except (torch.OutOfMemoryError, OutOfMemory):
        carrier.tidy()
        return estimate_times(profile, carrier)
    _write(file, dataclasses.asdict(times))
    return times


# ---- estimates


def estimate_times(profile: Profile, carrier: Carrier) -> Times:
    """Estimate times from the speed of matrix products and of memory."""
    # Identical layers share their tuple of operations.
    series = {id(ops): ops for ops in (profile.before, *(layer.ops for layer in profile.layers))}
    kinds = {spec[1] for ops in series.values() for op in ops if op.flops for spec in op.inputs}
    facts = get_facts(carrier, kinds)
    return _price_layers(profile, price_by_rates(facts), "estimated")


def price_by_rates(facts: Facts) -> Callable[[TracedOp], float]:
    """A function for the milliseconds of an operation: compute or memory, whichever is longer."""

    def of(op: TracedOp) -> float:
        moved_ms = op.moved_bytes / facts.memory_gb_s / 1e6
        if not op.flops:
            return moved_ms
        speed = facts.gflops.get(_dtype_name(op.inputs[0][1])) or max(facts.gflops.values())
        return max(moved_ms, op.flops / speed / 1e6)

    return of


def price_by_simulation(carrier: Simulated) -> Callable[[TracedOp], float]:
    """A function for the milliseconds of an operation on the simulated device."""
    clock = copy.copy(carrier)

    def of(op: TracedOp) -> float:
        if not op.fresh:
            return 0.0
        clock.now_ms = 0.0
        flops = 0.0 if op.name == ATTENTION else op.flops
        clock.spend(flops or op.output_elements, op.moved_bytes)
        return clock.now_ms

    return of


def total_ms(profile: Profile, price: Callable[[TracedOp], float]) -> float:
    """The time of the whole pass by `price`."""
    times = _price_layers(profile, price, "")
    return sum(times.layers_ms) + times.before_ms


def _price_layers(profile: Profile, price: Callable[[TracedOp], float], way: str) -> Times:
    prices: dict[TracedOp, float] = {}
    sums: dict[int, float] = {}  # identical layers share their tuple of operations

    def total(ops: tuple[TracedOp, ...]) -> float:
        if id(ops) not in sums:
            for op in ops:
                if op not in prices:
                    prices[op] = price(op)
            sums[id(ops)] = sum(prices[op] for op in ops)
        return sums[id(ops)]

    layers = tuple(total(layer.ops) for layer in profile.layers)
    return Times(layers, total(profile.before), None, way)


# ---- measuring


def measure_times(profile: Profile, carrier: Carrier) -> Times:
    """Run the call with random weights, shared by identical submodules. Raises OutOfMemory."""
    try:
        with pause_gc():
            return _measure(profile, carrier)
    finally:
        carrier.tidy()


def _measure(profile: Profile, carrier: Carrier) -> Times:
    replica = shadow(profile.replica, on_device(profile.replica, carrier.device))
    inputs = randomize_inputs(profile.call.inputs, carrier.device)

    def run(most: float, ahead_ms: float = 0.0) -> Times:
        watch = _Stopwatch(carrier, most)
        repeats = Repeats(watch, carrier.device, fill=True)
        layers = list(dict.fromkeys(layer.path for layer in profile.layers))
        carrier.others_peak_bytes(reset=True)
        held = carrier.others_bytes()
        with (
            torch.no_grad(),
            carrier.computing(),
            listen(replica, layers, profile.repeated, repeats),
        ):
            if carrier.device.type == "cuda" and ahead_ms:
                torch.cuda._sleep(int(ahead_ms * _CYCLES_PER_MS))
            watch.start()
            getattr(replica, profile.call.entry)(**inputs)
            watch.stop()
        return watch.times(carrier.others_peak_bytes() - held)

    run(1)  # loads the kernels
    times = run(2)
    if sum(times.layers_ms) <= _WHOLE_MS:
        # A device that waits for the host would seem slower, so the host gets a head start of a
        # pass. A single pass may still be delayed, so there are several.
        ahead_ms = 2 * sum(times.layers_ms)
        times = _take_medians([run(float("inf"), ahead_ms) for _ in range(_REPEATS)])
    return times


@contextlib.contextmanager
def pause_gc() -> Iterator[None]:
    """Disable garbage collection inside: it would be counted in the layer that is being timed."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _take_medians(passes: Sequence[Times]) -> Times:
    layers = zip(*(times.layers_ms for times in passes), strict=True)
    return dataclasses.replace(
        passes[-1],
        layers_ms=tuple(statistics.median(layer) for layer in layers),
        before_ms=statistics.median(times.before_ms for times in passes),
    )


class _Stopwatch:
    """Times layers; layers of replayed submodules get the times of those that ran."""

    def __init__(self, carrier: Carrier, most: float) -> None:
        self._carrier = carrier
        self._most = most
        self._spans: list[list[Mark] | int] = []  # an int is the index of an identical layer
        self._open: list[Mark] | None = None
        self._going_on: list[Mark] | None = None
        self._started: Mark = None
        self._first: Mark = None

    def start(self) -> None:
        self._started = self._carrier.mark(timed=True)

    def stop(self) -> None:
        self._close()
        self._carrier.synchronize()

    def begin(self, path: str) -> None:
        now = self._close()
        self._open = [now]
        self._spans.append(self._open)

    def end(self, path: str) -> None:
        """Do nothing: a layer lasts until the next one begins."""

    def enter_repeat(self) -> Any:
        return len(self._spans), self._carrier.mark(timed=True)

    def leave_repeat(self, path: str, entered: Any) -> Any:
        """Its layers, the span before the first of them, and the last one so far."""
        count, begun = entered
        now = self._carrier.mark(timed=True)
        inner = range(count, len(self._spans))
        if not inner:
            return inner, (begun, now), None
        first = self._spans[count]
        before = (begun, begun) if isinstance(first, int) else (begun, first[0])
        last = self._spans[-1]
        if not isinstance(last, int):
            last = [*last, now][: len(last) // 2 * 2 + 2]
        return inner, before, last

    def should_run(self, times: int, segment: Any) -> bool:
        return times < self._most

    def replay(self, path: str, segment: Any) -> None:
        """Extend the open layer up to the replayed ones, and leave the last of these open."""
        inner, before, last = segment
        span = self._open
        self._close()
        if span is not None:
            span += before
        if inner:
            self._spans += inner[:-1]
            span = [*last]
            self._spans.append(span)
        self._going_on = span

    def resume(self) -> None:
        if self._going_on is not None:
            self._going_on.append(self._carrier.mark(timed=True))
        self._open, self._going_on = self._going_on, None

    def _close(self) -> Mark:
        now = self._carrier.mark(timed=True)
        if self._first is None:
            self._first = now
        if self._open is not None:
            self._open.append(now)
        self._open = None
        return now

    def times(self, activation_bytes: int) -> Times:
        """The times of all layers. The device must be synchronized."""
        found: list[float] = []
        for span in self._spans:
            if isinstance(span, int):
                found.append(found[span])
            else:
                pairs = zip(span[::2], span[1::2], strict=True)
                found.append(sum(max(0.0, self._carrier.between_ms(*pair)) for pair in pairs))
        before = self._carrier.between_ms(self._started, self._first)
        return Times(tuple(found), max(0.0, before), activation_bytes, "measured")


# ---- devices


def device_name(carrier: Carrier) -> str:
    """The product name of a device, or its type."""
    device = carrier.device
    api: Any = getattr(torch, device.type, None)
    if isinstance(carrier, Simulated):
        return carrier.name
    if hasattr(api, "get_device_name"):
        return str(api.get_device_name(device))
    return platform.processor() or device.type


def get_facts(
    carrier: Carrier, kinds: Iterable[torch.dtype] = (), progress: Progress | None = None
) -> Facts:
    """The speed of a device and its link, and of products in these dtypes; cached on disk."""
    if isinstance(carrier, Simulated):
        return Facts(carrier.rates(), decoder(carrier.device).schemes, 0.0, {})
    file = _file("device", device_name(carrier), f"{platform.node()} {carrier.name}")
    known = _read(file)
    try:
        facts = Facts(
            Rates(**known["rates"]), tuple(known["schemes"]), known["memory_gb_s"], known["gflops"]
        )
    except (KeyError, TypeError):
        if progress is not None:
            progress(f"measuring the link to {carrier.name}")
        source = torch.zeros(_SAMPLE_BYTES, dtype=torch.uint8, device=carrier.device)
        target = torch.empty_like(source)
        memory_gb_s = 2 * _SAMPLE_BYTES / _fastest_ms(carrier, lambda: target.copy_(source)) / 1e6
        facts = Facts(carrier.rates(), decoder(carrier.device).schemes, memory_gb_s, {})
        _write(file, dataclasses.asdict(facts))
    names = {_dtype_name(kind): kind for kind in kinds if kind.is_floating_point}
    missing = {name: kind for name, kind in names.items() if name not in facts.gflops}
    if missing:
        speeds = {name: _gflops(carrier, kind) for name, kind in missing.items()}
        facts = dataclasses.replace(facts, gflops=facts.gflops | speeds)
        _write(file, dataclasses.asdict(facts))
    return facts


def _gflops(carrier: Carrier, kind: torch.dtype) -> float:
    side = _MATRIX_ON_CPU if carrier.device.type == "cpu" else _MATRIX
    try:
        matrix = torch.empty(side, side, device=carrier.device, dtype=torch.float32)
        matrix = matrix.normal_().to(kind)
        return 2.0 * side**3 / _fastest_ms(carrier, lambda: matrix @ matrix) / 1e6
    except RuntimeError:  # not supported on this device
        return 0.0


def _fastest_ms(carrier: Carrier, work: Callable[[], Any]) -> float:
    times: list[float] = []
    for _ in range(_REPEATS + 1):
        start = carrier.mark(timed=True)
        work()
        end = carrier.mark(timed=True)
        carrier.settle(end)
        times.append(carrier.between_ms(start, end))
    return max(min(times[1:]), 1e-6)


def _dtype_name(kind: torch.dtype) -> str:
    return str(kind).removeprefix("torch.")


# ---- on disk


def _file(subject: str, device: str, key: str) -> Path:
    text = repr((subject, device, torch.__version__, key))
    name = hashlib.sha256(text.encode()).hexdigest()[:32]
    return Config.load().cache_dir / "fit" / f"{subject}-{name}.json"


def _read(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _write(file: Path, content: dict[str, Any]) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, json.dumps(content | {"made": time.strftime("%Y-%m-%d")}))
    except OSError:
        return  # the answer is complete without the cache

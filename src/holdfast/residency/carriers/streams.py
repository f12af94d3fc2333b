"""Devices with torch streams and events: CUDA, ROCm, XPU, NPU, MLU.

Only `settle` and `synchronize` block the host.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from holdfast.base.errors import OutOfMemory
from holdfast.base.units import format_bytes
from holdfast.residency.carriers.carrier import Carrier, Parts, traffic_to
from holdfast.residency.carriers.driver import find_sender
from holdfast.residency.carriers.measure import measure_rates
from holdfast.residency.packing.pack import decoder, unpack
from holdfast.residency.plan import Rates

# Assumed driver memory of a process where it cannot be measured.
_CONTEXT_BYTES = 600 << 20
# Further driver memory for the kernels of one model, loaded on first use.
_KERNELS_BYTES = 256 << 20


class Streams(Carrier):
    """Copies on a stream of its own; compute and decoding on the current stream."""

    def __init__(self, name: str) -> None:
        device = torch.device(name)
        self._api: Any = getattr(torch, device.type)
        index = self._api.current_device() if device.index is None else device.index
        self.device = torch.device(device.type, index)
        self._index = index  # torch looks a device up much faster by index
        self.name = str(self.device)
        self._traffic = traffic_to(self.name)
        self._copies = self._api.Stream(device=self.device)
        self._send = find_sender() if device.type == "cuda" else None
        self._outside: int | None = None
        self._rates: dict[bool, Rates] = {}  # by whether the decoder was measured
        self._limited = False
        self.is_compact = device.type == "cuda" and _use_pages()
        if device.type == "cuda":
            # Pageable memory is copied through the driver's own buffer, at a sixth of the speed.
            self.pinned = True
            self.node = _find_node(self.device)

    def empty(self, nbytes: int) -> torch.Tensor:
        try:
            with torch.inference_mode(False):
                tensor = torch.empty(nbytes, dtype=torch.uint8, device=self.device)
        except torch.OutOfMemoryError as exc:
            raise OutOfMemory(
                f"cannot take {format_bytes(nbytes)} on {self.name} for weights",
                expected="that much free memory inside of the budget",
                hint="a smaller budget for weights, or smaller pictures",
            ) from exc
        return tensor

    def copy(self, pairs: Sequence[tuple[torch.Tensor, torch.Tensor]], after: Sequence[Any]) -> Any:
        for mark in after:
            self._copies.wait_event(mark)
        start = self._record_start(self._copies)
        for target, source in pairs:
            if self._send is None or not self._send(target, source, self._copies.cuda_stream):
                with self._api.stream(self._copies):
                    target.copy_(source, non_blocking=True)
        nbytes = sum(t.numel() for t, _ in pairs)
        self._traffic.copied_bytes += nbytes
        return self._record_end("copy", nbytes, start, self._copies)

    def decode(self, parts: Parts) -> Any:
        """On the current stream."""
        return self._run_decode(parts, functools.partial(_unpack, parts))

    def decoding(self, parts: Parts) -> Callable[[], Any]:
        """As a CUDA graph if possible: launching from Python takes longer than the kernels run."""
        capturing = self.device.type == "cuda" and decoder(self.device).way == "triton"
        return functools.partial(self._run_decode, parts, _Replay(parts, capturing))

    def _run_decode(self, parts: Parts, work: Callable[[], None]) -> Any:
        current = self._api.current_stream(self._index)
        start = self._record_start(current)
        work()
        return self._record_end("decode", sum(t.numel() for *_, t in parts), start, current)

    def _record_start(self, stream: Any) -> Any:
        if self.log is None:
            return None
        return stream.record_event(self._api.Event(enable_timing=True))

    def _record_end(self, kind: str, nbytes: int, start: Any, stream: Any) -> Any:
        if self.log is None or start is None:
            return stream.record_event()
        end = stream.record_event(self._api.Event(enable_timing=True))
        self.log.note_lane(kind, nbytes, start, end)
        return end

    def mark(self, timed: bool = False) -> Any:
        event = self._api.Event(enable_timing=timed)
        event.record(self._api.current_stream(self._index))
        return event

    def wait(self, mark: Any) -> None:
        self._api.current_stream(self._index).wait_event(mark)

    def drain(self) -> None:
        self._api.current_stream(self._index).wait_stream(self._copies)

    def settle(self, mark: Any) -> None:
        mark.synchronize()

    def synchronize(self) -> None:
        self._api.synchronize(self.device)

    def between_ms(self, start: Any, end: Any) -> float:
        return start.elapsed_time(end)

    def current_lane(self) -> Any:
        """The current stream, to be made current in another thread."""
        return self._lane(self._api.current_stream(self._index))

    @contextlib.contextmanager
    def _lane(self, stream: Any) -> Iterator[None]:
        with self._api.device(self._index), self._api.stream(stream):
            stream.record_event()  # some libraries fail in threads without a CUDA call before
            yield

    def others_bytes(self) -> int:
        """All tensors, those of `empty` included."""
        return self._count_allocated("current")

    def others_peak_bytes(self, reset: bool = False) -> int:
        peak = self._count_allocated("peak")
        self.peak_bytes = max(self.peak_bytes, peak)  # torch loses it with every reset
        if reset:
            self._api.reset_peak_memory_stats(self.device)
        return peak

    def _count_allocated(self, which: str) -> int:
        """The "current" or "peak" bytes of all tensors, faster than torch's own functions."""
        stats = self._stats()
        if stats:
            return stats["allocated_bytes"]["all"][which]
        name = "memory_allocated" if which == "current" else "max_memory_allocated"
        return getattr(self._api, name)(self.device)

    def _stats(self) -> dict[str, Any]:
        """Statistics of torch's allocator; empty for backends without them."""
        nested = getattr(self._api, "memory_stats_as_nested_dict", None)
        return {} if nested is None else nested(self.device)

    def outside_bytes(self) -> int:
        """Device memory of this process outside of torch's allocator, as of the last `limit`."""
        if self._outside is None:
            free, total = self._api.mem_get_info(self.device)
            seen = total - free - self._api.memory_reserved(self.device)
            # Other processes on the card are counted too; then assume a typical value.
            self._outside = seen if 0 <= seen <= 2 * _CONTEXT_BYTES else _CONTEXT_BYTES
        return self._outside or 0

    def workspace_bytes(self) -> int:
        """The most that cuDNN was seen to take for convolutions of image models."""
        return 1 << 30

    def has_room(self, pieces: Sequence[int]) -> bool:
        """The blocks tried stay in torch's cache, for the next allocation."""
        try:
            _ = [self.empty(nbytes) for nbytes in pieces]
        except OutOfMemory:
            return False
        return True

    def gaps_bytes(self) -> int:
        """Cached memory that cannot be freed because parts of its blocks are in use."""
        return self._api.memory_reserved(self.device) - self._api.memory_allocated(self.device)

    def failures(self) -> int:
        """torch's count; libraries such as cuDNN catch the error and use another algorithm."""
        return self._stats().get("num_ooms", 0)

    def total_bytes(self) -> int:
        """The card's memory less that of other processes."""
        free, total = self._api.mem_get_info(self.device)
        ours = self.outside_bytes() + self._api.memory_reserved(self.device)
        return min(total, free + ours)

    def slack_bytes(self, budget_bytes: int) -> int:
        """torch allocates in steps of up to 20 MB, and activations leave gaps."""
        return (64 << 20) + budget_bytes // 50

    def limit(self, budget_bytes: int | None, loading: bool = False) -> None:
        """Limit torch's allocator; measures the driver's memory again."""
        if budget_bytes is None and not self._limited:
            return
        _, total = self._api.mem_get_info(self.device)
        wanted = total
        if budget_bytes is not None:
            self._outside = None
            kernels = min(_KERNELS_BYTES, budget_bytes // 8) if loading else 0
            wanted = max(1, budget_bytes - self.outside_bytes() - kernels)
        self._api.set_per_process_memory_fraction(min(1.0, wanted / total), self.device)
        self._limited = budget_bytes is not None

    def tidy(self) -> None:
        self._api.empty_cache()

    def rates(self, packed: bool = True) -> Rates:
        found = self._rates.get(True) or self._rates.get(packed)
        if found is None:
            found = self._rates[packed] = measure_rates(self, packed)
            self._traffic.link_gb_s = found.link_gb_s
        return found


def _find_node(device: torch.device) -> int | None:
    """The NUMA node next to a card, where sysfs knows it."""
    card = torch.cuda.get_device_properties(device)
    domain, bus, slot = (
        getattr(card, f"pci_{part}_id", None) or 0 for part in ("domain", "bus", "device")
    )
    file = Path(f"/sys/bus/pci/devices/{domain:04x}:{bus:02x}:{slot:02x}.0/numa_node")
    try:
        node = int(file.read_text())
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None


@functools.cache
def _use_pages() -> bool:
    """Make torch's allocator take and free memory by pages; whether it does.

    Blocks of fixed segments leave gaps that differ from pass to pass: one that fitted may not fit
    the next time.
    """
    if torch.cuda.get_allocator_backend() == "cudaMallocAsync":
        return True
    names = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
    chosen = next((os.environ[name] for name in names if os.environ.get(name)), "")
    if "expandable_segments" in chosen:
        return "expandable_segments:True" in chosen
    if sys.platform != "linux" or torch.version.cuda is None:
        return False
    # Settings that are not named go back to their defaults.
    settings = ",".join(filter(None, (chosen, "expandable_segments:True")))
    functions: Any = torch._C
    getattr(
        functions, "_accelerator_setAllocatorSettings", torch.cuda.memory._set_allocator_settings
    )(settings)
    return True


class _Replay:
    """Decodes eagerly at first (builds kernels), captures a graph the second time, then replays."""

    def __init__(self, parts: Parts, capturing: bool) -> None:
        self._parts, self._capturing = parts, capturing
        self._graph: torch.cuda.CUDAGraph | None = None
        self._times = 0

    def __call__(self) -> None:
        self._times += 1
        if self._times == 2 and self._capturing:
            self._graph = self._capture()
        if self._graph is None:
            _unpack(self._parts)
        else:
            self._graph.replay()

    def _capture(self) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(torch.cuda.Stream(self._parts[0][0].device)):
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                _unpack(self._parts)
            finally:
                graph.capture_end()
        return graph


def _unpack(parts: Parts) -> None:
    for payload, layout, target in parts:
        unpack(payload, layout, target)

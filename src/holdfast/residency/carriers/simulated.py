"""A simulated device: host memory with a chosen capacity, rates and its own clock.

Every byte counts against the capacity. Copies run as early or as late as marks allow, compute as
late as possible. The bytes are real, so a copy at the wrong time gives wrong results, as on a real
device. The same seed gives the same order.
"""

from __future__ import annotations

import contextlib
import functools
import random
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass
from torch.utils._pytree import tree_leaves

from holdfast.base.errors import OutOfMemory
from holdfast.base.units import format_bytes
from holdfast.residency.carriers.carrier import Carrier, Parts, traffic_to
from holdfast.residency.packing.pack import unpack
from holdfast.residency.plan import Rates
from holdfast.residency.stream.slabs import slab, unwatched


@dataclass(eq=False)
class Moment:
    """A mark: an event in a lane, passed or still queued."""

    lane: str
    work: Callable[[], None] | None = None
    after: Sequence[Moment] = ()
    cost_ms: float = 0.0
    at_ms: float | None = None  # None: not passed yet
    start: Moment | None = None  # its beginning, for the journal


class Simulated(Carrier):
    """A carrier to a simulated device. Times are in simulated milliseconds; nothing sleeps.

    `eager` is the probability that a copy runs before something waits for it (0: as late as
    possible, 1: at once), drawn with `seed`. With `workspace` a convolution wants that many times
    the bytes of its inputs as a workspace, as with cuDNN: if it does not fit, the result has other
    bits and no error is raised.
    """

    device = torch.device("cpu")

    def __init__(
        self,
        name: str = "simulated",
        *,
        capacity_bytes: int = 1 << 62,
        link_gb_s: float = 25.0,
        compute_gflops: float = 50_000.0,
        memory_gb_s: float = 1000.0,
        decode_gb_s: float = 500.0,
        eager: float = 0.5,
        seed: int = 0,
        workspace: float = 0.0,
    ) -> None:
        self.name = name
        self.capacity_bytes = capacity_bytes
        self.limit_bytes: int | None = None
        self.held_bytes = 0  # allocated by `empty`
        self.computed_bytes = 0  # of activations
        self.now_ms = 0.0
        self.link_busy_ms = 0.0
        self.copied_bytes = 0
        self._computed_peak = 0
        self._rates = Rates(link_gb_s, decode_gb_s)
        self._traffic = traffic_to(name)
        self._traffic.link_gb_s = link_gb_s
        self._gflops, self._memory_gb_s = compute_gflops, memory_gb_s
        self._copies: list[Moment] = []  # queued
        self._free_ms = 0.0  # when the link is free
        self._eager, self._random = eager, random.Random(seed)
        self._awaited: list[Moment] = []  # marks that compute has to wait for
        self._behind: list[Moment] = []  # compute marks queued behind those
        self._inside = 0
        self._workspace = workspace
        self._failures = 0

    # ---- memory

    def empty(self, nbytes: int) -> torch.Tensor:
        """Counted host memory, filled with 255: new device memory is uninitialized."""
        self._room_for(nbytes, "weights")
        with torch.inference_mode(False), unwatched():
            tensor = slab(nbytes).fill_(255) if nbytes else slab(0)
        self.held_bytes += nbytes
        self._note_peak()
        weakref.finalize(tensor.untyped_storage(), self._count_free, nbytes).atexit = False
        return tensor

    def _count_free(self, nbytes: int) -> None:
        self.held_bytes -= nbytes

    def count_computed(self, nbytes: int) -> None:
        """Count an activation, or with a negative size its end. Raises torch.OutOfMemoryError."""
        if nbytes > 0 and self._over(nbytes):
            raise torch.OutOfMemoryError(f"{self.name} has no {nbytes} bytes for what is computed")
        self.computed_bytes += nbytes
        self._computed_peak = max(self._computed_peak, self.computed_bytes)
        self._note_peak()

    def _over(self, nbytes: int) -> bool:
        most = self.capacity_bytes
        if self.limit_bytes is not None:
            most = min(most, self.limit_bytes)
        over = self.held_bytes + self.computed_bytes + nbytes > most
        self._failures += over
        return over

    def _room_for(self, nbytes: int, what: str) -> None:
        if self._over(nbytes):
            raise OutOfMemory(
                f"cannot take {format_bytes(nbytes)} on {self.name} for {what}",
                expected="that much free memory inside of the budget",
                hint="a smaller budget for weights, or smaller pictures",
            )

    def _note_peak(self) -> None:
        self.peak_bytes = max(self.peak_bytes, self.held_bytes + self.computed_bytes)

    # ---- lanes

    def copy(
        self, pairs: Sequence[tuple[torch.Tensor, torch.Tensor]], after: Sequence[Moment]
    ) -> Moment:
        nbytes = sum(source.numel() for _, source in pairs)
        kept = list(pairs)
        self.copied_bytes += nbytes
        self._traffic.copied_bytes += nbytes
        cost = nbytes / self._rates.link_gb_s / 1e6 + self._rates.copy_ms * len(kept)
        self.link_busy_ms += cost

        def work() -> None:
            for target, source in kept:
                target.copy_(source)

        return self._queue(Moment("copy", work, tuple(after), cost), nbytes)

    def decode(self, parts: Parts) -> Moment:
        """In the compute lane, so it runs as late as possible."""
        kept = list(parts)
        raw_bytes = sum(layout.raw_bytes for _, layout, _ in kept)
        cost = raw_bytes / self._rates.decode_gb_s / 1e6 + self._rates.copy_ms * len(kept)

        def work() -> None:
            for payload, layout, target in kept:
                unpack(payload, layout, target)

        moment = Moment("compute", work, tuple(self._awaited), cost)
        self._log_event("decode", moment, raw_bytes)
        self.wait(moment)
        return moment

    def _log_event(self, kind: str, moment: Moment, nbytes: int) -> None:
        if self.log is not None:
            moment.start = Moment(moment.lane)
            self.log.note_lane(kind, nbytes, moment.start, moment)

    def _queue(self, moment: Moment, nbytes: int) -> Moment:
        self._copies.append(moment)
        self._log_event("copy", moment, nbytes)
        while self._copies and self._random.random() < self._eager:
            self._run(self._copies[0])
        return moment

    def _run(self, moment: Moment) -> None:
        """Run a moment after everything before it in its lane and everything it waits for."""
        if moment.lane == "compute":
            if moment.at_ms is None:
                self._work(moment, self.now_ms)
            return
        while moment.at_ms is None:
            following = self._copies[0]
            if following.at_ms is None:
                self._work(following, self._free_ms)
                self._free_ms = following.at_ms or 0.0
            if self._copies and self._copies[0] is following:
                self._copies.pop(0)

    def _work(self, moment: Moment, free_ms: float) -> None:
        """Do the work of one moment. After Ctrl-C it is still queued."""
        for earlier in moment.after:
            self._run(earlier)
        if moment.at_ms is not None:  # it ran together with an earlier one
            return
        start = max([free_ms, *(m.at_ms or 0.0 for m in moment.after)])
        if moment.work is not None:
            with torch.inference_mode(False), torch.no_grad(), unwatched():
                moment.work()
        moment.work = None
        moment.after = ()
        if moment.start is not None:
            moment.start.at_ms = start
        moment.at_ms = start + moment.cost_ms

    def mark(self, timed: bool = False) -> Moment:
        """A mark in the compute lane, which runs as late as possible."""
        if not self._awaited:
            return Moment("compute", at_ms=self.now_ms)
        moment = Moment("compute", after=tuple(self._awaited))
        self._behind.append(moment)
        return moment

    def wait(self, mark: Moment) -> None:
        """Compute waits for it: at once outside of a pass, else at the next operation."""
        self._awaited.append(mark)
        if not self._inside:
            self.catch_up()

    def catch_up(self) -> None:
        """Run what compute waits for, and advance the clock."""
        since_ms = self.now_ms
        while self._awaited:
            mark = self._awaited[0]
            self._run(mark)
            self.now_ms = max(self.now_ms, mark.at_ms or 0.0)
            self._awaited.pop(0)
        for moment in self._behind:  # their time is known now, and no later one is theirs
            if moment.at_ms is None:
                moment.at_ms = max([since_ms, *(m.at_ms or 0.0 for m in moment.after)])
                moment.after = ()
        self._behind = []

    def drain(self) -> None:
        if self._copies:
            self.wait(self._copies[-1])

    def settle(self, mark: Moment) -> None:
        self._run(mark)

    def synchronize(self) -> None:
        self.drain()
        self.catch_up()

    def between_ms(self, start: Moment, end: Moment) -> float:
        return (end.at_ms or 0.0) - (start.at_ms or 0.0)

    # ---- computing

    @contextlib.contextmanager
    def computing(self) -> Iterator[None]:
        """Counts the memory and the time of what is computed inside."""
        self._inside += 1
        try:
            with _Watch(self):
                yield
        finally:
            self._inside -= 1
            self.catch_up()

    def spend(self, flops: float, moved_bytes: float) -> None:
        """Advance the clock by one operation: compute or memory time, whichever is longer."""
        self.now_ms += max(flops / self._gflops / 1e6, moved_bytes / self._memory_gb_s / 1e6)

    def others_bytes(self) -> int:
        """Weights and activations, as torch counts on real devices."""
        return self.held_bytes + self.computed_bytes

    def others_peak_bytes(self, reset: bool = False) -> int:
        peak = self.held_bytes + self._computed_peak
        if reset:
            self._computed_peak = self.computed_bytes
        return peak

    def workspace_bytes(self) -> int:
        """An upper bound, if it has a `workspace`."""
        return 1 << 30 if self._workspace else 0

    def has_room(self, pieces: Sequence[int]) -> bool:
        """There is no fragmentation."""
        return not self._over(sum(pieces))

    def failures(self) -> int:
        """Counted only with a `workspace`."""
        return self._failures if self._workspace else 0

    def convolve(self, result: torch.Tensor, inputs: Sequence[torch.Tensor]) -> torch.Tensor:
        """The result of a convolution; slightly different if its workspace does not fit."""
        wanted = int(self._workspace * sum(x.numel() * x.element_size() for x in inputs))
        if not wanted:
            return result
        if self._over(wanted):
            return result * 1.001
        self._computed_peak = max(self._computed_peak, self.computed_bytes + wanted)
        self.peak_bytes = max(self.peak_bytes, self.held_bytes + self.computed_bytes + wanted)
        return result

    def total_bytes(self) -> int:
        return self.capacity_bytes

    def limit(self, budget_bytes: int | None, loading: bool = False) -> None:
        self.limit_bytes = budget_bytes

    def tidy(self) -> None:
        """There is no cache; runs pending work, which then frees its memory."""
        self.catch_up()

    def rates(self, packed: bool = True) -> Rates:
        return self._rates


class _Watch(TorchDispatchMode):
    """Counts every storage that an operation creates until it is freed."""

    supports_higher_order_operators = True

    def __init__(self, simulated: Simulated) -> None:
        super().__init__()
        self._simulated = simulated
        self._known: set[int] = set()

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Compiled code stays compiled, as on a real device."""
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not _makes_view(func):
            self._simulated.catch_up()
        result = func(*args, **(kwargs or {}))
        inputs, outputs = list(_plain_tensors((args, kwargs))), list(_plain_tensors(result))
        known = {x.untyped_storage().data_ptr() for x in inputs}
        fresh = [x for x in outputs if x.untyped_storage().data_ptr() not in known]
        for tensor in fresh:
            self._count(tensor.untyped_storage())
        if fresh:
            moved = sum(x.numel() * x.element_size() for x in (*inputs, *outputs))
            self._simulated.spend(_flops(func, inputs, fresh[0]), moved)
        if isinstance(result, torch.Tensor) and "convolution" in str(func):
            return self._simulated.convolve(result, inputs)
        return result

    def _count(self, storage: torch.UntypedStorage) -> None:
        key, nbytes = storage.data_ptr(), storage.nbytes()
        if nbytes == 0 or key in self._known:
            return
        self._simulated.count_computed(nbytes)
        self._known.add(key)
        weakref.finalize(storage, self._count_free, key, nbytes).atexit = False

    def _count_free(self, key: int, nbytes: int) -> None:
        self._known.discard(key)
        self._simulated.count_computed(-nbytes)


def _plain_tensors(tree: Any) -> Iterator[torch.Tensor]:
    """The tensors of a tree that own memory; a wrapper subclass yields its inner tensors."""
    for leaf in tree_leaves(tree):
        if is_traceable_wrapper_subclass(leaf):
            names, _ = leaf.__tensor_flatten__()
            yield from _plain_tensors([getattr(leaf, name) for name in names])
        elif isinstance(leaf, torch.Tensor):
            yield leaf


@functools.cache
def _makes_view(func: Any) -> bool:
    """Whether an op only returns a view: it reads no elements, so it need not wait for copies."""
    if not isinstance(func, torch._ops.OpOverload):
        return False
    returns = func._schema.returns
    return any(one.alias_info is not None and not one.alias_info.is_write for one in returns)


def _flops(func: Any, inputs: Sequence[torch.Tensor], output: torch.Tensor) -> float:
    """Two per multiply-add of a matmul or convolution, else one per output element."""
    name = getattr(func, "overloadpacket", func).__name__
    if name in ("mm", "addmm", "bmm", "baddbmm"):
        return 2.0 * output.numel() * inputs[-2].shape[-1]
    if "convolution" in name:
        return 2.0 * output.numel() * inputs[1][0].numel()
    return float(output.numel())

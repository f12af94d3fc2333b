"""How much memory calls of a module need beside its weights.

Calls with the same signature run the same operations on the same shapes, unless values of tensors
or state of the module decide otherwise.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from typing import Any

import torch
from torch import nn

from holdfast.residency.managed.group import Group

# Everything but integers, and the integers: a frame count changes shapes, a step index does not.
Signature = tuple[Hashable, tuple[int, ...]]
_MOST = 5000  # parts of a call that a signature covers
_PLAIN = (bool, str, bytes, type(None), torch.dtype, torch.device, torch.Size)
REMEMBERED = 8  # latest passes whose peaks count
MARGIN = 32  # 1/32 more is left free
SIGNATURES = 256  # at most this many are remembered


class CallMemory:
    """Peaks of past calls by signature, and what they leave of the budget for weights."""

    def __init__(self, group: Group, keep_bytes: int | None) -> None:
        self._group = group
        self._carrier = group.carrier
        self.keep_bytes = keep_bytes
        self.signature: Signature | None = None  # of the current pass
        self.expected_bytes = 0  # predicted activations of this pass
        self.is_known = False  # whether a call like this one ran before
        self.begun_bytes = 0  # memory of others on the device when this pass began
        self.reads_values = False  # whether this pass read values of tensors
        self.never_sure = False  # whether the pass before did, or is like no other
        self.reserve_bytes = 0  # left free since the device was once full
        self.recent_peak_bytes = 0  # the largest peak of the latest passes
        self.peak_bytes = 0  # of this pass
        self._recent: deque[int] = deque(maxlen=REMEMBERED)
        self._peak_of: dict[Signature, int] = {}
        self._peak_beside_integers: dict[Hashable, int] = {}  # the same with any integers
        self._input_bytes: dict[Signature, int] = {}
        # Calls that the plan at work served without trouble, and what others had when they began.
        self._sure: dict[Signature, int] = {}
        self.varying: set[Signature] = set()  # calls whose shapes depend on values
        self._refused_at: dict[Signature, int] = {}  # budgets in which calls found no room
        self._failures = 0  # how often the device had refused memory when this pass began
        self.seen_failures = 0  # how often this pass noticed that

    # ---- one pass

    def begin(self, entry: str, args: Any, kwargs: Any) -> None:
        """Begin a call: predict its activations."""
        before, (self.signature, nbytes) = self.signature, sign(entry, args, kwargs)
        if self.signature != before:  # other calls fragment memory differently
            self._carrier.tidy()
        self.reads_values = False
        self.peak_bytes = 0
        self._carrier.others_peak_bytes(reset=True)
        self.note_begin()
        known = self.known_peak(self.signature)
        self.is_known = known is not None
        self.expected_bytes = self._predict(nbytes) if known is None else known
        if self.signature is not None:
            self._input_bytes[self.signature] = nbytes

    def note_begin(self) -> None:
        """Record the memory of others on the device now."""
        self.begun_bytes = self._carrier.others_bytes() - self._group.held_bytes

    def sample(self) -> None:
        """Record the memory of others on the device, while our own is known."""
        peak = self._carrier.others_peak_bytes(reset=True) - self._group.held_bytes
        self.peak_bytes = max(self.peak_bytes, peak)
        self.recent_peak_bytes = max(self.recent_peak_bytes, peak)

    def remember(self) -> None:
        """End the pass: keep its peak, and drop those before the latest few."""
        self._recent.append(self.peak_bytes)
        self.recent_peak_bytes = max(self._recent)
        if self.signature is not None:
            before = self._peak_of.get(self.signature, 0)
            self._peak_of[self.signature] = max(self.peak_bytes, before)
            coarse = self.signature[0]
            before = self._peak_beside_integers.get(coarse, 0)
            self._peak_beside_integers[coarse] = max(self.peak_bytes, before)
        tables: list[dict[Any, int]] = [self._peak_of, self._input_bytes, self._refused_at]
        for table in (*tables, self._peak_beside_integers):
            while len(table) > SIGNATURES:
                del table[next(iter(table))]
        self.peak_bytes = self.expected_bytes = 0

    def note_values(self, is_shape: bool) -> None:
        """Record that branches or shapes may depend on values from here on."""
        self.reads_values = True
        if is_shape and self.signature is not None:
            self.varying.add(self.signature)

    def known_peak(self, signature: Signature | None) -> int | None:
        """The peak of such a call, perhaps with other integers."""
        if signature is None:
            return None
        known = self._peak_of.get(signature)
        return self._peak_beside_integers.get(signature[0]) if known is None else known

    def _predict(self, input_bytes: int) -> int:
        known = [
            peak * max(1.0, input_bytes / max(1, self._input_bytes.get(signature, 1)))
            for signature, peak in self._peak_of.items()
        ]
        return int(min(known, default=0))

    # ---- what was learned

    def learned(self) -> tuple[int, int]:
        """What `forget_failed` goes back to."""
        return self.recent_peak_bytes, self.reserve_bytes

    def forget_failed(self, learned: tuple[int, int], *, without_plan: bool) -> None:
        """A call did not fit: what it computed says nothing about calls that do."""
        self.recent_peak_bytes, self.reserve_bytes = learned
        self.peak_bytes = 0
        self.forget_sure()
        if without_plan and self.signature is not None:
            self._refused_at[self.signature] = self._group.budget_bytes or 0

    def is_sure(self) -> bool:
        """Whether a pass of this kind ran under the current plan without failed allocations."""
        begun = None if self.signature is None else self._sure.get(self.signature)
        if begun is None or not self._carrier.is_compact:
            return False
        slack = self._carrier.slack_bytes(self._group.budget_bytes or 0) // 8
        return self.begun_bytes <= begun + slack  # else others took memory since

    def note_sure(self) -> None:
        """Record that the current plan served a call of this kind without trouble."""
        if self.signature is not None:
            before = self._sure.get(self.signature, 0)
            self._sure[self.signature] = max(before, self.begun_bytes)

    def forget_sure(self) -> None:
        """Forget which calls the old plan served."""
        self._sure.clear()

    def needs_all_room(self) -> bool:
        """Whether values decide shapes, or a budget hardly smaller was too small for such calls."""
        budget = self._group.budget_bytes
        if self.signature is None or self.signature in self.varying:
            return True
        refused = self._refused_at.get(self.signature)
        return refused is not None and budget is not None and 4 * budget < 5 * refused

    # ---- refusals of the device

    def count_failures(self) -> None:
        """From now on, `unseen_failures` counts."""
        self._failures, self.seen_failures = self._carrier.failures(), 0

    def unseen_failures(self) -> int:
        """How many failed allocations of this pass a library hid."""
        return self._carrier.failures() - self._failures - self.seen_failures

    # ---- budgets

    def allowance(self) -> int:
        """What the budget leaves for weights beside the peaks of the latest passes."""
        beside = max(self.recent_peak_bytes, self.expected_bytes)
        beside += beside // MARGIN  # similar passes differ a little
        room = self._group.room_bytes - beside - self.reserve_bytes
        if self._group.weights_bytes is not None:
            room = min(room, self._group.weights_bytes)
        return room if self.keep_bytes is None else min(room, self.keep_bytes + (1 << 30))

    def budget_for(self, weights_bytes: int) -> int:
        """The inverse of `allowance`: the smallest budget that leaves so much for weights."""
        beside = self.recent_peak_bytes + self.recent_peak_bytes // MARGIN + self.reserve_bytes
        return self._carrier.budget_around(weights_bytes + beside + self._carrier.outside_bytes())


# ---- signatures


class _TooMuchError(Exception):
    """A call has too many parts for a signature."""


def sign(entry: str, args: Any, kwargs: Any) -> tuple[Signature | None, int]:
    """The signature of a call (None: too complex), and the bytes of all its tensors."""
    look = _Look()
    try:
        shape = look.describe((args, kwargs))
    except (_TooMuchError, RecursionError):
        return None, look.nbytes
    modes = (torch.is_autocast_enabled(), torch.is_inference_mode_enabled())
    return ((entry, modes, shape), tuple(look.integers)), look.nbytes


class _Look:
    """Walks the arguments of one call."""

    def __init__(self) -> None:
        self.nbytes = 0
        self.integers: list[int] = []  # apart: many only count steps
        self._left = _MOST
        self._seen: set[int] = set()

    def describe(self, x: Any) -> Hashable:
        self._left -= 1
        if self._left < 0:
            raise _TooMuchError
        if isinstance(x, torch.Tensor):
            self.nbytes += x.numel() * x.element_size()
            return tuple(x.shape), x.dtype, x.device.type
        if isinstance(x, _PLAIN):
            return type(x), x
        if isinstance(x, int):
            self.integers.append(x)
            return int
        if isinstance(x, float | complex):
            return type(x)
        if isinstance(x, list | tuple):
            return type(x), *map(self.describe, x)
        if isinstance(x, dict):
            return type(x), *((repr(name), self.describe(value)) for name, value in x.items())
        if isinstance(x, torch.Generator):
            return torch.Generator
        return self._describe_object(x)

    def _describe_object(self, x: Any) -> Hashable:
        """An object with attributes: a cache, a configuration."""
        if id(x) in self._seen:
            return "again"
        self._seen.add(id(x))
        if isinstance(x, nn.Module) or callable(x) or not hasattr(x, "__dict__"):
            return type(x), id(x)
        return type(x), self.describe(vars(x))

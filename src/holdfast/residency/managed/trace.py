"""Records in one pass which layer uses which weights, in what order and for how long."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from holdfast.residency.carriers.carrier import Carrier, Mark
from holdfast.residency.plan import Use


@dataclass(frozen=True, slots=True)
class Order:
    """What a pass does: its layers by path, their uses, and the weights that have to stay."""

    paths: tuple[str, ...]
    uses: tuple[Use, ...]
    staying: frozenset[int]
    measured: int = 0  # timed passes after the first
    needed: int = 2  # timed passes needed: a slow host makes a single pass look slow

    @property
    def settled(self) -> bool:
        """Whether enough passes were timed."""
        return self.measured >= self.needed


class Stopwatch:
    """Times the uses of a pass whose order is known."""

    def __init__(self, carrier: Carrier) -> None:
        self._carrier = carrier
        self._times: list[tuple[int, Mark, Mark]] = []
        self._use: int | None = None
        self._begun: Mark = None

    def arriving(self) -> None:
        """Before the weights of the next layer are waited for: the layer before ends here."""
        if self._use is not None:
            self._times.append((self._use, self._begun, self._carrier.mark(timed=True)))
        self._use = None

    def begin(self, use: int) -> None:
        """Begin a use whose weights have arrived."""
        self._use, self._begun = use, self._carrier.mark(timed=True)

    def timed(self, order: Order) -> Order:
        """The order with the measured times. Waits for the device."""
        self.arriving()
        self._carrier.synchronize()
        taken = {u: self._carrier.between_ms(begin, end) for u, begin, end in self._times}
        uses = tuple(
            replace(use, compute_ms=max(0.0, min(use.compute_ms, taken.get(number, math.inf))))
            for number, use in enumerate(order.uses)
        )
        return replace(order, uses=uses, measured=order.measured + 1)


@dataclass(eq=False, slots=True)
class _Seen:
    path: str
    weights: dict[int, None]
    begun: Mark
    ended: Mark = None
    contains: bool = False


@dataclass(eq=False)
class Tracer:
    """Records the layers and weights of a pass."""

    carrier: Carrier
    _seen: list[_Seen] = field(default_factory=list)
    _open: list[_Seen] = field(default_factory=list)
    _staying: set[int] = field(default_factory=set)

    def arriving(self) -> None:
        """Before the weights of the next layer are waited for: the layer before ends here."""
        if self._seen and self._seen[-1].ended is None:
            self._seen[-1].ended = self.carrier.mark(timed=True)

    def begin(self, path: str, weights: tuple[int, ...]) -> None:
        """Begin a layer whose weights have arrived."""
        for outer in self._open:
            outer.contains = True
        seen = _Seen(path, dict.fromkeys(weights), self.carrier.mark(timed=True))
        self._seen.append(seen)
        self._open.append(seen)

    def end(self) -> None:
        """End the layer that began last."""
        self._open.pop()

    def taken(self, weight: int) -> None:
        """Record the use of a weight that is not the open layer's own."""
        if self._open:
            self._open[-1].weights[weight] = None
        else:
            self._staying.add(weight)

    def order(self) -> Order:
        """The recorded order. Waits for the device."""
        self.arriving()
        self.carrier.synchronize()
        staying = set(self._staying)
        for seen in self._seen:
            if seen.contains:
                staying.update(seen.weights)
        uses = tuple(
            Use(tuple(seen.weights), max(0.0, self.carrier.between_ms(seen.begun, seen.ended)))
            for seen in self._seen
        )
        return Order(tuple(seen.path for seen in self._seen), uses, frozenset(staying))

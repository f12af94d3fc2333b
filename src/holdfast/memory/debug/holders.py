"""Who holds tensors: live tensors, summed by their holders.

Holders are what the caller claims (models, results that are kept), other modules, and variables for
the largest of the remaining tensors. A search takes about as long as allowed; `complete` is False
if that was not enough. It keeps nothing alive.
"""

from __future__ import annotations

import gc
import sys
import time
import types
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from holdfast.memory.debug.referrer_text import describe_path, is_named
from holdfast.memory.debug.referrers import running_variables

SEARCHED = 4  # single tensors whose referrers are followed
LEVELS = 6  # references followed upwards from one
LEAST_BYTES = 1_000_000  # of a single tensor to be searched
NOT_LOOKED_FOR = "not looked for: no time left"
Tick = Callable[[int, int], None]
Claims = Callable[[], Iterable[tuple[str, Iterable[Any]]]]  # holders, and their objects
StorageKey = tuple[int, str]  # address and device
_SKIPPED = (types.ModuleType, type, types.FrameType, types.BuiltinFunctionType, str, bytes)


@dataclass(frozen=True, slots=True)
class Holding:
    """Tensors on one device with the same holders."""

    device: str
    nbytes: int
    tensors: int  # storages; tensors that share one count once
    holders: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Holdings:
    """All tensors that Python can see, the largest first."""

    rows: tuple[Holding, ...]
    complete: bool  # there was time for all of it
    seconds: float

    def by_device(self) -> dict[str, int]:
        """Bytes in tensors on each device."""
        found: dict[str, int] = {}
        for row in self.rows:
            found[row.device] = found.get(row.device, 0) + row.nbytes
        return found


def find_holdings(claims: Iterable[Claims], limit_s: float, tick: Tick | None = None) -> Holdings:
    """Find the live tensors and their holders, in about `limit_s` seconds.

    `claims` name holders, the first ones first. `tick(done, total)` is called on the way.
    """
    start_s = time.monotonic()
    if "torch" not in sys.modules:
        return Holdings((), True, 0.0)
    look = _Search(start_s + limit_s)
    claiming = (lambda each=each: look.claim_all(each()) for each in claims)
    steps = (look.tensors, *claiming, look.modules, look.singles)
    try:
        for done, step in enumerate(steps):
            if tick is not None:
                tick(done, len(steps))
            step()
    finally:
        look.clear()
    if tick is not None:
        tick(len(steps), len(steps))
    return Holdings(look.rows(), look.complete, time.monotonic() - start_s)


class _Search:
    """One search. Holds the tensors until `clear`, then only their addresses and texts."""

    def __init__(self, end_s: float) -> None:
        self._end_s = end_s
        self._tensors: list[Any] = []
        self._modules: list[Any] = []
        self._sizes: dict[StorageKey, int] = {}
        self._holders: dict[StorageKey, list[str]] = {}
        self.complete = True

    def _left_s(self) -> float:
        return self._end_s - time.monotonic()

    def tensors(self) -> None:
        """Find every tensor and module that the garbage collector tracks, in one pass."""
        import torch

        homes: dict[type, list[Any] | None] = {}
        for one in gc.get_objects():
            kind = type(one)
            if kind not in homes:
                is_module = issubclass(kind, torch.nn.Module)
                others = self._modules if is_module else None
                homes[kind] = self._tensors if issubclass(kind, torch.Tensor) else others
            home = homes[kind]
            if home is not None:
                home.append(one)
        for one in self._tensors:
            found = _storage_of(one)
            if found is not None:
                self._sizes[found[0]] = found[1]

    def clear(self) -> None:
        self._tensors.clear()
        self._modules.clear()

    def claim_all(self, claims: Iterable[tuple[str, Iterable[Any]]]) -> None:
        for holder, roots in claims:
            self._claim(holder, roots)

    def modules(self) -> None:
        """Claim what is left for modules that are part of no other."""
        if not self._list_unclaimed():
            return
        inner = {id(child) for one in self._modules for child in one._modules.values()}
        for one in self._modules:
            if id(one) not in inner:
                self._claim(f"a module {type(one).__name__}", [one], only_new=True)

    def singles(self) -> None:
        """Search the referrers of the largest tensors that are left."""
        left = [place for place in self._list_unclaimed() if self._sizes[place] >= LEAST_BYTES]
        left.sort(key=lambda place: -self._sizes[place])
        places, others = left[:SEARCHED], left[SEARCHED:]
        self._holders |= {place: ["single tensors"] for place in others}
        if not places:
            return
        texts = self._search(places)
        self.complete &= len(texts) == len(places)
        self._holders |= {place: [texts.get(place, NOT_LOOKED_FOR)] for place in places}

    def _search(self, places: list[StorageKey]) -> dict[StorageKey, str]:
        texts: dict[StorageKey, str] = {}
        for one in self._tensors:
            found = _storage_of(one)
            if found is None or found[0] not in places or found[0] in texts:
                continue
            text = _follow_referrers(one, {id(self._tensors), id(self._modules)}, self._end_s)
            if text is None:
                break
            texts[found[0]] = text
        return texts

    def _list_unclaimed(self) -> list[StorageKey]:
        return [place for place in self._sizes if place not in self._holders]

    def _claim(self, holder: str, roots: Iterable[Any], *, only_new: bool = False) -> None:
        for place in self._reach(roots):
            if place not in self._sizes or (only_new and place in self._holders):
                continue
            holders = self._holders.setdefault(place, [])
            if holder not in holders:
                holders.append(holder)

    def _reach(self, roots: Iterable[Any]) -> Iterator[StorageKey]:
        waiting, seen = list(roots), set[int]()
        while waiting:
            one = waiting.pop()
            if id(one) in seen or isinstance(one, _SKIPPED):
                continue
            seen.add(id(one))
            if len(seen) % 1000 == 0 and self._left_s() < 0:
                self.complete = False
                return
            found = _storage_of(one)
            if found is not None:
                yield found[0]
            elif isinstance(one, types.FunctionType):
                waiting += one.__closure__ or ()  # not its globals, which are shared
            else:
                waiting += gc.get_referents(one)

    def rows(self) -> tuple[Holding, ...]:
        """The tensors grouped by device and holders, largest first."""
        groups: dict[tuple[str, tuple[str, ...]], list[int]] = {}
        for place, nbytes in self._sizes.items():
            holders = tuple(self._holders.get(place, ["small tensors"]))
            groups.setdefault((place[1], holders), []).append(nbytes)
        found = [
            Holding(device, sum(sizes), len(sizes), holders)
            for (device, holders), sizes in groups.items()
        ]
        return tuple(sorted(found, key=lambda row: -row.nbytes))


def _storage_of(one: Any) -> tuple[StorageKey, int] | None:
    """The storage of a tensor and its bytes; None for anything else, or without memory."""
    torch: Any = sys.modules["torch"]
    if not issubclass(type(one), torch.Tensor):
        return None
    try:
        if one.device.type == "meta":
            return None
        storage = one.untyped_storage()
        address, nbytes = storage.data_ptr(), storage.nbytes()
    except (RuntimeError, NotImplementedError, AttributeError):
        return None  # sparse or fake tensors, or those of a transform
    return ((address, str(one.device)), nbytes) if address else None


def _follow_referrers(tensor: Any, ours: set[int], end_s: float) -> str | None:
    """The chain of referrers up to something with a name, as text; None if time ran out."""
    path = [tensor]
    ours |= {id(path)}
    while len(path) <= LEVELS:
        if time.monotonic() > end_s:
            return None
        # The lists and frames of this search refer to it as well.
        above = [
            one
            for one in gc.get_referrers(path[-1])
            if id(one) not in ours and not any(one is known for known in path)
            if not _is_our_frame(one)
        ]
        if not above:
            break
        path.append(min(above, key=_distance))
        del above
        if is_named(path[-1]):
            break
    words = describe_path(path)
    if not is_named(path[-1]):
        words += [_variable(path[-1])]
    kind = f"a {type(tensor).__name__} {tuple(tensor.shape)}"
    return " < ".join([kind, *filter(None, words)])


def _variable(value: Any) -> str:
    """The variable of running code that is bound to an object, as text; "" for none."""
    for name, one, frame in running_variables():
        if one is value and frame.f_code.co_filename != __file__:
            return f"variable {name!r} of {frame.f_code.co_qualname}, which runs"
    return ""


def _is_our_frame(one: Any) -> bool:
    return type(one) is types.FrameType and one.f_code.co_filename == __file__


def _distance(one: Any) -> int:
    """Smaller for objects that are more likely to lead to a name."""
    if is_named(one):
        return 0
    if type(one) is types.FrameType:
        return 4
    return {dict: 1, list: 2, tuple: 3}.get(type(one), 1)

"""Who holds memory: tensors that are alive, added up by those who keep them.

Covers: models of ComfyUI, results it keeps for the next run, other modules, and words for the
largest tensors that are none of these; allocations of shared virtual memory, models on a TPU.
Leaves to others: what to say about it (words), giving it back (freeing).
Promise: looking takes about `limit_s` seconds at the most, and what was not reached by then is
said to be so; nothing is kept alive by having looked.
"""

from __future__ import annotations

import gc
import sys
import time
import types
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from holdfast.base.config import Config
from holdfast.memory.reference_words import is_named, step_in_words
from holdfast.memory.referrers import running_variables
from holdfast.nodes.host import models

SEARCHED = 4  # single tensors
LEVELS = 6  # references upwards from one
LEAST_BYTES = 1_000_000  # of a single tensor to be named
NOT_LOOKED_FOR = "not looked for: no time left"
Tick = Callable[[int, int], None]
Place = tuple[int, str]  # address and device of a storage
_SKIPPED = (types.ModuleType, type, types.FrameType, types.BuiltinFunctionType, str, bytes)


@dataclass(frozen=True, slots=True)
class Holding:
    """Tensors on one device that the same hold."""

    device: str
    nbytes: int
    tensors: int  # pieces of memory; tensors that share one count once
    holders: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Holdings:
    """All tensors that Python can see, the largest first."""

    rows: tuple[Holding, ...]
    complete: bool  # whether there was time for all
    seconds: float

    def by_device(self) -> dict[str, int]:
        """Bytes in tensors on each device."""
        found: dict[str, int] = {}
        for row in self.rows:
            found[row.device] = found.get(row.device, 0) + row.nbytes
        return found


def holdings(tick: Tick | None = None, limit_s: float | None = None) -> Holdings:
    """The tensors that are alive, and who holds them. `tick` gets (done, total) on the way.

    `limit_s`: HOLDFAST_REPORT_S if it is None.
    """
    start_s = time.monotonic()
    limit_s = Config.load().report_s if limit_s is None else limit_s
    if "torch" not in sys.modules:
        return Holdings((), True, 0.0)
    look = _Look(start_s + limit_s)
    steps = (look.tensors, look.loaded, look.kept, look.modules, look.singles)
    try:
        for done, step in enumerate(steps):
            if tick is not None:
                tick(done, len(steps))
            step()
    finally:
        look.let_go()
    if tick is not None:
        tick(len(steps), len(steps))
    return Holdings(look.rows(), look.complete, time.monotonic() - start_s)


class _Look:
    """One look. Holds the tensors while it lasts, and then only places and words."""

    def __init__(self, end_s: float) -> None:
        self._end_s = end_s
        self._tensors: list[Any] = []
        self._modules: list[Any] = []
        self._sizes: dict[Place, int] = {}
        self._holders: dict[Place, list[str]] = {}
        self.complete = True

    def _left_s(self) -> float:
        return self._end_s - time.monotonic()

    def tensors(self) -> None:
        """Every tensor that Python's collector lists; modules too, as one pass finds both."""
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
            found = _place(one)
            if found is not None:
                self._sizes[found[0]] = found[1]

    def let_go(self) -> None:
        """Hold nothing any more."""
        self._tensors.clear()
        self._modules.clear()

    def loaded(self) -> None:
        """Models that ComfyUI has loaded."""
        for patcher in models.patchers():
            self._claim(f"ComfyUI's model {type(patcher.model).__name__}", [patcher.model])

    def kept(self) -> None:
        """Results that ComfyUI keeps."""
        for entry in models.kept():
            kind = f" ({entry.kind})" if entry.kind else ""
            self._claim(f"the kept result of node {entry.node}{kind}", entry.outputs)

    def modules(self) -> None:
        """Modules that are part of no other, for what nobody has claimed."""
        if not self._unclaimed():
            return
        inner = {id(child) for one in self._modules for child in one._modules.values()}
        for one in self._modules:
            if id(one) not in inner:
                self._claim(f"a module {type(one).__name__}", [one], only_new=True)

    def singles(self) -> None:
        """The largest that are left, by a search through all of Python's objects."""
        places = [
            place
            for place in sorted(self._unclaimed(), key=lambda place: -self._sizes[place])
            if self._sizes[place] >= LEAST_BYTES
        ]
        for place in places[SEARCHED:]:
            self._holders[place] = ["single tensors"]
        places = places[:SEARCHED]
        if not places:
            return
        words = self._searched(places)
        self.complete &= len(words) == len(places)
        self._holders |= {place: [words.get(place, NOT_LOOKED_FOR)] for place in places}

    def _searched(self, places: list[Place]) -> dict[Place, str]:
        """Words for who holds the memory at these places, for as many as there is time."""
        words: dict[Place, str] = {}
        for one in self._tensors:
            found = _place(one)
            if found is None or found[0] not in places or found[0] in words:
                continue
            said = _chain(one, {id(self._tensors), id(self._modules)}, self._end_s)
            if said is None:
                break
            words[found[0]] = said
        return words

    def _unclaimed(self) -> list[Place]:
        return [place for place in self._sizes if place not in self._holders]

    def _claim(self, words: str, roots: Iterable[Any], *, only_new: bool = False) -> None:
        for place in self._reached(roots):
            if place not in self._sizes or (only_new and place in self._holders):
                continue
            said = self._holders.setdefault(place, [])
            if words not in said:
                said.append(words)

    def _reached(self, roots: Iterable[Any]) -> Iterator[Place]:
        """Places of the tensors that can be reached from some objects, while there is time."""
        waiting, seen = list(roots), set[int]()
        while waiting:
            one = waiting.pop()
            if id(one) in seen or isinstance(one, _SKIPPED):
                continue
            seen.add(id(one))
            if len(seen) % 1000 == 0 and self._left_s() < 0:
                self.complete = False
                return
            found = _place(one)
            if found is not None:
                yield found[0]
            elif isinstance(one, types.FunctionType):
                waiting += one.__closure__ or ()  # its globals are everybody's
            else:
                waiting += gc.get_referents(one)

    def rows(self) -> tuple[Holding, ...]:
        """What is held by the same, together."""
        groups: dict[tuple[str, tuple[str, ...]], list[int]] = {}
        for place, nbytes in self._sizes.items():
            holders = tuple(self._holders.get(place, ["small tensors"]))
            groups.setdefault((place[1], holders), []).append(nbytes)
        found = [
            Holding(device, sum(sizes), len(sizes), holders)
            for (device, holders), sizes in groups.items()
        ]
        return tuple(sorted(found, key=lambda row: -row.nbytes))


def _place(one: Any) -> tuple[Place, int] | None:
    """Where the memory of a tensor is, and how much; None for what is none or has none."""
    torch: Any = sys.modules["torch"]
    if not issubclass(type(one), torch.Tensor):
        return None
    try:
        if one.device.type == "meta":
            return None
        storage = one.untyped_storage()
        address, nbytes = storage.data_ptr(), storage.nbytes()
    except (RuntimeError, NotImplementedError, AttributeError):
        return None  # sparse, fake, of a transform
    return ((address, str(one.device)), nbytes) if address else None


# ---- single tensors


def _chain(tensor: Any, ours: set[int], end_s: float) -> str | None:
    """From a tensor upwards to something that has a name, in words; None where time ran out."""
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
    words, at = [], 0
    while at + 1 < len(path):
        step, used = step_in_words(path, at)
        words += [step] if step else []
        at += used
    if not is_named(path[-1]):
        words += [_variable(path[-1])]
    kind = f"a {type(tensor).__name__} {tuple(tensor.shape)}"
    return " < ".join([kind, *filter(None, words)])


def _variable(value: Any) -> str:
    """The variable of running code that is bound to an object, in words; "" for none."""
    for name, one, frame in running_variables():
        if one is value and frame.f_code.co_filename != __file__:
            return f"variable {name!r} of {frame.f_code.co_qualname}, which runs"
    return ""


def _is_our_frame(one: Any) -> bool:
    return type(one) is types.FrameType and one.f_code.co_filename == __file__


def _distance(one: Any) -> int:
    """The likelier an object leads to a name, the smaller."""
    if is_named(one):
        return 0
    if type(one) is types.FrameType:
        return 4
    return {dict: 1, list: 2, tuple: 3}.get(type(one), 1)


# ---- what is not in tensors


def shared_virtual() -> list[Any]:
    """The allocations of shared virtual memory that this process has, the largest first."""
    made = getattr(sys.modules.get("holdfast.memory.svm.allocation"), "Allocation", None)
    if made is None:
        return []
    found = [one for one in gc.get_objects() if type(one) is made and not one.freed]
    return sorted(found, key=lambda one: -one.size)


def on_tpu() -> list[tuple[str, int]]:
    """The models that the TPU nodes keep: names and bytes."""
    ask = getattr(sys.modules.get("holdfast.nodes.xla"), "loaded", None)
    return [(str(name), int(nbytes or 0)) for name, nbytes in ask()] if ask is not None else []

"""Who still holds the memory of weights, and giving it back to the system.

Covers: which memory is alive, chains of references in words, emptying a module.
Leaves to others: finding references (memory.referrers), blocks of our own pools (memory.leaks).
Promise: nothing is kept alive by watching it or by having looked. What C++ holds without telling
Python (a graph that is to run backwards, a queue of a loader) is held by "nobody that Python can
see", and is still reported as held.
"""

from __future__ import annotations

import bisect
import ctypes
import functools
import gc
import inspect
import itertools
import re
import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor, UntypedStorage, nn
from torch.multiprocessing.reductions import StorageWeakRef

from holdfast.base.errors import BadInput
from holdfast.base.units import format_bytes
from holdfast.memory import referrers
from holdfast.memory.samples import rss_bytes
from holdfast.residency.files.slots import Weight, emptied, exchange, weights_of

TOLD = 3  # chains for each memory
SEARCHED = 50  # memories whose holders are looked for: the largest
DEEPEST = 50  # modules in modules


@dataclass(frozen=True)
class Held:
    """Memory that is alive: a slab, or what one tensor has to itself."""

    nbytes: int
    device: str
    names: tuple[str, ...]  # of the weights in it; empty where they came without
    holders: tuple[str, ...]  # in words, the nearest first

    def __str__(self) -> str:
        named = ""
        if self.names:
            first, *rest = self.names
            named = f" ({first} and {len(rest)} more)" if rest else f" ({first})"
        return f"{format_bytes(self.nbytes)} on {self.device}{named}: {'; '.join(self.holders)}"


@dataclass(frozen=True)
class Holders:
    """What is alive of the memory that was asked about, the largest first."""

    watched_bytes: int
    held: tuple[Held, ...]

    @property
    def held_bytes(self) -> int:
        """How much that is."""
        return sum(one.nbytes for one in self.held)

    def __str__(self) -> str:
        if not self.held:
            return f"nobody holds any of {format_bytes(self.watched_bytes)}"
        head = f"{format_bytes(self.held_bytes)} of {format_bytes(self.watched_bytes)} are held"
        return "\n".join([head, *(f"  {one}" for one in self.held)])


@dataclass(frozen=True)
class Released:
    """What came of emptying a module."""

    weight_bytes: int  # memory its weights lay in
    rss_before_bytes: int
    rss_after_bytes: int
    held: Holders

    @property
    def rss_bytes(self) -> int:
        """How much less of this process is in RAM. Other threads go on, so it is no promise."""
        return self.rss_before_bytes - self.rss_after_bytes

    @property
    def given_back_bytes(self) -> int:
        """Memory of the weights that is gone."""
        return self.weight_bytes - self.held.held_bytes

    def __str__(self) -> str:
        head = (
            f"{format_bytes(self.given_back_bytes)} of {format_bytes(self.weight_bytes)} given "
            f"back, {format_bytes(self.rss_bytes)} less in RAM"
        )
        return f"{head}\n{self.held}" if self.held.held else head


# ---- what is watched


class Watch:
    """Memory of tensors, storages or a module, looked at without holding it.

    Memory that several tensors share counts once. Raises BadInput for anything else.
    """

    def __init__(self, of: nn.Module | Iterable[Tensor | UntypedStorage]) -> None:
        found: dict[int, _Memory] = {}
        for name, storage in _storages(of):
            if storage.data_ptr():
                memory = found.setdefault(storage.data_ptr(), _Memory(storage))
                memory.names += [name] if name else []
        self._memories = list(found.values())
        self.nbytes = sum(memory.nbytes for memory in self._memories)

    def alive(self) -> list[_Memory]:
        """The memory that is still there, the largest first."""
        alive = [memory for memory in self._memories if not memory.ref.expired()]
        return sorted(alive, key=lambda memory: -memory.nbytes)


class _Memory:
    """What is known of one storage once nobody here holds it."""

    def __init__(self, storage: UntypedStorage) -> None:
        self.ref = StorageWeakRef(storage)
        self.address, self.nbytes = storage.data_ptr(), storage.nbytes()
        self.device = str(storage.device)
        self.names: list[str] = []


def _storages(of: Any) -> Iterator[tuple[str, UntypedStorage]]:
    if isinstance(of, nn.Module):
        named = itertools.chain(of.named_parameters(), of.named_buffers())
    elif isinstance(of, Tensor | UntypedStorage):
        named = [("", of)]
    else:
        named = [one if isinstance(one, tuple) else ("", one) for one in of]
    for name, one in named:
        if isinstance(one, Tensor):
            yield name, one.untyped_storage()
        elif isinstance(one, UntypedStorage):
            yield name, one
        else:
            raise BadInput(
                f"cannot tell who holds a {type(one).__name__}",
                expected="a module, tensors or their storages",
            )


# ---- who holds it


def holders(of: Watch | nn.Module | Iterable[Tensor | UntypedStorage]) -> Holders:
    """Which of this memory is alive after a garbage collection, and who holds it, in words.

    A Watch is made before the memory is to go, and asked after. Given a module or tensors, those
    who gave them are among the holders. Reads the whole heap where something is held: a second or
    so.
    """
    watch = of if isinstance(of, Watch) else Watch(of)
    del of
    gc.collect()
    gc.collect()  # what the finalizers of the first let go
    alive = watch.alive()
    unknown = (f"somebody (looked for is who holds the {SEARCHED} largest)",)
    words = _words(alive[:SEARCHED]) if alive else []
    words += [unknown] * (len(alive) - len(words))
    held = [
        Held(memory.nbytes, memory.device, tuple(memory.names), found)
        for memory, found in zip(alive, words, strict=True)
    ]
    return Holders(watch.nbytes, tuple(held))


class _Stand:
    """Stands for a memory while references to it are looked for."""

    __slots__ = ("__weakref__",)


class _Finder:
    """Finds what stands for the memory that an address lies in; holds none of it."""

    def __init__(self, memories: list[_Memory], stands: list[Any]) -> None:
        pairs = zip(memories, stands, strict=True)
        ordered = [(one.address, one.nbytes, weakref.ref(stand)) for one, stand in pairs]
        self._ranges = sorted(ordered, key=lambda found: found[0])
        self._starts = [found[0] for found in self._ranges]

    def __call__(self, address: int) -> Any:
        at = bisect.bisect_right(self._starts, address) - 1
        if not address or at < 0:
            return None
        start, nbytes, stand = self._ranges[at]
        return stand() if address < start + nbytes else None


def _words(memories: list[_Memory]) -> list[tuple[str, ...]]:
    """For each memory who holds it."""
    # One list alone: the search leaves it out of what it finds, and would find any other.
    blocks: list[Any] = [_Stand() for _ in memories]
    find = _Finder(memories, blocks)
    variables = _variables()
    known = _weights(find, variables) | variables
    # Python's own objects for storages are no arrays, so the search would not see them.
    blocks += (one for one in gc.get_objects() if _is_storage(one, find))
    found = referrers.who_refers(blocks, find, known)
    chains = {id(stand): found[id(stand)] for stand in blocks[: len(memories)]}
    for storage in blocks[len(memories) :]:
        chains[id(find(storage.data_ptr()))] += found[id(storage)]
    return [_tidy(words) for words in chains.values()]


def _is_storage(one: Any, find: _Finder) -> bool:
    return type(one) is UntypedStorage and find(one.data_ptr()) is not None


def _tidy(chains: list[str]) -> tuple[str, ...]:
    """Each once, without the words for the tensor itself where a module's name says more."""
    short = [words.split(" ← ", 1)[-1] if " ← weight '" in words else words for words in chains]
    known = [words for words in dict.fromkeys(short) if words != referrers.NOBODY]
    if not known:
        return (referrers.NOBODY,)
    # A tensor that nothing in Python refers to: torch keeps the object for its own use of it.
    alone = re.compile("an? [A-Za-z]+")
    told = [f"{words} ← {referrers.NOBODY}" if alone.fullmatch(words) else words for words in known]
    return tuple(told[:TOLD])


def _variables() -> dict[int, str]:
    """Words for what variables of running code are bound to, by id."""
    found: dict[int, str] = {}
    for name, value, frame in referrers.running_variables():
        if frame.f_code.co_filename == __file__ or id(value) in found:
            continue
        kind = type(value).__name__
        if frame.f_code.co_flags & inspect.CO_OPTIMIZED:
            found[id(value)] = f"local {name!r} ({kind}) of {frame.f_code.co_qualname}, which runs"
        else:
            module = frame.f_globals.get("__name__")
            found[id(value)] = f"global {name!r} ({kind}) of module {module}"
    return found


# ---- modules


def _weights(find: _Finder, variables: dict[int, str]) -> dict[int, str]:
    """Words for tensors that modules have: the path, the outermost module and who holds that."""
    having = _having(find)
    words = _roots({id(root()): root for _, _, root in having}, variables)
    return {
        tensor: f"weight {path!r} of {type(root()).__name__} ← {words[id(root())]}"
        for tensor, path, root in having
    }


def _having(find: _Finder) -> list[tuple[int, str, weakref.ref[nn.Module]]]:
    """Ids of tensors, their paths, outermost modules: held weakly, or we would find ourselves."""
    modules = [one for one in gc.get_objects() if issubclass(type(one), nn.Module)]
    above = {
        id(child): (parent, name)
        for parent in modules
        for name, child in parent._modules.items()
        if child is not None
    }
    found = []
    for module in modules:
        for name, tensor in [*module._parameters.items(), *module._buffers.items()]:
            if tensor is not None and referrers.block_of(tensor, find) is not None:
                path, root = _path(module, above)
                found.append((id(tensor), ".".join([*path, name]), weakref.ref(root)))
    return found


def _path(
    module: nn.Module, above: dict[int, tuple[nn.Module, str]]
) -> tuple[list[str], nn.Module]:
    path: list[str] = []
    while id(module) in above and len(path) < DEEPEST:
        module, name = above[id(module)]
        path.insert(0, name)
    return path, module


def _roots(roots: dict[int, weakref.ref[nn.Module]], variables: dict[int, str]) -> dict[int, str]:
    """Who holds each of these modules; the heap is read for those that no variable is bound to."""
    words = {key: variables[key] for key in roots if key in variables}
    unnamed = [root() for key, root in roots.items() if key not in words]
    if unnamed:
        found = referrers.who_refers(unnamed, lambda _: None, variables)
        words |= {key: chains[0] for key, chains in found.items()}
    return words


# ---- giving back


def released(module: nn.Module) -> Released:
    """Take the weights of a module away and give their memory back to the system.

    Parameters and persistent buffers are on the meta device afterwards, with their shapes, ties and
    names, so that `load` can fill them again; what only the constructor computes stays. Memory that
    somebody else holds stays too, and `held` says who.
    """
    weights = weights_of(module)
    watch = Watch(_named(weights))
    before = rss_bytes()
    exchange([(weight, emptied(weight)) for weight in weights])
    del weights
    gc.collect()
    trim()
    after = rss_bytes()
    return Released(watch.nbytes, before, after, holders(watch))


def _named(weights: list[Weight]) -> list[Any]:
    return [(weight.name, weight.tensor) for weight in weights]


def trim() -> bool:
    """Have the C library give free memory back to the system, where it can."""
    give = _malloc_trim()
    return bool(give is not None and give(0))


@functools.cache
def _malloc_trim() -> Any:
    try:
        return ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):  # another C library than glibc
        return None

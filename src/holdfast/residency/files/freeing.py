"""Who still holds the memory of weights, and freeing the weights of a module.

Watching memory does not keep it alive. Memory that only C++ holds (an autograd graph, the queue of
a data loader) is reported as held by "nobody that Python can see".
"""

from __future__ import annotations

import bisect
import ctypes
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
from holdfast.memory.debug import referrers
from holdfast.memory.profile.samples import rss_bytes
from holdfast.residency.files.slots import empty_on_meta, exchange, weights_of

MOST_CHAINS = 3  # reference chains shown for each storage
SEARCHED = 50  # holders are searched for this many of the largest storages
DEEPEST = 50  # nested modules
Named = tuple[str, Tensor]


@dataclass(frozen=True)
class Held:
    """One storage that is alive: a slab, or that of a single tensor."""

    nbytes: int
    device: str
    names: tuple[str, ...]  # of the weights in it; empty if unknown
    holders: tuple[str, ...]  # reference chains as text, the nearest first

    def __str__(self) -> str:
        named = ""
        if self.names:
            first, *rest = self.names
            named = f" ({first} and {len(rest)} more)" if rest else f" ({first})"
        return f"{format_bytes(self.nbytes)} on {self.device}{named}: {'; '.join(self.holders)}"


@dataclass(frozen=True)
class Holders:
    """The watched storages that are still alive, the largest first."""

    watched_bytes: int
    held: tuple[Held, ...]

    @property
    def held_bytes(self) -> int:
        """Their size in all."""
        return sum(one.nbytes for one in self.held)

    def __str__(self) -> str:
        if not self.held:
            return f"nobody holds any of {format_bytes(self.watched_bytes)}"
        head = f"{format_bytes(self.held_bytes)} of {format_bytes(self.watched_bytes)} are held"
        return "\n".join([head, *(f"  {one}" for one in self.held)])


@dataclass(frozen=True)
class Released:
    """The result of `released`."""

    weight_bytes: int  # memory of its weights before
    rss_before_bytes: int
    rss_after_bytes: int
    held: Holders

    @property
    def rss_bytes(self) -> int:
        """By how much the process's RSS fell; other threads may change it too."""
        return self.rss_before_bytes - self.rss_after_bytes

    @property
    def freed_bytes(self) -> int:
        """Weight memory that was freed."""
        return self.weight_bytes - self.held.held_bytes

    def __str__(self) -> str:
        head = (
            f"{format_bytes(self.freed_bytes)} of {format_bytes(self.weight_bytes)} freed, "
            f"{format_bytes(self.rss_bytes)} less in RAM"
        )
        return f"{head}\n{self.held}" if self.held.held else head


# ---- what is watched


class Watch:
    """Weak references to the storages of tensors or of a module, each once. Raises BadInput."""

    def __init__(self, of: nn.Module | Iterable[Tensor | UntypedStorage | Named]) -> None:
        found: dict[int, _Memory] = {}
        for name, storage in _storages(of):
            if storage.data_ptr():
                memory = found.setdefault(storage.data_ptr(), _Memory(storage))
                memory.names += [name] if name else []
        self._memories = list(found.values())
        self.nbytes = sum(memory.nbytes for memory in self._memories)

    def alive(self) -> list[_Memory]:
        """The storages still alive, the largest first."""
        alive = [memory for memory in self._memories if not memory.ref.expired()]
        return sorted(alive, key=lambda memory: -memory.nbytes)


class _Memory:
    """A weak reference to one storage, with its address, size, device and weight names."""

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
    """Which of this memory is alive after a garbage collection, and who holds it.

    Create a Watch before the memory should be freed and pass it afterwards. With a module or
    tensors the caller's own references are among the holders. Walks the whole heap if anything is
    held, which takes about a second.
    """
    watch = of if isinstance(of, Watch) else Watch(of)
    del of
    gc.collect()
    gc.collect()  # for what the finalizers of the first released
    alive = watch.alive()
    unknown = (f"unknown (only the {SEARCHED} largest were searched)",)
    words = _describe_holders(alive[:SEARCHED]) if alive else []
    words += [unknown] * (len(alive) - len(words))
    held = [
        Held(memory.nbytes, memory.device, tuple(memory.names), found)
        for memory, found in zip(alive, words, strict=True)
    ]
    return Holders(watch.nbytes, tuple(held))


class _Stand:
    """Stands in for a storage during the search for references to it."""

    __slots__ = ("__weakref__",)


class _Finder:
    """Maps an address to the stand-in of the storage that contains it, by weak references."""

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


def _describe_holders(memories: list[_Memory]) -> list[tuple[str, ...]]:
    # One list only: the search ignores this list, and would report any other.
    blocks: list[Any] = [_Stand() for _ in memories]
    find = _Finder(memories, blocks)
    variables = _variables()
    known = _weights(find, variables) | variables
    # The search skips UntypedStorage objects, as they are not arrays: look for them by themselves.
    storages = (one for one in gc.get_objects() if type(one) is UntypedStorage)
    blocks += (one for one in storages if find(one.data_ptr()) is not None)
    found = referrers.who_refers(blocks, find, known)
    chains = {id(stand): found[id(stand)] for stand in blocks[: len(memories)]}
    for storage in blocks[len(memories) :]:
        chains[id(find(storage.data_ptr()))] += found[id(storage)]
    return [_tidy(words) for words in chains.values()]


def _tidy(chains: list[str]) -> tuple[str, ...]:
    """Drop repeats, and drop the tensor itself where its name in a module says more."""
    short = [words.split(" ← ", 1)[-1] if " ← weight '" in words else words for words in chains]
    known = [words for words in dict.fromkeys(short) if words != referrers.NOBODY]
    if not known:
        return (referrers.NOBODY,)
    # A tensor that nothing in Python refers to: C++ keeps the Python object alive.
    alone = re.compile("an? [A-Za-z]+")
    texts = [f"{text} ← {referrers.NOBODY}" if alone.fullmatch(text) else text for text in known]
    return tuple(texts[:MOST_CHAINS])


def who_keeps(thing: Any, without: str) -> list[str]:
    """Who refers to `thing`, the nearest first; variables of packages `without` do not count."""
    running = _variables(without)
    own = running.pop(id(thing), None)  # else the search would end there
    found = referrers.who_refers([thing], lambda _: None, running)[id(thing)]
    if own is None:
        return found
    return [own, *(words for words in found if words != referrers.NOBODY)]


def _variables(without: str = __name__) -> dict[int, str]:
    """Descriptions of the variables of running code, by the id of their value."""
    found: dict[int, str] = {}
    for name, value, frame in referrers.running_variables():
        module = str(frame.f_globals.get("__name__"))
        if frame.f_code.co_filename == __file__ or module.startswith(without):
            continue
        where = f"global {name!r} ({type(value).__name__}) of module {module}"
        if frame.f_code.co_flags & inspect.CO_OPTIMIZED:
            kind, function = type(value).__name__, frame.f_code.co_qualname
            where = f"local {name!r} ({kind}) of {function}, which runs"
        found.setdefault(id(value), where)
    return found


# ---- modules


def _weights(find: _Finder, variables: dict[int, str]) -> dict[int, str]:
    """Descriptions of module tensors by id: path, outermost module and who holds that."""
    tensors = _find_module_tensors(find)
    words = _describe_roots({id(root()): root for _, _, root in tensors}, variables)
    return {
        tensor: f"weight {path!r} of {type(root()).__name__} ← {words[id(root())]}"
        for tensor, path, root in tensors
    }


def _find_module_tensors(find: _Finder) -> list[tuple[int, str, weakref.ref[nn.Module]]]:
    """(tensor id, path, outermost module); weak references, so that the search skips these."""
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
                path, root = [name], module
                while id(root) in above and len(path) <= DEEPEST:
                    root, part = above[id(root)]
                    path.insert(0, part)
                found.append((id(tensor), ".".join(path), weakref.ref(root)))
    return found


def _describe_roots(
    roots: dict[int, weakref.ref[nn.Module]], variables: dict[int, str]
) -> dict[int, str]:
    """Who holds each of these modules; walks the heap for those not bound to a variable."""
    words = {key: variables[key] for key in roots if key in variables}
    unnamed = [root() for key, root in roots.items() if key not in words]
    if unnamed:
        found = referrers.who_refers(unnamed, lambda _: None, variables)
        words |= {key: chains[0] for key, chains in found.items()}
    return words


# ---- freeing


def released(module: nn.Module) -> Released:
    """Free the weights of a module and return the memory to the system.

    Parameters and persistent buffers are then on the meta device with the same shapes, ties and
    names, so that `load` can fill them again; other buffers stay. Memory still referenced elsewhere
    is not freed; `held` lists who holds it.
    """
    weights = weights_of(module)
    watch = Watch([(weight.name, weight.tensor) for weight in weights])
    before = rss_bytes()
    exchange([(weight, empty_on_meta(weight)) for weight in weights])
    del weights
    gc.collect()
    trim()
    after = rss_bytes()
    return Released(watch.nbytes, before, after, holders(watch))


def trim() -> bool:
    """Return free heap memory to the system (glibc's malloc_trim), where supported."""
    try:
        return bool(ctypes.CDLL(None).malloc_trim(0))
    except (AttributeError, OSError, TypeError):  # another C library than glibc
        return False

"""What pools, blocks and those who watch them expect of each other.

Covers: a block as people see it, its figures, one who watches the blocks of a pool.
Leaves to others: making any of them (core, memory_pool, watched).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from holdfast.base.errors import DoubleFree, ForeignPointer

if TYPE_CHECKING:
    from holdfast.memory.memory_pool import MemoryPool


class Block(Protocol):
    """Memory that is given back when the last reference goes (`core.Block`, or its C twin)."""

    @property
    def ptr(self) -> int: ...  # the address; also int(block)
    @property
    def address(self) -> int: ...
    @property
    def size(self) -> int: ...  # bytes that were asked for
    @property
    def freed(self) -> bool: ...
    @property
    def pinned(self) -> bool: ...
    @property
    def host(self) -> bool: ...  # whether the CPU can reach it
    @property
    def exports(self) -> int: ...  # how many views look at it
    def view(self) -> memoryview: ...
    def array(self, dtype: Any = ..., shape: Any = ...) -> Any: ...  # NumPy, no copy
    def tensor(self, dtype: Any = ..., shape: Any = ...) -> Any: ...  # torch, no copy
    def detach(self) -> None: ...
    def __index__(self) -> int: ...
    def __len__(self) -> int: ...


@dataclass(frozen=True, slots=True)
class BlockInfo:
    """A block in use."""

    size: int  # as asked for
    rounded: int  # as taken
    tag: str
    location: str | None  # where debugging recorded it


class Watcher(Protocol):
    """Makes the blocks of a pool in its place, and hears of those given back by hand.

    It stays with the pool when watching ends, for the blocks it has made.
    """

    def allocate(self, pool: MemoryPool, size: int) -> Block: ...
    def adopt(self, pool: MemoryPool, owner: Any, address: int, size: int) -> Block: ...
    def give(self, pool: MemoryPool, address: int) -> bool: ...  # whether it was one of its own
    def explain(  # the error, with what the watcher knows of the block
        self, error: DoubleFree | ForeignPointer, block: Block | int
    ) -> DoubleFree | ForeignPointer: ...

"""What pools, blocks and watchers of pools expect of each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from holdfast.base.errors import DoubleFree, ForeignPointer


class Block(Protocol):
    """Memory that is freed when the last reference goes (`block.Block`, or its C twin)."""

    @property
    def ptr(self) -> int: ...  # the address; also int(block)
    @property
    def address(self) -> int: ...
    @property
    def size(self) -> int: ...  # requested bytes
    @property
    def freed(self) -> bool: ...
    @property
    def pinned(self) -> bool: ...
    @property
    def host(self) -> bool: ...  # whether the CPU can reach it
    @property
    def exports(self) -> int: ...  # how many views of it are open
    def view(self) -> memoryview: ...
    def array(self, dtype: Any = ..., shape: Any = ...) -> Any: ...  # NumPy, no copy
    def tensor(self, dtype: Any = ..., shape: Any = ...) -> Any: ...  # torch, no copy
    def detach(self) -> None: ...
    def __index__(self) -> int: ...
    def __len__(self) -> int: ...


@dataclass(frozen=True, slots=True)
class BlockInfo:
    """A block in use."""

    size: int  # requested bytes
    rounded: int  # bytes taken
    tag: str
    location: str | None  # who allocated it; known while debugging is on


class BlockPool(Protocol):
    """What watchers and movable blocks need of a `MemoryPool`."""

    @property
    def name(self) -> str: ...
    @property
    def pool(self) -> Any: ...  # the `Pool` below it
    @property
    def free_blocks(self) -> dict[int, list[int]]: ...  # size -> addresses
    def allocate(self, size: int | str) -> Block: ...


class Watcher(Protocol):
    """Makes the blocks of a pool in its place, and frees them.

    It stays with the pool when watching ends, to free the blocks it has made.
    """

    def allocate(self, pool: BlockPool, size: int) -> Block: ...
    def adopt(self, pool: BlockPool, owner: Any, address: int, size: int) -> Block: ...
    def give(self, pool: BlockPool, address: int) -> bool: ...  # False: not one of its own
    def explain(  # the error, with what the watcher knows about the block
        self, error: DoubleFree | ForeignPointer, block: Block | int
    ) -> DoubleFree | ForeignPointer: ...

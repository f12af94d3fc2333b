"""The rules of other allocators without memory: torch's CUDA caching allocator (default and with
expandable segments), RMM's pool, Genesis' buckets.

Each follows the rules in its docstring and nothing else, on one stream, on a device that never runs
out. All are resources and count `reserved_bytes`, the memory they hold. None releases memory before
the device runs out, so that is also the peak.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Callable

from holdfast.base.errors import BadInput, ForeignPointer

MIB = 2**20
HIGHEST = 2**80
FAR = 2**50  # bytes of address space between the starts of two segments


def round_up(size: int, unit: int) -> int:
    """The smallest multiple of `unit` that is not below `size`."""
    return -(-size // unit) * unit


class Piece:
    """A part of a segment, linked to its neighbours."""

    __slots__ = ("address", "after", "before", "free", "mapped", "size")

    def __init__(self, address: int, size: int, *, mapped: bool = True) -> None:
        self.address = address
        self.size = size
        self.free = True
        self.mapped = mapped  # False: address space without memory
        self.before: Piece | None = None
        self.after: Piece | None = None

    def cut(self, size: int) -> Piece:
        """Keep the first `size` bytes; the rest becomes a piece of its own."""
        rest = Piece(self.address + size, self.size - size, mapped=self.mapped)
        self.size = size
        rest.before, rest.after = self, self.after
        if self.after is not None:
            self.after.before = rest
        self.after = rest
        return rest

    def swallow(self) -> None:
        gone = self.after
        assert gone is not None
        self.size += gone.size
        self.after = gone.after
        if gone.after is not None:
            gone.after.before = self


class FreePieces:
    """Free pieces, sorted by size, then by address."""

    def __init__(self) -> None:
        self._order: list[tuple[int, int]] = []
        self._pieces: dict[int, Piece] = {}

    def add(self, piece: Piece) -> None:
        insort(self._order, (piece.size, piece.address))
        self._pieces[piece.address] = piece

    def remove(self, piece: Piece) -> None:
        del self._order[bisect_left(self._order, (piece.size, piece.address))]
        del self._pieces[piece.address]

    def take(self, size: int) -> Piece | None:
        """Remove and return the smallest piece that holds `size` bytes."""
        piece = self.at_least(size)
        if piece is not None:
            self.remove(piece)
        return piece

    def at_least(self, size: int, skip: int = 0) -> Piece | None:
        """The smallest piece that holds `size` bytes, or the one `skip` positions after it."""
        at = bisect_left(self._order, (size, 0)) + skip
        return self._pieces[self._order[at][1]] if at < len(self._order) else None

    def join(self, piece: Piece) -> Piece:
        """Merge `piece`, not in here, with its free neighbours, and add the result."""
        before, after = piece.before, piece.after
        if after is not None and after.free and after.mapped:
            self.remove(after)
            piece.swallow()
        if before is not None and before.free and before.mapped:
            self.remove(before)
            before.swallow()
            piece = before
        self.add(piece)
        return piece


class Simulator(ABC):
    """A resource of simulated addresses."""

    device = "nowhere"

    def __init__(self) -> None:
        self.reserved_bytes = 0
        self.segments = 0
        self._live: dict[int, Piece] = {}

    @property
    def peak_reserved_bytes(self) -> int:
        """The same as `reserved_bytes`: nothing is released."""
        return self.reserved_bytes

    def allocate(self, size: int) -> int:
        if size < 0:
            raise BadInput(f"cannot allocate {size} bytes", expected="a size from 0 up")
        piece = self._take(size)
        piece.free = False
        self._live[piece.address] = piece
        return piece.address

    def free(self, address: int) -> None:
        piece = self._live.pop(address, None)
        if piece is None:
            raise ForeignPointer(
                f"{type(self).__name__}() did not allocate {address:#x}, or freed it before",
                expected="an address that allocate() returned and that was not freed since",
            )
        piece.free = True
        self._give(piece)

    def owns(self, address: int) -> bool:
        return address in self._live

    def _reserve(self, size: int) -> Piece:
        self.reserved_bytes += size
        self.segments += 1
        return Piece(self.segments * FAR, size)

    @abstractmethod
    def _take(self, size: int) -> Piece: ...

    @abstractmethod
    def _give(self, piece: Piece) -> None: ...


class TorchDefault(Simulator):
    """torch's CUDA caching allocator with its default settings.

    Sizes are rounded up to 512 bytes. Requests up to 1 MiB share a small pool, others a large
    one. The smallest free block that is large enough is taken, the lowest address among equals.
    It is cut if the rest is at least 512 bytes (small pool) or more than 1 MiB (large pool). If
    there is none, a segment is made: 2 MiB for the small pool, 20 MiB for requests below 10 MiB,
    above that the size rounded up to 2 MiB. A freed block merges with free neighbours of its
    segment. Segments are kept until the device runs out. Each new segment lies below those before
    it, as cudaMalloc places them on the device that the rules were checked on, so the newest among
    equals is taken.
    """

    def __init__(self) -> None:
        super().__init__()
        self._pools = {True: FreePieces(), False: FreePieces()}
        self._small: set[int] = set()  # addresses of live blocks of the small pool

    def _take(self, size: int) -> Piece:
        size = max(512, round_up(size, 512))
        small = size <= MIB
        pool = self._pools[small]
        segment = 20 * MIB if size < 10 * MIB else round_up(size, 2 * MIB)
        piece = pool.take(size) or self._reserve(2 * MIB if small else segment)
        rest = piece.size - size
        if rest >= 512 if small else rest > MIB:
            pool.add(piece.cut(size))
        if small:
            self._small.add(piece.address)
        return piece

    def _give(self, piece: Piece) -> None:
        small = piece.address in self._small
        self._small.discard(piece.address)
        self._pools[small].join(piece)

    def _reserve(self, size: int) -> Piece:
        piece = super()._reserve(size)
        piece.address = HIGHEST - piece.address
        return piece


class TorchExpandable(Simulator):
    """torch's CUDA caching allocator with `expandable_segments:True`.

    Sizes are rounded up to 512 bytes; requests up to 1 MiB go to a small pool, others to a large
    one. Each pool is one endless segment whose memory is mapped from its start in pages of 2 MiB
    (small) or 20 MiB (large). The smallest free block that is large enough is taken; the last one
    of the segment, which could still grow, only if no other will do. Any rest of 512 bytes or
    more is cut off. If there is none, pages are mapped, after the free end of the segment where
    it has one. A freed block merges with free neighbours. Pages stay mapped until the device
    runs out.
    """

    def __init__(self) -> None:
        super().__init__()
        self._pools = {True: FreePieces(), False: FreePieces()}
        starts = {True: FAR, False: 2 * FAR}
        self._ends = {small: Piece(at, FAR, mapped=False) for small, at in starts.items()}
        self.segments = 2

    def _take(self, size: int) -> Piece:
        size = max(512, round_up(size, 512))
        small = size <= MIB
        pool = self._pools[small]
        piece = pool.at_least(size)
        if piece is not None and piece.after is self._ends[small]:
            piece = pool.at_least(size, skip=1) or piece
        if piece is None:
            piece = self._grow(small, size)
        pool.remove(piece)
        if piece.size - size >= 512:
            pool.add(piece.cut(size))
        return piece

    def _grow(self, small: bool, size: int) -> Piece:
        """Map pages until the last free block of the segment holds `size` bytes."""
        end = self._ends[small]
        before = end.before
        have = before.size if before is not None and before.free else 0
        mapped = round_up(size - have, (2 if small else 20) * MIB)
        self._ends[small] = end.cut(mapped)
        end.mapped = True
        self.reserved_bytes += mapped
        return self._pools[small].join(end)

    def _give(self, piece: Piece) -> None:
        self._pools[piece.address < 2 * FAR].join(piece)


class RmmPool(Simulator):
    """RMM's pool resource without a maximum size.

    Sizes are rounded up to 256 bytes. The smallest free block that is large enough is taken, the
    lowest address among equals, and cut to size. If there is none, the pool asks the system for
    as many bytes as it has already, or for the request where that is more. A freed block merges
    with free neighbours that came from the system with it. The pool starts with `initial_bytes`.
    """

    def __init__(self, initial_bytes: int = 0) -> None:
        super().__init__()
        self._pool = FreePieces()
        if initial_bytes:
            self._pool.add(self._reserve(round_up(initial_bytes, 256)))

    def _take(self, size: int) -> Piece:
        size = max(256, round_up(size, 256))
        piece = self._pool.take(size) or self._reserve(max(size, self.reserved_bytes))
        if piece.size > size:
            self._pool.add(piece.cut(size))
        return piece

    def _give(self, piece: Piece) -> None:
        self._pool.join(piece)


class GenesisBuckets(Simulator):
    """Buckets of fixed sizes, as in Genesis: neither cut nor merged.

    A request takes the next power of two, at least 512 bytes. A block that was freed serves later
    requests of the same bucket, the last one freed first. If its bucket is empty, the block comes
    from the system, and stays in its bucket for good.
    """

    def __init__(self) -> None:
        super().__init__()
        self._buckets: defaultdict[int, list[Piece]] = defaultdict(list)

    def _take(self, size: int) -> Piece:
        size = max(512, 1 << max(size - 1, 0).bit_length())
        bucket = self._buckets[size]
        return bucket.pop() if bucket else self._reserve(size)

    def _give(self, piece: Piece) -> None:
        self._buckets[piece.size].append(piece)


SIMULATORS: dict[str, Callable[[], Simulator]] = {
    "torch default": TorchDefault,
    "torch expandable": TorchExpandable,
    "RMM pool": RmmPool,
    "Genesis buckets": GenesisBuckets,
}

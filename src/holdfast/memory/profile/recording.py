"""`Recording`: what happened to memory over some time, as columns of events, and its file.

`Recording.load` of what `save` wrote is equal to it. A file that cannot be used raises BadInput
with the reason.
"""

from __future__ import annotations

import io
import json
import struct
import sys
import zipfile
import zlib
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any, NamedTuple

from holdfast.base.errors import BadInput
from holdfast.base.files import write_whole

SUFFIX = ".hfmem"
VERSION = 1
# Column -> array type code. All columns are of one length.
COLUMNS = {
    "times_ns": "q",
    "kinds": "B",
    "addresses": "Q",
    "sizes": "q",
    "stacks": "I",
    "places": "H",
    "tags": "H",
}
_PLAIN = ("title", "started_s", "duration_ns", "tags_table", "notes")  # written as they are


class Kind(IntEnum):
    """The kind of an event."""

    ALLOC = 0  # a block was allocated
    FREE = 1  # a block was freed
    RESERVE = 2  # a pool or an allocator took memory from the system
    RELEASE = 3  # it released memory to the system


class Frame(NamedTuple):
    """One line of a Python stack."""

    file: str
    line: int
    function: str


class MemoryPlace(NamedTuple):
    """Which allocator, on which device."""

    source: str  # "pool", "numpy", "torch", "python"
    device: str  # "cpu", "cuda:0"
    name: str = ""  # of the pool


class Event(NamedTuple):
    """One row of the columns."""

    time_ns: int  # since the recording began
    kind: Kind
    address: int
    size: int  # bytes; 0 for a FREE whose source does not report it
    stack: int  # index into `stacks_table`; 0 is "unknown"
    place: int  # index into `places_table`
    tag: int  # index into `tags_table`; 0 is "no tag"


class Lifetime(NamedTuple):
    """One block from its ALLOC to its FREE."""

    address: int
    size: int
    start_ns: int
    end_ns: int | None  # None: still alive when the recording ended
    stack: int
    place: int
    tag: int


@dataclass(frozen=True, slots=True)
class BlockEvents:
    """One row for each block, in order of its ALLOC: the indices of its first and last event."""

    begins: array[int]
    ends: array[int]  # len(recording) if the block was still alive at the end

    def __len__(self) -> int:
        return len(self.begins)


@dataclass
class Recording:
    """Events in the order they happened, and the tables they index.

    `stacks_table[0]` is the empty stack, `tags_table[0]` the empty tag. A stack begins with the
    innermost frame. `series` holds sampled values: name -> (times_ns, bytes), such as "rss".
    """

    title: str = ""
    started_s: float = 0.0  # seconds since 1970
    duration_ns: int = 0
    times_ns: array[int] = field(default_factory=lambda: array("q"))
    kinds: array[int] = field(default_factory=lambda: array("B"))
    addresses: array[int] = field(default_factory=lambda: array("Q"))
    sizes: array[int] = field(default_factory=lambda: array("q"))
    stacks: array[int] = field(default_factory=lambda: array("I"))
    places: array[int] = field(default_factory=lambda: array("H"))
    tags: array[int] = field(default_factory=lambda: array("H"))
    stacks_table: list[tuple[Frame, ...]] = field(default_factory=lambda: [()])
    places_table: list[MemoryPlace] = field(default_factory=list)
    tags_table: list[str] = field(default_factory=lambda: [""])
    series: dict[str, tuple[array[int], array[int]]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)  # text on what was lost or left out

    def __len__(self) -> int:
        return len(self.times_ns)

    def add(self, event: Event) -> None:
        for name, value in zip(COLUMNS, event, strict=True):
            getattr(self, name).append(value)

    def events(self) -> Iterator[Event]:
        for row in zip(*(getattr(self, name) for name in COLUMNS), strict=True):
            yield Event(row[0], Kind(row[1]), *row[2:])

    def pair(self) -> BlockEvents:
        """Every block, by its events. A FREE of a block from before is left out.

        A second ALLOC at an address of the same place ends the first block: its FREE was missed.
        """
        begins, ends = array("I"), array("I")
        never = len(self)
        alive: dict[int, int] = {}
        alloc, free = int(Kind.ALLOC), int(Kind.FREE)
        rows = zip(self.kinds, self.addresses, self.places, strict=True)
        for number, (kind, address, place) in enumerate(rows):
            if kind > free:
                continue
            key = address << 16 | place
            row = alive.pop(key, None)
            if row is not None:
                ends[row] = number
            if kind == alloc:
                alive[key] = len(begins)
                begins.append(number)
                ends.append(never)
        return BlockEvents(begins, ends)

    def lifetime(self, blocks: BlockEvents, row: int) -> Lifetime:
        begin, end = blocks.begins[row], blocks.ends[row]
        return Lifetime(
            self.addresses[begin],
            self.sizes[begin],
            self.times_ns[begin],
            None if end == len(self) else self.times_ns[end],
            self.stacks[begin],
            self.places[begin],
            self.tags[begin],
        )

    def lifetimes(self) -> list[Lifetime]:
        """Every block, in order of its ALLOC."""
        blocks = self.pair()
        return [self.lifetime(blocks, row) for row in range(len(blocks))]

    def save(self, path: Path | str) -> Path:
        """Write the recording to `path`, whole or not at all."""
        path = Path(path)
        head = {
            "holdfast_recording": VERSION,
            "events": len(self),
            "stacks_table": self.stacks_table,
            "places_table": self.places_table,
            "series": list(self.series),
            **{name: getattr(self, name) for name in _PLAIN},
        }
        content = io.BytesIO()
        with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as packed:
            packed.writestr("head.json", json.dumps(head, separators=(",", ":")))
            for name in COLUMNS:
                packed.writestr(name, _bytes(getattr(self, name)))
            for index, (times, values) in enumerate(self.series.values()):
                packed.writestr(f"series/{index}/times_ns", _bytes(times))
                packed.writestr(f"series/{index}/bytes", _bytes(values))
        write_whole(path, content.getvalue())
        return path

    @classmethod
    def load(cls, path: Path | str) -> Recording:
        """Read the recording in `path`. Raises BadInput if it is not one, or broken."""
        path = Path(path)
        try:
            with zipfile.ZipFile(path) as packed:
                return cls._read(packed)
        except FileNotFoundError as exc:
            raise BadInput(f"there is no file {str(path)!r}", expected=_EXPECTED) from exc
        except OSError as exc:
            raise BadInput(
                f"cannot read {str(path)!r}: {exc.strerror}", expected=_EXPECTED
            ) from exc
        except _BROKEN as exc:
            reason = exc.what if isinstance(exc, BadInput) else str(exc)
            raise BadInput(
                f"{str(path)!r} is not a memory recording: {reason}", expected=_EXPECTED
            ) from exc

    @classmethod
    def _read(cls, packed: zipfile.ZipFile) -> Recording:
        head: dict[str, Any] = json.loads(packed.read("head.json"))
        version = head.get("holdfast_recording")
        if version != VERSION:
            raise BadInput(f"it has version {version!r}, this Holdfast reads {VERSION}")
        columns: dict[str, Any] = {
            name: _array(code, packed.read(name)) for name, code in COLUMNS.items()
        }
        lengths = {len(column) for column in columns.values()}
        if lengths != {head["events"]}:
            raise BadInput(f"its columns have {sorted(lengths)} rows, not {head['events']}")
        made = cls(
            stacks_table=[tuple(Frame(*f) for f in stack) for stack in head["stacks_table"]],
            places_table=[MemoryPlace(*place) for place in head["places_table"]],
            series={
                name: (
                    _array("q", packed.read(f"series/{index}/times_ns")),
                    _array("q", packed.read(f"series/{index}/bytes")),
                )
                for index, name in enumerate(head["series"])
            },
            **{name: head[name] for name in _PLAIN},
            **columns,
        )
        made._check()
        return made

    def _check(self) -> None:
        tables = (
            ("stacks", self.stacks, self.stacks_table),
            ("places", self.places, self.places_table),
            ("tags", self.tags, self.tags_table),
            ("kinds", self.kinds, Kind),
        )
        for name, column, table in tables:
            if column and max(column) >= len(table):
                raise BadInput(f"its {name} point past the end of their table")
        for name, (times, values) in self.series.items():
            if len(times) != len(values):
                raise BadInput(f"its series {name!r} has {len(times)} times, {len(values)} values")


# What zipfile, json and array raise for broken content.
_BROKEN = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    LookupError,
    ValueError,
    TypeError,
    AttributeError,
    EOFError,
    RuntimeError,
)
_EXPECTED = f"a {SUFFIX} file written by `holdfast mem record` or Recording.save"


def _bytes(column: array[int]) -> bytes:
    """The column as little-endian bytes on every machine."""
    if sys.byteorder == "big":
        column = column[:]
        column.byteswap()
    return column.tobytes()


def _array(code: str, data: bytes) -> array[int]:
    column: array[int] = array(code)
    column.frombytes(data)
    if sys.byteorder == "big":
        column.byteswap()
    return column

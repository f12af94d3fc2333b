"""Dataclasses of requests and answers of the API, besides those of a snapshot."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from holdfast.base.codec import about
from holdfast.dashboard.snapshot.snapshot import Holder, LeakFound
from holdfast.pipeline.output.history import RunRecord
from holdfast.topology import Topology


@dataclass(frozen=True, slots=True)
class ServerNow:
    """The server itself."""

    pid: int = about("its process")
    began_s: float = about("when it began, in seconds since 1970")
    version: str = about("of Holdfast")


@dataclass(frozen=True, slots=True)
class Hello:
    """The first event of a stream."""

    version: int = about("of the format of snapshots")
    interval_s: float = about("between two snapshots")
    server: ServerNow = about("who tells them")


@dataclass(frozen=True, slots=True)
class Health:
    """Whether the server works."""

    status: Literal["ok"] = about("always that; else the answer is an error")


@dataclass(frozen=True, slots=True)
class PicturePlace:
    """A node or GPU in the picture of the machine, with its other names."""

    place: str = about('as links name it: "node:0", "gpu:0"')
    kind: Literal["node", "gpu"] = about("what it is; data-node or data-gpu in the picture")
    id: int = about("its number")
    label: str = about("what it is called")
    devices: tuple[str, ...] = about("names of devices that are there")


@dataclass(frozen=True, slots=True)
class MachinePicture:
    """The topology of the machine, and its picture."""

    svg: str = about("the picture; parts of it have data-node, data-gpu and data-part")
    topology: Topology = about("what holdfast topo --json prints")
    places: tuple[PicturePlace, ...] = about("nodes and GPUs of the picture")


@dataclass(frozen=True, slots=True)
class Holders:
    """The largest blocks of a process."""

    holders: tuple[Holder, ...] = about("the largest first")


@dataclass(frozen=True, slots=True)
class Leaks:
    """Leaked blocks of a process."""

    leaks: tuple[LeakFound, ...] = about("what was found now")


@dataclass(frozen=True, slots=True)
class Interrupted:
    """Whether there was a run to stop."""

    interrupted: bool = about("false where none was under way")


@dataclass(frozen=True, slots=True)
class Runs:
    """Finished runs."""

    runs: tuple[RunRecord, ...] = about("the newest first")


# ---- request bodies


@dataclass(frozen=True, slots=True)
class Nothing:
    """An empty request body."""


@dataclass(frozen=True, slots=True)
class Switch:
    """Whether memory debugging is on."""

    on: bool = about("true to begin, false to end")


@dataclass(frozen=True, slots=True)
class FreeWhat:
    """What to free."""

    caches: bool = about("free blocks that pools and torch keep", default=True)
    models: bool = about("models that can be loaded again", default=False)
    garbage: bool = about("objects without references", default=True)

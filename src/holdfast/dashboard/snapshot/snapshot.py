"""The dataclasses of a snapshot: the machine, and Holdfast's processes on it.

Only plain values, so that a snapshot is the same in this process, over the socket, in a file and in
a browser. Unknown is None. Counters only grow; rates need two snapshots.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Self

from holdfast.base.codec import about, decode, encode, json_schema

VERSION = 1
Keeper = Literal["residency", "manager", "pipeline", "xla", "comfyui"]
Stage = Literal["load", "text", "denoise", "decode", "node"]  # the last: a node of ComfyUI


@dataclass(frozen=True, slots=True)
class NodeUse:
    """Memory of one NUMA node."""

    id: int = about("its number, as the system counts")
    total_bytes: int = about("all of its memory")
    used_bytes: int = about("not free, caches of files left out")
    cpus: int = about("how many logical CPUs it has")


@dataclass(frozen=True, slots=True)
class GpuUse:
    """A GPU as its driver sees it, whoever uses it."""

    id: int = about("its number in the description of the machine (holdfast topo)")
    label: str = about("what its maker calls it")
    total_bytes: int | None = about("all of its memory")
    used_bytes: int | None = about("taken by anybody")
    busy: float | None = about("the part of the time in which it computed, from 0 to 1")
    link_gb_s: float | None = about("the bandwidth of its link to the host, measured or on paper")


@dataclass(frozen=True, slots=True)
class Machine:
    """The whole machine, whoever uses it."""

    host: str = about("its name")
    ram_total_bytes: int = about("memory that may be used, a limit of the group of processes kept")
    ram_used_bytes: int = about("not available to a new program")
    nodes: tuple[NodeUse, ...] = about("its NUMA nodes; empty where the system does not tell")
    gpus: tuple[GpuUse, ...] = about("its GPUs; empty where there are none or no driver tells")


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """A device, as one process sees it."""

    name: str = about('as users write it: "cuda:0", "opencl:0", "holdfast:0"')
    total_bytes: int | None = about("all of its memory")
    used_bytes: int | None = about("taken by anybody")
    allocated_bytes: int = about("in tensors and blocks of this process")
    reserved_bytes: int = about("taken by this process, caches included")


@dataclass(frozen=True, slots=True)
class PoolUse:
    """One memory pool."""

    name: str = about("its name, or its device where it has none")
    device: str = about("where its memory is")
    allocated_bytes: int = about("allocated and not freed")
    reserved_bytes: int = about("taken from the system")
    cached_bytes: int = about("free, and kept for the next request")
    peak_bytes: int = about("the most that was allocated at once")
    blocks: int = about("blocks in use")
    requests: int = about("requests so far")
    hits: int = about("requests that were met without asking the system")


@dataclass(frozen=True, slots=True)
class TagUse:
    """What memory is for, by the tags of `memory.tag`."""

    tag: str = about("the tag; blocks without one are not counted")
    current_bytes: int = about("in use")
    peak_bytes: int = about("the most there was")


@dataclass(frozen=True, slots=True)
class ModelUse:
    """A model, or a network of one, that is loaded."""

    id: str = about("its name in requests, the same for as long as it lives")
    name: str = about("what it is called")
    device: str = about("where it runs")
    keeper: Keeper = about("whose it is")
    weight_bytes: int = about("all its weights, unpacked")
    resident_bytes: int = about("on the device now, the rings of streaming included")
    streamed_bytes: int = about("of its weights, what crosses the link in each pass")
    link_bytes: int = about("the same as it is sent: packed, where it is packed")
    budget_bytes: int | None = about("what its group may take on the device; None: all there is")
    smallest_bytes: int | None = about("the least budget it can run in, as far as that is known")
    adjustable: bool = about("whether its budget can be changed while it lives")
    group: str | None = about("models with the same one share a budget")
    passes: int = about("how often it ran")
    running: bool = about("whether it runs now")
    predicted_ms: float | None = about("what a pass takes by the plan at work")


@dataclass(frozen=True, slots=True)
class LinkUse:
    """The link from the host to one device."""

    device: str = about("where it leads")
    copied_bytes: int = about("weights that were sent over it so far; a counter")
    bandwidth_gb_s: float | None = about("what it can do at most, measured or on paper")


@dataclass(frozen=True, slots=True)
class RunNow:
    """The run in progress."""

    id: str = about("its name in the history of runs, once it is over; of ComfyUI, the prompt's")
    model: str = about("the model that draws")
    prompt: str = about("what it draws; empty while it loads")
    stage: Stage = about("what it does now")
    done: int = about("parts of the stage that are over")
    total: int | None = about("parts of the stage in all")
    label: str | None = about("the part in progress as text; of ComfyUI, the node's title")
    began_s: float = about("when the run began, in seconds since 1970")
    stage_s: float = about("how long the stage has taken so far")
    left_s: float | None = about("how long the stage will take yet, by its parts so far")


@dataclass(frozen=True, slots=True)
class LeakState:
    """The result of the last leak search."""

    debugging: bool = about("whether blocks are being recorded, so that leaks can be found")
    checked_s: float | None = about("when leaks were looked for last, in seconds since 1970")
    count: int | None = about("blocks that were found then")
    total_bytes: int | None = about("what they hold together")


@dataclass(frozen=True, slots=True)
class Process:
    """One process of Holdfast."""

    pid: int = about("its number")
    name: str = about("what it does, in a few words: its command line, shortened")
    holdfast: str = about("the version it runs")
    began_s: float = about("when it began, in seconds since 1970")
    rss_bytes: int = about("host memory it has in use")
    pinned_bytes: int = about("of that, locked for copies to devices")
    devices: tuple[DeviceUse, ...] = about("devices it uses")
    pools: tuple[PoolUse, ...] = about("its memory pools")
    tags: tuple[TagUse, ...] = about("what its memory is for, the most first")
    models: tuple[ModelUse, ...] = about("what is loaded, the largest first")
    links: tuple[LinkUse, ...] = about("ways that weights go")
    run: RunNow | None = about("the run under way")
    leaks: LeakState = about("what is known of leaks")
    look_us: float = about("what this look cost the process, in microseconds")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The machine and the processes at one time."""

    version: int = about("of this format")
    at_s: float = about("when, in seconds since 1970")
    machine: Machine = about("the whole machine")
    processes: tuple[Process, ...] = about("Holdfast's processes, by their number")

    def process(self, pid: int) -> Process | None:
        """The process with that pid, or None."""
        return next((one for one in self.processes if one.pid == pid), None)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return encode(self)

    @classmethod
    def from_dict(cls, data: Any) -> Self:
        """Read a snapshot from JSON values. Raises BadInput with the path of the bad value."""
        return decode(cls, data)


@dataclass(frozen=True, slots=True)
class Holder:
    """A block in use. Not part of a snapshot, as finding these takes longer."""

    pid: int = about("the process")
    nbytes: int = about("its size")
    device: str = about("where it is")
    tag: str = about("its tag; empty without one")
    location: str = about("where it was asked for: file:line in function, or why it is unknown")


@dataclass(frozen=True, slots=True)
class LeakFound:
    """A block that outlived the code that made it."""

    pid: int = about("the process")
    nbytes: int = about("its size")
    device: str = about("where it is")
    tag: str = about("its tag; empty without one")
    location: str = about("where it was asked for")
    age_s: float = about("how long ago")
    referrers: tuple[str, ...] = about("objects that refer to it, as text")


@dataclass(frozen=True, slots=True)
class Freed:
    """How much memory was freed."""

    pid: int = about("the process")
    ram_bytes: int = about("host memory, by what the process had before and after")
    device_bytes: int = about("memory of devices")
    models: int = about("models that were unloaded")
    text: str = about("the same as text")


def schema() -> dict[str, Any]:
    """The JSON schema of a snapshot."""
    return json_schema(Snapshot, "Holdfast snapshot", "urn:holdfast:snapshot:1")

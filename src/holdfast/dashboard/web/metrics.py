"""A snapshot in Prometheus' text format (0.0.4).

Units are in the names: bytes, seconds and ratios. Pools or models with the same name in one process
are summed, so that no series appears twice. Unknown values are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from holdfast.dashboard.snapshot.snapshot import Snapshot

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
Labels = dict[str, object]
Subject = tuple[Labels, Any]  # labels, and the object that has the value


@dataclass(frozen=True, slots=True)
class Series:
    """A metric: name, help text, its subjects and the value of each."""

    name: str
    about: str
    subjects: Callable[[Snapshot], Iterable[Subject]]
    value: Callable[[Any], float | None]

    @property
    def kind(self) -> str:
        """The type in Prometheus."""
        return "counter" if self.name.endswith("_total") else "gauge"


def text(snapshot: Snapshot) -> str:
    """Format all series that have a sample."""
    return "".join(line for one in SERIES for line in _lines(one, snapshot))


def _lines(one: Series, snapshot: Snapshot) -> Iterator[str]:
    sums: dict[str, float] = {}
    for labels, subject in one.subjects(snapshot):
        if (value := one.value(subject)) is not None:
            written = _format_labels(labels)
            sums[written] = sums.get(written, 0) + value
    if sums:
        yield f"# HELP {one.name} {one.about}\n# TYPE {one.name} {one.kind}\n"
    for written, value in sums.items():
        yield f"{one.name}{written} {value!r}\n"


def _format_labels(labels: Labels) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escape(value)}"' for name, value in labels.items()) + "}"


def _escape(value: object) -> str:
    text = str(value).encode("utf-8", "replace").decode()  # a lone surrogate cannot be sent
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


# ---- subjects


def _whole(now: Snapshot) -> Iterable[Subject]:
    return [({}, now)]


def _parts(list_name: str, **labels: str) -> Callable[[Snapshot], Iterable[Subject]]:
    """Members of a list of each process; a label is an attribute of the member."""

    def subjects(now: Snapshot) -> Iterator[Subject]:
        for process in now.processes:
            for one in getattr(process, list_name):
                named = {label: getattr(one, attribute) for label, attribute in labels.items()}
                yield {"pid": process.pid, **named}, one

    return subjects


def _runs(now: Snapshot) -> Iterable[Subject]:
    running = [(one.pid, one.run) for one in now.processes if one.run is not None]
    return [({"pid": pid, "model": run.model, "stage": run.stage}, run) for pid, run in running]


_SUBJECTS: dict[str, Callable[[Snapshot], Iterable[Subject]]] = {
    "ram": _whole,
    "processes": _whole,
    "node": lambda now: [({"node": one.id}, one) for one in now.machine.nodes],
    "gpu": lambda now: [({"gpu": one.id, "label": one.label}, one) for one in now.machine.gpus],
    "process": lambda now: [({"pid": one.pid, "name": one.name}, one) for one in now.processes],
    "device": _parts("devices", device="name"),
    "pool": _parts("pools", pool="name", device="device"),
    "tag": _parts("tags", tag="tag"),
    "model": _parts("models", model="id", name="name", device="device"),
    "link": _parts("links", device="device"),
    "run": _runs,
}

# Name, help text, and the attribute with the value or a function for it. The first word of the name
# says whose value it is.
_ROWS: tuple[tuple[str, str, Any], ...] = (
    ("ram_total_bytes", "Host memory that may be used.", "machine.ram_total_bytes"),
    ("ram_used_bytes", "Host memory not available to a new program.", "machine.ram_used_bytes"),
    ("node_total_bytes", "Memory of a node.", "total_bytes"),
    ("node_used_bytes", "Memory of a node in use.", "used_bytes"),
    ("gpu_total_bytes", "Memory of a GPU.", "total_bytes"),
    ("gpu_used_bytes", "Memory of a GPU in use.", "used_bytes"),
    ("gpu_busy_ratio", "Time in which a GPU computed.", "busy"),
    ("processes", "Processes of Holdfast that are watched.", lambda now: len(now.processes)),
    ("process_start_time_seconds", "When a process began, since 1970.", "began_s"),
    ("process_resident_bytes", "Host memory a process has in use.", "rss_bytes"),
    ("process_pinned_bytes", "Host memory a process has locked for copies.", "pinned_bytes"),
    (
        "process_leaked_bytes",
        "What the blocks hold that the last search for leaks found.",
        "leaks.total_bytes",
    ),
    ("process_look_seconds", "What the last look cost a process.", lambda one: one.look_us / 1e6),
    (
        "device_allocated_bytes",
        "Memory of a device in tensors and blocks of a process.",
        "allocated_bytes",
    ),
    (
        "device_reserved_bytes",
        "Memory of a device taken by a process, caches included.",
        "reserved_bytes",
    ),
    ("pool_allocated_bytes", "Allocated from a pool and not freed.", "allocated_bytes"),
    ("pool_reserved_bytes", "What a pool got from the system.", "reserved_bytes"),
    ("pool_cached_bytes", "Free in a pool, and kept.", "cached_bytes"),
    ("pool_requests_total", "Requests to a pool.", "requests"),
    ("pool_hits_total", "Requests met without asking the system.", "hits"),
    ("tag_used_bytes", "Memory in use by its tag.", "current_bytes"),
    ("model_weight_bytes", "All weights of a model, unpacked.", "weight_bytes"),
    ("model_resident_bytes", "What a model has on its device now.", "resident_bytes"),
    ("model_streamed_bytes", "Weights that cross the link in each pass.", "streamed_bytes"),
    ("model_budget_bytes", "What the group of a model may take on the device.", "budget_bytes"),
    (
        "model_predicted_pass_seconds",
        "What a pass takes by the plan at work.",
        lambda model: None if model.predicted_ms is None else model.predicted_ms / 1000,
    ),
    ("model_passes_total", "How often a model ran.", "passes"),
    ("link_copied_bytes_total", "Weights sent from the host to a device.", "copied_bytes"),
    (
        "run_step_ratio",
        "The part of the stage under way that is over.",
        lambda run: run.done / run.total if run.total else None,
    ),
    ("run_stage_seconds", "How long the stage under way has taken.", "stage_s"),
    ("run_left_seconds", "How long the stage under way will take yet.", "left_s"),
)
SERIES = tuple(
    Series(
        f"holdfast_{name}",
        about,
        _SUBJECTS[name.partition("_")[0]],
        attrgetter(value) if isinstance(value, str) else value,
    )
    for name, about, value in _ROWS
)

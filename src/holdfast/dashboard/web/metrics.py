"""A snapshot in Prometheus' text format (0.0.4).

Units are in the names: bytes, seconds and ratios. Pools or models with the same name in one process
are summed, so that no series appears twice. Unknown values are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from holdfast.dashboard.snapshot.snapshot import ModelUse, PoolUse, Process, Snapshot

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
Labels = dict[str, object]
Sample = tuple[Labels, float | None]


@dataclass(frozen=True, slots=True)
class Series:
    """A metric: name, help text and source of its samples."""

    name: str
    kind: Literal["gauge", "counter"]
    about: str
    samples: Callable[[Snapshot], Iterable[Sample]]


def text(snapshot: Snapshot) -> str:
    """Format all series that have a sample."""
    return "".join(line for one in SERIES for line in _lines(one, snapshot))


def _lines(one: Series, snapshot: Snapshot) -> Iterator[str]:
    sums: dict[str, float] = {}
    for labels, value in one.samples(snapshot):
        if value is not None:
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


# ---- sources of samples


def _machine(value: Callable[[Snapshot], float]) -> Callable[[Snapshot], Iterator[Sample]]:
    def samples(snapshot: Snapshot) -> Iterator[Sample]:
        yield {}, value(snapshot)

    return samples


def _nodes(field: str) -> Callable[[Snapshot], Iterator[Sample]]:
    def samples(snapshot: Snapshot) -> Iterator[Sample]:
        for node in snapshot.machine.nodes:
            yield {"node": node.id}, getattr(node, field)

    return samples


def _gpus(field: str) -> Callable[[Snapshot], Iterator[Sample]]:
    def samples(snapshot: Snapshot) -> Iterator[Sample]:
        for gpu in snapshot.machine.gpus:
            yield {"gpu": gpu.id, "label": gpu.label}, getattr(gpu, field)

    return samples


def _processes(
    value: Callable[[Process], float | None],
) -> Callable[[Snapshot], Iterator[Sample]]:
    def samples(snapshot: Snapshot) -> Iterator[Sample]:
        for one in snapshot.processes:
            yield {"pid": one.pid, "name": one.name}, value(one)

    return samples


def _devices(field: str) -> Callable[[Snapshot], Iterator[Sample]]:
    def samples(snapshot: Snapshot) -> Iterator[Sample]:
        for one in snapshot.processes:
            for device in one.devices:
                yield {"pid": one.pid, "device": device.name}, getattr(device, field)

    return samples


def _pools(value: Callable[[PoolUse], float]) -> Callable[[Snapshot], Iterator[Sample]]:
    def samples(snapshot: Snapshot) -> Iterator[Sample]:
        for one in snapshot.processes:
            for pool in one.pools:
                labels: Labels = {"pid": one.pid, "pool": pool.name, "device": pool.device}
                yield labels, value(pool)

    return samples


def _tags(field: str) -> Callable[[Snapshot], Iterator[Sample]]:
    def samples(snapshot: Snapshot) -> Iterator[Sample]:
        for one in snapshot.processes:
            for tag in one.tags:
                yield {"pid": one.pid, "tag": tag.tag}, getattr(tag, field)

    return samples


def _models(
    value: Callable[[ModelUse], float | None],
) -> Callable[[Snapshot], Iterator[Sample]]:
    def samples(snapshot: Snapshot) -> Iterator[Sample]:
        for one in snapshot.processes:
            for model in one.models:
                labels: Labels = {"pid": one.pid, "model": model.id, "name": model.name}
                yield {**labels, "device": model.device}, value(model)

    return samples


def _links(snapshot: Snapshot) -> Iterator[Sample]:
    for one in snapshot.processes:
        for link in one.links:
            yield {"pid": one.pid, "device": link.device}, link.copied_bytes


def _runs(value: Callable[[Process], float | None]) -> Callable[[Snapshot], Iterator[Sample]]:
    def samples(snapshot: Snapshot) -> Iterator[Sample]:
        for one in snapshot.processes:
            if one.run is not None:
                yield {"pid": one.pid, "model": one.run.model, "stage": one.run.stage}, value(one)

    return samples


def _step_ratio(one: Process) -> float | None:
    run = one.run
    return None if run is None or not run.total else run.done / run.total


def _millis(ms: float | None) -> float | None:
    return None if ms is None else ms / 1000


SERIES = (
    Series(
        "holdfast_ram_total_bytes",
        "gauge",
        "Host memory that may be used.",
        _machine(lambda now: now.machine.ram_total_bytes),
    ),
    Series(
        "holdfast_ram_used_bytes",
        "gauge",
        "Host memory not available to a new program.",
        _machine(lambda now: now.machine.ram_used_bytes),
    ),
    Series("holdfast_node_total_bytes", "gauge", "Memory of a node.", _nodes("total_bytes")),
    Series("holdfast_node_used_bytes", "gauge", "Memory of a node in use.", _nodes("used_bytes")),
    Series("holdfast_gpu_total_bytes", "gauge", "Memory of a GPU.", _gpus("total_bytes")),
    Series("holdfast_gpu_used_bytes", "gauge", "Memory of a GPU in use.", _gpus("used_bytes")),
    Series("holdfast_gpu_busy_ratio", "gauge", "Time in which a GPU computed.", _gpus("busy")),
    Series(
        "holdfast_processes",
        "gauge",
        "Processes of Holdfast that are watched.",
        _machine(lambda now: len(now.processes)),
    ),
    Series(
        "holdfast_process_start_time_seconds",
        "gauge",
        "When a process began, since 1970.",
        _processes(lambda one: one.began_s),
    ),
    Series(
        "holdfast_process_resident_bytes",
        "gauge",
        "Host memory a process has in use.",
        _processes(lambda one: one.rss_bytes),
    ),
    Series(
        "holdfast_process_pinned_bytes",
        "gauge",
        "Host memory a process has locked for copies.",
        _processes(lambda one: one.pinned_bytes),
    ),
    Series(
        "holdfast_process_leaked_bytes",
        "gauge",
        "What the blocks hold that the last search for leaks found.",
        _processes(lambda one: one.leaks.total_bytes),
    ),
    Series(
        "holdfast_process_look_seconds",
        "gauge",
        "What the last look cost a process.",
        _processes(lambda one: one.look_us / 1e6),
    ),
    Series(
        "holdfast_device_allocated_bytes",
        "gauge",
        "Memory of a device in tensors and blocks of a process.",
        _devices("allocated_bytes"),
    ),
    Series(
        "holdfast_device_reserved_bytes",
        "gauge",
        "Memory of a device taken by a process, caches included.",
        _devices("reserved_bytes"),
    ),
    Series(
        "holdfast_pool_allocated_bytes",
        "gauge",
        "Allocated from a pool and not freed.",
        _pools(lambda pool: pool.allocated_bytes),
    ),
    Series(
        "holdfast_pool_reserved_bytes",
        "gauge",
        "What a pool got from the system.",
        _pools(lambda pool: pool.reserved_bytes),
    ),
    Series(
        "holdfast_pool_cached_bytes",
        "gauge",
        "Free in a pool, and kept.",
        _pools(lambda pool: pool.cached_bytes),
    ),
    Series(
        "holdfast_pool_requests_total",
        "counter",
        "Requests to a pool.",
        _pools(lambda pool: pool.requests),
    ),
    Series(
        "holdfast_pool_hits_total",
        "counter",
        "Requests met without asking the system.",
        _pools(lambda pool: pool.hits),
    ),
    Series("holdfast_tag_used_bytes", "gauge", "Memory in use by its tag.", _tags("current_bytes")),
    Series(
        "holdfast_model_weight_bytes",
        "gauge",
        "All weights of a model, unpacked.",
        _models(lambda model: model.weight_bytes),
    ),
    Series(
        "holdfast_model_resident_bytes",
        "gauge",
        "What a model has on its device now.",
        _models(lambda model: model.resident_bytes),
    ),
    Series(
        "holdfast_model_streamed_bytes",
        "gauge",
        "Weights that cross the link in each pass.",
        _models(lambda model: model.streamed_bytes),
    ),
    Series(
        "holdfast_model_budget_bytes",
        "gauge",
        "What the group of a model may take on the device.",
        _models(lambda model: model.budget_bytes),
    ),
    Series(
        "holdfast_model_predicted_pass_seconds",
        "gauge",
        "What a pass takes by the plan at work.",
        _models(lambda model: _millis(model.predicted_ms)),
    ),
    Series(
        "holdfast_model_passes_total",
        "counter",
        "How often a model ran.",
        _models(lambda model: model.passes),
    ),
    Series(
        "holdfast_link_copied_bytes_total",
        "counter",
        "Weights sent from the host to a device.",
        _links,
    ),
    Series(
        "holdfast_run_step_ratio",
        "gauge",
        "The part of the stage under way that is over.",
        _runs(_step_ratio),
    ),
    Series(
        "holdfast_run_stage_seconds",
        "gauge",
        "How long the stage under way has taken.",
        _runs(lambda one: one.run and one.run.stage_s),
    ),
    Series(
        "holdfast_run_left_seconds",
        "gauge",
        "How long the stage under way will take yet.",
        _runs(lambda one: one.run and one.run.left_s),
    ),
)

"""Measures the machine: memory of every node from the CPUs of every node, and GPU links.

Nothing stays bound or allocated. The report names the steps that failed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from holdfast.base.config import Config
from holdfast.base.errors import BadInput, HoldfastError, Unsupported
from holdfast.topology import isolate, numa
from holdfast.topology.discover import discover, utc_now
from holdfast.topology.model import Gpu, Measurement, Node, ProbeReport, Topology
from holdfast.topology.speed import store
from holdfast.topology.speed.chase import chase_method
from holdfast.topology.speed.host import HostMemory, region_bytes

# (label of the step, steps done, number of steps)
Progress = Callable[[str, int, int], None]
NAME = "measure"


@dataclass(frozen=True, slots=True)
class _Step:
    label: str
    run: Callable[[float], list[Measurement]]  # takes the seconds left


def measure(
    topology: Topology | None = None,
    *,
    refresh: bool = False,
    time_limit_s: float = 60.0,
    progress: Progress | None = None,
    config: Config | None = None,
) -> Topology:
    """`topology` (this machine by default) with its measurements.

    Results are stored for the machine, each with its date, and returned next time unless
    `refresh`. Stops after `time_limit_s`: the other steps keep their older results, and the report
    "measure" in `probes` says so. Raises Unsupported for another machine.
    """
    config = config or Config.load()
    if not time_limit_s > 0:  # refuses NaN too
        raise BadInput(f"the time limit is {time_limit_s:g} s", expected="more than 0 seconds")
    topology = topology or discover(config=config)
    _refuse_other_machines(topology, config)
    if topology.measurements and not refresh:
        return topology
    steps = [*_host_steps(topology), *_gpu_steps(topology)]
    measured, report = _run(steps, time_limit_s, progress or (lambda label, done, total: None))
    probes = tuple(p for p in topology.probes if p.name != NAME)
    kept = _update(topology.measurements, measured)
    topology = topology.replace(measurements=kept, probes=(*probes, report))
    store.save(topology, config)
    return topology


def _refuse_other_machines(topology: Topology, config: Config) -> None:
    here = discover(config=config)
    same = topology.machine_id == here.machine_id and topology.hostname == here.hostname
    if topology.simulated or not same:
        what = "a simulated machine" if topology.simulated else f"{topology.hostname!r}"
        raise Unsupported(
            f"cannot measure {what}: only the machine this runs on can be timed",
            expected="the result of topology.discover() on this machine",
        )


def _update(old: tuple[Measurement, ...], new: list[Measurement]) -> tuple[Measurement, ...]:
    """The new results, and the old ones that none replaces."""
    replaced = {(m.source, m.target, m.mode) for m in new}
    return (*new, *(m for m in old if (m.source, m.target, m.mode) not in replaced))


def _run(
    steps: list[_Step], time_limit_s: float, progress: Progress
) -> tuple[list[Measurement], ProbeReport]:
    start = time.monotonic()
    measured: list[Measurement] = []
    remarks: list[str] = []
    done = 0
    for step in steps:
        left = time_limit_s - (time.monotonic() - start)
        if left <= 0:
            remarks.append(
                f"the time limit of {time_limit_s:g} s ended it after {done} steps of {len(steps)}"
            )
            break
        progress(step.label, done, len(steps))
        try:
            measured += step.run(left)
        except (HoldfastError, OSError) as exc:
            remarks.append(f"{step.label}: {str(exc).splitlines()[0]}")
        done += 1
    progress("done", done, len(steps))
    report = ProbeReport(
        name=NAME,
        status="ok" if measured else "failed",
        reason="; ".join(remarks) or None,
        elapsed_ms=round((time.monotonic() - start) * 1000, 2),
    )
    return measured, report


# ---- host memory


def _host_steps(topology: Topology) -> Iterator[_Step]:
    for memory in (n for n in topology.nodes if n.total_bytes):
        for home, cpus in _homes(topology):
            yield _Step(
                f"CPUs of node {home.id} on memory of node {memory.id}",
                lambda _left, m=memory, h=home, c=cpus: _time_host(topology, h, c, m),
            )


def _homes(topology: Topology) -> list[tuple[Node, list[int]]]:
    """Nodes with CPUs that this process may use, and those CPUs."""
    allowed = topology.usable_cpus
    homes = [
        (node, [c for c in node.cpus if allowed is None or c in allowed]) for node in topology.nodes
    ]
    return [(node, cpus) for node, cpus in homes if cpus]


def _time_host(topology: Topology, home: Node, cpus: list[int], memory: Node) -> list[Measurement]:
    caches = [c.size_bytes for c in topology.caches if c.size_bytes and set(c.cpus) & set(cpus)]
    bound = numa.is_supported() and len(topology.nodes) > 1
    # A single node may get memory on demand; its free bytes then miss what it can still get.
    free = memory.free_bytes if bound else topology.available_bytes or memory.free_bytes
    length = region_bytes(max(caches, default=None), free)
    threads = f"{len(cpus)} threads" if len(cpus) > 1 else "1 thread"
    with HostMemory(memory.id, length, bound=bound) as region:
        read, write = region.read_gb_s(cpus), region.write_gb_s(cpus)
        latency_ns = region.latency_ns(cpus)
    here, there = f"node:{home.id}", f"node:{memory.id}"
    return [
        Measurement(
            source=there,
            target=here,
            mode="read",
            bandwidth_gb_s=round(read, 2),
            latency_ns=latency_ns,
            method=f"memchr, {threads}; {chase_method()}",
            measured_at=utc_now(),
        ),
        Measurement(
            source=here,
            target=there,
            mode="write",
            bandwidth_gb_s=round(write, 2),
            method=f"memset, {threads}",
            measured_at=utc_now(),
        ),
    ]


# ---- host to GPU

# Backends whose torch module can pin memory and wait for copies.
_TORCH_BACKENDS = ("cuda", "rocm", "xpu", "npu", "mlu")


def _gpu_steps(topology: Topology) -> Iterator[_Step]:
    for gpu in topology.gpus:
        copier = _copier(topology, gpu)
        if copier is None:
            continue
        for home, cpus in _homes(topology):
            yield _Step(
                f"memory of node {home.id} to and from gpu {gpu.id}",
                lambda left, g=gpu, by=copier, h=home, c=cpus: _time_gpu(
                    topology, g, by, h, c, left
                ),
            )


def _copier(topology: Topology, gpu: Gpu) -> tuple[str, str] | None:
    """The library that can copy to a GPU, and its name of the device."""
    backends = {d.id: d.backend for d in topology.torch}
    if gpu.torch and backends.get(gpu.torch) in _TORCH_BACKENDS:
        return "torch", gpu.torch
    return ("opencl", gpu.opencl) if gpu.opencl else None


def _time_gpu(
    topology: Topology, gpu: Gpu, copier: tuple[str, str], home: Node, cpus: list[int], left: float
) -> list[Measurement]:
    library, device = copier
    bind = numa.is_supported() and len(topology.nodes) > 1
    rows: list[dict[str, Any]] = isolate.call(
        f"holdfast.topology.speed.{library}:copies",
        [device, home.id if bind else None, cpus],
        timeout_s=left,
    )
    host, card = f"node:{home.id}", f"gpu:{gpu.id}"
    return [
        Measurement(
            source=host if row["direction"] == "to_device" else card,
            target=card if row["direction"] == "to_device" else host,
            mode=row["mode"],
            bandwidth_gb_s=row["bandwidth_gb_s"],
            method=f"copies through {library}",
            measured_at=utc_now(),
        )
        for row in rows
    ]

"""Measures the machine: memory of every node from the CPUs of every node, and GPU links.

Nothing stays bound or allocated. The report names the steps that failed.
"""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Iterator
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
_Step = tuple[str, Callable[[float], list[Measurement]]]  # a label; a call with the seconds left


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
    replaced = {(m.source, m.target, m.mode) for m in measured}
    older = (m for m in topology.measurements if (m.source, m.target, m.mode) not in replaced)
    topology = topology.replace(measurements=(*measured, *older), probes=(*probes, report))
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


def _run(
    steps: list[_Step], time_limit_s: float, progress: Progress
) -> tuple[list[Measurement], ProbeReport]:
    start = time.monotonic()
    measured: list[Measurement] = []
    remarks: list[str] = []
    done = 0
    for label, run in steps:
        left = time_limit_s - (time.monotonic() - start)
        if left <= 0:
            remarks.append(
                f"the time limit of {time_limit_s:g} s ended it after {done} steps of {len(steps)}"
            )
            break
        progress(label, done, len(steps))
        try:
            measured += run(left)
        except (HoldfastError, OSError) as exc:
            remarks.append(f"{label}: {str(exc).splitlines()[0]}")
        done += 1
    progress("done", done, len(steps))
    report = ProbeReport(
        name=NAME,
        status="ok" if measured else "failed",
        reason="; ".join(remarks) or None,
        elapsed_ms=round((time.monotonic() - start) * 1000, 2),
    )
    return measured, report


def _host_steps(topology: Topology) -> Iterator[_Step]:
    for memory in (n for n in topology.nodes if n.total_bytes):
        for home, cpus in _homes(topology):
            label = f"CPUs of node {home.id} on memory of node {memory.id}"
            yield label, lambda _left, m=memory, h=home, c=cpus: _time_host(topology, h, c, m)


def _homes(topology: Topology) -> list[tuple[Node, list[int]]]:
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
    how = f"memchr, {threads}; {chase_method()}"
    reading = _measure_or_skip(there, here, "read", read, how)
    return [
        dataclasses.replace(reading, latency_ns=latency_ns),
        _measure_or_skip(here, there, "write", write, f"memset, {threads}"),
    ]


def _measure_or_skip(source: str, target: str, mode: Any, gb_s: float, method: str) -> Measurement:
    return Measurement(
        source=source,
        target=target,
        mode=mode,
        bandwidth_gb_s=round(gb_s, 2),
        method=method,
        measured_at=utc_now(),
    )


# Backends whose torch module can pin memory and wait for copies.
_TORCH_BACKENDS = ("cuda", "rocm", "xpu", "npu", "mlu")


def _gpu_steps(topology: Topology) -> Iterator[_Step]:
    for gpu in topology.gpus:
        copier = _copier(topology, gpu)
        if copier is None:
            continue
        for home, cpus in _homes(topology):
            label = f"memory of node {home.id} to and from gpu {gpu.id}"
            yield label, functools.partial(_time_gpu, topology, gpu, copier, home, cpus)


def _copier(topology: Topology, gpu: Gpu) -> tuple[str, str] | None:
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
    ends = {"to_device": (host, card), "from_device": (card, host)}
    method = f"copies through {library}"
    return [
        _measure_or_skip(*ends[row["direction"]], row["mode"], row["bandwidth_gb_s"], method)
        for row in rows
    ]

"""Texts of the memory nodes, with advice: a run, a report, what was freed.

Unknown figures are left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from holdfast.base.units import format_bytes, format_seconds
from holdfast.nodes.host.models import Model
from holdfast.nodes.memory.freeing import Freed
from holdfast.nodes.memory.holding import Holding, Holdings
from holdfast.nodes.memory.recording import RunRecording
from holdfast.nodes.memory.sampling import INTERVAL_S, Peak, Sample

MOST_ROWS = 8
WORTH_TELLING = 100_000  # bytes
TIGHT = 0.9  # share in use from which there is advice


def rows(recorded: RunRecording) -> list[Peak]:
    """The nodes of a run with their seconds, those that raised memory most first."""
    found = [
        replace(peak, seconds=_seconds(recorded, peak.node)) for peak in recorded.peaks.values()
    ]
    return sorted(found, key=lambda row: (-row.above_bytes, -row.seconds))


def _seconds(recorded: RunRecording, node: str) -> float:
    return sum((s.ended_s or s.began_s) - s.began_s for s in recorded.spans if s.node == node)


def format_spent(seconds: float) -> str:
    """Format a short time: "40 ms", "1.2 s", "4 min"."""
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else format_seconds(seconds)


# ---- a run


def run_text(recorded: RunRecording) -> str:
    """The peaks of a run, by node, and what to do."""
    top = recorded.peak_ram
    lines = [f"{format_spent(recorded.seconds)}, {nodes_seen(recorded)}"]
    for device, sample, count, total in _device_peaks(recorded):
        lines.append(
            f"peak on {device}: {format_bytes(count)} of {format_bytes(total)}"
            f"{_during(recorded, sample)}"
        )
    lines.append(f"peak in RAM: {format_bytes(top.ram_bytes)}{_during(recorded, top)}")
    found = rows(recorded)
    if found:
        lines.append("by node, how much more than when it began:")
    for row in found[:MOST_ROWS]:
        lines.append(
            f"  {recorded.name(row.node)}: +{format_bytes(row.above_bytes)} to "
            f"{format_bytes(row.most_bytes)}, {format_spent(row.seconds)}"
        )
    return "\n".join([*lines, *advice(recorded)])


def _device_peaks(recorded: RunRecording) -> Iterator[tuple[str, Sample, int, int]]:
    """Of each device: its name, the sample of its peak, the bytes of that, and of the device."""
    for device in recorded.devices:
        sample, count = recorded.peak_of(device)
        total = next(one.total_bytes for one in sample.devices if one.name == device)
        yield device, sample, count, total


def nodes_seen(recorded: RunRecording) -> str:
    """How many nodes were sampled: the fastest run between two samples."""
    count = len(recorded.peaks)
    if not count:
        return "no node was seen"
    return f"{count} node{'' if count == 1 else 's'} of more than {INTERVAL_S * 1000:.0f} ms"


def _during(recorded: RunRecording, sample: Sample) -> str:
    return f", in {recorded.name(sample.node)}" if sample.node else ""


def advice(recorded: RunRecording) -> list[str]:
    """Advice on the peaks; empty if memory was not tight."""
    found = []
    for device, sample, count, total in _device_peaks(recorded):
        if count > TIGHT * total:
            found.append(
                f"try: {device} was nearly full; Stream Model before {_at(recorded, sample)}, a "
                "smaller picture, or VAE Decode (Tiled)"
            )
    least = min(recorded.samples, key=lambda one: one.ram_free_bytes)
    if least.ram_free_bytes < (1 - TIGHT) * (least.ram_bytes + least.ram_free_bytes):
        found.append(
            f"try: RAM was down to {format_bytes(least.ram_free_bytes)}; Free Memory between "
            "stages, or fewer models in one workflow"
        )
    return found


def _at(recorded: RunRecording, sample: Sample) -> str:
    return recorded.name(sample.node) if sample.node else "the sampler"


def run_settings(recorded: RunRecording) -> dict[str, Any]:
    """The settings for the page of a run."""
    last = recorded.samples[-1]
    facts: dict[str, Any] = {"prompt": "Memory of a ComfyUI run", "prompt id": last.prompt}
    for one in last.devices:
        facts[one.name] = f"{format_bytes(one.total_bytes)}, {format_bytes(one.used_bytes)} in use"
    facts["RAM that is free"] = format_bytes(last.ram_free_bytes)
    facts["pinned"] = format_bytes(last.pinned_bytes)
    facts["samples"] = len(recorded.samples)
    return facts


# ---- a report


@dataclass(frozen=True, slots=True)
class MemoryReport:
    """Memory at one moment and who holds it."""

    sample: Sample
    models: tuple[Model, ...]
    pools: dict[str, tuple[int, int]]  # of Holdfast, by device: in use and reserved
    shared_virtual: tuple[str, ...]
    tpu: tuple[tuple[str, int], ...]
    holdings: Holdings


def report_text(report: MemoryReport) -> str:
    """Memory now and who holds it, as text."""
    lines = [*_now(report.sample), *_models(report.models), *_own(report)]
    lines += holders_text(report.holdings)
    held = report.holdings.by_device().get("cpu", 0)
    rest = report.sample.ram_bytes - held
    if rest > 0:
        lines.append(
            f"RAM that is in no tensor: {format_bytes(rest)} (Python, libraries, files, caches)"
        )
    return "\n".join(lines)


def _now(sample: Sample) -> list[str]:
    lines = [
        f"RAM: {format_bytes(sample.ram_bytes)} in this process, "
        f"{format_bytes(sample.ram_free_bytes)} free"
    ]
    lines += [
        f"{one.name}: {format_bytes(one.allocated_bytes)} in tensors, "
        f"{format_bytes(one.reserved_bytes)} reserved by torch, {format_bytes(one.used_bytes)} of "
        f"{format_bytes(one.total_bytes)} in use by all"
        for one in sample.devices
    ]
    if sample.pinned_bytes:
        lines.append(f"pinned: {format_bytes(sample.pinned_bytes)}")
    return lines


def _models(models: Iterable[Model]) -> list[str]:
    found = [f"  {model_text(one)}" for one in models]
    return ["models loaded by ComfyUI:", *found] if found else ["models loaded by ComfyUI: none"]


def model_text(model: Model) -> str:
    """ "SDXL: 5.1 GB, 3.0 GB on cuda:0, 2.1 GB on cpu"."""
    parts = [f"{model.name}: {format_bytes(model.total_bytes)}"]
    parts.append(f"{format_bytes(model.on_device_bytes)} on {model.device}")
    if model.offloaded_bytes:
        parts.append(f"{format_bytes(model.offloaded_bytes)} on {model.offload_device}")
    return ", ".join(parts)


def _own(report: MemoryReport) -> list[str]:
    lines = [
        f"Holdfast's pools on {device}: {format_bytes(used)} in use, {format_bytes(kept)} reserved"
        for device, (used, kept) in report.pools.items()
    ]
    lines += [f"shared virtual memory: {text}" for text in report.shared_virtual]
    lines += [f"TPU model {name}: {format_bytes(nbytes)}" for name, nbytes in report.tpu]
    return lines


def holder_text(row: Holding) -> str:
    """ "5.1 GB on cuda:0 in 1680 tensors: ComfyUI's model SDXL"."""
    count = f"{row.tensors} tensors" if row.tensors > 1 else "1 tensor"
    who = "; ".join(row.holders)
    return f"{format_bytes(row.nbytes)} on {row.device} in {count}: {who}"


def holders_text(holdings: Holdings) -> list[str]:
    """Who holds tensors, the largest first."""
    if not holdings.rows:
        return ["tensors alive: none"]
    lines = ["tensors alive, and who holds them:"]
    lines += [f"  {holder_text(row)}" for row in holdings.rows[:MOST_ROWS]]
    rest = holdings.rows[MOST_ROWS:]
    if rest:
        lines.append(f"  {format_bytes(sum(row.nbytes for row in rest))} held by others")
    if not holdings.complete:
        lines.append("  (there was no time to look at everything: HOLDFAST_REPORT_S gives more)")
    return lines


def report_data(report: MemoryReport) -> dict[str, Any]:
    """The same as plain dicts, lists and scalars."""
    from holdfast.base.codec import encode

    return {
        "ram_bytes": report.sample.ram_bytes,
        "ram_free_bytes": report.sample.ram_free_bytes,
        "pinned_bytes": report.sample.pinned_bytes,
        "devices": [one._asdict() for one in report.sample.devices],
        "models": [encode(one) for one in report.models],
        "pools": {
            device: {"used_bytes": used, "reserved_bytes": kept}
            for device, (used, kept) in report.pools.items()
        },
        "shared_virtual": list(report.shared_virtual),
        "tpu_models": [{"name": name, "bytes": nbytes} for name, nbytes in report.tpu],
        "holders": [encode(row) for row in report.holdings.rows],
        "complete": report.holdings.complete,
    }


# ---- what was freed


def freed_text(freed: Freed) -> str:
    """What was freed and who still holds the rest."""
    lines = [f"freed: {format_bytes(freed.freed_bytes)} in {format_spent(freed.seconds)}"]
    for name, count in {**freed.device_bytes, "RAM": freed.ram_bytes}.items():
        word = "less" if count >= 0 else "more"
        left = freed.device_left_bytes.get(name)
        now = freed.ram_left_bytes if name == "RAM" else left
        still = f", {format_bytes(now)} still in use" if now is not None else ""
        lines.append(f"  {name}: {format_bytes(abs(count))} {word}{still}")
    lines += [f"unloaded: {model_text(one)}" for one in freed.models]
    if freed.tpu_bytes:
        lines.append(f"unloaded: TPU models, {format_bytes(freed.tpu_bytes)}")
    if freed.pool_bytes:
        lines.append(f"freed by pools: {format_bytes(freed.pool_bytes)}")
    if freed.later:
        lines.append("ComfyUI unloads its models when the prompt is over")
    if freed.forgets:
        lines.append("ComfyUI forgets the kept results when the prompt is over")
    large = [row for row in freed.held if row.nbytes >= WORTH_TELLING]
    lines += ["still held:", *(f"  {holder_text(row)}" for row in large)] if large else []
    if not freed.forgets and any("kept result" in who for row in large for who in row.holders):
        lines.append("try: turn forget_outputs on, so that ComfyUI lets go of kept results too")
    return "\n".join(lines)

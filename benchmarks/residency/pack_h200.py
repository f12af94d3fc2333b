"""Lossless packing on a GPU: is it bit-exact, does it wait for nothing, how fast is it.

    PYTHONPATH=src python3 benchmarks/residency/pack_h200.py > out/pack_h200.json

For every way of unpacking (torch, Triton with several numbers of warps) and every scheme: GB/s of
raw bytes, the host's time for one call, the memory it took beside what it promised, and whether the
bits are right, also under torch's error on synchronisation and in a CUDA graph. Odd sizes, wild
bits and one tensor above 2**31 bytes are checked, not timed. Exit status 1 if anything is wrong.
With --device cpu it is a small trial of the torch ways.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from importlib import metadata
from typing import Any

import torch

from holdfast.residency.packing import codec_torch
from holdfast.residency.packing import pack as packing
from holdfast.residency.packing.layouts import TILE, Layout

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
CASES = (("bf16", "flat"), ("bf16", "ranked"), ("fp16", "ranked"))
Decode = Callable[[torch.Tensor, Layout, torch.Tensor], None]


def main() -> int:
    """Run everything; JSON to the standard output."""
    parser = argparse.ArgumentParser(description="lossless packing: bits and speed")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--repeat", type=int, default=9)
    options = parser.parse_args()
    device = torch.device(options.device)
    decoder = packing.decoder(device)
    sizes = (9_437_184, 113_246_208) if device.type == "cuda" else (1_000_000,)
    report: dict[str, Any] = {
        "torch": torch.__version__,
        "triton": _triton_version(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "decoder": {"way": decoder.way, "reason": decoder.reason},
        "copy_gb_s": [_copy(device, size, options.repeat) for size in sizes],
        "speed": [_speed(device, s, *case, options.repeat) for s in sizes for case in CASES],
        "bits": _bits(device),
    }
    report["all_right"] = all(report["bits"].values()) and all(
        way["exact"] and way["no_waiting"] and way["within_promise"]
        for row in report["speed"]
        for way in row["ways"].values()
    )
    print(json.dumps(report, indent=1))
    return 0 if report["all_right"] else 1


def _triton_version() -> str | None:
    try:
        return metadata.version("triton")
    except metadata.PackageNotFoundError:
        return None


def _ways(device: torch.device) -> dict[str, Decode]:
    ways: dict[str, Decode] = {"torch": codec_torch.decode}
    if packing.decoder(device).way == "triton":
        from holdfast.residency.packing import codec_triton

        ways["triton"] = codec_triton.decode
        for warps in (2, 8):
            ways[f"triton, {warps} warps"] = lambda p, y, t, w=warps: codec_triton.decode(
                p, y, t, warps=w
            )
    return ways


def _normal(device: torch.device, elements: int, kind: str) -> torch.Tensor:
    generator = torch.Generator(device).manual_seed(elements)
    weights = torch.empty(elements, dtype=DTYPES[kind], device=device)
    for part in weights.split(2**26):  # no copy of the whole in float32
        part.copy_(torch.randn(part.numel(), generator=generator, device=device) * 0.02)
    return weights.view(torch.uint8)


def _copy(device: torch.device, elements: int, repeat: int) -> dict[str, float]:
    """A plain copy of as many bytes, read and written: what the memory allows."""
    raw = _normal(device, elements, "bf16")
    target = torch.empty_like(raw)
    seconds = _seconds(device, lambda: target.copy_(raw), repeat)
    return {"elements": elements, "of_output": raw.numel() / seconds / 1e9}


def _speed(
    device: torch.device, elements: int, kind: str, scheme: str, repeat: int
) -> dict[str, Any]:
    raw = _normal(device, elements, kind)
    before = _peak_reset(device)
    packed = packing.pack(raw, kind, schemes=(scheme,))
    assert packed is not None, "normal weights always pack"
    layout, payload = packed
    beside = _peak(device, before, layout.nbytes)
    seconds = _wall(device, lambda: packing.pack(raw, kind, schemes=(scheme,)), min(repeat, 3))
    return {
        "elements": elements,
        "kind": kind,
        "scheme": scheme,
        "ratio": layout.nbytes / layout.raw_bytes,
        "escapes": layout.escapes,
        "pack_gb_s": raw.numel() / seconds / 1e9,
        "pack_scratch_bytes": beside,
        "ways": {
            name: _way(device, name, decode, raw, layout, payload, repeat)
            for name, decode in _ways(device).items()
        },
    }


def _way(
    device: torch.device,
    name: str,
    decode: Decode,
    raw: torch.Tensor,
    layout: Layout,
    payload: torch.Tensor,
    repeat: int,
) -> dict[str, Any]:
    target = torch.zeros_like(raw)
    decode(payload, layout, target)
    exact = torch.equal(raw, target)
    before = _peak_reset(device)
    decode(payload, layout, target)
    beside = _peak(device, before, 0)
    promised = packing.scratch_bytes(layout, device if name != "torch" else None)
    seconds = _seconds(device, lambda: decode(payload, layout, target), repeat)
    return {
        "gb_s": raw.numel() / seconds / 1e9,
        "host_us": _host_us(device, lambda: decode(payload, layout, target)),
        "exact": exact,
        "no_waiting": _no_waiting(device, decode, raw, layout, payload),
        "scratch_bytes": beside,
        "promised_bytes": promised,
        "within_promise": beside is None or beside <= promised,
    }


def _no_waiting(
    device: torch.device,
    decode: Decode,
    raw: torch.Tensor,
    layout: Layout,
    payload: torch.Tensor,
) -> bool:
    """Under torch's error on synchronisation, then recorded into a graph and played."""
    if device.type != "cuda":
        return True
    target = torch.zeros_like(raw)
    graph = torch.cuda.CUDAGraph()
    torch.cuda.set_sync_debug_mode("error")
    try:
        decode(payload, layout, target)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    with torch.cuda.graph(graph):
        decode(payload, layout, target)
    target.zero_()
    graph.replay()
    return torch.equal(raw, target)


def _seconds(device: torch.device, work: Callable[[], object], repeat: int) -> float:
    """The median of the device's own clock; several calls between two marks hide the launch."""
    if device.type != "cuda":
        return _wall(device, work, repeat)
    calls, times = 10, []
    work()
    for _ in range(repeat):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda._sleep(5_000_000)  # the host gets ahead meanwhile
        start.record()
        for _ in range(calls):
            work()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / 1e3 / calls)
    return statistics.median(times)


def _wall(device: torch.device, work: Callable[[], object], repeat: int) -> float:
    times = []
    for _ in range(repeat):
        _wait(device)
        began = time.perf_counter()
        work()
        _wait(device)
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def _host_us(device: torch.device, work: Callable[[], object]) -> float:
    """The host's time for one call, while the device is busy with something else."""
    _wait(device)
    if device.type == "cuda":
        torch.cuda._sleep(50_000_000)
    began = time.perf_counter()
    for _ in range(10):
        work()
    spent = time.perf_counter() - began
    _wait(device)
    return spent / 10 * 1e6


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _peak_reset(device: torch.device) -> int:
    if device.type != "cuda":
        return 0
    torch.cuda.reset_peak_memory_stats(device)
    return torch.cuda.memory_allocated(device)


def _peak(device: torch.device, before: int, kept: int) -> int | None:
    if device.type != "cuda":
        return None
    return max(0, torch.cuda.max_memory_allocated(device) - before - kept)


def _bits(device: torch.device) -> dict[str, bool]:
    """Each way against odd sizes, wild bits and, on a GPU, more than 2**31 bytes."""
    found = {}
    for kind, scheme in CASES:
        for name, decode in _ways(device).items():
            for label, raw in _wild(device, kind).items():
                found[f"{kind} {scheme} {name}: {label}"] = _same(raw, kind, scheme, decode)
    if device.type == "cuda":
        raw = _normal(device, 2**31 + 4099, "bf16")  # 4 GB: places beyond 32 bits, too
        for name, decode in _ways(device).items():
            for scheme in ("flat", "ranked"):
                found[f"bf16 {scheme} {name}: 2**31 + 4099 weights"] = _same(
                    raw, "bf16", scheme, decode
                )
    return found


def _wild(device: torch.device, kind: str) -> dict[str, torch.Tensor]:
    size = 3 * TILE
    every = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).to(device)
    usual = _normal(device, 40 * TILE + 7, kind)
    spiked = usual.clone().view(torch.int16)
    spiked[5 :: 5 * 1021] = every[: spiked[5 :: 5 * 1021].numel()]
    return {
        "odd size": usual,
        "wild bits among normal weights": spiked.view(torch.uint8),
        "zeros": torch.zeros(2 * size, dtype=torch.uint8, device=device),
        "not a number": torch.full((size,), float("nan"), dtype=DTYPES[kind], device=device).view(
            torch.uint8
        ),
        "one scale per row": (
            torch.randn(64, 1001, device=device) * 2.0 ** -torch.arange(64, device=device)[:, None]
        )
        .to(DTYPES[kind])
        .view(-1)
        .view(torch.uint8),
    }


def _same(raw: torch.Tensor, kind: str, scheme: str, decode: Decode) -> bool:
    packed = packing.pack(raw, kind, schemes=(scheme,))
    if packed is None:  # not worth it: sent as it is
        return True
    target = torch.empty_like(raw).fill_(0xA5)
    decode(packed[1], packed[0], target)
    return torch.equal(raw, target)


if __name__ == "__main__":
    sys.exit(main())

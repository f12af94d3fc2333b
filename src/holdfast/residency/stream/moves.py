"""The source and target memory of one chunk's copies and decodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from holdfast.residency.plan import Chunk
from holdfast.residency.stream.ring import aligned
from holdfast.residency.stream.weights import Stretch

Pairs = list[tuple[torch.Tensor, torch.Tensor]]


def copies(stretches: Sequence[Stretch], chunk: Chunk, memory: torch.Tensor) -> Pairs:
    """(target, source) pairs of a chunk; weights adjacent on both sides become one pair."""
    pairs: Pairs = []
    start = end = address = 0
    sources: list[torch.Tensor] = []
    for weight, offset in zip(chunk.weights, chunk.payload_offsets, strict=True):
        host = stretches[weight].host
        joins = sources and offset == end and host.data_ptr() == address
        if not joins:
            pairs += _join(memory, start, sources)
            start, sources = offset, []
        sources.append(host)
        end = offset + aligned(host.numel())
        address = host.data_ptr() + aligned(host.numel())
    return pairs + _join(memory, start, sources)


def _join(memory: torch.Tensor, start: int, sources: list[torch.Tensor]) -> Pairs:
    """One pair for adjacent sources, including alignment gaps."""
    if not sources:
        return []
    first, last = sources[0], sources[-1]
    length = last.data_ptr() - first.data_ptr() + last.numel()
    if len(sources) == 1:
        whole = first
    else:
        storage = first.untyped_storage()
        begin = first.data_ptr() - storage.data_ptr()
        whole = torch.empty(0, dtype=torch.uint8).set_(storage)[begin : begin + length]
    return [(memory[start : start + length], whole)]


def decodes(
    stretches: Sequence[Stretch], chunk: Chunk, payload: torch.Tensor, target: torch.Tensor
) -> list[tuple[torch.Tensor, Any, torch.Tensor]]:
    """(payload, layout, target) for each weight of a packed chunk."""
    parts: list[tuple[torch.Tensor, Any, torch.Tensor]] = []
    offsets = zip(chunk.weights, chunk.payload_offsets, chunk.raw_offsets, strict=True)
    for weight, begin, to in offsets:
        stretch = stretches[weight]
        packed = payload[begin : begin + stretch.payload_bytes]
        parts.append((packed, stretch.layout, target[to : to + stretch.raw_bytes]))
    return parts

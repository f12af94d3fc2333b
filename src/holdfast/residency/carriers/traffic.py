"""Bytes copied to each device so far. Counters only grow and outlive their carriers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Traffic:
    """Traffic to one device. `link_gb_s` is None until it was measured."""

    device: str
    copied_bytes: int = 0
    link_gb_s: float | None = None


_counters: dict[str, Traffic] = {}


def traffic_to(device: str) -> Traffic:
    """The counter of a device, shared by all carriers to it."""
    return _counters.setdefault(device, Traffic(device))


def traffic() -> list[Traffic]:
    """All counters, sorted by device name."""
    return [_counters[device] for device in sorted(_counters)]

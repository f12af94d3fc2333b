"""How much went over the way to each device so far, for those who look.

Promise: counters only grow, whichever carriers come and go; counting is one addition for a copy.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Traffic:
    """The way to one device. `link_gb_s` is None until somebody measured it."""

    device: str
    copied_bytes: int = 0
    link_gb_s: float | None = None


_ways: dict[str, Traffic] = {}


def way_to(device: str) -> Traffic:
    """The counter of a device; all carriers to it share one."""
    return _ways.setdefault(device, Traffic(device))


def traffic() -> list[Traffic]:
    """All ways so far, by the names of devices."""
    return [_ways[device] for device in sorted(_ways)]

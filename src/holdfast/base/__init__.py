"""What every layer uses: errors, registries, units, settings.

Uses only the standard library.

    errors          the exceptions of Holdfast, each in three parts
    registry        names of objects that are imported on first use
    units           byte counts and seconds as text, and back
    config          settings from options and HOLDFAST_* variables
    codec           frozen dataclasses to JSON and back, with a JSON schema
    files           atomic writes, paths, JSON files
    threads         threads that are joined for certain; callbacks at fork
    interrupts      Ctrl-C during imports, and Ctrl-C wrapped in other exceptions
    series          bytes over time: series, panels, thinning that keeps peaks
    html            pages without a network: frame, policy, escaping, charts of panels
    announce        tell the dashboard that this process uses Holdfast
"""

from holdfast.base.config import Config
from holdfast.base.errors import (
    Absent,
    AlreadyRegistered,
    BadInput,
    HoldfastError,
    MissingDependency,
    NotFound,
    OutOfMemory,
    OutOfTime,
    Unsupported,
)
from holdfast.base.registry import Entry, Registry
from holdfast.base.units import format_bytes, parse_bytes

__all__ = [
    "Absent",
    "AlreadyRegistered",
    "BadInput",
    "Config",
    "Entry",
    "HoldfastError",
    "MissingDependency",
    "NotFound",
    "OutOfMemory",
    "OutOfTime",
    "Registry",
    "Unsupported",
    "format_bytes",
    "parse_bytes",
]

"""Words every layer shares: errors, registry, units, settings, dataclasses as JSON.

Standard library only.
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

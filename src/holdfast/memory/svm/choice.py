"""Select a provider: the one that is named, or the first that works here.

A named provider that cannot work is an error; otherwise `reports` says why one was skipped.
"""

from __future__ import annotations

import dataclasses
import threading
from dataclasses import dataclass
from typing import Any, Literal

from holdfast.base.config import Config
from holdfast.base.errors import ForeignPointer, HoldfastError
from holdfast.base.registry import Entry, Registry
from holdfast.memory.svm.affinity import Grant
from holdfast.memory.svm.interface import Allocation, Provider
from holdfast.memory.svm.ledger import format_handle, owner_of
from holdfast.memory.svm.model import Layout, Metrics, Migration, Statistics, Where

_HERE = f"{__package__}.providers"

# In the order they are tried.
PROVIDERS: Registry[type[Provider]] = Registry(
    "provider",
    {
        "retryix": Entry(
            f"{_HERE}.retryix:RetryixProvider", "a vendor's library with the seven C functions"
        ),
        "opencl": Entry(
            f"{_HERE}.opencl:OpenclProvider", "shared virtual memory of OpenCL", "opencl"
        ),
        "numa": Entry(f"{_HERE}.numa:NumaProvider", "NUMA nodes of a Linux machine"),
        "simulated": Entry(f"{_HERE}.simulated:SimulatedProvider", "a made-up machine"),
    },
)


@dataclass(frozen=True, slots=True)
class Report:
    """Whether one provider works here, and why not."""

    name: str
    status: Literal["chosen", "available", "unavailable"]
    reason: str | None = None


_lock = threading.RLock()
_made: dict[tuple[str, Config], Provider] = {}


def provider(name: str | None = None, *, config: Config | None = None) -> Provider:
    """The provider called `name`, or the one in the settings, or the first that works here.

    One is made for each name and settings, and kept for the process. Raises NotFound for an unknown
    name; Unsupported, Absent or MissingDependency if a named one cannot work.
    """
    config = config or Config.load()
    if name is None:
        name = config.svm_provider
    if name is None and config.simulate is not None:
        name = "simulated"
    if name is not None:
        return _make(name, config)
    for candidate in PROVIDERS:
        try:
            return _make(candidate, config)
        except HoldfastError:
            continue
    raise AssertionError("the simulated provider works everywhere")


def reports(*, config: Config | None = None) -> tuple[Report, ...]:
    """Whether each provider works here, in the order they are tried."""
    config = config or Config.load()
    chosen = provider(config=config).name
    return tuple(_report(name, chosen, config) for name in PROVIDERS)


def alloc(size: int | str, *, provider: str | None = None, **options: Any) -> Allocation:
    """Allocate from a provider; see `Provider.alloc` for the options."""
    return _provider(provider).alloc(size, **options)


def free(handle: Allocation) -> None:
    """Free an allocation of any provider."""
    owner(handle).free(handle)


def where(handle: Allocation) -> Where:
    """Pages by domain, and how that is known."""
    return owner(handle).where(handle)


def migrate(handle: Allocation, from_domain: int, to_domain: int, **options: Any) -> Migration:
    """Move the pages in one domain to another; see `Provider.migrate` for the options."""
    return owner(handle).migrate(handle, from_domain, to_domain, **options)


def metrics(handle: Allocation | None = None, *, provider: str | None = None) -> Metrics:
    """Local and remote pages of one allocation, or of all of a provider."""
    return (owner(handle) if handle is not None else _provider(provider)).metrics(handle)


def statistics(*, provider: str | None = None) -> Statistics:
    """What a provider allocated, freed and migrated."""
    return _provider(provider).statistics()


def discover(refresh: bool = False, *, provider: str | None = None) -> Layout:
    """The domains of a provider and their free memory now."""
    return _provider(provider).discover(refresh)


def set_affinity(handle: Allocation) -> Grant | None:
    """Bind the threads of this process to the CPUs next to the memory until it is freed."""
    return owner(handle).set_affinity(handle)


def owner(handle: object) -> Provider:
    """The provider that made a handle. Raises ForeignPointer for anything else."""
    made_by = owner_of(handle)
    if made_by is None:
        raise ForeignPointer(
            f"{format_handle(handle)} is no allocation of this process",
            expected="the handle that alloc() returned; a number, from a file for example, is "
            "never taken for an address",
        )
    return made_by


_provider = provider  # for functions with an argument of that name


def _make(name: str, config: Config) -> Provider:
    PROVIDERS.entry(name)  # refuses an unknown name
    key = name, dataclasses.replace(config, svm_provider=None)
    with _lock:
        if key not in _made:
            _made[key] = PROVIDERS[name](config)
        return _made[key]


def _report(name: str, chosen: str, config: Config) -> Report:
    try:
        _make(name, config)
    except HoldfastError as exc:
        return Report(
            name, "unavailable", f"{exc.what} (try: {exc.hint})" if exc.hint else exc.what
        )
    return Report(name, "chosen" if name == chosen else "available")

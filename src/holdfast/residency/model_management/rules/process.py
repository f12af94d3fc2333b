"""The options and the machine of this process.

The machine is detected on first use, from any thread. A machine that was set replaces the real one
in every function, memory included.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from holdfast.residency.model_management.rules.detect import detect
from holdfast.residency.model_management.rules.machine import Machine
from holdfast.residency.model_management.rules.options import Options


class _Process:
    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.options = Options()
        self.given: Machine | None = None
        self.seen: dict[str | None, Machine] = {}


_process = _Process()


def options() -> Options:
    """The options of this process; defaults until `set_options`."""
    return _process.options


def set_options(options: Options) -> Options:
    """Set the options and return the old ones. The machine is detected again."""
    with _process.lock:
        before, _process.options = _process.options, options
        _process.seen.clear()
        return before


def set_machine(machine: Machine | None) -> Machine | None:
    """Use this machine instead of the real one (None: the real one). Returns the old setting."""
    with _process.lock:
        before, _process.given = _process.given, machine
        return before


@contextlib.contextmanager
def running_as(machine: Machine | None = None, options: Options | None = None) -> Iterator[None]:
    """In the block, use another machine, other options, or both; None changes nothing."""
    machine_before = set_machine(machine) if machine is not None else None
    options_before = set_options(options) if options is not None else None
    try:
        yield
    finally:
        if machine is not None:
            set_machine(machine_before)
        if options_before is not None:
            set_options(options_before)


def given_machine() -> Machine | None:
    """The machine that was set; None if the real one is used."""
    return _process.given


def machine(device: str | None = None) -> Machine:
    """The machine, detected once, or another device of its kind. Raises MissingDependency."""
    with _process.lock:
        if _process.given is not None:
            return _process.given
        if device not in _process.seen:
            import torch

            where = None if device is None else torch.device(device)
            _process.seen[device] = detect(torch, _process.options, device=where)
        return _process.seen[device]

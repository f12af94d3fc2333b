"""What this process runs with: the options it was given and the machine it is on.

Covers: keeping both, and looking at the machine when somebody first asks.
Leaves to others: looking (detect), deciding (reserve, precision, placing, attention).
Promise: nothing is asked of the machine before the first question; any thread may ask. A machine
that was set stands for the real one in every answer, memory included.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from holdfast.residency.rules.machine import Machine
from holdfast.residency.rules.options import Options


class _Process:
    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.options = Options()
        self.given: Machine | None = None
        self.seen: dict[str | None, Machine] = {}


_process = _Process()


def options() -> Options:
    """The options of this process; all at their defaults until some are set."""
    return _process.options


def set_options(options: Options) -> Options:
    """Use these options from now on; returns those before. The machine is looked at again."""
    with _process.lock:
        before, _process.options = _process.options, options
        _process.seen.clear()
        return before


def set_machine(machine: Machine | None) -> Machine | None:
    """Take this machine for the real one; None takes the real one again. Returns the one before."""
    with _process.lock:
        before, _process.given = _process.given, machine
        return before


@contextlib.contextmanager
def running_as(machine: Machine | None = None, options: Options | None = None) -> Iterator[None]:
    """For a while another machine, other options, or both; None leaves what is there."""
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
    """The machine that was set; None when the real one answers."""
    return _process.given


def machine(device: str | None = None) -> Machine:
    """The machine with the device that computes, or with another one of its kind ("cuda:1").

    Looked at once; what was free then is in `free_bytes`, which `current.machine_now` renews.
    Raises MissingDependency if there is no torch, or no DirectML where that was asked for.
    """
    with _process.lock:
        if _process.given is not None:
            return _process.given
        if device not in _process.seen:
            _process.seen[device] = _look(device)
        return _process.seen[device]


def _look(device: str | None) -> Machine:
    import torch

    from holdfast.residency.rules.detect import detect

    where = None if device is None else torch.device(device)
    return detect(torch, _process.options, device=where)

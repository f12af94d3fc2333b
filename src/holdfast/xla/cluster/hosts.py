"""Several processes, on one machine or many, as one cluster: `jax.distributed` with one flag.

    with hosts.joined("10.0.0.1:1234,0/2") as here:    # or "auto", or HOLDFAST_HOSTS
        mesh = make_mesh()                             # over the devices of all hosts
        picture = hosts.whole(draw(...))               # the same on every host
        if here.is_first: ...                          # one of them writes

jax ends the process (SIGABRT) when a host is missing while it starts, so hosts that are listed by
hand meet first (`rendezvous`), where that is an error. A process that fails exits at once: jax
would have it wait at the end for hosts that wait for it.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax._src import xla_bridge  # the one way to ask whether a back end has started
from jax.experimental import multihost_utils
from jax.sharding import Sharding

from holdfast.base.config import Config, variable_for
from holdfast.base.errors import Absent, BadInput, HoldfastError, Misuse
from holdfast.xla.cluster.rendezvous import HostAddress, meet

VARIABLE = variable_for("hosts")
AUTO = "auto"
TIMEOUT_S = 300.0
HEARTBEAT_S = 20.0
_EXPECTED = '"auto", or HOST:PORT,INDEX/COUNT such as "10.0.0.1:1234,0/2" for the first of two'


@dataclass(frozen=True, slots=True)
class Hosts:
    """The position of this process in the cluster. `coordinator` is None where jax found it."""

    index: int
    count: int
    coordinator: str | None
    local_devices: int
    global_devices: int

    @property
    def is_first(self) -> bool:
        return self.index == 0


class _Cluster:
    """What this process has joined. A process can be in one cluster, as jax has it."""

    def __init__(self) -> None:
        self.asked: str | HostAddress | None = None
        self.here: Hosts | None = None
        self.status: int | None = None  # of a process that failed

    def at_exit(self) -> None:
        """Exit at once if the process failed; otherwise jax waits for the other hosts."""
        status = self.status
        if status is None:
            failure = getattr(sys, "last_value", None)  # nobody caught it
            status = None if failure is None else _status(failure)
        if self.here is None or status in (None, 0):
            return
        logging.shutdown()
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError, AttributeError):
                stream.flush()
        os._exit(status)


_cluster = _Cluster()


def join(
    hosts: str | None = None, *, timeout_s: float = TIMEOUT_S, heartbeat_s: float = HEARTBEAT_S
) -> Hosts:
    """Make this process one of several; with neither `hosts` nor HOLDFAST_HOSTS it stays alone.

    "auto" is for TPU pods, Slurm, Open MPI and Kubernetes, where jax finds the others by itself.
    `timeout_s` is how long to wait for the others, here and when leaving; a host that was not heard
    of for `heartbeat_s` ends all others. Joining again what is joined does nothing.
    Raises BadInput, Absent where "auto" finds nothing, OutOfTime when hosts are missing, Misuse
    once jax has started a back end, or for a second cluster.
    """
    text = Config.load(hosts=hosts).hosts
    asked = _parse(text) if text else None
    if _cluster.here is not None and asked in (None, _cluster.asked):
        return _cluster.here
    if asked is None:
        return _describe_host(None)
    _refuse_late(text)
    _initialize(asked, timeout_s, heartbeat_s)
    if not _cluster.asked:
        atexit.register(_cluster.at_exit)
    _cluster.asked = asked
    _cluster.here = _describe_host(asked.address if isinstance(asked, HostAddress) else None)
    return _cluster.here


@contextmanager
def joined(
    hosts: str | None = None, *, timeout_s: float = TIMEOUT_S, heartbeat_s: float = HEARTBEAT_S
) -> Iterator[Hosts]:
    """`join` for a block. Leaves after it; when the block raises, this process ends without
    waiting for the others, which end too."""
    here = join(hosts, timeout_s=timeout_s, heartbeat_s=heartbeat_s)
    try:
        yield here
    except BaseException as exc:
        _cluster.status = _status(exc)
        raise
    leave()


def leave() -> None:
    """Wait until all hosts leave, and be alone. Does nothing where nothing was joined."""
    if _cluster.here is not None:
        jax.distributed.shutdown()
        _cluster.here = None


def is_first() -> bool:
    """Whether this process is the one that prints and writes; alone it is. Starts no back end."""
    return not jax.distributed.is_initialized() or jax.process_index() == 0


def agree(number: int) -> int:
    """Return the first host's value of a 32-bit integer. Every host must call it."""
    if not jax.distributed.is_initialized():
        return number
    return int(multihost_utils.broadcast_one_to_all(np.uint32(number)))


def whole(array: Any) -> np.ndarray:
    """Gather an array that may be spread over hosts. Every host must call it."""
    if not isinstance(array, jax.Array) or array.is_fully_addressable:
        return np.asarray(array)
    if array.is_fully_replicated:
        return np.asarray(array.addressable_data(0))
    return np.asarray(multihost_utils.process_allgather(array, tiled=True))


def from_host(value: np.ndarray, sharding: Sharding) -> jax.Array:
    """Make one array over all hosts of `value`, which each has. Only local shards are copied."""
    return jax.make_array_from_callback(value.shape, sharding, lambda index: value[index])


def _parse(text: str) -> str | HostAddress:
    if text.strip() == AUTO:
        return AUTO
    place = HostAddress.parse(text)
    if place is None:
        raise BadInput(f"cannot read {text!r} as hosts", expected=_EXPECTED)
    return place


def _refuse_late(text: str | None) -> None:
    if _cluster.here is not None:
        raise Misuse(
            f"cannot join {text!r}: this process has joined {str(_cluster.asked)!r}",
            expected="one cluster for a process",
        )
    if xla_bridge.backends_are_initialized():
        raise Misuse(
            f"cannot join {text!r}: jax has started already, on the devices of this host alone",
            expected="join() before anything that asks for a device or computes",
            hint=f"call it first, or set {VARIABLE} and let holdfast do so",
        )


def _initialize(asked: str | HostAddress, timeout_s: float, heartbeat_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    where: dict[str, Any] = {}
    if isinstance(asked, HostAddress):
        meet(asked, timeout_s)
        where = {
            "coordinator_address": asked.address,
            "num_processes": asked.count,
            "process_id": asked.index,
            "cluster_detection_method": "deactivate",
        }
    left_s = max(deadline - time.monotonic(), 10) if where else timeout_s
    try:  # jax takes integers
        jax.distributed.initialize(
            **where,
            initialization_timeout=max(round(left_s), 1),
            shutdown_timeout_seconds=max(round(timeout_s), 1),
            heartbeat_timeout_seconds=max(round(heartbeat_s), 1),
        )
    except ValueError as exc:  # it does not know where, who or how many
        if where:
            raise
        raise Absent(
            f"found no cluster around this process: {exc}",
            expected="a TPU pod, Slurm, Open MPI or Kubernetes",
            hint='name the hosts by hand: "10.0.0.1:1234,0/2" on the first of two, '
            '"10.0.0.1:1234,1/2" on the second',
        ) from exc


def _describe_host(coordinator: str | None) -> Hosts:
    return Hosts(
        jax.process_index(),
        jax.process_count(),
        coordinator,
        jax.local_device_count(),
        jax.device_count(),
    )


def _status(failure: BaseException) -> int:
    if isinstance(failure, KeyboardInterrupt):
        return 130
    if isinstance(failure, SystemExit):
        code = failure.code
        return code if isinstance(code, int) else int(code is not None)
    return 2 if isinstance(failure, HoldfastError) else 1  # as the command line ends

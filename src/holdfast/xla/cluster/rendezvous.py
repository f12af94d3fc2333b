"""Hosts that are listed by hand meet before jax starts.

The first host listens on jax's port; the others connect and identify themselves; once all are there
it answers "go". A host that never comes or comes twice, another count or another version of jax is
an error on the hosts concerned, where jax would end the process. No socket stays open; other
clients are ignored.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass

import jax

from holdfast.base.errors import BadInput, HoldfastError, OutOfTime
from holdfast.base.units import format_seconds

_PAUSE_S = 0.2
_HELLO_S = 5.0  # for a guest to identify itself
_LINE_BYTES = 1000
_HELLO = re.compile(r"holdfast host (\d+)/(\d+), jax (\S+)")
_ANSWERS: dict[str, type[HoldfastError]] = {"no: ": BadInput, "late: ": OutOfTime}


@dataclass(frozen=True, slots=True)
class HostAddress:
    """The address of the first host, and which of how many this one is."""

    host: str
    port: int
    index: int
    count: int

    @classmethod
    def parse(cls, text: str) -> HostAddress | None:
        """From "HOST:PORT,INDEX/COUNT"; None for anything else."""
        found = re.fullmatch(r"\s*(\[[^\]]+\]|[^\s:,/]+):(\d+)\s*,\s*(\d+)/(\d+)\s*", text)
        if found is None:
            return None
        place = cls(found[1], *(int(part) for part in found.groups()[1:]))
        return place if 0 < place.port < 2**16 and place.index < place.count else None

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    def __str__(self) -> str:
        return f"{self.address},{self.index}/{self.count}"

    @property
    def hello(self) -> str:
        return f"holdfast host {self.index}/{self.count}, jax {jax.__version__}"


def meet(place: HostAddress, timeout_s: float) -> None:
    """Return when all hosts are there. Raises OutOfTime or BadInput that says who is not."""
    if place.index == 0:
        _receive(place, timeout_s)
    else:
        _connect(place, timeout_s)


def _receive(place: HostAddress, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    guests: dict[int, socket.socket] = {}
    answer = "no: the first host has given up"
    try:
        with _listen(place) as door:
            while len(guests) < place.count - 1:
                door.settimeout(max(deadline - time.monotonic(), 0.001))
                try:
                    guest = door.accept()[0]
                except TimeoutError:
                    raise _missing(place, guests, timeout_s) from None
                _admit(place, guests, guest)
        answer = "go"
    except OutOfTime as exc:
        answer = f"late: {exc.what}"
        raise
    finally:
        for guest in guests.values():
            _say(guest, answer)


@contextlib.contextmanager
def _listen(place: HostAddress) -> Iterator[socket.socket]:
    """Listen on every address of this host, as jax does; closed so that jax can use the port."""
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    try:
        door = socket.create_server(("", place.port), family=family, dualstack_ipv6=both)
    except OSError as exc:
        raise BadInput(
            f"cannot wait for hosts at {place.address}: {os.strerror(exc.errno or 0)}",
            expected="a port of this host that nobody else uses",
        ) from exc
    with door:
        yield door


def _admit(place: HostAddress, guests: dict[int, socket.socket], guest: socket.socket) -> None:
    """Admit a guest with a valid hello. A later guest with the same index replaces the earlier: it
    may have been restarted."""
    guest.settimeout(_HELLO_S)
    try:
        said = _HELLO.fullmatch(_line(guest))
    except OSError:
        said = None
    if said is None:
        guest.close()
        return
    index, count, version = int(said[1]), int(said[2]), said[3]
    wrong = _mismatch(place, index, count, version)
    if wrong:
        _say(guest, f"no: {wrong}")
        return
    if index in guests:
        _say(guests[index], f"no: another process has joined as host {index}/{count}")
    guests[index] = guest


def _mismatch(place: HostAddress, index: int, count: int, version: str) -> str | None:
    if count != place.count:
        return f"this is host {index}/{count}, but the first of them is 0/{place.count}"
    if not 0 < index < count:
        return f"there is no host {index}/{count} to come"
    if version != jax.__version__:
        return f"host {index}/{count} has jax {version}, but the first has {jax.__version__}"
    return None


def _missing(place: HostAddress, guests: dict[int, socket.socket], timeout_s: float) -> OutOfTime:
    absent = [str(index) for index in range(1, place.count) if index not in guests]
    return OutOfTime(
        f"{len(absent)} of {place.count} hosts did not come to {place.address} within "
        f"{format_seconds(timeout_s)}: {', '.join(absent)}",
        expected=f"{place.count} processes with the same address, numbered 0 to {place.count - 1}",
        hint="look at the output of those hosts, at the firewall, at the address they were given",
    )


def _connect(place: HostAddress, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    reason, host = "no answer", place.host.strip("[]")
    while (left := deadline - time.monotonic()) > 0:
        try:
            with socket.create_connection((host, place.port), timeout=left) as line:
                line.sendall(f"{place.hello}\n".encode())
                answer = _line(line)
        except OSError as exc:
            reason = exc.strerror or str(exc)
        else:
            if answer == "go":
                return
            for start, error in _ANSWERS.items():
                if answer.startswith(start):
                    raise error(
                        f"the first host says: {answer.removeprefix(start)}",
                        expected="HOST:PORT,INDEX/COUNT with one address, one count and a number "
                        "for each",
                    )
            reason = "something else answers there"
        time.sleep(_PAUSE_S)
    raise OutOfTime(
        f"the first host did not answer at {place.address} within {format_seconds(timeout_s)}: "
        f"{reason}",
        expected=f"a process that joined with {place.address},0/{place.count}",
        hint="look whether it runs, at its output, at the firewall, at the address",
    )


def _line(connection: socket.socket) -> str:
    """Read one line; empty if the connection closes before its end."""
    said = b""
    while not said.endswith(b"\n") and len(said) < _LINE_BYTES:
        more = connection.recv(_LINE_BYTES)
        if not more:
            return ""
        said += more
    return said.decode(errors="replace").rstrip("\n")


def _say(connection: socket.socket, text: str) -> None:
    with contextlib.suppress(OSError), connection:
        connection.sendall(f"{text}\n".encode())

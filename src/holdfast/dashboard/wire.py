"""What goes over the socket: one JSON object in a line, one in the line that answers it.

    {"ask": "process"}                  {"ok": …}
    {"ask": "set_budget", …}            {"error": {"kind": "BadInput", "what": …, …}}

Covers: lines, their length and the time they may take, errors as values and back.
Leaves to others: what can be asked (answering), who may ask (meeting).
Promise: a line that is too long, no JSON or late ends the connection and nothing else.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import time
from typing import Any

from holdfast.base import errors
from holdfast.base.errors import HoldfastError

PROTOCOL = 1
MOST_ASKED_BYTES = 64 << 10
MOST_TOLD_BYTES = 64 << 20
_AT_ONCE = 1 << 16


class Wire:
    """One end of a connection. Not for several threads at once."""

    def __init__(self, connection: socket.socket, most_bytes: int) -> None:
        self._connection = connection
        self._most_bytes = most_bytes
        self._rest = b""
        self._by_the_system = False

    def set_patience(self, receive_s: float, send_s: float) -> None:
        """From now on the system keeps these limits, for each part of a line; others are ignored.

        A thread that computes in Python loses its turn whenever this one has waited for anything:
        with limits of Python's own that would be four times for a line, with these it is once.
        """
        self._connection.settimeout(None)
        for option, limit_s in ((socket.SO_RCVTIMEO, receive_s), (socket.SO_SNDTIMEO, send_s)):
            self._connection.setsockopt(socket.SOL_SOCKET, option, _interval(limit_s))
        self._by_the_system = True

    def send(self, message: Any, timeout_s: float) -> None:
        """Send a line. Raises OSError where nobody reads it, TimeoutError or BlockingIOError."""
        if not self._by_the_system:
            self._connection.settimeout(timeout_s)
        self._connection.sendall(_line(message))

    def receive(self, timeout_s: float | None) -> Any:
        """The next line; EOFError where there will be none, ValueError for what is no message.

        Raises TimeoutError after that long, BlockingIOError where the system keeps the limit.
        """
        end_s = None if timeout_s is None else time.monotonic() + timeout_s
        parts = [self._rest]
        size = len(self._rest)
        while b"\n" not in parts[-1]:
            if size > self._most_bytes:
                raise ValueError("a line without an end")
            if not self._by_the_system:
                self._connection.settimeout(_left_s(end_s))
            more = self._connection.recv(_AT_ONCE)
            if not more:
                raise EOFError
            parts.append(more)
            size += len(more)
        line, _, self._rest = b"".join(parts).partition(b"\n")
        return json.loads(line)

    def close(self) -> None:
        """End the connection."""
        self._connection.close()


def _interval(seconds: float) -> bytes:
    """A time as the system's sockets take it."""
    if os.name == "nt":
        return struct.pack("I", int(seconds * 1000))
    whole = int(seconds)
    return struct.pack("ll", whole, int((seconds - whole) * 1e6))


def _line(message: Any) -> bytes:
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def _left_s(end_s: float | None) -> float | None:
    if end_s is None:
        return None
    left_s = end_s - time.monotonic()
    if left_s <= 0:
        raise TimeoutError
    return left_s


def told(exc: HoldfastError) -> dict[str, Any]:
    """An error as a message."""
    return {
        "error": {
            "kind": type(exc).__name__,
            "what": exc.what,
            "expected": exc.expected,
            "hint": exc.hint,
        }
    }


def raised(error: Any) -> HoldfastError:
    """The error of a message: of the same class, with the same three parts."""
    kind = getattr(errors, str(error.get("kind")), None)
    ours = isinstance(kind, type) and issubclass(kind, HoldfastError)
    cls: type[HoldfastError] = kind if ours and kind is not None else HoldfastError
    return cls(str(error.get("what")), expected=error.get("expected"), hint=error.get("hint"))

"""Messages over a socket: one JSON object per line, each answered by one line.

    {"ask": "process"}                  {"ok": …}
    {"ask": "set_budget", …}            {"error": {"kind": "BadInput", "what": …, …}}

A line that is too long, not JSON or late ends the connection and nothing else.
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
MAX_REQUEST_BYTES = 64 << 10
MAX_ANSWER_BYTES = 64 << 20
_AT_ONCE = 1 << 16


class Wire:
    """One end of a connection. Not thread-safe."""

    def __init__(self, connection: socket.socket, most_bytes: int) -> None:
        self._connection = connection
        self._most_bytes = most_bytes
        self._rest = b""
        self._has_system_timeouts = False

    def set_system_timeouts(self, receive_s: float, send_s: float) -> None:
        """Use timeouts of the system from now on, per system call; other timeouts are ignored.

        A thread that computes in Python loses the GIL whenever this one returns from waiting: four
        times per line with Python's timeouts, once with the system's.
        """
        self._connection.settimeout(None)
        for option, limit_s in ((socket.SO_RCVTIMEO, receive_s), (socket.SO_SNDTIMEO, send_s)):
            self._connection.setsockopt(socket.SOL_SOCKET, option, _interval(limit_s))
        self._has_system_timeouts = True

    def send(self, message: Any, timeout_s: float) -> None:
        """Send a line. Raises OSError, TimeoutError or BlockingIOError."""
        if not self._has_system_timeouts:
            self._connection.settimeout(timeout_s)
        line = json.dumps(message, separators=(",", ":")).encode() + b"\n"
        self._connection.sendall(line)

    def receive(self, timeout_s: float | None) -> Any:
        """The next message. Raises EOFError at the end, ValueError for an invalid line.

        Raises TimeoutError, or BlockingIOError with timeouts of the system.
        """
        end_s = None if timeout_s is None else time.monotonic() + timeout_s
        parts = [self._rest]
        size = len(self._rest)
        while b"\n" not in parts[-1]:
            if size > self._most_bytes:
                raise ValueError("a line without an end")
            if not self._has_system_timeouts:
                self._connection.settimeout(_left_s(end_s))
            more = self._connection.recv(_AT_ONCE)
            if not more:
                raise EOFError
            parts.append(more)
            size += len(more)
        line, _, self._rest = b"".join(parts).partition(b"\n")
        return json.loads(line)

    def close(self) -> None:
        self._connection.close()


def _interval(seconds: float) -> bytes:
    """Seconds as a struct timeval, or milliseconds on Windows."""
    if os.name == "nt":
        return struct.pack("I", int(seconds * 1000))
    whole = int(seconds)
    return struct.pack("ll", whole, int((seconds - whole) * 1e6))


def _left_s(end_s: float | None) -> float | None:
    if end_s is None:
        return None
    left_s = end_s - time.monotonic()
    if left_s <= 0:
        raise TimeoutError
    return left_s


def error_message(exc: HoldfastError) -> dict[str, Any]:
    """Encode an error as a message."""
    parts = {"what": exc.what, "expected": exc.expected, "hint": exc.hint}
    return {"error": {"kind": type(exc).__name__, **parts}}


def decode_error(error: Any) -> HoldfastError:
    """The error of a message: the same class and the same three parts."""
    cls: Any = getattr(errors, str(error.get("kind")), None)
    if not (isinstance(cls, type) and issubclass(cls, HoldfastError)):
        cls = HoldfastError
    return cls(str(error.get("what")), expected=error.get("expected"), hint=error.get("hint"))

"""ComfyUI's events over its websocket, with the standard library alone.

Covers: the handshake, frames from the server, events as (type, data), previews as bytes.
Promise: nothing is sent after the handshake but answers to pings.
"""

from __future__ import annotations

import base64
import json
import os
import socket
import struct
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

Event = tuple[str, Any]
_TEXT, _BINARY, _CLOSE, _PING = 1, 2, 8, 9
_PREVIEW, _WORDS, _PREVIEW_WITH_METADATA = 1, 3, 4  # kinds of binary messages


class Events:
    """An open connection: iterate for events, or wait `until` one fits."""

    def __init__(self, url: str, client_id: str, timeout: float) -> None:
        at = urlsplit(url)
        self._socket = socket.create_connection((at.hostname, at.port), timeout=timeout)
        self._stream = self._socket.makefile("rb")
        key = base64.b64encode(os.urandom(16)).decode()
        head = (
            f"GET /ws?clientId={client_id} HTTP/1.1\r\nHost: {at.netloc}\r\nUpgrade: websocket\r\n"
            f"Connection: Upgrade\r\nSec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n"
        )
        self._socket.sendall(head.encode())
        status = self._stream.readline()
        if b" 101 " not in status:
            self.close()
            raise ConnectionError(f"ComfyUI opens no websocket: {status!r}")
        while self._stream.readline().strip():
            pass

    def __enter__(self) -> Events:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        self._stream.close()
        self._socket.close()

    def __iter__(self) -> Iterator[Event]:
        """Events as they come, until ComfyUI closes the connection."""
        while True:
            code, data = self._message()
            if code == _CLOSE:
                return
            if code == _TEXT:
                document = json.loads(data)
                yield document["type"], document["data"]
            elif code == _BINARY:
                yield from _binary(data)

    def until(self, fits: Callable[[str, Any], bool]) -> list[Event]:
        """Every event up to the first that fits, which is the last of the list."""
        seen: list[Event] = []
        for event in self:
            seen.append(event)
            if fits(*event):
                return seen
        raise ConnectionError("ComfyUI has closed the connection")

    def until_over(self, prompt_id: str) -> list[Event]:
        """Every event up to the end of a run, however it ended."""
        return self.until(lambda kind, data: kind in _OVER and data["prompt_id"] == prompt_id)

    def _message(self) -> tuple[int, bytes]:
        """A whole message; pings are answered on the way."""
        whole, code = b"", 0
        while True:
            final, kind, data = self._frame()
            if kind == _PING:
                self._socket.sendall(bytes((0x8A, 0x80 | len(data))) + bytes(4) + data)
                continue
            whole, code = whole + data, kind or code
            if final:
                return code, whole

    def _frame(self) -> tuple[bool, int, bytes]:
        first, second = self._read(2)
        size = second & 127
        if size == 126:
            (size,) = struct.unpack(">H", self._read(2))
        elif size == 127:
            (size,) = struct.unpack(">Q", self._read(8))
        return bool(first & 128), first & 15, self._read(size)

    def _read(self, size: int) -> bytes:
        data = self._stream.read(size)
        if len(data) < size:
            raise ConnectionError("ComfyUI has closed the connection")
        return data


_OVER = ("execution_success", "execution_error", "execution_interrupted")


def _binary(data: bytes) -> Iterator[Event]:
    (kind,) = struct.unpack(">I", data[:4])
    if kind == _PREVIEW:
        yield "preview", data[8:]
    elif kind == _PREVIEW_WITH_METADATA:
        (size,) = struct.unpack(">I", data[4:8])
        yield "preview", data[8 + size :]
    elif kind == _WORDS:
        (size,) = struct.unpack(">I", data[4:8])
        yield "text", {"node": data[8 : 8 + size].decode(), "text": data[8 + size :].decode()}
    else:
        yield f"binary {kind}", data[4:]

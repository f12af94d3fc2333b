"""The socket on which a process lets others of its user look at it.

Covers: the thread that lets readers in, one for each reader, their number and their patience; the
end of the process and its forks.
Leaves to others: where the socket is (meeting), what is answered (answering, process).
Promise: a process pays nothing while nobody looks: the thread waits in the system and nothing is
imported for it until the first question. A reader that hangs, says nonsense or does not read what
it asked for is dropped. The threads are no reason for the process to stay.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import socket
import threading
import time
from typing import Any

from holdfast.base.config import Config
from holdfast.dashboard import meeting, wire

THREAD = "holdfast dashboard"
MOST_READERS = 16
PATIENCE_S = 600.0  # with a reader that asks nothing
SECRET_S = 5.0  # until it has said who it is
SENDING_S = 2.0  # for it to read an answer


class _Server:
    """A socket and those who read from it."""

    def __init__(self, opened: meeting.Open) -> None:
        self.opened = opened
        self.pid = os.getpid()
        self._readers: dict[socket.socket, float] = {}  # when each asked last
        self._lock = threading.Lock()
        self._ended = False

    def start(self) -> None:
        threading.Thread(target=self._let_in, name=THREAD, daemon=True).start()

    def _let_in(self) -> None:
        while not self._ended:
            try:
                connection, _ = self.opened.listener.accept()
            except OSError:
                if not self._ended:
                    time.sleep(1.0)  # no file numbers left, perhaps for a moment
                continue
            if not meeting.may_look(connection):
                connection.close()
                continue
            self._add(connection)

    def _add(self, connection: socket.socket) -> None:
        with self._lock:
            if len(self._readers) >= MOST_READERS:
                _end(min(self._readers, key=lambda one: self._readers[one]))
            self._readers[connection] = time.monotonic()
        reader = threading.Thread(
            target=self._read, args=(connection,), name=THREAD + " reader", daemon=True
        )
        try:
            reader.start()
        except RuntimeError:  # no thread to be had
            self._drop(connection)

    def _read(self, connection: socket.socket) -> None:
        speech = wire.Wire(connection, wire.MOST_ASKED_BYTES)
        try:
            if self.opened.secret is not None and not self._knows(speech):
                return
            speech.set_patience(PATIENCE_S, SENDING_S)
            while True:
                message = speech.receive(PATIENCE_S)
                self._readers[connection] = time.monotonic()
                speech.send(_answer(message), SENDING_S)
        except (OSError, EOFError, ValueError, RecursionError):
            return  # it is gone, or it was nonsense
        finally:
            self._drop(connection)

    def _knows(self, speech: wire.Wire) -> bool:
        import hmac

        said = speech.receive(SECRET_S)
        known = said.get("secret") if isinstance(said, dict) else None
        return hmac.compare_digest(str(known).encode(), str(self.opened.secret).encode())

    def _drop(self, connection: socket.socket) -> None:
        with self._lock:
            self._readers.pop(connection, None)
        connection.close()

    def end(self) -> None:
        """Listen no more, and let all readers go."""
        self._ended = True
        with contextlib.suppress(OSError):
            self.opened.listener.shutdown(socket.SHUT_RDWR)  # wakes the thread
        self.opened.close()
        for reader in list(self._readers):
            _end(reader)

    def forget(self) -> None:
        """In the child of a fork: these are the parent's, who goes on with them."""
        self._ended = True
        self.opened.close(remove=False)
        for reader in list(self._readers):
            reader.close()


def _end(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)  # its thread sees the end, and closes it


def _answer(message: Any) -> Any:
    from holdfast.dashboard import answering  # with the first question, not before

    return answering.answer(message)


class _State:
    server: _Server | None = None
    lock = threading.Lock()
    known_at_exit = False


_state = _State()


def offer() -> bool:
    """Let others of this user look at this process. True where they can, also if they could.

    Does nothing where the setting `offer` is off or no folder for the socket can be had.
    """
    with _state.lock:
        if _state.server is not None:
            return True
        config = Config.load()
        if not config.offer:
            return False
        opened = meeting.open_here(config)
        if opened is None:
            return False
        server = _Server(opened)
        try:
            server.start()
        except RuntimeError:  # no thread to be had, as at the very end of a process
            opened.close()
            return False
        _state.server = server
        if not _state.known_at_exit:
            atexit.register(withdraw)
            _state.known_at_exit = True
        return True


def withdraw() -> None:
    """Be looked at no more, until the next `offer`."""
    with _state.lock:
        server, _state.server = _state.server, None
    if server is not None and server.pid == os.getpid():
        server.end()


def is_offered() -> bool:
    """Whether others can look at this process."""
    return _state.server is not None


def _after_fork() -> None:
    server, _state.server = _state.server, None
    _state.lock = threading.Lock()
    if server is not None:
        server.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)

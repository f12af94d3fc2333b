"""The socket on which a process offers its snapshot to other processes of its user.

Costs nothing while nobody connects: the thread waits in the system, and the answering modules are
imported with the first request. A reader that hangs, sends garbage or does not read its answers is
dropped. The threads are daemons and do not keep the process alive.
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
from holdfast.base.threads import register_at_fork
from holdfast.dashboard.ipc import socket_dir, wire

THREAD = "holdfast dashboard"
MOST_READERS = 16
PATIENCE_S = 600.0  # without a request
SECRET_S = 5.0  # until the secret arrives
SENDING_S = 2.0  # to send an answer


class _Server:
    """A listening socket and its readers."""

    def __init__(self, opened: socket_dir.Open) -> None:
        self.opened = opened
        self.pid = os.getpid()
        self._readers: dict[socket.socket, float] = {}  # time of the last request
        self._lock = threading.Lock()
        self._ended = False

    def start(self) -> None:
        threading.Thread(target=self._accept, name=THREAD, daemon=True).start()

    def _accept(self) -> None:
        while not self._ended:
            try:
                connection, _ = self.opened.listener.accept()
            except OSError:
                if not self._ended:
                    time.sleep(1.0)  # out of file descriptors, perhaps temporarily
                continue
            if not socket_dir.is_allowed(connection):
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
        except RuntimeError:  # cannot start a thread
            self._drop(connection)

    def _read(self, connection: socket.socket) -> None:
        speech = wire.Wire(connection, wire.MAX_REQUEST_BYTES)
        try:
            if self.opened.secret is not None and not self._check_secret(speech):
                return
            speech.set_system_timeouts(PATIENCE_S, SENDING_S)
            while True:
                message = speech.receive(PATIENCE_S)
                self._readers[connection] = time.monotonic()
                speech.send(_answer(message), SENDING_S)
        except (OSError, EOFError, ValueError, RecursionError):
            return  # disconnected, or garbage
        finally:
            self._drop(connection)

    def _check_secret(self, speech: wire.Wire) -> bool:
        import hmac

        said = speech.receive(SECRET_S)
        known = said.get("secret") if isinstance(said, dict) else None
        return hmac.compare_digest(str(known).encode(), str(self.opened.secret).encode())

    def _drop(self, connection: socket.socket) -> None:
        with self._lock:
            self._readers.pop(connection, None)
        connection.close()

    def end(self) -> None:
        """Stop listening and disconnect all readers."""
        self._ended = True
        with contextlib.suppress(OSError):
            self.opened.listener.shutdown(socket.SHUT_RDWR)  # wakes the thread
        self.opened.close()
        for reader in list(self._readers):
            _end(reader)

    def forget(self) -> None:
        """In the child of a fork: close the parent's sockets without ending them."""
        self._ended = True
        self.opened.close(remove=False)
        for reader in list(self._readers):
            reader.close()


def _end(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)  # its thread then closes it


def _answer(message: Any) -> Any:
    from holdfast.dashboard.ipc import answers  # not before the first request

    return answers.answer(message)


class _State:
    server: _Server | None = None
    lock = threading.Lock()
    known_at_exit = False


_state = _State()


def offer() -> bool:
    """Offer this process to others of this user. True if it is offered, also from before.

    Does nothing if the setting `offer` is off or no folder for the socket can be used.
    """
    with _state.lock:
        if _state.server is not None:
            return True
        config = Config.load()
        if not config.offer:
            return False
        opened = socket_dir.open_here(config)
        if opened is None:
            return False
        server = _Server(opened)
        try:
            server.start()
        except RuntimeError:  # cannot start a thread, as at interpreter exit
            opened.close()
            return False
        _state.server = server
        if not _state.known_at_exit:
            atexit.register(withdraw)
            _state.known_at_exit = True
        return True


def withdraw() -> None:
    """Stop offering this process, until the next `offer`."""
    with _state.lock:
        server, _state.server = _state.server, None
    if server is not None and server.pid == os.getpid():
        server.end()


def is_offered() -> bool:
    """Whether this process is offered."""
    return _state.server is not None


def _after_fork() -> None:
    server, _state.server = _state.server, None
    _state.lock = threading.Lock()
    if server is not None:
        server.forget()


register_at_fork(after_in_child=_after_fork)

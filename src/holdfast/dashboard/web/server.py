"""The server in a thread of its own, from `start` to `stop`.

`start` raises if it cannot listen. After `stop` the port is free and no stream is open.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

from aiohttp import web

import holdfast
from holdfast.base.errors import BadInput
from holdfast.dashboard.ipc.watching import Watcher, Watches
from holdfast.dashboard.web.answers import ServerNow
from holdfast.dashboard.web.application import application
from holdfast.dashboard.web.feed import Feed
from holdfast.dashboard.web.guard import (
    Guard,
    check_token,
    is_everywhere,
    is_loopback,
    make_token,
)
from holdfast.dashboard.web.sources import Sources
from holdfast.topology import Topology, discover

LOOPBACK, PORT, INTERVAL_S = "127.0.0.1", 8765, 0.5
STARTING_S, STOPPING_S = 20.0, 5.0


class Server(AbstractContextManager["Server"]):
    """Serves the page and the API on one address."""

    def __init__(
        self,
        watcher: Watches,
        *,
        host: str = LOOPBACK,
        port: int = PORT,
        interval_s: float = INTERVAL_S,
        token: str | None = None,
        machine: Callable[[], Topology] = discover,
    ) -> None:
        """Without a token, one is generated if the address is not loopback."""
        self.host, self.port, self.interval_s = host, port, interval_s
        self.token = None if token is None else check_token(token)
        if self.token is None and not is_loopback(host):
            self.token = make_token()
        self._watcher, self._machine = watcher, machine
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ending: asyncio.Event | None = None
        self._address = host
        self._started, self._over = threading.Event(), threading.Event()
        self._trouble: BaseException | None = None

    @property
    def url(self) -> str:
        """Where it listens, without the token."""
        host = _own_address(self.host) if is_everywhere(self.host) else self.host
        return f"http://{_in_brackets(host)}:{self.port}"

    @property
    def url_to_open(self) -> str:
        """The URL to open in a browser, with the token."""
        return f"{self.url}/" + ("" if self.token is None else f"?token={self.token}")

    def start(self) -> None:
        """Listen and serve. Raises BadInput for an unusable address."""
        listening = _listen(self.host, self.port)
        self._address, self.port = listening.getsockname()[:2]
        threading.Thread(
            target=self._run, args=(listening,), name="holdfast-serve", daemon=True
        ).start()
        self._started.wait(STARTING_S)
        self._raise_trouble()

    def wait(self) -> None:
        """Wait until `stop` or an error, which is raised here. Ctrl-C interrupts."""
        self._over.wait()  # not join: Ctrl-C in it would mark the thread as ended
        self._raise_trouble()

    def stop(self) -> None:
        """Stop at once, with all streams. Idempotent and thread-safe."""
        loop, ending = self._loop, self._ending
        if loop is None or ending is None:
            return
        with contextlib.suppress(RuntimeError):  # the loop is already closed
            loop.call_soon_threadsafe(ending.set)
        self._over.wait(STOPPING_S)

    def _raise_trouble(self) -> None:
        if self._trouble is not None:
            raise self._trouble

    def __enter__(self) -> Server:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _run(self, listening: socket.socket) -> None:
        try:
            with listening:
                asyncio.run(self._serve(listening))
        except BaseException as exc:  # noqa: BLE001  raised by start
            self._trouble = exc
        finally:
            self._over.set()
            self._started.set()

    async def _serve(self, listening: socket.socket) -> None:
        self._loop, self._ending = asyncio.get_running_loop(), asyncio.Event()
        feed = Feed(self._watcher.look, self.interval_s)
        now = ServerNow(os.getpid(), time.time(), holdfast.__version__)
        sources = Sources(self._watcher, self._machine, feed, now)
        guard = Guard(self._address, self.port, self.token, self.host)
        runner = web.AppRunner(
            application(sources, guard), access_log=None, shutdown_timeout=0.5, keepalive_timeout=30
        )
        await runner.setup()
        await web.SockSite(runner, listening).start()
        looking = asyncio.create_task(feed.run())
        self._started.set()
        await self._until_it_ends(looking)
        feed.end()
        await runner.cleanup()
        feed.close()
        sources.close()

    async def _until_it_ends(self, looking: asyncio.Task[None]) -> None:
        """Wait for `stop`; an unexpected error of the feed ends the server too."""
        assert self._ending is not None
        ending = asyncio.create_task(self._ending.wait())
        await asyncio.wait([looking, ending], return_when=asyncio.FIRST_COMPLETED)
        ending.cancel()
        while not looking.done():  # before Python 3.12, wait may lose a cancellation
            looking.cancel()
            await asyncio.wait([looking], timeout=0.05)
        if not looking.cancelled():
            looking.result()


@contextlib.contextmanager
def serving(watcher: Watches | None = None, *, port: int = 0, **options: Any) -> Iterator[Server]:
    """Serve while the block runs; without a watcher, all processes are watched.

    The options are those of `Server`.
    """
    with contextlib.ExitStack() as stack:
        seen = stack.enter_context(Watcher()) if watcher is None else watcher
        yield stack.enter_context(Server(seen, port=port, **options))


# ---- addresses


def _listen(host: str, port: int) -> socket.socket:
    family, address = _resolve(host, port)
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        if os.name == "posix":
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(128)
    except OSError as exc:
        listening.close()
        raise _cannot_listen(host, port, exc) from exc
    listening.setblocking(False)
    return listening


def _resolve(host: str, port: int) -> tuple[int, Any]:
    name = LOOPBACK if host.lower() == "localhost" else host.strip("[]")
    try:
        if not name:
            raise ValueError("empty")  # would mean every address
        found = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, ValueError) as exc:
        raise BadInput(
            f"cannot listen on {host!r}: no such address",
            expected="an address or a name of this machine",
            hint=f"--host {LOOPBACK}",
        ) from exc
    family, _, _, _, address = found[0]
    return family, address


def _cannot_listen(host: str, port: int, exc: OSError) -> BadInput:
    why, expected, hint = exc.strerror, "an address of this machine", f"--host {LOOPBACK}"
    if exc.errno == errno.EADDRINUSE:
        why, expected = "another program listens there", "a port that is free"
        hint = f"--port {_free_port(host, port)}, or --port 0 for any that is free"
    elif exc.errno == errno.EACCES:
        why, expected = "the system does not allow it", "a port from 1024 on"
        hint = "--port 0"
    what = f"cannot listen on {_in_brackets(host)}:{port}: {why}"
    return BadInput(what, expected=expected, hint=hint)


def _free_port(host: str, port: int) -> int:
    """One of the next ports that is free, else any."""
    for candidate in [*range(port + 1, min(port + 20, 65_536)), 0]:
        family, address = _resolve(host, candidate)
        with socket.socket(family, socket.SOCK_STREAM) as trial, contextlib.suppress(OSError):
            trial.bind(address)
            return trial.getsockname()[1]
    return 0


def _in_brackets(host: str) -> str:
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def _own_address(host: str) -> str:
    """An address of this machine that others can reach."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    away = ("2001:db8::1", 9) if family == socket.AF_INET6 else ("192.0.2.1", 9)
    with socket.socket(family, socket.SOCK_DGRAM) as probe, contextlib.suppress(OSError):
        probe.connect(away)  # sends nothing; only selects a route
        return probe.getsockname()[0]
    return socket.gethostname()

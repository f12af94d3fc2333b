"""Connect to another process of this user: read its snapshot, send it requests.

    for offer in offers():
        with Attached(offer.pid) as attached:
            print(attached.process().rss_bytes)

Errors of the other process are raised here with the same class and parts. A process that ends
raises NotFound, one that does not answer in time OutOfTime.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from holdfast.base.codec import decode
from holdfast.base.errors import NotFound, OutOfTime, Unsupported
from holdfast.dashboard.ipc import socket_dir, wire
from holdfast.dashboard.snapshot import process_names
from holdfast.dashboard.snapshot.snapshot import (
    Freed,
    Holder,
    LeakFound,
    LeakState,
    ModelUse,
    Process,
)

LONG_S = 120.0  # for slow requests: leaks, freeing
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Offer:
    """A process of this user that offers its snapshot."""

    pid: int
    name: str
    began_s: float


def offers() -> tuple[Offer, ...]:
    """Processes that offer a snapshot, by pid. Removes socket files of dead ones.

    Raises Unsupported if the socket folder is accessible to other users.
    """
    found = {pid: file for pid, file in socket_dir.socket_files() if socket_dir.is_alive(pid, file)}
    return tuple(
        Offer(
            pid, process_names.name_of(pid) or f"process {pid}", process_names.began_s(pid) or 0.0
        )
        for pid in sorted(found)
    )


class Attached(contextlib.AbstractContextManager["Attached"]):
    """A connection to a process. Not thread-safe.

    Raises NotFound if there is no such process or it offers nothing, Unsupported for one of
    another user or another version, OutOfTime.
    """

    def __init__(self, pid: int, timeout_s: float = 5.0) -> None:
        self.pid = pid
        self.timeout_s = timeout_s
        self._wire: wire.Wire | None = None
        self._pending = 0  # requests not answered yet
        self._connect()

    # ---- questions

    def process(self) -> Process:
        self.ask_for_process()
        return self.receive_process()

    def ask_for_process(self) -> None:
        """Send the request of `process`, so that several processes can be asked at once."""
        self._send({"ask": "look" if process_names.ON_LINUX else "process"})

    def receive_process(self, timeout_s: float | None = None) -> Process:
        """Receive the answer to `ask_for_process`."""
        found = self._receive(self.timeout_s if timeout_s is None else timeout_s)
        if process_names.ON_LINUX:
            found["rss_bytes"] = process_names.rss_bytes(self.pid)
        return decode(Process, found)

    def holders(self, most: int = 50) -> tuple[Holder, ...]:
        """Its largest blocks in use."""
        return tuple(decode(Holder, one) for one in self._ask("holders", most=most))

    def leaks(self) -> tuple[LeakFound, ...]:
        """Search for leaks now. Raises Misuse without debugging."""
        return tuple(decode(LeakFound, one) for one in self._ask("leaks"))

    def set_debugging(self, on: bool) -> LeakState:
        """Switch its memory debugging on or off."""
        return decode(LeakState, self._ask("set_debugging", on=on))

    def free(self, *, caches: bool = True, models: bool = False, garbage: bool = True) -> Freed:
        """Make it free memory."""
        return decode(Freed, self._ask("free", caches=caches, models=models, garbage=garbage))

    def set_budget(self, model_id: str, budget_bytes: int | None) -> ModelUse:
        """Change the budget of one of its models; None is no limit.

        Raises NotFound, Unsupported for a model without one, BadInput for one that is too small.
        """
        answer = self._ask("set_budget", model_id=model_id, budget_bytes=budget_bytes)
        return decode(ModelUse, answer)

    def interrupt(self) -> bool:
        """Stop its current run; False if there is none."""
        return bool(self._ask("interrupt"))

    def close(self) -> None:
        if self._wire is not None:
            self._wire.close()
            self._wire = None
        self._pending = 0

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- the connection

    def _ask(self, ask: str, **arguments: Any) -> Any:
        self._send({"ask": ask, **arguments})
        return self._receive(max(LONG_S, self.timeout_s))

    def _send(self, message: dict[str, Any]) -> None:
        if self._wire is None or self._pending:
            self.close()  # else a late answer would be taken for the next one
            self._connect()
        assert self._wire is not None
        with self._explain_errors(self.timeout_s):
            self._wire.send(message, self.timeout_s)
        self._pending += 1

    def _receive(self, timeout_s: float) -> Any:
        if self._wire is None:
            raise self._process_ended()
        with self._explain_errors(timeout_s):
            answer = self._wire.receive(timeout_s)
        self._pending -= 1
        if isinstance(answer, dict) and isinstance(answer.get("error"), dict):
            raise wire.decode_error(answer["error"])
        if not isinstance(answer, dict) or "ok" not in answer:
            raise self._strange()
        return answer["ok"]

    def _connect(self) -> None:
        file = self._file()
        with self._explain_errors(self.timeout_s):
            connection, secret = socket_dir.connect(file, self.timeout_s)
            self._wire = wire.Wire(connection, wire.MAX_ANSWER_BYTES)
            if secret is not None:
                self._wire.send({"secret": secret}, self.timeout_s)
            self._wire.send({"ask": "hello"}, self.timeout_s)
        self._pending = 1
        try:
            self._check(self._receive(self.timeout_s))
        except BaseException:
            self.close()
            raise

    def _check(self, hello: Any) -> None:
        if hello.get("protocol") != wire.PROTOCOL or hello.get("pid") != self.pid:
            raise Unsupported(
                f"cannot look at process {self.pid}: it runs Holdfast {hello.get('holdfast')}",
                expected="the version that runs here",
                hint="the same version of Holdfast for both",
            )

    def _file(self) -> Path:
        files = [file for pid, file in socket_dir.socket_files() if pid == self.pid]
        if not files:
            raise _not_offered(self.pid)
        return files[0]

    @contextlib.contextmanager
    def _explain_errors(self, timeout_s: float) -> Any:
        """Translate connection errors; closes the connection."""
        try:
            yield
        except (TimeoutError, BlockingIOError) as exc:
            self.close()
            raise OutOfTime(
                f"process {self.pid} did not answer within {timeout_s:g} s",
                expected="a process that runs",
                hint="try again; it may be stopped, or busy in a library that holds the GIL",
            ) from exc
        except (OSError, EOFError) as exc:
            self.close()
            raise self._process_ended() from exc
        except ValueError as exc:
            self.close()
            raise self._strange() from exc

    def _process_ended(self) -> NotFound:
        return NotFound(f"process {self.pid} has ended", expected="a process that runs")

    def _strange(self) -> Unsupported:
        return Unsupported(
            f"cannot understand process {self.pid}", hint="the same version of Holdfast for both"
        )


def _not_offered(pid: int) -> NotFound | Unsupported:
    owner = _owner(pid)
    if owner is None:
        return NotFound(
            f"there is no process {pid}",
            expected="the number of a process that runs",
            hint="holdfast top --once, which lists them",
        )
    if hasattr(os, "getuid") and owner not in (os.getuid(), -1):
        return Unsupported(
            f"cannot look at process {pid}: it is another user's",
            expected="a process of this user's",
        )
    return NotFound(
        f"process {pid} offers nothing to look at",
        expected="a process that uses Holdfast",
        hint="HOLDFAST_OFFER=1 when it is started, if it was 0",
    )


def _owner(pid: int) -> int | None:
    """User id of a process, -1 if unknown; None if there is no such process."""
    if not socket_dir.exists(pid):
        return None
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}").stat().st_uid
    import psutil

    try:
        return psutil.Process(pid).uids().real if os.name == "posix" else -1
    except psutil.AccessDenied:
        return -1
    except (psutil.Error, ValueError):
        return None

"""Looking at another process of this user, and asking it to do something.

    for offer in offers():
        with Attached(offer.pid) as attached:
            print(attached.process().rss_bytes)

Covers: which processes can be looked at, one connection to one of them.
Leaves to others: several at once (watching), the other side (offering, answering).
Promise: errors of the other process are raised here, of the same class and with the same three
parts. A process that ends is NotFound, one that does not answer in time OutOfTime.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from holdfast.base.codec import decode
from holdfast.base.errors import NotFound, OutOfTime, Unsupported
from holdfast.dashboard import meeting, naming, wire
from holdfast.dashboard.snapshot import Freed, Holder, LeakFound, LeakState, ModelUse, Process

LONG_S = 120.0  # for what may take long: leaks, freeing
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Offer:
    """A process of this user that can be looked at."""

    pid: int
    name: str
    began_s: float


def offers() -> tuple[Offer, ...]:
    """The processes that can be looked at, by their numbers. Files of dead ones are removed.

    Raises Unsupported where the folder in which they meet is not this user's alone.
    """
    found = {pid: file for pid, file in meeting.meetings() if meeting.is_alive(pid, file)}
    return tuple(
        Offer(pid, naming.name_of(pid) or f"process {pid}", naming.began_s(pid) or 0.0)
        for pid in sorted(found)
    )


class Attached(contextlib.AbstractContextManager["Attached"]):
    """A connection to a process. Not for several threads at once.

    Raises NotFound where there is no such process or it offers nothing, Unsupported for one of
    another user or another version, OutOfTime.
    """

    def __init__(self, pid: int, timeout_s: float = 5.0) -> None:
        self.pid = pid
        self.timeout_s = timeout_s
        self._wire: wire.Wire | None = None
        self._owed = 0  # answers that are to come
        self._connect()

    # ---- questions

    def process(self) -> Process:
        """The process now."""
        self.ask_for_process()
        return self.told_process()

    def ask_for_process(self) -> None:
        """The first half of `process`, for those who ask several at once."""
        self._send({"ask": "look" if naming.ON_LINUX else "process"})

    def told_process(self, timeout_s: float | None = None) -> Process:
        """The second half."""
        found = self._receive(self.timeout_s if timeout_s is None else timeout_s)
        if naming.ON_LINUX:
            found["rss_bytes"] = naming.rss_bytes(self.pid)
        return decode(Process, found)

    def holders(self, most: int = 50) -> tuple[Holder, ...]:
        """Its largest blocks in use."""
        return tuple(decode(Holder, one) for one in self._ask("holders", most=most))

    def leaks(self) -> tuple[LeakFound, ...]:
        """Blocks that outlived their code, looked for now. Raises Misuse without debugging."""
        return tuple(decode(LeakFound, one) for one in self._ask("leaks"))

    def set_debugging(self, on: bool) -> LeakState:
        """Have it record where blocks come from, or no more."""
        return decode(LeakState, self._ask("set_debugging", on=on))

    def free(self, *, caches: bool = True, models: bool = False, garbage: bool = True) -> Freed:
        """Have it give memory back."""
        return decode(Freed, self._ask("free", caches=caches, models=models, garbage=garbage))

    def set_budget(self, model_id: str, budget_bytes: int | None) -> ModelUse:
        """Change the budget of one of its models; None is all there is on the device.

        Raises NotFound, Unsupported for a model without one, BadInput for one that is too small.
        """
        told = self._ask("set_budget", model_id=model_id, budget_bytes=budget_bytes)
        return decode(ModelUse, told)

    def interrupt(self) -> bool:
        """Stop the run under way; False where there is none."""
        return bool(self._ask("interrupt"))

    def close(self) -> None:
        """End the connection."""
        if self._wire is not None:
            self._wire.close()
            self._wire = None
        self._owed = 0

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- the connection

    def _ask(self, ask: str, **arguments: Any) -> Any:
        self._send({"ask": ask, **arguments})
        return self._receive(max(LONG_S, self.timeout_s))

    def _send(self, message: dict[str, Any]) -> None:
        if self._wire is None or self._owed:
            self.close()  # an answer that nobody waited for would be taken for the next one's
            self._connect()
        assert self._wire is not None
        with self._explained(self.timeout_s):
            self._wire.send(message, self.timeout_s)
        self._owed += 1

    def _receive(self, timeout_s: float) -> Any:
        if self._wire is None:
            raise self._ended()
        with self._explained(timeout_s):
            answer = self._wire.receive(timeout_s)
        self._owed -= 1
        if isinstance(answer, dict) and isinstance(answer.get("error"), dict):
            raise wire.raised(answer["error"])
        if not isinstance(answer, dict) or "ok" not in answer:
            raise self._strange()
        return answer["ok"]

    def _connect(self) -> None:
        file = self._file()
        with self._explained(self.timeout_s):
            connection, secret = meeting.connect(file, self.timeout_s)
            self._wire = wire.Wire(connection, wire.MOST_TOLD_BYTES)
            if secret is not None:
                self._wire.send({"secret": secret}, self.timeout_s)
            self._wire.send({"ask": "hello"}, self.timeout_s)
        self._owed = 1
        try:
            self._check(self._receive(self.timeout_s))
        except BaseException:
            self.close()
            raise

    def _check(self, said: Any) -> None:
        """Raises Unsupported for a process that speaks otherwise."""
        if said.get("protocol") != wire.PROTOCOL or said.get("pid") != self.pid:
            raise Unsupported(
                f"cannot look at process {self.pid}: it runs Holdfast {said.get('holdfast')}",
                expected="the version that runs here",
                hint="the same version of Holdfast for both",
            )

    def _file(self) -> Path:
        files = [file for pid, file in meeting.meetings() if pid == self.pid]
        if not files:
            raise _absent(self.pid)
        return files[0]

    @contextlib.contextmanager
    def _explained(self, timeout_s: float) -> Any:
        """What can go wrong with a connection, in Holdfast's words; it is over then."""
        try:
            yield
        except (TimeoutError, BlockingIOError) as exc:
            self.close()
            raise OutOfTime(
                f"process {self.pid} did not answer within {timeout_s:g} s",
                expected="a process that runs",
                hint="try again; it may be stopped, or busy in a library that lets nobody else in",
            ) from exc
        except (OSError, EOFError) as exc:
            self.close()
            raise self._ended() from exc
        except ValueError as exc:
            self.close()
            raise self._strange() from exc

    def _ended(self) -> NotFound:
        return NotFound(f"process {self.pid} has ended", expected="a process that runs")

    def _strange(self) -> Unsupported:
        return Unsupported(
            f"cannot understand process {self.pid}", hint="the same version of Holdfast for both"
        )


def _absent(pid: int) -> NotFound | Unsupported:
    """Why a process cannot be looked at."""
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
    """The user whose process it is, -1 where that is not told; None for no process."""
    if os.name == "posix":
        try:
            os.kill(pid, 0)
        except (ProcessLookupError, OverflowError):
            return None
        except OSError:
            pass
    try:
        return Path(f"/proc/{pid}").stat().st_uid
    except OSError:
        pass
    import psutil

    try:
        return psutil.Process(pid).uids().real if os.name == "posix" else -1
    except psutil.AccessDenied:
        return -1
    except (psutil.Error, ValueError):
        return None

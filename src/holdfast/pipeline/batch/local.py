"""Workers in processes of this machine, one for each GPU or as many as asked for.

Covers: starting, talking, noticing death; the child's side.
Leaves to others: what a worker does (workers).
Promise: a child ignores Ctrl-C, which is its parent's to act on, and ends by itself when its parent
is gone, however that went.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.connection
import os
import signal
import sys
import threading
from collections.abc import Sequence
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess

from holdfast.pipeline.batch.ctrl_c import ctrl_c_later, unblock
from holdfast.pipeline.batch.workers import Answer, Crew, Died, Load, Order, Painter, Watch
from holdfast.pipeline.devices import cards
from holdfast.pipeline.progress import Event

WAIT_S = 0.5
# Kinds of devices of which a machine can have several, in the order of `auto`.
NUMBERED = ("cuda", "xpu")
_SPAWN = multiprocessing.get_context("spawn")


class Local(Crew):
    """A process for each of `devices`; name one several times to have several on it."""

    def __init__(self, load: Load, devices: Sequence[str]) -> None:
        super().__init__(len(devices))
        self._load, self._devices = load, devices
        self._processes: dict[int, SpawnProcess] = {}
        self._wires: dict[int, Connection] = {}

    def _start(self, worker: int) -> None:
        ours, theirs = _SPAWN.Pipe()
        threads = max(1, (os.cpu_count() or 1) // self.count)
        process = _SPAWN.Process(
            target=serve,
            args=(self._load, self._devices[worker], threads, theirs),
            name=f"holdfast-worker-{worker}",
            daemon=True,
        )
        _start_tracker()
        with ctrl_c_later():
            process.start()
            self._processes[worker], self._wires[worker] = process, ours
        theirs.close()  # or the end of the child would not be seen

    def _send(self, worker: int, order: Order) -> None:
        with contextlib.suppress(OSError):  # dead: `_receive` tells
            self._wires[worker].send(order)

    def _receive(self, watch: Watch) -> list[tuple[int, Answer]]:
        multiprocessing.connection.wait(list(self._wires.values()), WAIT_S)
        answers: list[tuple[int, Answer]] = []
        for worker in list(self._wires):
            # Asked first, so that what it said before it died is certainly in the wire.
            alive = self._processes[worker].exitcode is None
            said, open_wire = self._listen(worker, watch)
            answers += [(worker, answer) for answer in said]
            if not (alive and open_wire):
                answers.append((worker, Died(self._bury(worker))))
        return answers

    def _dismiss(self, worker: int) -> None:
        self._bury(worker)

    def _listen(self, worker: int, watch: Watch) -> tuple[list[Answer], bool]:
        """All that a worker has said, and whether it can say more."""
        wire = self._wires[worker]
        answers: list[Answer] = []
        try:
            while wire.poll():
                said = wire.recv()
                if isinstance(said, Event):
                    watch(worker, said)
                else:
                    answers.append(said)
        except (EOFError, OSError):
            return answers, False
        return answers, True

    def _bury(self, worker: int) -> str:
        """Take a worker off the books; how it ended."""
        process = self._processes.pop(worker)
        self._wires.pop(worker).close()
        process.kill()
        process.join()
        code = process.exitcode or 0
        process.close()
        return f"it was ended by signal {-code}" if code < 0 else f"it ended with status {code}"

    def __exit__(self, *_: object) -> None:
        for process in self._processes.values():
            process.kill()
        for worker in list(self._processes):
            self._bury(worker)


def gpus(wanted: str = "auto") -> list[str]:
    """The GPUs of the wanted kind that torch sees, as device names; none of a kind without numbers.

    "auto" is the first kind of which there are any.
    """
    for kind in NUMBERED if wanted == "auto" else [k for k in NUMBERED if k == wanted]:
        names = [card.name for card in cards(kind)]
        if names:
            return names
    return []


def serve(load: Load, device: str, threads: int, wire: Connection) -> None:
    """The child: answer orders until there are no more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    unblock()
    threading.Thread(target=_end_with_the_parent, daemon=True).start()
    os.dup2(2, 1)  # standard output is the command's, and libraries print as they like
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))  # read when torch is imported
    painter = Painter(load, device)
    with contextlib.suppress(EOFError, OSError):
        while True:
            wire.send(painter.answer(wire.recv(), wire.send))


def _end_with_the_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _start_tracker() -> None:
    """What `multiprocessing` starts next to the first child: it would unblock Ctrl-C meanwhile."""
    if sys.platform != "win32":
        from multiprocessing import resource_tracker

        resource_tracker.ensure_running()

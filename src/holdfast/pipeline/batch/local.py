"""Workers in processes of this machine, one for each GPU or as many as asked for.

A child ignores Ctrl-C, which its parent handles, and exits when its parent is gone.
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
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess

from holdfast.pipeline.batch.ctrl_c import delay_ctrl_c, unblock
from holdfast.pipeline.batch.workers import Answer, Died, Load, Order, Watch, Worker, WorkerPool
from holdfast.pipeline.devices.device import cards
from holdfast.pipeline.run.progress import Event

WAIT_S = 0.5
# Device kinds of which a machine can have several, in the order of `auto`.
NUMBERED = ("cuda", "xpu")
_SPAWN = multiprocessing.get_context("spawn")


class LocalProcesses(WorkerPool):
    """A process for each entry of `devices`; an entry may repeat."""

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
        if sys.platform != "win32":  # starting multiprocessing's tracker later would unblock Ctrl-C
            resource_tracker.ensure_running()
        with delay_ctrl_c():
            process.start()
            self._processes[worker], self._wires[worker] = process, ours
        theirs.close()  # else the child's exit would not be seen

    def _send(self, worker: int, order: Order) -> None:
        with contextlib.suppress(OSError):  # dead: `_receive` reports it
            self._wires[worker].send(order)

    def _receive(self, watch: Watch) -> list[tuple[int, Answer]]:
        multiprocessing.connection.wait(list(self._wires.values()), WAIT_S)
        answers: list[tuple[int, Answer]] = []
        for worker in list(self._wires):
            # Checked first: all that a dead worker sent is in the pipe by now.
            alive = self._processes[worker].exitcode is None
            wire = self._wires[worker]
            try:
                while wire.poll():
                    message = wire.recv()
                    if isinstance(message, Event):
                        watch(worker, message)
                    else:
                        answers.append((worker, message))
            except (EOFError, OSError):
                alive = False
            if not alive:
                answers.append((worker, Died(self._remove(worker))))
        return answers

    def _dismiss(self, worker: int) -> None:
        self._remove(worker)

    def _remove(self, worker: int) -> str:
        """Remove a worker; returns how it ended."""
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
            self._remove(worker)


def gpus(wanted: str = "auto") -> list[str]:
    """Device names of the GPUs of the wanted kind; "auto" is the first kind with any.

    Empty for kinds without an index.
    """
    for kind in NUMBERED if wanted == "auto" else [k for k in NUMBERED if k == wanted]:
        names = [card.name for card in cards(kind)]
        if names:
            return names
    return []


def serve(load: Load, device: str, threads: int, wire: Connection) -> None:
    """Main function of the child: answer orders until the connection closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    unblock()
    threading.Thread(target=_end_with_the_parent, daemon=True).start()
    os.dup2(2, 1)  # standard output belongs to the command; libraries may print
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))  # read when torch is imported
    worker = Worker(load, device)
    with contextlib.suppress(EOFError, OSError):
        while True:
            wire.send(worker.answer(wire.recv(), wire.send))


def _end_with_the_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)

"""Files for the workers of pytest-xdist: each file to one worker, one after the other.

xdist's own `loadfile` waits forever when a worker crashes at the wrong moment, and runs the test
that crashed again. Here the test that crashed is reported once, and what the worker had left goes
back to the queue for the worker that replaces it.
A worker runs a test when it knows the next one, so each is kept two tests ahead.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from typing import Any, NoReturn

TOGETHER = "tests/comfyui/"  # they share one server
SAME_GUEST = "tests/memory/svm/test_guest.py", "tests/memory/svm/test_process.py"


def file_of(nodeid: str) -> str:
    """What stays on one worker: a file, or files that share what takes long to start."""
    if nodeid.startswith(TOGETHER):
        return TOGETHER
    file = nodeid.partition("::")[0]
    return SAME_GUEST[0] if file in SAME_GUEST else file


class FileQueue:
    """The scheduler that pytest-xdist asks for (`xdist.scheduler.Scheduling`).

    Tests go by their number in the collection: ids may occur twice.
    """

    def __init__(self, workers: int, within_s: float | None = None) -> None:
        self.numnodes = workers
        self.within_s = within_s  # after that no file is begun
        self._begin = time.monotonic()
        self._collection: list[str] = []
        self._collected: set[Any] = set()  # workers
        self._queue: deque[list[int]] | None = None  # tests of a file; None until all collected
        self._pending: dict[Any, list[int]] = {}  # sent and not complete, in order

    # ---- workers

    @property
    def nodes(self) -> list[Any]:
        """The workers that are there."""
        return list(self._pending)

    def add_node(self, node: Any) -> None:
        """A worker has started."""
        self._pending[node] = []

    def add_node_collection(self, node: Any, collection: Sequence[str]) -> None:
        """A worker has collected these tests. Raises RuntimeError if others found other ones."""
        if self._collection and list(collection) != self._collection:
            other = set(collection).symmetric_difference(self._collection)
            raise RuntimeError(f"workers collected different tests: {sorted(other)[:9] or 'order'}")
        self._collection = list(collection)
        self._collected.add(node)

    def remove_node(self, node: Any) -> str | None:
        """A worker is gone; the test that it was running, if any. Raises KeyError."""
        pending = self._pending.pop(node)
        self._collected.discard(node)
        if not pending:
            return None
        crashed, *left = pending
        if left and self._queue is not None:
            self._queue.appendleft(left)
        return self._collection[crashed]

    # ---- tests

    @property
    def collection_is_completed(self) -> bool:
        """Whether the workers of the beginning have collected, or some that replace them."""
        return self._queue is not None or len(self._collected) >= self.numnodes

    @property
    def has_pending(self) -> bool:
        """Whether tests are left or running."""
        return bool(self._queue) or any(self._pending.values())

    @property
    def tests_finished(self) -> bool:
        """Whether a worker has at most its last test, which it runs when it is shut down."""
        return (
            self._queue is not None
            and not self._queue
            and all(len(pending) < 2 for pending in self._pending.values())
        )

    def schedule(self) -> None:
        """Give work to every worker that has collected."""
        if self._queue is None:
            files: dict[str, list[int]] = {}
            for number, nodeid in enumerate(self._collection):
                files.setdefault(file_of(nodeid), []).append(number)
            self._queue = deque(files.values())
        for node in self.nodes:
            if node in self._collected:
                self._give(node)

    def mark_test_complete(self, node: Any, item_index: int, duration: float = 0) -> None:
        """A worker has run a test."""
        self._pending[node].remove(item_index)
        self._give(node)

    def _give(self, node: Any) -> None:
        """Send files until a worker has the next test too; shut it down when none are left."""
        assert self._queue is not None
        if node.shutting_down:
            return
        if self.within_s is not None and time.monotonic() - self._begin > self.within_s:
            self._queue.clear()
        pending = self._pending[node]
        while len(pending) < 2 and self._queue:
            file = self._queue.popleft()
            pending.extend(file)
            node.send_runtest_some(file)
        if len(pending) < 2:
            node.shutdown()

    # ---- what only other schedulers do

    def mark_test_pending(self, item: str) -> NoReturn:
        raise NotImplementedError

    def remove_pending_tests_from_node(self, node: Any, indices: Sequence[int]) -> NoReturn:
        raise NotImplementedError

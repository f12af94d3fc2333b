"""Files for workers: each once, in order, also when workers crash."""

from __future__ import annotations

import random

import pytest

from tests.harness.scheduling import TOGETHER, FileQueue

TESTS = [
    *(f"{TOGETHER}test_{name}.py::test_{n}" for name in "ab" for n in range(2)),
    *(f"tests/test_{name}.py::test_{n}" for name in "cdef" for n in range(3)),
    *["tests/test_g.py::same"] * 3,
]


class Worker:
    """What xdist's controller of a worker has."""

    def __init__(self) -> None:
        self.sent: list[int] = []
        self.shutting_down = False

    def send_runtest_some(self, indices: list[int]) -> None:
        assert not self.shutting_down
        self.sent += indices

    def shutdown(self) -> None:
        self.shutting_down = True

    @property
    def can_run(self) -> bool:
        """It runs a test when it knows the next one, or that there is none."""
        return len(self.sent) >= (1 if self.shutting_down else 2)


def start(queue: FileQueue) -> Worker:
    worker = Worker()
    queue.add_node(worker)
    queue.add_node_collection(worker, TESTS)
    if queue.collection_is_completed:
        queue.schedule()
    return worker


def complete(queue: FileQueue, worker: Worker) -> str:
    number = worker.sent.pop(0)
    queue.mark_test_complete(worker, number)
    return TESTS[number]


@pytest.mark.parametrize("workers", [1, 2, 4])
@pytest.mark.parametrize("seed", range(8))
def test_every_test_runs_once_though_workers_crash(workers: int, seed: int) -> None:
    """As xdist's loop has it: a worker that crashed is replaced by a new one."""
    draw, queue = random.Random(seed), FileQueue(workers)
    alive = [start(queue) for _ in range(workers)]
    ran: list[str] = []
    while queue.has_pending:
        able = [worker for worker in alive if worker.can_run]
        assert able, "nobody can go on"
        worker = draw.choice(able)
        if draw.random() < 0.2:
            crashed = queue.remove_node(worker)
            assert crashed == TESTS[worker.sent[0]]
            ran.append(crashed)
            alive[alive.index(worker)] = start(queue)
        else:
            ran.append(complete(queue, worker))
    assert sorted(ran) == sorted(TESTS)
    assert queue.tests_finished


def test_tests_of_one_file_and_of_comfyui_stay_on_one_worker() -> None:
    queue = FileQueue(2)
    first, second = start(queue), start(queue)
    assert [TESTS[n] for n in first.sent] == TESTS[:4]
    assert [TESTS[n] for n in second.sent] == TESTS[4:7]


def test_a_worker_that_dies_before_it_collected_is_no_loss() -> None:
    queue = FileQueue(2)
    early = Worker()
    queue.add_node(early)
    other = start(queue)
    assert other.sent == []
    assert queue.remove_node(early) is None
    start(queue)
    assert other.sent
    with pytest.raises(KeyError):
        queue.remove_node(early)


def test_workers_that_collect_other_tests_end_the_run() -> None:
    queue = FileQueue(2)
    start(queue)
    queue.add_node(other := Worker())
    with pytest.raises(RuntimeError, match=r"different tests: \['tests/x.py::y'\]"):
        queue.add_node_collection(other, [*TESTS, "tests/x.py::y"])


def test_no_file_is_begun_when_the_time_is_over() -> None:
    queue = FileQueue(1, within_s=-1)
    worker = start(queue)
    assert (worker.sent, worker.shutting_down, queue.tests_finished) == ([], True, True)

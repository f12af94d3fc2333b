"""Binding threads, each case in a process of its own: the one that tests is never left bound."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from holdfast.base.errors import Unsupported
from holdfast.memory.svm import affinity
from tests.needs import needs

CPUS = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
TOO_FEW = "binding threads needs Linux and two CPUs" if len(CPUS) < 2 else None
pytestmark = needs(TOO_FEW)

HEAD = """
import os, threading
from holdfast.base.errors import HoldfastError
from holdfast.memory.svm import affinity

BOTH = set(sorted(os.sched_getaffinity(0))[:2])
os.sched_setaffinity(0, BOTH)
first, second = sorted(BOTH)
FIRST, SECOND = {first}, {second}


class Worker:
    "A thread that does as it is told; a case that fails does not wait for it."

    def __init__(self):
        self.calls, self.asked, self.done = [], threading.Semaphore(0), threading.Semaphore(0)
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()
        self.tid = self.ask(threading.get_native_id)

    def run(self):
        while True:
            self.asked.acquire()
            call = self.calls.pop()
            if call is None:
                return
            self.result = call()
            self.done.release()

    def ask(self, call):
        self.calls.append(call)
        self.asked.release()
        self.done.acquire()
        return self.result

    def end(self):
        self.calls.append(None)
        self.asked.release()
        self.thread.join()
        while os.path.exists(f"/proc/self/task/{self.tid}"):
            pass

    @property
    def mask(self):
        return os.sched_getaffinity(self.tid)


def mine():
    return os.sched_getaffinity(0)


def forgotten():
    kept = ("_grants", "_before", "_applied", "_strangers", "_anywhere")
    return not any(getattr(affinity, name) for name in kept)


"""


@pytest.fixture
def bound(script: Callable[..., str]) -> Callable[[str], None]:
    """Run a case and see that it came to its end."""

    def run(case: str) -> None:
        assert script(f"{HEAD}{case}\nprint('to the end')\n", timeout_s=60) == "to the end\n"

    return run


def test_every_thread_is_bound_and_given_back(bound: Callable[[str], None]) -> None:
    bound("""
workers = [Worker() for _ in range(3)]
grant = affinity.bind([first])
assert grant.cpus == FIRST
assert grant.bound_threads == 4, grant.bound_threads
assert mine() == FIRST
assert [w.mask for w in workers] == [FIRST] * 3
grant.release()
assert mine() == BOTH
assert [w.mask for w in workers] == [BOTH] * 3
assert forgotten()
[w.end() for w in workers]
""")


def test_a_thread_that_begins_meanwhile_is_bound_and_freed_too(
    bound: Callable[[str], None],
) -> None:
    bound("""
grant = affinity.bind([second])
worker = Worker()
assert worker.mask == SECOND
grant.release()
assert worker.mask == BOTH
worker.end()
""")


def test_several_grants_give_the_cpus_of_all(bound: Callable[[str], None]) -> None:
    bound("""
worker = Worker()
one = affinity.bind([first])
two = affinity.bind([second])
three = affinity.bind([second])
assert mine() == worker.mask == BOTH
one.release()
assert mine() == worker.mask == SECOND
two.release()
assert mine() == worker.mask == SECOND
three.release()
assert mine() == worker.mask == BOTH
assert forgotten()
worker.end()
""")


def test_grants_may_be_given_back_in_any_order(bound: Callable[[str], None]) -> None:
    bound("""
one, two = affinity.bind([first]), affinity.bind([second])
two.release()
assert mine() == FIRST
one.release()
assert mine() == BOTH
""")


def test_each_thread_gets_back_what_it_had(bound: Callable[[str], None]) -> None:
    bound("""
worker = Worker()
worker.ask(lambda: os.sched_setaffinity(0, SECOND))
grant = affinity.bind([first])
assert worker.mask == FIRST
grant.release()
assert worker.mask == SECOND
assert mine() == BOTH
worker.end()
""")


def test_a_thread_that_binds_itself_meanwhile_keeps_that(bound: Callable[[str], None]) -> None:
    bound("""
worker = Worker()
grant = affinity.bind([first])
worker.ask(lambda: os.sched_setaffinity(0, SECOND))
grant.release()
assert worker.mask == SECOND
assert mine() == BOTH
worker.end()
""")


def test_nor_does_another_grant_take_it_from_there(bound: Callable[[str], None]) -> None:
    bound("""
worker = Worker()
one = affinity.bind([first])
worker.ask(lambda: os.sched_setaffinity(0, SECOND))
two = affinity.bind([second])
assert (mine(), worker.mask) == (BOTH, SECOND)
assert two.bound_threads == 1
one.release()
two.release()
assert (mine(), worker.mask) == (BOTH, SECOND)
worker.end()
""")


def test_a_thread_that_is_over_is_no_trouble(bound: Callable[[str], None]) -> None:
    bound("""
worker = Worker()
grant = affinity.bind([first])
worker.end()
grant.release()
assert mine() == BOTH
assert forgotten()
""")


def test_a_thread_that_ends_while_it_is_asked_about_is_no_trouble(
    bound: Callable[[str], None],
) -> None:
    bound("""
worker = Worker()
worker.end()
real = affinity._threads
affinity._threads = lambda: [worker.tid, *real()]
grant = affinity.bind([first])
assert grant.bound_threads == 1
assert mine() == FIRST
grant.release()
assert mine() == BOTH
assert forgotten()
""")


def test_giving_back_twice_does_nothing(bound: Callable[[str], None]) -> None:
    bound("""
one, two = affinity.bind([first]), affinity.bind([first])
one.release()
one.release()
assert mine() == FIRST
two.release()
assert mine() == BOTH
""")


def test_cpus_this_process_may_not_use_are_left_out(bound: Callable[[str], None]) -> None:
    bound("""
grant = affinity.bind([second, 5000])
assert grant.cpus == mine() == SECOND
another = affinity.bind([first, 5001])   # what it might use before counts, not what is left now
assert another.cpus == FIRST
assert mine() == BOTH
another.release()
grant.release()
assert mine() == BOTH
""")


def test_where_no_cpu_is_left_it_is_refused_and_nothing_has_changed(
    bound: Callable[[str], None],
) -> None:
    bound("""
os.sched_setaffinity(0, FIRST)
for cpus in ([5001, 5000], []):
    try:
        affinity.bind(cpus)
        raise SystemExit("not refused")
    except HoldfastError as error:
        assert str(error) == (
            f"cannot run on CPUs {sorted(cpus)}\\n"
            f"  expected: some of the CPUs this process may use: [{first}]"
        ), error
assert mine() == FIRST
assert forgotten()
""")


def test_where_binding_breaks_off_the_threads_are_given_back(bound: Callable[[str], None]) -> None:
    bound("""
worker = Worker()
real, calls = os.sched_setaffinity, []

def breaks_off(tid, cpus):
    calls.append(tid)
    if len(calls) == 2:
        raise KeyboardInterrupt
    real(tid, cpus)

os.sched_setaffinity = breaks_off
try:
    affinity.bind([first])
    raise SystemExit("not broken off")
except KeyboardInterrupt:
    pass
assert mine() == worker.mask == BOTH
assert forgotten()
worker.end()
""")


def test_where_another_grant_breaks_off_the_first_still_holds(
    bound: Callable[[str], None],
) -> None:
    bound("""
workers = [Worker() for _ in range(2)]
one = affinity.bind([first])
real, calls = os.sched_setaffinity, []

def breaks_off(tid, cpus):
    calls.append(tid)
    if len(calls) == 3:
        raise KeyboardInterrupt
    real(tid, cpus)

os.sched_setaffinity = breaks_off
try:
    affinity.bind([second])
    raise SystemExit("not broken off")
except KeyboardInterrupt:
    pass
assert mine() == FIRST
assert [w.mask for w in workers] == [FIRST] * 2
one.release()
assert mine() == BOTH
assert [w.mask for w in workers] == [BOTH] * 2
assert forgotten()
[w.end() for w in workers]
""")


def test_threads_may_bind_and_give_back_at_once(bound: Callable[[str], None]) -> None:
    bound("""
workers = [Worker() for _ in range(4)]
def work():
    for n in range(50):
        grant = affinity.bind([first if n % 2 else second])
        assert grant.cpus <= BOTH
        grant.release()
threads = [threading.Thread(target=work) for _ in range(4)]
[t.start() for t in threads]
[t.join() for t in threads]
assert forgotten()
assert mine() == BOTH
assert [w.mask for w in workers] == [BOTH] * 4
[w.end() for w in workers]
""")


def test_an_allocation_gives_its_threads_back_when_it_is_freed(
    bound: Callable[[str], None],
) -> None:
    bound("""
import dataclasses
from holdfast.memory import svm
provider = svm.provider("numa")
real = provider.discover

def one_cpu():
    layout = real()
    [node] = layout.domains[:1]
    return dataclasses.replace(layout, domains=(dataclasses.replace(node, cpus=(second,)),))

provider.discover = one_cpu
handle = provider.alloc("1MB", set_affinity=True)
grant = provider.ledger.record(handle).grant
assert grant.cpus == mine() == SECOND
assert provider.set_affinity(handle) is grant      # once is enough
handle.free()
assert mine() == BOTH
with provider.alloc("1MB") as handle:
    assert mine() == BOTH
    provider.set_affinity(handle)
    assert mine() == SECOND
assert mine() == BOTH
handle = provider.alloc("1MB", set_affinity=True)
del handle                                         # nobody refers to it any more
assert mine() == BOTH
assert forgotten()
""")


def test_an_allocation_whose_cpus_cannot_be_had_is_given_back(
    bound: Callable[[str], None],
) -> None:
    bound("""
import dataclasses
from holdfast.memory import svm
provider = svm.provider("numa")
layout = provider.discover()
node = dataclasses.replace(layout.domains[0], cpus=(5000,))
provider.discover = lambda: dataclasses.replace(layout, domains=(node,))
try:
    provider.alloc("1MB", set_affinity=True)
    raise SystemExit("not refused")
except HoldfastError as error:
    assert error.what == "cannot run on CPUs [5000]", error
assert provider.statistics().current_count == 0
assert forgotten()
""")


def test_cpus_that_are_made_up_bind_nothing(bound: Callable[[str], None]) -> None:
    bound("""
from holdfast.memory import svm
for domain in (0, 1):
    handle = svm.alloc("1MB", provider="simulated", domain=domain, set_affinity=True)
    assert svm.provider("simulated").set_affinity(handle) is None
    assert handle.placement.cpus
assert mine() == BOTH
assert forgotten()
""")


def test_a_system_without_the_call_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_setaffinity")
    assert not affinity.supported()
    with pytest.raises(Unsupported) as error:
        affinity.bind([0])
    assert str(error.value) == (
        "threads cannot be bound to CPUs on this system\n  expected: Linux with /proc"
    )

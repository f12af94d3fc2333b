"""The pool under torch's CPU tensors."""

from __future__ import annotations

import resource
import subprocess
import sys
import threading

import pytest

from holdfast.base.errors import Misuse, Unsupported
from holdfast.memory.core import native_build, pool_core
from holdfast.memory.hooks import torch_cpu
from holdfast.memory.hooks.torch_cpu import (
    LEAST_BYTES,
    install_torch_pool,
    uninstall_torch_pool,
)
from holdfast.memory.pools.pool import Pool

torch = pytest.importorskip("torch")
LARGE = LEAST_BYTES  # bytes

# A process has room for a few pools under torch; the tests share two.
POOL, OTHER = Pool(name="first"), Pool(name="second")


@pytest.fixture(autouse=True)
def uninstalled():
    yield
    uninstall_torch_pool()


def live(pool: Pool) -> int:
    return pool.core.counters()["live"]


def large() -> torch.Tensor:
    return torch.ones(LARGE, dtype=torch.uint8)


def test_tensors_come_from_the_pool_until_it_is_uninstalled():
    before = large()
    install_torch_pool(POOL)
    inside = large()
    uninstall_torch_pool()
    after = large()
    assert [POOL.owns(t.data_ptr()) for t in (before, inside, after)] == [False, True, False]


def test_a_tensor_lives_on_after_uninstalling_and_goes_back_to_its_pool():
    with install_torch_pool(POOL):
        tensor = torch.arange(LARGE)
        count = live(POOL)
    assert int(tensor.sum()) == LARGE * (LARGE - 1) // 2
    del tensor
    assert live(POOL) == count - 1


def test_tensors_of_two_pools_and_of_torch_each_go_back_to_their_own():
    own = large()
    with install_torch_pool(POOL):
        first = large()
    with install_torch_pool(OTHER):
        second = large()
        counts = live(POOL), live(OTHER)
        del own, first
        assert (live(POOL), live(OTHER)) == (counts[0] - 1, counts[1])
    del second
    assert live(OTHER) == counts[1] - 1


def test_small_tensors_stay_with_malloc():
    with install_torch_pool(POOL):
        tensor = torch.ones(LARGE - 1, dtype=torch.uint8)
        assert not POOL.owns(tensor.data_ptr())
        assert tensor.data_ptr() % 64 == 0
        del tensor


def test_empty_tensors_work():
    with install_torch_pool(POOL):
        assert torch.empty(0).sum() == 0
        assert torch.empty(0).resize_(LARGE).numel() == LARGE


def test_a_tensor_can_die_in_another_thread():
    with install_torch_pool(POOL):
        tensors = [large() for _ in range(8)]
    count = live(POOL)
    thread = threading.Thread(target=tensors.clear)
    thread.start()
    thread.join()
    assert live(POOL) == count - 8


def test_installing_twice_changes_nothing():
    first = install_torch_pool(POOL)
    assert install_torch_pool(POOL) is first
    assert install_torch_pool() is first
    assert first.installed
    uninstall_torch_pool()
    uninstall_torch_pool()
    assert not first.installed


def test_a_second_pool_is_refused_while_one_is_installed():
    install_torch_pool(POOL)
    with pytest.raises(Misuse) as caught:
        install_torch_pool(OTHER)
    assert str(caught.value) == (
        "first is under torch already\n"
        "  expected: one pool at a time\n"
        "  try: uninstall_torch_pool() first"
    )


def test_the_default_pool_is_made_once():
    first = install_torch_pool().pool
    uninstall_torch_pool()
    assert install_torch_pool().pool is first
    assert first.name == "torch"


def test_a_full_pool_leaves_the_rest_to_malloc():
    pool = Pool(name="full")
    pool.set_limit(1 << 20)
    with install_torch_pool(pool):
        tensors = [torch.full((1 << 19,), n, dtype=torch.uint8) for n in range(8)]
    assert {pool.owns(t.data_ptr()) for t in tensors} == {True, False}
    assert [int(t[-1]) for t in tensors] == list(range(8))
    del tensors
    assert live(pool) == 0


def test_a_pool_with_the_python_core_is_refused():
    with pytest.raises(Unsupported) as caught:
        install_torch_pool(Pool(core=pool_core))
    assert str(caught.value) == (
        "a pool under torch needs the compiled core: this pool has the Python one\n"
        "  expected: a pool made without HOLDFAST_CORE=python"
    )


def test_without_a_compiler_the_error_says_what_to_install(monkeypatch):
    def refuse(*_):
        raise Unsupported("there is no C++ compiler on this machine", expected="c++ on the path")

    monkeypatch.setattr(native_build, "library", refuse)
    monkeypatch.setattr(torch_cpu, "_library", torch_cpu._library.__wrapped__)
    with pytest.raises(Unsupported) as caught:
        install_torch_pool(POOL)
    assert str(caught.value) == (
        "torch's CPU allocator cannot be replaced: there is no C++ compiler on this machine\n"
        "  expected: c++ on the path\n"
        "  try: apt-get install g++ (or another C++ compiler, named by $CXX)"
    )


def train(steps: int) -> list[torch.Tensor]:
    torch.manual_seed(1)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 16, 3), torch.nn.GELU(), torch.nn.Flatten(), torch.nn.Linear(14400, 32)
    )
    optimizer = torch.optim.Adam(model.parameters())
    data = torch.randn(16, 3, 32, 32)
    for _ in range(steps):
        optimizer.zero_grad()
        model(data).square().mean().backward()
        optimizer.step()
    return [p.detach().clone() for p in model.parameters()]


def test_training_gives_the_same_bits():
    plain = train(3)
    with install_torch_pool(POOL):
        pooled = train(3)
    assert all(torch.equal(a, b) for a, b in zip(plain, pooled, strict=True))


def test_in_steady_state_there_are_no_page_faults():
    tensors = [torch.ones(1 << 20) for _ in range(4)]

    def step() -> None:
        for tensor in tensors:
            torch.nn.functional.gelu(tensor * 2).add_(1)

    def faults() -> int:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for _ in range(10):
            step()
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

    with install_torch_pool(POOL):
        step()
        assert faults() < 50  # stock torch: some 20,000


def test_torchs_own_profiler_still_sees_the_memory():
    with (
        install_torch_pool(POOL),
        torch.profiler.profile(
            activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
        ) as profile,
    ):
        kept = torch.ones(1 << 20)
    seen = max(event.self_cpu_memory_usage for event in profile.key_averages())
    assert seen == 4 << 20
    del kept


@pytest.mark.slow
def test_tensors_that_outlive_everything_do_not_crash_the_end_of_python():
    program = (
        "import torch\n"
        "from holdfast.memory.hooks.torch_cpu import install_torch_pool\n"
        "install_torch_pool()\n"
        "torch.kept = [torch.ones(n) for n in (1, 1000, 1_000_000)]\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")

"""A real Ray on this machine, with two actors."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from holdfast.base.errors import MissingDependency, Unsupported
from holdfast.base.registry import Registry
from holdfast.pipeline.batch.workers import POOLS
from tests.pipeline.batch.fakes import (
    Drive,
    FakeLoad,
    assert_exactly_once,
    told,
    wait_for,
    workers_in,
)

ROOT = Path(__file__).parents[3]
PROMPTS = [f"prompt {number}" for number in range(8)]
OPTIONS = ["--workers", "2", "--seconds", "0.5", "--ray"]


# A head that works on nothing and two machines with a CPU each; a line on standard input has one
# of them killed, as a power cut would.
CLUSTER = """
import sys
from ray.cluster_utils import Cluster
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
nodes = [cluster.add_node(num_cpus=1) for _ in range(2)]
print(cluster.address, flush=True)
sys.stdin.readline()
cluster.remove_node(nodes[0], allow_graceful=False)
sys.stdin.readline()
cluster.shutdown()
"""


def _descendants(child: subprocess.Popen[bytes]) -> list[psutil.Process]:
    return psutil.Process(child.pid).children(recursive=True)


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """For Ray's sockets, whose paths may have 107 characters."""
    with tempfile.TemporaryDirectory(prefix="hf-", dir="/tmp") as folder:
        yield Path(folder)


def _alive_after(processes: list[psutil.Process], seconds: float) -> list[psutil.Process]:
    """Those that still run; one that ended and that nobody has asked about is over too."""
    _, alive = psutil.wait_procs(processes, timeout=seconds)
    return [p for p in alive if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]


@pytest.mark.slow
def test_a_killed_actor_has_its_prompt_done_by_another_and_nothing_stays(
    tmp_path: Path, drive: Drive
) -> None:
    prompts = [f"a handwritten {number}" for number in range(60)]
    child = drive(prompts, "--real", "--workers", "2", "--ray")
    wait_for(tmp_path / "log", "end", 3)
    processes = _descendants(child)
    victim = next(p for p in processes if p.pid in workers_in(tmp_path / "log"))
    os.kill(victim.pid, signal.SIGKILL)
    stdout, stderr = child.communicate(timeout=300)
    assert child.returncode == 0, stderr.decode()
    assert stdout.decode().startswith("Summary(")  # Ray's own words went elsewhere
    assert "died and is replaced: The actor is dead because" in stderr.decode()
    assert_exactly_once(tmp_path / "out", prompts, tmp_path / "log", lost=1)
    assert len(told(tmp_path / "log", "load")) >= 2
    assert _alive_after(processes, 10) == []


@pytest.mark.slow
def test_no_ray_outlives_a_driver_that_was_killed_and_the_next_one_goes_on(
    tmp_path: Path, drive: Drive
) -> None:
    child = drive(PROMPTS, *OPTIONS)
    wait_for(tmp_path / "log", "end", 3)
    processes = _descendants(child)
    child.kill()
    child.communicate()
    assert _alive_after(processes, 10) == []
    again = drive(PROMPTS, *OPTIONS)
    wait_for(tmp_path / "log", "end", 6)
    os.killpg(again.pid, signal.SIGINT)  # what Ctrl-C does in a terminal
    again.communicate(timeout=300)
    assert again.returncode == 130
    last = drive(PROMPTS, *OPTIONS)
    _, stderr = last.communicate(timeout=120)
    assert last.returncode == 0, stderr.decode()
    assert_exactly_once(tmp_path / "out", PROMPTS, tmp_path / "log", lost=8)


@pytest.mark.slow
def test_a_machine_that_is_lost_has_its_prompts_done_by_another(
    tmp_path: Path, drive: Drive, short_folder: Path
) -> None:
    cluster = subprocess.Popen(
        [sys.executable, "-c", CLUSTER],
        env=os.environ
        | {
            "PYTHONPATH": str(ROOT),
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_TMPDIR": str(short_folder),
        },
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert cluster.stdin is not None
    assert cluster.stdout is not None
    try:
        address = cluster.stdout.readline().decode().strip()
        assert address
        child = drive(PROMPTS, *OPTIONS, address)
        wait_for(tmp_path / "log", "end", 3)
        cluster.stdin.write(b"\n")
        cluster.stdin.flush()
        _, stderr = child.communicate(timeout=120)
        assert child.returncode == 0, stderr.decode()
        assert "died and is replaced" in stderr.decode()
        assert_exactly_once(tmp_path / "out", PROMPTS, tmp_path / "log", lost=1)
        raylets = [p for p in _descendants(cluster) if p.name() == "raylet"]
        assert len(raylets) == 2  # the cluster is not ours to end
    finally:
        processes = _descendants(cluster)
        cluster.communicate(b"\n\n", timeout=300)
    assert _alive_after(processes, 30) == []


def test_an_address_where_nobody_listens_is_told_at_once(tmp_path: Path) -> None:
    pool = POOLS["ray"](FakeLoad(str(tmp_path / "log")), "cpu", 2, 2, "127.0.0.1:1")
    with pytest.raises(Unsupported) as caught:
        pool.__enter__()
    assert str(caught.value) == (
        "cannot join the Ray cluster at '127.0.0.1:1': [Errno 111] Connection refused\n"
        '  expected: a running cluster as "HOST:PORT", "auto", or no address to start one\n'
        "  try: `ray status` on a machine of that cluster, with the same Python and Ray"
    )


def test_without_ray_it_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "holdfast.pipeline.batch.ray", raising=False)
    fresh: Registry[object] = Registry(POOLS.kind, {"ray": POOLS.entry("ray")})
    with pytest.raises(MissingDependency) as caught:
        fresh["ray"]
    assert str(caught.value) == (
        "cannot load pool 'ray': the package 'ray' is not installed\n"
        "  expected: the packages of the extra 'ray'\n"
        "  try: pip install 'holdfast[ray]'"
    )


@pytest.mark.parametrize(
    ("machines", "wanted", "most", "share"),
    [
        ([{"CPU": 8}], None, 99, (1, 8, 0)),
        ([{"CPU": 8}], 2, 99, (2, 4, 0)),
        ([{"CPU": 8}], 2, 1, (1, 8, 0)),
        ([{"CPU": 8}, {"CPU": 4}, {}], None, 99, (2, 4, 0)),
        ([{"CPU": 2}], 9, 99, (2, 1, 0)),
        ([{"CPU": 8, "GPU": 2}, {"CPU": 8, "GPU": 1}], None, 99, (3, 1, 1)),
        ([{"CPU": 8, "GPU": 2}], 9, 99, (2, 1, 1)),
        ([{"GPU": 2}], None, 99, (2, 0, 1)),
        ([{"CPU": 8, "GPU": 2}, {"CPU": 1, "GPU": 4}], None, 99, (6, 0, 1)),
        ([{"CPU": 8, "GPU": 2}, {}], None, 99, (2, 1, 1)),
    ],
)
def test_a_cluster_is_divided_by_its_gpus_or_else_by_its_machines(
    machines: list[dict[str, float]], wanted: int | None, most: int, share: tuple[int, int, int]
) -> None:
    from holdfast.pipeline.batch.ray import ClusterShare, divide_cluster

    assert divide_cluster(machines, wanted, most) == ClusterShare(*share)


@pytest.mark.parametrize(
    ("device", "may"),
    [
        ("auto", True),
        ("cuda", True),
        ("cpu", False),
        ("text=cpu,denoise=cpu,decode=cpu", False),
        ("text=cpu", True),
    ],
)
def test_gpus_of_a_cluster_are_left_to_others_by_what_runs_on_cpus(device: str, may: bool) -> None:
    from holdfast.pipeline.batch.ray import ClusterShare, divide_cluster, may_use_gpus

    machines = [{"CPU": 8, "GPU": 2}, {"CPU": 8}]
    assert may_use_gpus(device) is may
    share = ClusterShare(2, cpus=1, gpus=1) if may else ClusterShare(2, cpus=8, gpus=0)
    assert divide_cluster(machines, None, 99, gpus=may) == share


@pytest.mark.parametrize(
    ("share", "text"),
    [((2, 1, 1), "2 GPUs are"), ((1, 1, 1), "1 GPU is"), ((2, 4, 0), "8 CPUs are")],
)
def test_a_cluster_that_gives_nothing_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, share: tuple[int, int, int], text: str
) -> None:
    module = pytest.importorskip("holdfast.pipeline.batch.ray")
    now_s, notes = [100.0], []
    node = {"Alive": True, "Resources": {"CPU": 8.0}}
    still = SimpleNamespace(remote=lambda *_: object())
    monkeypatch.setattr(module.time, "monotonic", lambda: now_s[0])
    monkeypatch.setattr(module.ray, "is_initialized", lambda: True)
    monkeypatch.setattr(module.ray, "nodes", lambda: [node])
    monkeypatch.setattr(module.ray, "wait", lambda waiting, **_: ([], waiting))
    monkeypatch.setattr(module.ray, "kill", lambda actor: None)
    monkeypatch.setattr(module, "divide_cluster", lambda *_, **__: module.ClusterShare(*share))
    actor = SimpleNamespace(answer=still, latest=still)
    actors = SimpleNamespace(remote=lambda *_: actor)
    monkeypatch.setattr(module.ray, "remote", lambda **_: lambda _: actors)
    pool = module.RayActors(FakeLoad(str(tmp_path / "log")), "auto", None, 9, "auto", notes.append)
    with pool:
        for _ in range(30):
            assert pool.wait(lambda *_: None) == []
            now_s[0] += 0.5
            assert notes == [] or now_s[0] > 110
    assert notes == [f"waiting for the cluster: {text} asked for"]


def test_an_actor_that_has_answered_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = pytest.importorskip("holdfast.pipeline.batch.ray")
    notes: list[str] = []
    pool = module.RayActors(FakeLoad(str(tmp_path / "log")), "auto", None, 9, "auto", notes.append)
    pool._note_at_s, pool._questions["a question"] = 0.0, 0
    monkeypatch.setattr(module.ray, "get", lambda _: None)
    pool._hear("a question", lambda *_: None)
    pool._receive(lambda *_: None)
    assert notes == []

"""Fifty runs of a workflow with every family of nodes leave nothing behind.

Two kinds of figures are compared. What is counted has to be the same to the last one: tensors and
their bytes, allocations, pools, models, threads, files. The memory of the process as the system
counts it comes and goes with the C library's caches by some 20 MB, so its floor over ten runs is
compared with the floor of ten later runs. It may rise by `MOST_BYTES`: forty runs that each leave
one allocation of theirs (8 MiB), or one time the streamed model, are far more.
"""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.comfyui import models
from tests.comfyui.client import Client, Failed, Interrupted
from tests.comfyui.models import node

RUNS, WARM = 50, 10
MOST_BYTES = 64 * 10**6
SIDE = 64
_seeds = itertools.count(880_000)  # nothing is taken from ComfyUI's cache


@pytest.fixture(scope="module", autouse=True)
def tiny(comfy: Client) -> Iterator[None]:
    """Models small enough to be run here; what other tests left is let go of."""
    models.install(models.make(), comfy.server.base)
    comfy.free()
    yield
    comfy.free()


@dataclass(frozen=True)
class Level:
    """What the process has, as the system counts it."""

    ram_bytes: int
    threads: int
    files: int

    @classmethod
    def of(cls, comfy: Client) -> Level:
        process = psutil.Process(comfy.server.process.pid)
        return cls(process.memory_info().rss, process.num_threads(), open_files(process.pid))

    @classmethod
    def floor(cls, levels: list[Level]) -> Level:
        """The least of each: samplers and what they read come and go."""
        return cls(
            min(one.ram_bytes for one in levels),
            min(one.threads for one in levels),
            min(one.files for one in levels),
        )


def open_files(process: int) -> int:
    """All but sockets, which are connections of clients: their ends are seen a little later."""
    found = 0
    for file in Path(f"/proc/{process}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            found += not str(file.readlink()).startswith("socket:")
    return found


def workflow(seed: int, **sampling: Any) -> dict[str, models.Node]:
    """Every family, one after the other, so that the last one sees what the others left."""
    stream = node("HoldfastStreamModel", budget_gb=0.02, pack=True)
    nodes = models.workflow("sd15", [stream], steps=1, seed=seed, size=SIDE)
    size = {"height": SIDE, "width": SIDE, "steps": 2, "guidance": -1.0, "seed": seed}
    nodes["drawn"] = node("FluxTPUPipeline", prompt="a handwritten six", **(size | sampling))
    nodes["window"] = node(
        "CustomPyTorchConv2D",
        image=["drawn", 0], in_channels=3, out_channels=3, kernel_size=3, stride=1, padding=1,
        use_bias=True, seed=seed,
    )  # fmt: skip
    nodes["layer"] = node(
        "CustomPyTorchLinear",
        tensor=["window", 0], in_features=3, out_features=3, use_bias=True, seed=seed,
    )  # fmt: skip
    nodes["bent"] = node("CustomPyTorchActivation", tensor=["layer", 0], activation_type="tanh")
    nodes["sum"] = node(
        "CustomPyTorchTensorOps", tensor_a=["bent", 0], tensor_b=["decode", 0], operation="add"
    )
    nodes["loss"] = node(
        "CustomPyTorchLoss", prediction=["sum", 0], target=["decode", 0], loss_type="mse"
    )
    return nodes | shared_memory() | about_memory()


def shared_memory() -> dict[str, models.Node]:
    """Found, allocated, looked at, moved and given back, when the loss is known."""
    pointer = {"memory_pointer": ["pointer", 0]}
    moved = {"from_domain": 0, "to_domain": 1, "after": ["metrics", 1]}
    size = {"size_mb": 8, "set_affinity": True}
    return {
        "topology": node("SVMTologyDiscoveryNode", refresh_topology=True),
        "pointer": node("SVMTopologyAwareAllocNode", topology_data=["topology", 0], **size),
        "metrics": node("SVMTopologyMetricsNode", after=["loss", 0], **pointer),
        "moved": node("SVMMemoryMigrationNode", **pointer, **moved),
        "freed": node("SVMMemoryCleanupNode", after=["moved", 1], **pointer),
    }


def about_memory() -> dict[str, models.Node]:
    """A picture of the machine, and the timeline, when memory was given back."""
    look = {"theme": "dark", "width": 640}
    return {
        "machine": node("HoldfastTopologyPicture", measure=False, after=["freed", 1], **look),
        "timeline": node("HoldfastMemoryTimeline", after=["machine", 1], **look),
    }


def counted(comfy: Client) -> dict[str, Any]:
    """What Memory Report counts at the end of a run."""
    nodes = workflow(next(_seeds))
    nodes["report"] = node("HoldfastMemoryReport", after=["timeline", 2])
    nodes["told"] = node("PreviewAny", source=["report", 1])
    data = json.loads(comfy.run(nodes)["told"]["text"][0])
    assert data["complete"]
    # The timeline's picture is as high as there are nodes to show, those that took their time.
    # Of the small ones, a latent of the run may wait for Python's collector; 40 would be a leak.
    held = [one for one in data["holders"] if "node timeline" not in str(one["holders"])]
    small = [one for one in held if one["holders"] == ["small tensors"]]
    held = [one for one in held if one not in small]
    assert len(held) == len(data["holders"]) - 2
    assert sum(one["tensors"] for one in small) < 20
    return {
        "tensors": sum(one["tensors"] for one in held),
        "bytes in tensors": sum(one["nbytes"] for one in held),
        "models": sorted((one["name"], one["total_bytes"]) for one in data["models"]),
        **{name: data[name] for name in ("shared_virtual", "pools", "tpu_models", "pinned_bytes")},
    }


def levels(comfy: Client, count: int, run: Any) -> list[Level]:
    found = []
    for number in range(count):
        run(number)
        comfy.idle()
        found.append(Level.of(comfy))
    return found


def same(before: Level, after: Level) -> None:
    assert after.threads <= before.threads
    assert after.files <= before.files
    assert after.ram_bytes - before.ram_bytes < MOST_BYTES


def test_fifty_runs_leave_nothing_behind(comfy: Client) -> None:
    def run(_: int) -> None:
        outputs = comfy.run(workflow(next(_seeds)))
        assert outputs["save"]["images"]
        assert outputs["timeline"]["text"]

    levels(comfy, WARM - 1, run)
    before = counted(comfy)
    first = Level.floor(levels(comfy, 10, run))
    levels(comfy, RUNS - WARM - 2 * 10, run)
    last = Level.floor(levels(comfy, 10, run))
    assert counted(comfy) == before
    same(first, last)
    assert before["shared_virtual"] == []
    assert [name for name, _ in before["models"]] == ["BaseModel", "TAESD"]
    assert [one["name"] for one in before["tpu_models"]] == ["tiny-flux"]


def test_runs_that_are_stopped_or_fail_leave_nothing_behind(comfy: Client) -> None:
    def run(number: int) -> None:
        (stopped_in("sampler"), failed, good, stopped_in("drawn"))[number % 4](comfy)

    levels(comfy, 4, run)
    before = counted(comfy)
    last = Level.floor(levels(comfy, 4, run))
    for _ in range(3):  # a leak grows with every round; a pool of threads grows to its size
        first, last = last, Level.floor(levels(comfy, 4, run))
        if last.threads <= first.threads:
            break
    assert counted(comfy) == before
    same(first, last)


def good(comfy: Client) -> None:
    comfy.run(workflow(next(_seeds)))


def stopped_in(name: str) -> Any:
    """A run that is stopped while this node works."""

    def run(comfy: Client) -> None:
        nodes = workflow(next(_seeds), steps=1000 if name == "drawn" else 2)
        if name == "sampler":
            nodes[name]["inputs"]["steps"] = 1000
        with comfy.events() as events:
            number = comfy.queue(nodes)
            events.until(lambda kind, one: kind == "progress" and one["max"] == 1000)
            comfy.interrupt(number)
            events.until_over(number)
        with pytest.raises(Interrupted) as caught:
            comfy.wait(number)
        assert caught.value.node == name

    return run


def failed(comfy: Client) -> None:
    """A run that fails while it has shared memory, before that is given back."""
    nodes = workflow(next(_seeds))
    nodes["more"] = node(
        "SVMTopologyAwareAllocNode",
        size_mb=1 << 24, set_affinity=False, topology_data=["again", 0],
    )  # fmt: skip
    nodes["again"] = node("HoldfastFreeMemory", anything=["topology", 0], **KEEP)
    nodes["moved"]["inputs"]["after"] = ["more", 1]
    nodes["metrics"]["inputs"]["after"] = ["topology", 1]
    with pytest.raises(Failed) as caught:
        comfy.run(nodes)
    assert caught.value.node == "more"


KEEP = {"models": False, "caches": False, "forget_outputs": False}

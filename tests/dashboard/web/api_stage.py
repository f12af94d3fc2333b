"""What the tests of the API play on: a process of Holdfast, a server in this process, requests."""

from __future__ import annotations

import contextlib
import http.client
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from holdfast.base.config import Config
from holdfast.dashboard.ipc.watching import Watcher
from holdfast.dashboard.web import Server, serving
from holdfast.topology import Topology, discover
from tests.dashboard.meeting_place import A_POOL, child

PATIENCE_S = 240.0  # for one thing to happen; the machine may be busy
A_MODEL = """
import gc
import torch
from holdfast import memory, residency
pool = memory.MemoryPool("cpu", name='say "pool"')
with memory.tag("latents"):
    blocks = [pool.allocate(size) for size in ("3MB", "2MB", "1MB")]
model = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(20))).requires_grad_(False)
managed = residency.manage(model, budget="3MB", device="simulated")
for _ in range(3):
    model(torch.ones(1, 256))
gc.freeze()  # looking for leaks need not go through all objects of torch's
kept = []
def remember():  # whatever was there last time goes
    kept[:] = [pool.allocate("4MB")]
def remember_on():
    while not pause.wait(0.02):
        remember()
import threading
pause = threading.Event()
threading.Thread(target=remember_on, daemon=True).start()
"""


def machine() -> Topology:
    """A machine that is described at once."""
    return discover(config=Config.load({}, simulate="2x16GB:gpu=24GB"))


@dataclass(frozen=True)
class Answer:
    status: int
    headers: http.client.HTTPMessage
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def ask(
    server: Server,
    path: str,
    method: str = "GET",
    body: Any = None,
    headers: dict[str, str] | None = None,
) -> Answer:
    """One request, exactly as it is written here; nothing is followed or added but the host."""
    sent = dict(headers or {})
    if body is not None:
        body = body if isinstance(body, bytes) else json.dumps(body).encode()
        sent = {"Content-Type": "application/json", **sent}
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE_S)
    with contextlib.closing(connection):
        connection.request(method, path, body, sent)
        answer = connection.getresponse()
        return Answer(answer.status, answer.headers, answer.read())


def error(answer: Answer) -> tuple[int, str, str]:
    """The status, what happened, what was expected."""
    told = answer.json["error"]
    return answer.status, told["what"], told["expected"]


def _settings(caches: Path) -> dict[str, str]:
    """Those that every test has, for what begins before the first one."""
    return {
        "HOLDFAST_RUNTIME_DIR": str(caches / "meeting"),
        "HOLDFAST_HISTORY_DIR": str(caches / "runs"),
        "HOLDFAST_CACHE_DIR": str(caches / "guest"),
    }


@pytest.fixture(scope="module")
def guest(caches: Path) -> Iterator[int]:
    """The number of a process with a pool and a model under a budget."""
    with child(A_MODEL, **_settings(caches)) as process:
        yield process.pid


@pytest.fixture(scope="module")
def plain_guest(caches: Path) -> Iterator[int]:
    """The number of a process with a pool alone, which begins sooner."""
    with child(A_POOL, **_settings(caches)) as process:
        yield process.pid


@pytest.fixture
def served(guest: int) -> Iterator[Server]:
    """A server that watches that guest alone."""
    with Watcher([guest]) as watcher, serving(watcher, interval_s=0.05, machine=machine) as server:
        yield server

"""One real ComfyUI for all tests of this folder, with the pack and a scaffolded port in it.

`comfy` is a client of it: comfy.run(prompt) and the like, comfy.server.base is its folder and
comfy.server.said() the end of its log. A test that fails shows what ComfyUI has printed meanwhile.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.comfyui import server
from tests.comfyui.client import Client

HERE = Path(__file__).parent
PORT = "Seven"  # the name of the scaffolded port
PORT_CLASS = "diffusers:FluxTransformer2DModel"
_LOG = pytest.StashKey[tuple[Path, int]]()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """`make test` runs all of this folder in one process, so that one server will do."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.comfyui)


@pytest.fixture(scope="session")
def comfy_base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of ComfyUI, with what has to be there before it starts."""
    reason = server.missing()
    if reason is not None and not os.environ.get("CI"):
        pytest.skip(reason)
    assert reason is None, reason
    base = server.prepare(tmp_path_factory.mktemp("comfyui"))
    holdfast("comfy", "install", str(base))
    out = str(base / "custom_nodes")
    holdfast("port", "new", PORT, "--class", PORT_CLASS, "--out", out)
    return base


@pytest.fixture(scope="session")
def comfy(comfy_base: Path) -> Iterator[Client]:
    """A real ComfyUI, ready; the same for all tests."""
    with server.running(comfy_base) as started:
        yield Client(started.url, started)


def holdfast(*arguments: str) -> str:
    """The command as a user calls it; what it prints."""
    command = [sys.executable, "-m", "holdfast", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


# ---- the log of a test that fails


@pytest.fixture(autouse=True)
def idle_and_logged(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test begins with nothing running, and knows where its part of the log begins."""
    if "comfy" not in request.fixturenames:
        yield
        return
    client: Client = request.getfixturevalue("comfy")
    client.idle()
    log = client.server.log
    request.node.stash[_LOG] = (log, log.stat().st_size)
    yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, pytest.TestReport]:
    report: pytest.TestReport = yield
    if report.failed and _LOG in item.stash:
        log, begin = item.stash[_LOG]
        whole = log.read_bytes()
        start = whole[:begin] if b"(IMPORT FAILED)" in whole[:begin] else b""
        for title, part in (("ComfyUI's start", start), ("ComfyUI's log", whole[begin:])):
            report.sections.append((title, part[-20_000:].decode(errors="replace")))
    return report

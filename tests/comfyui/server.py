"""A real ComfyUI for the tests: started, waited for, stopped for sure.

Covers: the process, its folder, its environment, its log.
Leaves to others: fetching ComfyUI (tools/comfyui.sh), what is in its custom_nodes (conftest),
talking to it (client).
Promise: after the block no process of it is left, also where the tests are killed (on Linux).
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from holdfast.base.config import PREFIX

ROOT = Path(__file__).parents[2]
SETUP = ROOT / ".cache" / "comfyui"
APP = SETUP / "app"
SITE = SETUP / "site"
START_S = 600  # the machine may be busy
# As the facts say; nothing is asked of a network, nothing is opened.
OPTIONS = (
    *("--cpu", "--listen", "127.0.0.1", "--database-url", "sqlite:///:memory:"),
    *("--disable-api-nodes", "--disable-auto-launch", "--use-pytorch-cross-attention"),
)
SETTINGS = {"Comfy.TutorialCompleted": True, "Comfy.Locale": "en"}


@dataclass(frozen=True)
class Server:
    """A ComfyUI that runs."""

    url: str
    base: Path  # its folder: custom_nodes, models, input, output, temp, user
    log: Path
    process: subprocess.Popen[bytes]

    @property
    def custom_nodes(self) -> Path:
        return self.base / "custom_nodes"

    @property
    def models(self) -> Path:
        return self.base / "models"

    def said(self, last: int = 60) -> str:
        """The end of what it has printed."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-last:])

    @property
    def running(self) -> bool:
        return self.process.poll() is None


def missing() -> str | None:
    """Why ComfyUI cannot be started here, or None."""
    if not (APP / "main.py").is_file() or not (SITE / "aiohttp").is_dir():
        return "ComfyUI is not set up (tools/comfyui.sh fetches it; make test calls that)"
    return None


def prepare(base: Path) -> Path:
    """The folder of a ComfyUI before it is started."""
    settings = base / "user" / "default" / "comfy.settings.json"
    settings.parent.mkdir(parents=True, exist_ok=True)
    settings.write_text(json.dumps(SETTINGS))
    for name in ("custom_nodes", "models", "input"):
        (base / name).mkdir(exist_ok=True)
    shutil.copy(APP / "input" / "example.png", base / "input")
    return base


@contextmanager
def running(base: Path, *options: str) -> Iterator[Server]:
    """ComfyUI over the folder `base`, ready. Raises RuntimeError with the end of its log."""
    port = _free_port()
    log = base / "comfyui.log"
    command = [sys.executable, "main.py", *OPTIONS, "--port", str(port)]
    command += ["--base-directory", str(base), *options]
    with log.open("wb") as file:
        process = subprocess.Popen(
            [*_dies_with_us(), *command],
            cwd=APP,
            env=environment(base),
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    server = Server(f"http://127.0.0.1:{port}", base, log, process)
    try:
        _wait_until_ready(server)
        yield server
    finally:
        stop(process)


def environment(base: Path) -> dict[str, str]:
    """Nothing of the developer's own; compiled code is shared with other tests."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith((PREFIX, "PYTEST_", "XLA_FLAGS"))
    }
    home = base / "home"
    home.mkdir(exist_ok=True)
    return kept | {
        "HOME": str(home),
        "HF_HUB_OFFLINE": "1",
        "HOLDFAST_BUILD_DIR": str(ROOT / ".cache" / "build"),
        "HOLDFAST_CACHE_DIR": str(base / "cache"),
        "HOLDFAST_REPORT_S": "120",  # the machine may be busy
        "HOLDFAST_RUNTIME_DIR": str(base / "sockets"),
        "HOLDFAST_TORCH_SHIM": "off",
        "JAX_COMPILATION_CACHE_DIR": str(ROOT / ".cache" / "jax"),
        "JAX_PLATFORMS": "cpu",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(SITE),
        "PYTHONUNBUFFERED": "1",
    }


def stop(process: subprocess.Popen[bytes]) -> None:
    """End it and all that it has started: asked first, then made to."""
    for how, patience_s in ((signal.SIGTERM, 10), (signal.SIGKILL, 30)):
        if process.poll() is not None:
            break
        process.send_signal(how)
        try:
            process.wait(patience_s)
        except subprocess.TimeoutExpired:
            continue
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # the session is its own


def _dies_with_us() -> list[str]:
    setpriv = shutil.which("setpriv")
    return [] if setpriv is None else [setpriv, "--pdeathsig", "KILL", "--"]


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def _wait_until_ready(server: Server) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        if not server.running:
            raise RuntimeError(f"ComfyUI has ended by itself\n{server.said()}")
        try:
            with urllib.request.urlopen(f"{server.url}/system_stats", timeout=5) as answer:
                if answer.status == 200:
                    return
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    raise RuntimeError(f"ComfyUI is not ready after {START_S} s\n{server.said()}")

"""What the tests of the page play on: processes of Holdfast, a real server, a window."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PATIENCE_S = 240.0  # for one thing to happen; the machine may be busy
# A process that is slow to answer would leave the page, and take with it what its card says.
SERVE = (
    "from holdfast.dashboard.ipc import watching; watching.LOOK_S = 60.0; "
    "from holdfast.__main__ import command; command()"
)
ROOT = Path(__file__).parents[3]
# The browser says so when the server is gone, which some tests want it to be.
GONE = ("ERR_CONNECTION_REFUSED", "ERR_INCOMPLETE_CHUNKED_ENCODING", "ERR_CONNECTION_RESET")


@dataclass
class Program:
    """A process that was started, spoken to by lines."""

    process: subprocess.Popen[str]

    @property
    def pid(self) -> int:
        return self.process.pid

    def hear(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def say(self, line: str) -> None:
        """Tell it to do something, and go on."""
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def do(self, line: str) -> None:
        """Tell it to do something, and wait until that is done."""
        self.say(line)
        assert self.hear() == f"done {line.split()[0]}"

    def draw_half(self, line: str) -> None:
        """Tell it to draw, and wait until it has done half the steps, where it waits."""
        self.say(f"draw {line}")
        assert self.hear() == "half way"

    def draw_rest(self) -> None:
        """Let it go on drawing, until that is done."""
        self.say("go on")
        assert self.hear() == "done draw"

    def end(self) -> None:
        """End it, and give back what it was read and written with."""
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()


@dataclass
class Server(Program):
    """`holdfast serve`, and its address."""

    url: str = ""
    token: str | None = None

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(self.url + path, timeout=PATIENCE_S) as answer:
            return json.load(answer)

    def post(self, path: str) -> Any:
        asked = urllib.request.Request(
            self.url + path, data=b"{}", headers={"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(asked, timeout=PATIENCE_S) as answer:
            return json.load(answer)

    def process_of(self, guest: Program) -> dict[str, Any]:
        """What the API says of a process."""
        snapshot = self.get("/api/v1/snapshot")
        return next(one for one in snapshot["processes"] if one["pid"] == guest.pid)


@dataclass
class Stage:
    """Processes with folders of their own, so that they see each other and nobody else."""

    folder: Path
    started: list[Program] = field(default_factory=list)

    def environment(self) -> dict[str, str]:
        kept = {name: text for name, text in os.environ.items() if not name.startswith("HOLDFAST_")}
        return kept | {
            "HOLDFAST_RUNTIME_DIR": str(self.folder / "sockets"),
            "HOLDFAST_HISTORY_DIR": str(self.folder / "runs"),
            "HOLDFAST_CACHE_DIR": str(self.folder / "cache"),
            "HOLDFAST_BUILD_DIR": os.environ.get("HOLDFAST_BUILD_DIR", str(ROOT / ".cache/build")),
            "HOLDFAST_TORCH_SHIM": "off",
            "OMP_NUM_THREADS": "1",
        }

    def start(self, *arguments: str, folder: Path = ROOT) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, *arguments], cwd=folder, env=self.environment(),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def guest(self) -> Program:
        """A process that does what it is told (page_guest)."""
        guest = Program(self.start("-m", "tests.dashboard.web.page_guest"))
        self.started.append(guest)
        assert guest.hear() == "ready"
        return guest

    def serve(self, *options: str, port: int = 0) -> Server:
        """`holdfast serve`, listening."""
        command = ("-c", SERVE, "serve", "--json", "--port", str(port), "--interval", "0.1")
        process = self.start(*command, *options)
        server = Server(process)
        self.started.append(server)
        told = json.loads(server.hear())
        server.url, server.token = told["url"].rstrip("/"), told["token"]
        return server

    def end(self, program: Program) -> None:
        self.started.remove(program)
        program.end()

    def close(self) -> None:
        for program in reversed(self.started):
            program.end()
        self.started.clear()


@contextlib.contextmanager
def stage(folder: Path) -> Iterator[Stage]:
    """A stage; everything on it is over afterwards."""
    made = Stage(folder)
    try:
        yield made
    finally:
        made.close()


@dataclass
class Window:
    """The page in a browser: what it complained about, and whom it asked."""

    page: Any
    url: str
    errors: list[str] = field(default_factory=list)
    hosts: set[str] = field(default_factory=set)

    def go(self, tab: str) -> None:
        """Press a tab."""
        self.page.locator(f"[data-tab={tab}]").click()
        self.page.locator(f"main[data-view={tab}]").wait_for()

    def forgive(self, *words: str) -> None:
        """What the browser says of a request that was to be refused."""
        self.errors[:] = [one for one in self.errors if not any(word in one for word in words)]

    def text(self, selector: str) -> str:
        return " ".join(self.page.locator(selector).first.inner_text().split())

    def until_live(self) -> None:
        self.page.locator(".live[data-state=live]").wait_for()

    def snapshots(self) -> int:
        """How many have come so far."""
        return int(self.page.locator(".live").get_attribute("data-snapshots"))

    def shown(self) -> tuple[float, float]:
        """The part of the time that the timeline shows, in seconds since 1970."""
        both = "one => [one.dataset.from, one.dataset.to]"  # of one drawing
        start, end = self.page.locator("#timeline").evaluate(both)
        return float(start), float(end)

    def settle(self) -> None:
        """Wait until what has changed is drawn."""
        draw = "requestAnimationFrame(() => requestAnimationFrame(done))"
        self.page.evaluate(f"() => new Promise(done => {draw})")

    def at(self, selector: str, across: float, down: float) -> tuple[float, float]:
        """A point within an element, in parts of its width and height."""
        box = self.page.locator(selector).bounding_box()
        return box["x"] + box["width"] * across, box["y"] + box["height"] * down


@contextlib.contextmanager
def window(
    running: Any, url: str, *, width: int = 1440, height: int = 900, **options: Any
) -> Iterator[Window]:
    """The page, live, in a context of its own; it must not complain, nor ask anybody else."""
    context = running.new_context(viewport={"width": width, "height": height}, **options)
    context.set_default_timeout(PATIENCE_S * 1000)
    found = Window(context.new_page(), url)
    _hear(found)
    try:
        found.page.goto(url)
        found.until_live()
        yield found
    finally:
        context.close()
    assert found.errors == []
    assert found.hosts <= {url.partition("//")[2].partition("/")[0]}


def _hear(found: Window) -> None:
    def said(message: Any) -> None:
        if message.type in ("error", "warning") and not any(one in message.text for one in GONE):
            found.errors.append(message.text)

    found.page.on("console", said)
    found.page.on("pageerror", lambda error: found.errors.append(f"{error} {error.stack}"))
    found.page.on("request", lambda request: found.hosts.add(request.url.split("/")[2]))


def until(true: Callable[[], Any], what: str = "it") -> Any:
    """Wait until something holds; what it gave."""
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        if found := true():
            return found
        time.sleep(0.05)
    raise AssertionError(f"{what} did not come within {PATIENCE_S:g} s")

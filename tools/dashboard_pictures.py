"""Take the pictures of docs/serve.md: the page of `holdfast serve` over real processes.

apt-get install fonts-noto-cjk            # for the Chinese one
python -m tools.dashboard_pictures        # writes docs/images/dashboard-*.png
"""

from __future__ import annotations

import contextlib
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.dashboard.web import page_guest
from tests.dashboard.web.page_stage import Program, Server, Stage, Window, stage, until, window
from tests.memory import browser as chromium

OUT = Path(__file__).parents[1] / "docs" / "images"
PROMPTS = (
    "a red handwritten seven on yellow paper",
    "a blue handwritten three",
    "a green handwritten nine on white paper",
    "a handwritten zero",
    "a yellow handwritten five on black paper",
    "a purple handwritten two",
)
UNDER_WAY = (
    "-m", "holdfast", "run", "tiny-flux", "--device", "simulated", "--budget", "9MB",
    "--steps", "1000", "--prompt", "a white handwritten eight on blue paper", "--seed", "8",
    "--out", "eight.png",
)  # fmt: skip
MOST_BYTES = 250_000


def main() -> None:
    """Some minutes of work in three processes, and pictures of it."""
    with _folder() as folder, stage(folder) as played:
        server = played.serve("--interval", "0.5")
        studio = _script(played, "studio.py")
        _draw(studio, server)
        features = _script(played, "features.py")
        features.do("manage")
        with chromium.browser() as running:
            _find_leaks(running, server, studio, features)
            with _run_under_way(played, server):
                _pictures(running, server, features)


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    """A folder with a fixed name, which the pictures show."""
    folder = Path(tempfile.gettempdir()) / "studio"
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def _script(played: Stage, name: str) -> Program:
    """Start the guest program of the tests under another name."""
    shutil.copy(page_guest.__file__, played.folder / name)
    script = Program(played.start(name, folder=played.folder))
    played.started.append(script)
    assert script.hear() == "ready"
    return script


def _draw(studio: Program, server: Server) -> None:
    """Pictures for the history, the last one stopped."""
    studio.do("hold")
    studio.do("load 14MB")
    for seed, prompt in enumerate(PROMPTS):
        studio.draw_half(f"20 {seed} {prompt}")
        studio.draw_rest()
    studio.draw_half("1000 7 a handwritten seven that nobody waits for")
    server.post(f"/api/v1/processes/{studio.pid}/interrupt")
    studio.draw_rest()


def _find_leaks(running: Any, server: Server, studio: Program, features: Program) -> None:
    with _open_tab(running, server, "leaks") as shown:
        shown.page.locator(".which").select_option(str(features.pid))
        shown.page.locator("[role=switch]").click()
        shown.page.locator("[role=switch][aria-checked=true]").wait_for()
        features.do("leak")
        time.sleep(3)
        shown.page.get_by_role("button", name="Look for leaks").click()
        shown.page.locator("tbody tr").nth(2).wait_for()
        _save(shown, "leaks")
        shown.go("holders")
        shown.page.locator(".which").select_option(str(studio.pid))
        shown.page.locator("td", has_text="latents").wait_for()
        _save(shown, "holders")


@contextlib.contextmanager
def _run_under_way(played: Stage, server: Server) -> Iterator[None]:
    command = Program(played.start(*UNDER_WAY, folder=played.folder))
    played.started.append(command)
    until(lambda: _steps(server, command) > 60, "sixty steps")
    yield
    played.end(command)


def _steps(server: Server, command: Program) -> int:
    for process in server.get("/api/v1/snapshot")["processes"]:
        if process["pid"] == command.pid and process["run"]:
            return process["run"]["done"]
    return 0


def _pictures(running: Any, server: Server, features: Program) -> None:
    for theme, names in (
        ("light", ["overview", "machine", "models", "runs"]),
        ("dark", ["memory"]),
    ):
        for name in names:
            with _open_tab(running, server, name, color_scheme=theme) as shown:
                _point(shown, name)
                _save(shown, name)
    with _open_tab(running, server, "overview", color_scheme="dark") as shown:
        _save(shown, "overview-dark")
    with _open_tab(running, server, "runs", color_scheme="dark") as shown:
        shown.page.locator(".run-card[data-run] [data-status=done]").last.click()
        _save(shown, "run-dark")
    with _open_tab(running, server, "models", locale="zh-TW") as shown:
        _change_budget(shown, features)
        _save(shown, "models-zh-TW")
    with _open_tab(running, server, "overview", width=390, height=844, is_mobile=True) as shown:
        _save(shown, "phone")


def _point(shown: Window, name: str) -> None:
    """Wait for the machine's live values, or put the pointer on the timeline."""
    if name == "machine":
        shown.page.locator(".live-text").first.wait_for(state="attached")
    if name == "memory":
        shown.page.locator("[data-way=process]").click()
        shown.page.mouse.move(*shown.at("#timeline", 0.62, 0.4))


def _change_budget(shown: Window, features: Program) -> None:
    group = shown.page.locator(f".group[data-pid='{features.pid}']")
    group.locator("input[type=text]").fill("7MB")
    group.locator("input[type=text]").press("Enter")
    group.locator(".outcome[data-kind=done]").wait_for()


@contextlib.contextmanager
def _open_tab(running: Any, server: Server, tab: str, **options: Any) -> Iterator[Window]:
    with window(running, server.url, **{"color_scheme": "light", **options}) as shown:
        shown.page.goto(f"{server.url}/#{tab}")
        shown.page.locator(f"main[data-view={tab}]").wait_for()
        time.sleep(3)  # rates need two looks, pictures are fetched
        yield shown


def _save(shown: Window, name: str) -> None:
    path = OUT / f"dashboard-{name}.png"
    shown.page.wait_for_timeout(400)
    shown.page.screenshot(path=path)
    size = path.stat().st_size
    assert size <= MOST_BYTES, f"{path} has {size} bytes"
    print(path, size, file=sys.stderr)


if __name__ == "__main__":
    main()

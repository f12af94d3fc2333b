"""A real Chromium without a network, for the tests of pages."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium")
PATIENCE_MS = 240_000  # for one thing to happen; the machine may be busy


def missing() -> str | None:
    """Why no browser can be driven here, or None."""
    if CHROMIUM is None:
        return "there is no chromium (make test installs it)"
    if importlib.util.find_spec("playwright") is None:
        return "the package playwright is not installed"
    return None


@dataclass
class Opened:
    """A page in the browser, what it complained about and what it asked the network for."""

    page: Any
    errors: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def timings(self) -> dict[str, float]:
        return self.page.evaluate("window.holdfastTimings")

    def text(self, selector: str) -> str:
        return " ".join(self.page.locator(selector).inner_text().split())

    def settle(self) -> None:
        """Wait until the page has been drawn."""
        self.page.evaluate(
            "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
        )

    def at(self, selector: str, across: float, down: float) -> tuple[float, float]:
        """A point within an element, in parts of its width and height."""
        box = self.page.locator(selector).bounding_box()
        return box["x"] + box["width"] * across, box["y"] + box["height"] * down


@contextmanager
def browser() -> Iterator[Any]:
    """A running Chromium."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield running
        running.close()


@contextmanager
def opened(
    running: Any, path: Path, *, width: int = 1280, height: int = 900, **options: Any
) -> Iterator[Opened]:
    """The page in `path`, drawn, in a context of its own that has no network."""
    context = running.new_context(viewport={"width": width, "height": height}, **options)
    context.set_offline(True)
    context.set_default_timeout(PATIENCE_MS)
    found = Opened(context.new_page())
    found.page.on("console", lambda m: found.errors.append(m.text) if m.type == "error" else None)
    found.page.on("pageerror", lambda error: found.errors.append(str(error)))
    found.page.on("request", lambda request: found.requests.append(request.url))
    found.page.goto(path.as_uri())
    # The policy of the page forbids eval, so the DOM is read instead.
    found.page.locator("#app:not([hidden]), #message:not([hidden])").first.wait_for()
    yield found
    context.close()

"""ComfyUI in a real Chromium, for the tests: one window after the other.

Covers: opening ComfyUI with settings of ours, workflows, runs, our panel, complaints of our files.
Leaves to others: the browser's process (tests/memory/browser.py), the server (conftest).
Promise: complaints of ComfyUI's own page are left out; those about the pack are kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from tests.comfyui.client import Client, Prompt

PATIENCE_MS = 240_000  # for one thing to happen, on two busy cores
PANEL = ".hf-panel"
SEARCH = ".comfy-vue-node-search-container input"
FOUND = ".comfy-vue-node-search-container li"
SETTINGS = {
    "Comfy.TutorialCompleted": True,
    "Comfy.Locale": "en",
    "Comfy.VueNodes.Enabled": False,
    "Comfy.ColorPalette": "dark",
    "Comfy.Minimap.Visible": False,
    "Comfy.VersionCompatibility.DisableWarnings": True,
    "Comfy.Workflow.WorkflowTabsPosition": "Sidebar",
    "Comfy.Sidebar.UnifiedWidth": True,
    "Holdfast.Badges": True,
    "Holdfast.Interval": 0.5,
    "Holdfast.Units": "GB",
}
_READY = "() => window.app?.graph && window.app.extensionManager?.sidebarTab"
# What ComfyUI tells of a run, kept for the test to read.
_LISTEN = """() => {
  window.told = [];
  const { api } = window.comfyAPI.api;
  for (const name of ["execution_start", "execution_success", "execution_error",
                      "execution_interrupted"])
    api.addEventListener(name, (event) => window.told.push([name, event.detail]));
}"""


@dataclass
class Window:
    """A window with ComfyUI; `complaints` are what the browser says about the pack's files."""

    page: Any
    client: Client
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    # ---- workflows

    def load(self, workflow: Mapping[str, Any]) -> None:
        """Open a workflow as it is saved."""
        self.page.evaluate("(graph) => app.loadGraphData(graph)", workflow)
        self.page.wait_for_function("() => app.graph.nodes.length > 0", timeout=PATIENCE_MS)

    def load_prompt(self, prompt: Prompt) -> None:
        """Open a workflow in API form."""
        self.page.evaluate("(prompt) => app.loadApiJson(prompt, 'tiny')", numbered(prompt))

    def queue(self) -> None:
        """Press Run."""
        self.page.evaluate("() => { window.told.length = 0; app.queuePrompt(0, 1) }")

    def wait_until_over(self) -> str:
        """The event that ended the run."""
        over = "() => window.told.find(([name]) => name !== 'execution_start')?.[0]"
        return self.page.wait_for_function(over, timeout=PATIENCE_MS).json_value()

    def run(self) -> str:
        self.queue()
        return self.wait_until_over()

    def fit(self) -> None:
        """Have the whole workflow in view."""
        self.command("Comfy.Canvas.FitView")

    def search(self, text: str) -> Any:
        """What a double click on the canvas and this text find; the first with that name."""
        self._open_search()
        box = self.page.locator(SEARCH)
        box.fill(text)
        return self.page.locator(FOUND).get_by_text(text, exact=True).first

    def _open_search(self) -> None:
        """On a busy machine two clicks may be too far apart to be a double click."""
        from playwright import sync_api

        box = self.page.locator(SEARCH)
        for _ in range(10):
            if box.count():
                return
            self.page.mouse.dblclick(1000, 700)
            with suppress(sync_api.TimeoutError):
                box.wait_for(timeout=5000)
        raise AssertionError("a double click on the canvas opens no search")

    # ---- what there is to see

    def command(self, name: str) -> None:
        self.page.evaluate("(name) => app.extensionManager.command.execute(name)", name)

    def setting(self, name: str, value: Any) -> None:
        self.page.evaluate("([n, v]) => app.extensionManager.setting.set(n, v)", [name, value])

    def open_panel(self) -> Any:
        """The panel, opened with a click where it is not open; live."""
        if not self.page.locator(PANEL).count():
            self.page.locator(".holdfast-memory-tab-button").click()
        self.until("document.querySelector('.hf-panel')?.dataset.state === 'live'")
        return self.page.locator(PANEL)

    def close_panel(self) -> None:
        if self.page.locator(PANEL).count():
            self.page.locator(".holdfast-memory-tab-button").click()
            self.page.locator(PANEL).wait_for(state="detached")

    def panel_text(self) -> str:
        return self.page.locator(PANEL).inner_text()

    def badges(self) -> dict[str, str]:
        """Our badges by the class of the node."""
        found = self.page.evaluate(
            """() => app.graph.nodes.map((node) => [node.comfyClass, node.badges
                 .map((badge) => (typeof badge === 'function' ? badge() : badge).text)
                 .filter((text) => text.startsWith('▲')).join(' ')])"""
        )
        return {kind: text for kind, text in found if text}

    def until(self, condition: str) -> Any:
        """Wait until a JavaScript expression is true; its value."""
        found = self.page.wait_for_function(f"() => {condition}", timeout=PATIENCE_MS)
        return found.json_value()


@contextmanager
def window(
    browser: Any, client: Client, *, width: int = 1440, height: int = 900, **settings: Any
) -> Iterator[Window]:
    """ComfyUI in a window of its own; names of settings have __ for a dot."""
    wanted = SETTINGS | {name.replace("__", "."): value for name, value in settings.items()}
    client.post("/settings", wanted)
    context = browser.new_context(viewport={"width": width, "height": height})
    context.set_default_timeout(PATIENCE_MS)
    context.add_init_script("localStorage.setItem('vueNodesBannerDismissed', 'true')")
    shown = Window(context.new_page(), client)
    _hear(shown)
    shown.page.goto(client.url)
    shown.page.wait_for_function(_READY, timeout=PATIENCE_MS)
    shown.page.locator(".holdfast-memory-tab-button").wait_for()
    shown.page.evaluate(_LISTEN)
    yield shown
    context.close()
    assert not shown.complaints, shown.complaints


_OURS = ("/extensions/holdfast/", "/holdfast/", "Holdfast.", "Holdfast:")


def _hear(shown: Window) -> None:
    """Keep what the browser says about files and routes of ours."""

    def keep(about: str) -> None:
        if any(name in about for name in _OURS):
            shown.complaints.append(about)

    def said(message: Any) -> None:
        if message.type in ("error", "warning"):
            keep(f"{message.text} {message.location.get('url', '')}")

    shown.page.on("console", said)
    shown.page.on("pageerror", lambda error: keep(f"{error} {error.stack}"))
    shown.page.on("request", lambda request: shown.requests.append(request.url))


def numbered(prompt: Prompt) -> dict[str, Any]:
    """The same with numbers for names, as nodes of a window have."""
    numbers = {name: str(number) for number, name in enumerate(prompt, 1)}

    def there(value: Any) -> Any:
        return [numbers[value[0]], value[1]] if isinstance(value, list) else value

    return {
        numbers[name]: {
            **node,
            "inputs": {key: there(value) for key, value in node["inputs"].items()},
        }
        for name, node in prompt.items()
    }

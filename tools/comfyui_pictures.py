"""Take the pictures of docs/comfyui.md: the pack in a real ComfyUI, in a real Chromium.

apt-get install fonts-noto-cjk            # for the Chinese ones
python -m tools.comfyui_pictures          # writes docs/images/comfyui-*.png
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.comfyui import models, server
from tests.comfyui.client import Client
from tests.comfyui.conftest import holdfast
from tests.comfyui.window import Window, numbered, window
from tests.memory import browser as chromium

OUT = Path(__file__).parents[1] / "docs" / "images"
PROMPT = {
    "draw": models.node(
        "FluxTPUPipeline", prompt="a red handwritten seven on yellow paper", seed=5, steps=200,
        width=0, height=0, guidance=-1.0, model_id="tiny-flux", negative_prompt="",
    ),
    "show": models.node("PreviewImage", images=["draw", 0]),
    "timeline": models.node("HoldfastMemoryTimeline", theme="dark", width=1280, after=["draw", 0]),
}  # fmt: skip
# Position and size of the nodes.
PLACES = {"draw": (0, 0, 380, 440), "show": (410, 0, 260, 320), "timeline": (700, 0, 610, 440)}


def main() -> None:
    """One ComfyUI, two windows."""
    with tempfile.TemporaryDirectory() as folder:
        base = server.prepare(Path(folder))
        holdfast("comfy", "install", str(base))
        with server.running(base) as started, chromium.browser() as running:
            client = Client(started.url, started)
            _pictures(running, client, "comfyui-panel", theme="dark", scale=1.0)
            chinese = {"Comfy__Locale": "zh-TW", "Comfy__VueNodes__Enabled": True}
            _pictures(
                running, client, "comfyui-panel-zh-TW", theme="light", scale=0.84,
                Comfy__ColorPalette="light", **chinese,
            )  # fmt: skip


def _pictures(
    running: Any, client: Client, name: str, theme: str, scale: float, **settings: Any
) -> None:
    """Pictures of a running workflow, of its result, and of the search."""
    with window(running, client, width=1760, height=880, **settings) as shown:
        _load(shown, theme)
        shown.open_panel()
        _place(shown, scale)
        shown.queue()
        shown.until(_HALF)
        _save(shown, f"{name}-running.png")
        shown.wait_until_over()
        shown.until("app.graph.nodes.filter((n) => n.badges.length > 1).length > 0")
        shown.page.wait_for_timeout(3000)  # pictures are fetched
        _save(shown, f"{name}.png")
        shown.search("Holdfast")
        shown.page.wait_for_timeout(1500)
        _save(shown, name.replace("panel", "search") + ".png")


_HALF = """((running) => running.innerText.includes('200')
  && +running.querySelector('[role=progressbar]').ariaValueNow >= 40
)(document.querySelector('.hf-running'))"""


def _load(shown: Window, theme: str) -> None:
    """Load the workflow with the nodes in their positions."""
    PROMPT["timeline"]["inputs"]["theme"] = theme
    PROMPT["draw"]["inputs"]["seed"] += 1  # ComfyUI does not run an unchanged workflow again
    shown.load_prompt(PROMPT)
    numbers = dict(zip(numbered(PROMPT), PROMPT, strict=True))
    graph = shown.page.evaluate("() => JSON.parse(JSON.stringify(app.graph.serialize()))")
    for node in graph["nodes"]:
        left, top, width, height = PLACES[numbers[str(node["id"])]]
        node["pos"], node["size"] = [left, top], [width, height]
    shown.load(graph)


def _place(shown: Window, scale: float) -> None:
    """Show the nodes beside the panel, below the bar with the button."""
    shown.page.evaluate(
        """(scale) => {
          const { ds } = app.canvas;
          ds.scale = scale;
          ds.offset = [424 / scale, 130 / scale];
          app.canvas.setDirty(true, true);
        }""",
        scale,
    )


def _save(shown: Window, name: str) -> None:
    shown.page.screenshot(path=OUT / name)
    print(OUT / name, file=sys.stderr)


if __name__ == "__main__":
    main()

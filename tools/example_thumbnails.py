"""Take the thumbnails of the example workflows: each runs in a real ComfyUI.

python -m tools.example_thumbnails                          # all, in a new ComfyUI
python -m tools.example_thumbnails --url http://127.0.0.1:8188 flux_picture    # one

Writes `example_workflows/x.jpg` beside `x.json`, 640 x 360, which ComfyUI's browser of templates
shows. Workflows that need the user's checkpoint run with the tiny one of the tests, which a ComfyUI
at --url must have (tests/comfyui/models.py); their thumbnails leave out the picture.
"""

from __future__ import annotations

import argparse
import io
import json
import math
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.nodes import EXAMPLE_WORKFLOWS
from tests.comfyui import models, server
from tests.comfyui.client import Client
from tests.comfyui.conftest import holdfast
from tests.comfyui.models import runnable
from tests.comfyui.window import Window, window
from tests.comfyui.workflows import to_api
from tests.memory import browser as chromium

if TYPE_CHECKING:
    from PIL.Image import Image

SIZE = (640, 360)
WINDOW = (1280, 720)  # scaled down afterwards
MOST_BYTES = 60_000
GREY = "#353535"  # of a node
STREAM = "stream_model"
MARGIN = 24  # around the nodes, in pixels of the window
SETTINGS = {
    "Comfy__Graph__CanvasInfo": False,
    "Comfy__Graph__CanvasMenu": False,
    "Comfy__NodeBadge__NodeIdBadgeMode": "None",
    "Comfy__NodeBadge__NodeLifeCycleBadgeMode": "None",
    "Comfy__NodeBadge__NodeSourceBadgeMode": "None",
    "Comfy__NodeBadge__ShowApiPricing": False,
    "Holdfast__Badges": False,
    "LiteGraph__Canvas__MinFontSizeForLOD": 0,
}


def main() -> None:
    """One ComfyUI, one window, one picture after the other."""
    options = argparse.ArgumentParser(description="Thumbnails of the example workflows.")
    options.add_argument("--url", help="a ComfyUI that runs already, with the pack in it")
    options.add_argument("names", nargs="*", help="which examples (default: all)")
    args = options.parse_args()
    names = args.names or sorted(file.stem for file in EXAMPLE_WORKFLOWS.glob("*.json"))
    with (
        _comfyui(args.url) as client,
        chromium.browser() as running,
        window(running, client, width=WINDOW[0], height=WINDOW[1], **SETTINGS) as shown,
    ):
        shown.command("Workspace.ToggleFocusMode")
        shown.page.add_style_tag(content=HIDDEN)
        for name in names:
            _thumbnail(shown, name)


@contextmanager
def _comfyui(url: str | None) -> Iterator[Client]:
    if url is not None:
        yield Client(url)
        return
    with tempfile.TemporaryDirectory() as folder:
        base = server.prepare(Path(folder))
        holdfast("comfy", "install", str(base))
        models.install(models.make(), base)
        with server.running(base) as started:
            yield Client(started.url, started)


# ---- one picture


def _thumbnail(shown: Window, name: str) -> None:
    graph = json.loads((EXAMPLE_WORKFLOWS / f"{name}.json").read_text("utf-8"))
    shown.load(graph)
    if _run(shown, name, graph) != "execution_success":
        raise SystemExit(f"{name} did not run: {shown.page.evaluate('() => window.told')}")
    shown.until(FETCHED)
    left_out = ["MarkdownNote", *(("VAEDecode", "SaveImage") if name == STREAM else ())]
    shown.page.evaluate(CLEAN, [{node["id"]: node["size"] for node in graph["nodes"]}, left_out])
    shown.page.evaluate(FRAME, [*WINDOW, MARGIN])
    shown.page.mouse.move(2, 2)
    shown.page.wait_for_timeout(1500)  # wait for the drawing
    _save(_screenshot(shown), EXAMPLE_WORKFLOWS / f"{name}.jpg")


def _run(shown: Window, name: str, graph: dict[str, Any]) -> str:
    """Run the workflow in the window; returns the event that ended it."""
    if name != STREAM:
        return shown.run()
    prompt = runnable(to_api(graph, shown.client.object_info()))
    shown.client.queue(prompt, client_id=shown.page.evaluate(SHOW_VALUES, prompt))
    return shown.wait_until_over()


# Notices, tooltips and the button that leaves the mode without menus.
HIDDEN = """.p-toast, .p-tooltip, .node-tooltip, .selection-toolbox,
  .comfyui-body-top, .graph-canvas-menu, .p-button { display: none !important }"""
FETCHED = "app.graph.nodes.every((n) => (n.imgs ?? []).every((i) => i.complete && i.naturalWidth))"
# Show the values that run, so that figures and model names belong together.
SHOW_VALUES = """(prompt) => {
  for (const [id, { inputs }] of Object.entries(prompt))
    for (const one of app.graph.getNodeById(id)?.widgets ?? [])
      if (one.name in inputs && !Array.isArray(inputs[one.name])) one.value = inputs[one.name];
  window.told.length = 0;
  return window.comfyAPI.api.api.clientId;
}"""
# Previews of steps and lines about progress stay in a node when it is done.
CLEAN = """([sizes, leftOut]) => {
  const extra = ["$$canvas-image-preview", "$$node-text-preview"];
  for (const node of [...app.graph.nodes]) {
    if (leftOut.includes(node.type)) { app.graph.remove(node); continue; }
    if (node.constructor.nodeData?.output_node || node.type === "LoadImage") continue;
    const [gone, kept] = [true, false].map((is) =>
      (node.widgets ?? []).filter((one) => extra.includes(one.name) === is));
    for (const one of gone) one.onRemove?.();
    if (gone.length) node.widgets = kept;
    node.imgs = undefined;
    delete app.nodePreviewImages[node.id];
    node.setSize(sizes[node.id]);
  }
}"""
# Zoom to the remaining nodes.
FRAME = """([width, height, margin]) => {
  const boxes = app.graph.nodes.map(({ pos, size }) => [...pos, ...size])
    .map(([x, y, w, h]) => [x, y - 30, w, h + 30]);  // with its title
  const left = Math.min(...boxes.map((b) => b[0])), top = Math.min(...boxes.map((b) => b[1]));
  const right = Math.max(...boxes.map((b) => b[0] + b[2]));
  const bottom = Math.max(...boxes.map((b) => b[1] + b[3]));
  const scale = Math.min((width - 2 * margin) / (right - left),
                         (height - 2 * margin) / (bottom - top));
  const { ds } = app.canvas;
  ds.scale = scale;
  ds.offset = [(width / scale - left - right) / 2, (height / scale - top - bottom) / 2];
  app.canvas.deselectAll();
  app.canvas.setDirty(true, true);
}"""
# Where nodes show saved pictures: [files, [left, top, right, bottom] in the window].
PLACES = """() => app.graph.nodes.flatMap((node) => {
  const files = app.nodeOutputs[node.id]?.images ?? [];
  const found = (node.widgets ?? []).find((one) =>
    ["$$canvas-image-preview", "$$comfy_animation_preview"].includes(one.name));
  if (!node.type.startsWith("Save") || !files.length || !found) return [];
  const { scale, offset } = app.canvas.ds;
  const at = (...place) => place.map((n, i) => (node.pos[i] + n + offset[i]) * scale);
  return [[files, [...at(2, found.y), ...at(node.size[0] - 2, node.size[1] - 2)]]];
})"""


def _screenshot(shown: Window) -> Image:
    """A screenshot with small pictures enlarged to fill their nodes."""
    from PIL import Image

    with Image.open(io.BytesIO(shown.page.screenshot())) as opened:
        taken = opened.convert("RGB")
    for files, place in shown.page.evaluate(PLACES):
        left, top, right, bottom = map(round, place)
        room = (right - left - 16, bottom - top - 16)
        drawn = _enlarge(shown.client.file(files[0]), room)
        taken.paste(GREY, (left, top, right, bottom))
        middle = (left + right - drawn.width) // 2, (top + bottom - drawn.height) // 2
        taken.paste(drawn, middle)
    return taken.resize(SIZE, Image.Resampling.LANCZOS)


def _enlarge(data: bytes, room: tuple[int, int]) -> Image:
    """A picture that fills the room; the frames of an animation in rows."""
    from PIL import Image, ImageSequence

    with Image.open(io.BytesIO(data)) as opened:
        frames = [frame.convert("RGB") for frame in ImageSequence.Iterator(opened)]
    rows = math.ceil(len(frames) ** 0.5)
    gap = 0 if rows == 1 else 6
    side = (min(room) - gap * (rows - 1)) // rows
    size = (side, side * frames[0].height // frames[0].width)
    whole = Image.new("RGB", [rows * length + (rows - 1) * gap for length in size], GREY)
    for number, frame in enumerate(frames):
        row, column = divmod(number, rows)
        place = column * (size[0] + gap), row * (size[1] + gap)
        whole.paste(frame.resize(size, Image.Resampling.LANCZOS), place)
    return whole


def _save(picture: Image, path: Path) -> None:
    """Save with the best quality that is small enough."""
    sizes = (_jpeg(picture, quality) for quality in range(92, 20, -4))
    data = next(data for data in sizes if len(data) < MOST_BYTES)
    path.write_bytes(data)
    print(f"{path} {len(data)} bytes", file=sys.stderr)


def _jpeg(picture: Image, quality: int) -> bytes:
    data = io.BytesIO()
    picture.save(data, "JPEG", quality=quality, optimize=True, subsampling=0)
    return data.getvalue()


if __name__ == "__main__":
    main()

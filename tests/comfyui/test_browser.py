"""The pack in a real window: search, examples, the panel, badges, settings, languages.

tools/comfyui_pictures.py takes the pictures of the documents in the same kind of window.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from holdfast.nodes import EXAMPLE_WORKFLOWS, LOCALES, NODE_DISPLAY_NAME_MAPPINGS
from tests.comfyui import models
from tests.comfyui.client import Client
from tests.comfyui.window import SEARCH, Window, window
from tests.memory import browser as chromium

pytestmark = pytest.mark.browser

LOOKS = "document.querySelector('.hf-panel')"


@pytest.fixture(scope="module")
def running() -> Iterator[Any]:
    reason = chromium.missing()
    if reason is not None:
        pytest.skip(reason)
    with chromium.browser() as started:
        yield started


@pytest.fixture(scope="module")
def tiny(comfy: Client) -> None:
    """Models small enough to be run here."""
    models.install(models.make(), comfy.server.base)


@pytest.fixture(scope="module")
def english(running: Any, comfy: Client, tiny: None) -> Iterator[Window]:
    """One window for the tests that change nothing for good: loading one takes seconds."""
    with window(running, comfy) as shown:
        yield shown


@pytest.fixture
def shown(english: Window) -> Iterator[Window]:
    """That window; nothing was complained about meanwhile."""
    yield english
    assert english.complaints == []


@pytest.fixture(scope="module")
def seeds() -> Callable[[], int]:
    """A number that was not there before, so that nothing is taken from a cache."""
    numbers = iter(range(1000, 2000))
    return lambda: next(numbers)


def _words(language: str) -> dict[str, Any]:
    """The panel's words as they are translated."""
    return json.loads((LOCALES / language / "main.json").read_text("utf-8"))["holdfast"]


def _sampling(seed: int, steps: int = 6) -> Any:
    return models.workflow("sd15", steps=steps, seed=seed, size=64)


@pytest.fixture
def sampled(shown: Window, seeds: Callable[[], int]) -> Window:
    """The window after a run in which KSampler got a badge."""
    shown.open_panel()
    if "KSampler" not in shown.badges():
        shown.load_prompt(_sampling(seeds(), steps=10))
        assert shown.run() == "execution_success"
        shown.until("app.graph.nodes.some((node) => node.badges.length > 1)")
    return shown


# ---- nodes and workflows


def test_every_node_is_found_by_search(shown: Window) -> None:
    for name in NODE_DISPLAY_NAME_MAPPINGS.values():
        shown.search(name).wait_for()
    shown.page.keyboard.press("Escape")
    shown.page.locator(SEARCH).wait_for(state="detached")


def test_a_node_that_was_found_is_put_on_the_canvas(shown: Window) -> None:
    shown.page.evaluate("() => app.graph.clear()")
    shown.search("Custom Linear Layer").click()
    shown.until("app.graph.nodes.some((node) => node.comfyClass === 'CustomPyTorchLinear')")


def test_an_example_is_loaded_run_and_shown_done(shown: Window) -> None:
    path = EXAMPLE_WORKFLOWS / "small_network_workflow.json"
    shown.load(json.loads(path.read_text("utf-8")))
    assert shown.run() == "execution_success"
    shown.until("Object.keys(app.nodeOutputs).length > 0")
    wrong = shown.page.evaluate("() => app.graph.nodes.filter((n) => n.has_errors).length")
    assert wrong == 0


# ---- the panel


def test_english_words_are_those_of_the_translations(shown: Window) -> None:
    words = shown.page.evaluate(
        "async () => (await import('/extensions/holdfast/texts.js')).ENGLISH"
    )
    assert words == _words("en")


def test_the_panel_shows_memory_as_it_changes_and_the_running_node(
    shown: Window, seeds: Callable[[], int]
) -> None:
    panel = shown.open_panel()
    words = _words("en")
    assert panel.get_by_role("heading", name=words["title"]).is_visible()
    assert panel.get_by_role("meter", name=words["ram"]).is_visible()
    before = shown.page.evaluate(f"() => {LOOKS}.querySelector('.hf-spark-line').outerHTML")
    shown.load_prompt(_sampling(seeds(), steps=10))
    shown.queue()
    shown.until(f"{LOOKS}.querySelector('.hf-running-name').textContent === 'KSampler'")
    shown.until(f"+{LOOKS}.querySelector('[role=progressbar]').getAttribute('aria-valuenow') > 0")
    assert shown.wait_until_over() == "execution_success"
    shown.until(f"{LOOKS}.innerText.includes({json.dumps(words['idle'])})")
    after = shown.page.evaluate(f"() => {LOOKS}.querySelector('.hf-spark-line').outerHTML")
    assert after != before
    row = panel.get_by_role("row").filter(has_text="KSampler")
    assert re.search(r"\d [MG]B", row.inner_text())
    assert panel.get_by_role("listitem").filter(has_text="BaseModel").is_visible()


def test_every_node_that_ran_long_enough_has_a_badge(sampled: Window) -> None:
    badge = sampled.badges()["KSampler"]
    assert re.fullmatch(r"▲ [\d.]+ [MG]B( \(\+[\d.]+ [MG]B\))?", badge)


def test_a_node_of_the_table_is_brought_into_view_with_the_keyboard(sampled: Window) -> None:
    shown, panel = sampled, sampled.open_panel()
    panel.get_by_role("button", name="KSampler").focus()
    shown.page.keyboard.press("Enter")
    shown.until("Object.values(app.canvas.selected_nodes)[0]?.comfyClass === 'KSampler'")


def test_badges_can_be_turned_off_and_units_chosen(sampled: Window) -> None:
    shown = sampled
    shown.setting("Holdfast.Units", "GiB")
    shown.until(f"/\\d GiB/.test({LOOKS}.innerText)")
    assert "iB" in shown.badges()["KSampler"]
    shown.setting("Holdfast.Badges", False)
    assert shown.badges() == {}
    shown.setting("Holdfast.Badges", True)
    shown.setting("Holdfast.Units", "GB")
    assert re.search(r"\d [MG]B", shown.badges()["KSampler"])


def test_the_button_frees_memory_and_tells(shown: Window) -> None:
    panel, words = shown.open_panel(), _words("en")
    panel.get_by_role("button", name=words["free"]).click()
    shown.until(f"{LOOKS}.querySelector('.hf-said').dataset.kind === 'done'")
    said = panel.get_by_role("status")
    said.get_by_text(words["details"]).click()
    assert said.locator("pre").inner_text().startswith("freed: ")
    shown.until(f"{LOOKS}.innerText.includes({json.dumps(words['noModels'])})")


GB = 10**9
MADE_UP = {
    "at_s": 100.0,
    "process": 1,
    "ram": {"used_bytes": 40 * GB, "total_bytes": 64 * GB, "process_bytes": 20 * GB},
    "devices": [
        {
            "name": "cuda:0",
            "label": "NVIDIA RTX",
            "used_bytes": 23 * GB,
            "total_bytes": 24 * GB,
            "allocated_bytes": 18 * GB,
            "reserved_bytes": 20 * GB,
        }
    ],
    "pinned_bytes": 8 * GB,
    "models": [
        {
            "name": "Flux",
            "device": "cuda:0",
            "device_bytes": 9 * GB,
            "offloaded_bytes": 3 * GB,
            "keeper": "comfyui",
        }
    ],
    "working": {"prompt": "p", "node": "77", "kind": "KSampler", "done": 3.0, "total": 20.0},
    "prompts": 3,
    "peaks": {
        "prompt": "p",
        "nodes": [
            {
                "node": "77",
                "kind": "<b>KSampler</b>",
                "ram_bytes": GB,
                "device_bytes": 22 * GB,
                "above_bytes": 4 * GB,
                "seconds": 75.0,
            }
        ],
    },
    "recent": [{"at_s": 99.0, "ram_bytes": GB, "device_bytes": 22 * GB}],
}


def test_a_machine_with_a_gpu_is_shown_whole(shown: Window) -> None:
    """There is none here, so the answer is made up; names are shown as text, never as markup."""
    panel = shown.open_panel()
    shown.page.route("**/holdfast/live*", lambda route: route.fulfill(json=MADE_UP))
    panel.get_by_role("meter", name="VRAM NVIDIA RTX").wait_for()
    text = " ".join(shown.panel_text().split())
    for part in (
        "VRAM NVIDIA RTX 23.0 GB of 24.0 GB 18.0 GB in use, 20.0 GB reserved by PyTorch",
        "RAM 40.0 GB of 64.0 GB ComfyUI's process: 20.0 GB",
        "Pinned RAM 8.00 GB",
        "▲ 22.0 GB",
        "Flux 12.0 GB 9.00 GB on cuda:0, 3.00 GB offloaded to RAM",
        "KSampler 15 % · step 3 of 20 · 2 in the queue",
        "<b>KSampler</b> 22.0 GB +4.00 GB 1:15",
    ):
        assert part in text
    assert panel.locator("b").count() == 0
    meter = panel.get_by_role("meter", name="VRAM NVIDIA RTX")
    assert meter.get_attribute("aria-valuenow") == str(23 * GB)
    assert meter.get_attribute("aria-valuemax") == str(24 * GB)
    shown.page.unroute("**/holdfast/live*")
    shown.until(f"!{LOOKS}.innerText.includes('NVIDIA')")


def test_a_server_that_does_not_answer_is_told_and_asked_again(shown: Window) -> None:
    words = _words("en")
    panel = shown.open_panel()
    shown.page.route("**/holdfast/live*", lambda route: route.abort())
    shown.until(f"{LOOKS}.dataset.state === 'offline'")
    assert panel.get_by_role("status").inner_text() == words["offline"]
    assert panel.get_by_role("button", name=words["free"]).is_disabled()
    shown.complaints.clear()  # the browser tells that a request failed
    shown.page.unroute("**/holdfast/live*")
    shown.until(f"{LOOKS}.dataset.state === 'live'")
    assert panel.get_by_role("status").count() == 0
    shown.complaints.clear()


def test_nothing_is_asked_for_while_the_panel_is_closed(shown: Window) -> None:
    shown.open_panel()
    shown.close_panel()
    shown.page.wait_for_timeout(600)  # one may be under way
    shown.requests.clear()
    shown.page.wait_for_timeout(1500)
    assert [url for url in shown.requests if "/holdfast/" in url] == []


def test_the_settings_are_there(shown: Window) -> None:
    names = _setting_names(shown, "en")
    page = shown.page
    for name in names:
        assert page.get_by_text(name, exact=True).is_visible()
    page.keyboard.press("Escape")


def _setting_names(shown: Window, language: str) -> list[str]:
    """Open our settings; what they are called."""
    texts = json.loads((LOCALES / language / "settings.json").read_text("utf-8"))
    shown.command("Comfy.ShowSettingsDialog")
    page = shown.page
    page.get_by_role("option", name="Holdfast").click()
    names = [words["name"] for words in texts.values()]
    page.get_by_text(names[0], exact=True).wait_for()
    return names


# ---- the other kind of nodes, the other language, the other theme


def test_in_traditional_chinese_with_vue_nodes_everything_is_there_too(
    running: Any, comfy: Client, tiny: None, seeds: Callable[[], int]
) -> None:
    chinese = {
        "Comfy__Locale": "zh-TW",
        "Comfy__VueNodes__Enabled": True,
        "Comfy__ColorPalette": "light",
    }
    nodes = json.loads((LOCALES / "zh-TW" / "nodeDefs.json").read_text("utf-8"))
    words = _words("zh-TW")
    with window(running, comfy, **chinese) as shown:
        titles = shown.page.evaluate(
            """(ids) => ids.map((id) => LiteGraph.registered_node_types[id].title)""",
            list(nodes),
        )
        assert titles == [text["display_name"] for text in nodes.values()]
        panel = shown.open_panel()
        assert panel.get_by_role("heading", name=words["title"]).is_visible()
        shown.load_prompt(_sampling(seeds()))
        shown.fit()
        assert shown.run() == "execution_success"
        badge = shown.page.locator("[data-node-id]").get_by_text(re.compile("^▲ ")).first
        badge.wait_for()
        shown.until(f"{LOOKS}.innerText.includes({json.dumps(words['idle'])})")
        assert "KSampler" in panel.get_by_role("table").inner_text()
        for name in _setting_names(shown, "zh-TW"):
            assert shown.page.get_by_text(name, exact=True).is_visible()


def test_inputs_and_outputs_of_a_node_are_in_chinese(running: Any, comfy: Client) -> None:
    words = json.loads((LOCALES / "zh" / "nodeDefs.json").read_text("utf-8"))
    wanted = words["SVMTopologyAwareAllocNode"]
    with window(running, comfy, Comfy__Locale="zh") as shown:
        node = shown.page.evaluate(
            """() => {
              const node = LiteGraph.createNode("SVMTopologyAwareAllocNode");
              app.graph.add(node);
              return {
                title: node.title,
                outputs: node.outputs.map((one) => one.localized_name),
                widgets: node.widgets.map((one) => [one.name, one.label]),
              };
            }"""
        )
    assert node["title"] == wanted["display_name"]
    assert node["outputs"] == [text["name"] for text in wanted["outputs"].values()]
    for name, label in node["widgets"]:
        assert label == wanted["inputs"][name]["name"]

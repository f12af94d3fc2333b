"""The page of `holdfast serve`, in a real Chromium, over real processes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from holdfast.base.units import format_bytes
from tests.dashboard.web.page_stage import (
    PATIENCE_S,
    Program,
    Server,
    Stage,
    stage,
    until,
    window,
)
from tests.memory.browser import browser, missing
from tests.needs import needs

pytestmark = [pytest.mark.browser, pytest.mark.slow, needs(missing())]

HOSTILE = "<img src=x onerror=window.hacked=1>"


@pytest.fixture(scope="module")
def playing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with stage(tmp_path_factory.mktemp("page")) as made:
        yield made


@pytest.fixture(scope="module")
def guest(playing: Stage) -> Program:
    """With pools, a managed module that runs passes, and the built-in model under a budget."""
    made = playing.guest()
    for line in ("hold", "manage", "load 12MB"):
        made.do(line)
    return made


@pytest.fixture(scope="module")
def server(playing: Stage, guest: Program) -> Server:
    return playing.serve()


@pytest.fixture(scope="module")
def running() -> Iterator[Any]:
    with browser() as made:
        yield made


def _card(guest: Program) -> str:
    return f".process[data-pid='{guest.pid}']"


# ---- runs


def test_a_run_is_seen_while_it_is_drawn_and_then_with_its_picture(
    running: Any, server: Server, guest: Program
) -> None:
    prompt = "a red handwritten seven on yellow paper"
    with window(running, server.url) as shown:
        guest.draw_half(f"40 3 {prompt}")
        now = shown.page.locator(f"{_card(guest)} .run-now")
        now.locator("[data-stage=denoise][data-state=now]").wait_for()
        assert now.locator(".run-what").inner_text().split("\n")[-1].endswith(prompt)
        steps = now.locator(".bar-head span").first
        until(lambda: "of 40" in steps.inner_text(), "a step")
        guest.draw_rest()
        now.wait_for(state="hidden")
        shown.go("runs")
        card = shown.page.locator(".run-card").first
        card.locator(".prompt", has_text=prompt).wait_for()
        until(lambda: card.locator("img").evaluate("one => one.naturalWidth") > 0, "its picture")
        card.click()
        about = shown.page.locator("dialog.large")
        assert "holdfast run tiny-flux --prompt" in about.locator(".command").inner_text()
        assert "seed 3" in shown.text(".run-card")
        shown.page.keyboard.press("Escape")
        about.wait_for(state="detached")


def test_a_run_that_is_stopped_is_shown_as_such(
    running: Any, server: Server, guest: Program
) -> None:
    with window(running, server.url) as shown:
        guest.draw_half("40 4 a run without an end")
        shown.page.locator(f"{_card(guest)} [data-action=stopRun]").click()
        question = shown.page.locator("dialog")
        assert "It ends within a step, without a picture." in question.inner_text()
        question.locator("button.main").click()
        shown.page.locator(_card(guest), has_text="The run is being stopped.").wait_for()
        guest.draw_rest()
        shown.go("runs")
        stopped = shown.page.locator(".run-card", has_text="a run without an end")
        stopped.locator("[data-status=stopped]").wait_for()
        shown.page.locator("main select").select_option("done")
        stopped.wait_for(state="detached")


def test_texts_that_look_like_markup_stay_texts(
    running: Any, server: Server, guest: Program
) -> None:
    guest.do(f"hold {HOSTILE}")
    with window(running, server.url) as shown:
        guest.draw_half(f"40 5 {HOSTILE}")
        prompt = shown.page.locator(f"{_card(guest)} .run-now .prompt")
        until(lambda: prompt.text_content() == HOSTILE, "the prompt")
        guest.draw_rest()
        shown.go("runs")
        shown.page.locator(".run-card", has_text=HOSTILE).first.click()
        assert shown.text("dialog .prompt") == HOSTILE
        assert shown.text("dialog .command").count(f"'{HOSTILE}'") == 1
        shown.page.keyboard.press("Escape")
        shown.go("memory")
        shown.page.locator("[data-way=pool]").click()
        shown.page.locator(".legend", has_text=HOSTILE).wait_for()
        shown.go("holders")
        shown.page.locator("td", has_text=HOSTILE).first.wait_for()
        assert shown.page.evaluate("window.hacked") is None
        assert shown.page.locator("img[src=x]").count() == 0


# ---- budgets


NO_SIZE = [
    "cannot use the budget 'rather much'",
    'a size such as "6GB", a number of bytes, or null for all there is',
]


def _sequential(server: Server, guest: Program) -> dict[str, Any]:
    models = server.process_of(guest)["models"]
    return next(one for one in models if one["name"] == "Sequential")


def _budget(server: Server, guest: Program) -> int:
    return _sequential(server, guest)["budget_bytes"]


def test_the_slider_changes_the_budget_of_the_process(
    running: Any, server: Server, guest: Program
) -> None:
    before = _budget(server, guest)
    with window(running, server.url) as shown:
        shown.go("models")
        group = shown.page.locator(".group", has_text="Sequential")
        said = group.locator(".outcome")
        box = group.locator("input[type=range]").bounding_box()
        shown.page.mouse.move(box["x"] + box["width"] * 0.3, box["y"] + box["height"] / 2)
        shown.page.mouse.down()
        shown.page.mouse.move(box["x"] + box["width"] * 0.7, box["y"] + box["height"] / 2, steps=5)
        assert _budget(server, guest) == before  # it acts when it is let go
        shown.page.mouse.up()
        said.get_by_text("Weights follow with the next pass.").wait_for()
        until(lambda: _budget(server, guest) != before, "the new budget")
        after = _budget(server, guest)
        assert before < after < 13_200_000
        shown_bytes = group.locator("output")
        until(lambda: shown_bytes.inner_text() == f"{after / 1e6:.1f} MB", "the new budget shown")
        note = group.locator(".model .note")  # between two plans nothing is on the device
        until(lambda: "cross the link in each pass" in note.inner_text(), "what streams")


def test_a_budget_can_be_typed_and_is_refused_in_words(
    running: Any, server: Server, guest: Program
) -> None:
    with window(running, server.url) as shown:
        shown.go("models")
        group = shown.page.locator(".group", has_text="Sequential")
        field = group.locator("input[type=text]")
        said = group.locator(".outcome")
        field.fill("3MB")
        field.press("Enter")
        said.get_by_text("The budget is 3.0 MB now.").wait_for()
        field.fill("rather much")
        group.get_by_role("button", name="Set").click()
        until(lambda: said.inner_text().split("\n") == NO_SIZE, "a refusal")
        least = until(lambda: _sequential(server, guest)["smallest_bytes"], "the least budget")
        field.fill("1kB")
        field.press("Enter")
        too_small = [
            "Sequential cannot run inside of 1.0 KB",
            f"a budget of at least {least} bytes ({format_bytes(least)})",
        ]
        until(lambda: said.inner_text().split("\n") == too_small, "another refusal")
        assert said.get_attribute("data-kind") == "failed"
        shown.forgive("status of 422", "status of 409")
        until(lambda: _budget(server, guest) == 3_000_000, "the budget that was typed")


# ---- leaks and holders


def test_the_leak_view_fills_with_a_real_leak(running: Any, server: Server, guest: Program) -> None:
    with window(running, server.url) as shown:
        shown.go("leaks")
        shown.page.locator("[role=switch]").click()
        shown.page.locator("[role=switch][aria-checked=true]").wait_for()
        guest.do("leak")
        shown.page.get_by_role("button", name="Look for leaks").click()
        rows = shown.page.locator("tbody tr")
        rows.nth(2).wait_for()
        found = [row.split("\t") for row in rows.all_inner_texts()]
        assert [row[0] for row in found] == ["7.0 MB", "5.0 MB", "3.0 MB"]
        assert all("page_guest.py" in row[4] for row in found)
        assert all(len(row[5]) > 3 for row in found), found
        shown.page.locator("[role=switch]").click()
        shown.page.locator("[role=switch][aria-checked=false]").wait_for()


def test_holders_are_sorted_and_filtered(running: Any, server: Server, guest: Program) -> None:
    with window(running, server.url) as shown:
        shown.go("holders")
        first = shown.page.locator("tbody tr").first
        until(lambda: first.count() and "48.0 MB" in first.inner_text(), "the largest first")
        assert "latents" in first.inner_text()
        shown.page.get_by_role("button", name="Size").click()
        assert "48.0 MB" not in first.inner_text()
        shown.page.locator("input[type=search]").fill("activations")
        until(lambda: shown.page.locator("tbody tr").count() == 1, "one row")
        assert "20.0 MB" in first.inner_text()


# ---- the server


def test_the_page_connects_again_after_the_server_was_restarted(
    running: Any, playing: Stage, guest: Program
) -> None:
    first = playing.serve()
    with window(running, first.url) as shown:
        playing.end(first)
        shown.page.locator(".live[data-state=reconnecting]").wait_for()
        shown.page.get_by_text("The server does not answer.").wait_for()
        second = playing.serve(port=first.port)
        shown.until_live()
        assert second.pid != first.pid
        assert shown.page.locator(".banner").is_hidden()
        before = shown.snapshots()
        until(lambda: shown.snapshots() > before + 3, "further snapshots")
        playing.end(second)


def test_the_token_opens_the_page_and_another_token_closes_it(
    running: Any, playing: Stage, guest: Program
) -> None:
    first = playing.serve("--token", "open-sesame-0123456789")
    bare = running.new_context()
    assert bare.request.get(first.url).status == 401
    bare.close()
    context = running.new_context()
    context.set_default_timeout(PATIENCE_S * 1000)
    page = context.new_page()
    page.goto(f"{first.url}/?token=open-sesame-0123456789")
    page.locator(".live[data-state=live]").wait_for()
    assert page.url == f"{first.url}/"
    page.reload()
    page.locator(".live[data-state=live]").wait_for()
    playing.end(first)
    second = playing.serve("--token", "another-one-0123456789", port=first.port)
    page.locator(".live[data-state=refused]").wait_for()
    assert page.locator(".banner").inner_text().split("\n") == [
        "This page needs the token of the server.",
        "Open the whole address that holdfast serve printed, with ?token= in it. "
        "The browser then remembers it.",
    ]
    tab = context.new_page()
    tab.goto(f"{second.url}/?token=another-one-0123456789")
    page.locator(".live[data-state=live]").wait_for()
    context.close()
    playing.end(second)


# ---- the window


def test_the_timeline_zooms_with_wheel_drag_keys_and_buttons(
    running: Any, server: Server, guest: Program
) -> None:
    with window(running, server.url) as shown:
        shown.go("memory")
        until(lambda: shown.shown()[1] - shown.shown()[0] > 12, "more than is shown at least")
        shown.page.get_by_role("button", name="Pause").click()
        shown.page.locator(".live[data-state=paused]").wait_for()
        shown.settle()
        whole = shown.shown()
        shown.page.mouse.move(*shown.at("#timeline", 0.5, 0.5))
        shown.page.mouse.wheel(0, -100)
        until(lambda: shown.shown() != whole, "the wheel's part")
        wheeled = shown.shown()
        assert whole[0] < wheeled[0] < wheeled[1] < whole[1]
        shown.page.mouse.move(*shown.at("#timeline", 0.4, 0.4))
        shown.page.mouse.down()
        shown.page.mouse.move(*shown.at("#timeline", 0.8, 0.6), steps=4)
        shown.page.mouse.up()
        until(lambda: shown.shown() != wheeled, "the part that was dragged")
        dragged = shown.shown()
        assert wheeled[0] < dragged[0] < dragged[1] < wheeled[1]
        shown.page.locator("#timeline").press("ArrowLeft")
        until(lambda: shown.shown()[0] < dragged[0], "the key's part")
        shown.page.mouse.dblclick(*shown.at("#timeline", 0.5, 0.5))
        until(lambda: shown.shown() == whole, "everything")
        shown.page.locator("[data-length='60']").click()
        until(lambda: shown.shown()[1] - shown.shown()[0] == pytest.approx(60), "a minute")
        tip = shown.page.locator(".tip")
        shown.page.mouse.move(*shown.at("#timeline", 0.97, 0.5))
        tip.wait_for()
        assert "page_guest" in tip.inner_text()


def test_every_view_fits_a_phone_and_speaks_chinese(
    running: Any, server: Server, guest: Program
) -> None:
    names = ["總覽", "機器", "記憶體", "模型", "佔用者", "洩漏", "執行紀錄"]
    options = {"locale": "zh-TW", "color_scheme": "dark", "is_mobile": True, "has_touch": True}
    with window(running, server.url, width=390, height=844, **options) as shown:
        tabs = shown.page.locator("[role=tab]")
        assert tabs.all_inner_texts() == names
        for tab in tabs.all():
            tab.click()
            shown.page.wait_for_timeout(150)
            wide = shown.page.evaluate("document.documentElement.scrollWidth")
            assert wide <= 390, tab.inner_text()
        shown.page.locator("header select").select_option("zh-CN")
        assert shown.page.locator("[role=tab]").first.inner_text() == "概览"
        shown.page.reload()
        shown.until_live()
        assert shown.page.locator("[role=tab]").first.inner_text() == "概览"


def test_tabs_and_the_theme_work_with_the_keyboard(
    running: Any, server: Server, guest: Program
) -> None:
    ground = "getComputedStyle(document.body).backgroundColor"
    with window(running, server.url, color_scheme="light") as shown:
        assert shown.page.evaluate(ground) == "rgb(243, 245, 248)"
        shown.page.locator("[data-tab=overview]").focus()
        shown.page.keyboard.press("ArrowRight")
        shown.page.locator("main[data-view=machine]").wait_for()
        assert shown.page.url.endswith("#machine")
        until(lambda: "%" in (shown.page.locator(".live-text").first.text_content() or ""), "use")
        shown.page.keyboard.press("End")
        shown.page.locator("main[data-view=runs]").wait_for()
        shown.page.go_back()
        shown.page.locator("main[data-view=machine]").wait_for()
        for _ in range(2):
            shown.page.locator(".theme").press("Enter")
        assert shown.page.evaluate(ground) == "rgb(14, 18, 23)"


def test_freeing_asks_first_and_says_what_was_freed(
    running: Any, server: Server, guest: Program
) -> None:
    with window(running, server.url) as shown:
        press = shown.page.locator(f"{_card(guest)} [data-action=freeCaches]")
        press.click()
        shown.page.get_by_role("button", name="Cancel").click()
        assert shown.page.locator(f"{_card(guest)} > .outcome").is_hidden()
        press.click()
        shown.page.locator("dialog button.main").click()
        said = shown.page.locator(f"{_card(guest)} > .outcome[data-kind=done]")
        said.wait_for()
        assert said.inner_text().startswith("Freed: ")


def test_an_empty_machine_says_what_to_do(
    running: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with stage(tmp_path_factory.mktemp("empty")) as alone:
        served = alone.serve()
        with window(running, served.url) as shown:
            assert shown.text(".empty h2") == "No Holdfast process yet"
            assert shown.text(".empty code").startswith("holdfast run tiny-flux")
            for tab, words in (("models", "No model is loaded"), ("runs", "No run yet")):
                shown.go(tab)
                assert shown.text(".empty h2") == words


def test_the_page_is_given_as_the_api_describes_it(server: Server) -> None:
    paths = json.dumps(server.get("/openapi.json")["paths"])
    for path in ("/api/v1/events", "/api/v1/runs/{id}/picture", "/api/v1/topology"):
        assert path in paths

"""The dashboard looks at a real ComfyUI: the prompt that runs is a run, and can be stopped."""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Callable, Iterator

import pytest

from holdfast.dashboard.ipc.client import Attached
from holdfast.dashboard.snapshot.snapshot import RunNow
from tests.comfyui import models
from tests.comfyui.client import Client, Interrupted
from tests.dashboard.web.page_stage import stage, window
from tests.memory.browser import browser, missing
from tests.needs import needs

STEPS = 2000  # more than anybody waits for
PATIENCE_S = 240.0  # for one thing to happen; the machine may be busy
_seeds = itertools.count(990_000)  # nothing is taken from ComfyUI's cache


@pytest.fixture(scope="module", autouse=True)
def tiny(comfy: Client) -> None:
    models.install(models.make(), comfy.server.base)


@pytest.fixture
def attached(comfy: Client, monkeypatch: pytest.MonkeyPatch) -> Iterator[Attached]:
    monkeypatch.setenv("HOLDFAST_RUNTIME_DIR", str(comfy.server.base / "sockets"))
    with Attached(comfy.server.process.pid, timeout_s=30) as made:
        yield made


def until(attached: Attached, wanted: Callable[[RunNow | None], bool]) -> RunNow | None:
    """Look until the run is as wanted."""
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        run = attached.process().run
        if wanted(run):
            return run
        time.sleep(0.05)
    raise AssertionError(f"not within {PATIENCE_S} s; the last was {run}")


def test_a_prompt_is_seen_as_a_run_stopped_and_the_next_one_runs(
    comfy: Client, attached: Attached
) -> None:
    assert attached.process().name.startswith("ComfyUI --cpu --listen 127.0.0.1")
    assert attached.process().run is None
    assert attached.interrupt() is False
    sent_s = time.time()
    number = comfy.queue(models.workflow("sd15", steps=STEPS, seed=next(_seeds)))
    try:
        run = until(attached, lambda now: now is not None and now.left_s is not None)
        assert run is not None
        assert (run.id, run.stage, run.label) == (number, "node", "KSampler")
        assert (run.model, run.total) == ("tiny-sd15.safetensors", STEPS)
        assert 0.02 * STEPS <= run.done < STEPS
        assert sent_s - 1 <= run.began_s <= time.time()
        assert run.left_s is not None
        assert 0 < run.left_s < 60 * STEPS
        assert attached.interrupt() is True
        with pytest.raises(Interrupted):
            comfy.wait(number)
    finally:
        comfy.cancel(number)
    until(attached, lambda now: now is None)
    assert comfy.run(models.workflow("sd15", steps=1, seed=next(_seeds)))["save"]["images"]


@needs(missing())
@pytest.mark.browser
def test_the_page_shows_the_node_that_runs_and_stops_it(comfy: Client) -> None:
    with (
        stage(comfy.server.base) as playing,
        browser() as running,
        window(running, playing.serve().url) as shown,
    ):
        number = comfy.queue(models.workflow("sd15", steps=STEPS, seed=next(_seeds)))
        try:
            now = shown.page.locator(".run-now")
            now.get_by_text(f" of {STEPS} ").wait_for()
            assert re.search(rf"Node · \d+ of {STEPS} · \d+ % · KSampler\n", now.inner_text())
            assert "tiny-sd15.safetensors" in now.inner_text()
            assert now.locator(".stages").is_hidden()
            shown.page.locator("[data-action=stopRun]").click()
            shown.page.locator("dialog button.main").click()
            with pytest.raises(Interrupted):
                comfy.wait(number)
            now.wait_for(state="hidden")
        finally:
            comfy.cancel(number)

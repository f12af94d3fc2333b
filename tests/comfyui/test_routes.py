"""The pack's routes in a real ComfyUI: memory while it works, and freeing it."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import pytest

from holdfast.nodes.host.server import MOST_BODY_BYTES
from tests.comfyui import models
from tests.comfyui.client import Client

JSON = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def tiny(comfy: Client) -> None:
    """Models small enough to be run here."""
    models.install(models.make(), comfy.server.base)


def _ask(
    client: Client, method: str, path: str, body: bytes = b"", **headers: str
) -> tuple[int, Any, http.client.HTTPMessage]:
    """Status, document and headers of an answer, whatever it is."""
    connection = http.client.HTTPConnection(urlsplit(client.url).netloc, timeout=300)
    try:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, body, named)
        answer = connection.getresponse()
        data = answer.read()
        document = json.loads(data) if data[:1] in (b"{", b"[") else None
        return answer.status, document, answer.headers
    finally:
        connection.close()


def _look_until(client: Client, fits: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    deadline = time.monotonic() + 60
    while not fits(seen := client.get("/holdfast/live")):
        assert time.monotonic() < deadline, f"it was never so: {seen}"
        time.sleep(0.02)
    return seen


def test_memory_is_told_below_both_paths(comfy: Client) -> None:
    for path in ("/holdfast/live", "/api/holdfast/live"):
        status, seen, headers = _ask(comfy, "GET", path)
        assert status == 200
        assert headers["Cache-Control"] == "no-store"
        assert seen["process"] == comfy.server.process.pid
        assert 0 < seen["ram"]["process_bytes"] < seen["ram"]["total_bytes"]


def test_what_was_since_an_earlier_look_is_told(comfy: Client) -> None:
    first = comfy.get("/holdfast/live")
    second, deadline = first | {"recent": []}, time.monotonic() + 60
    while not second["recent"] and time.monotonic() < deadline:
        second = comfy.get("/holdfast/live", since=str(first["at_s"]))
    assert second["recent"]
    assert all(point["at_s"] > first["at_s"] for point in second["recent"])


def test_a_run_is_seen_while_it_goes_on_and_its_peaks_after_it(comfy: Client, tiny: None) -> None:
    comfy.get("/holdfast/live")
    prompt = comfy.queue(models.workflow("sd15", steps=6, seed=31))
    sampling = _look_until(comfy, lambda seen: (seen["working"] or {}).get("node") == "sampler")
    assert sampling["working"]["kind"] == "KSampler"
    assert sampling["working"]["prompt"] == prompt
    assert sampling["prompts"] >= 1
    _look_until(comfy, lambda seen: ((seen["working"] or {}).get("done") or 0) > 0)
    comfy.wait(prompt)
    idle = _look_until(comfy, lambda seen: seen["working"] is None)
    assert {"BaseModel"} <= {model["name"] for model in idle["models"]}
    peaks = comfy.get("/holdfast/peaks")
    assert peaks == idle["peaks"]
    assert peaks["prompt"] == prompt
    peak = next(one for one in peaks["nodes"] if one["node"] == "sampler")
    assert peak["kind"] == "KSampler"
    assert peak["ram_bytes"] > 100 * 10**6
    assert peak["seconds"] > 0


def test_freeing_unloads_models_and_tells_so(comfy: Client, tiny: None) -> None:
    comfy.run(models.workflow("sd15", steps=1, seed=32))
    assert comfy.get("/holdfast/live")["models"]
    freed = comfy.post("/holdfast/free")
    assert freed["later"] is False
    assert "BaseModel" in {model["name"] for model in freed["models"]}
    assert freed["text"].startswith("freed: ")
    assert comfy.get("/holdfast/live")["models"] == []


def test_freeing_while_a_workflow_runs_leaves_it_its_models(comfy: Client, tiny: None) -> None:
    prompt = comfy.queue(models.workflow("sd15", steps=6, seed=33))
    _look_until(comfy, lambda seen: ((seen["working"] or {}).get("done") or 0) > 0)
    assert comfy.post("/holdfast/free", {"caches": False})["later"] is True
    assert comfy.wait(prompt)["save"]["images"]
    _look_until(comfy, lambda seen: seen["models"] == [])


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"{", "the request is not JSON\n  expected: an object"),
        (b"7", "the request is of type int\n  expected: an object"),
        (
            b'{"path": "/"}',
            "unknown option 'path'\n  expected: models or caches or forget_outputs",
        ),
        (b'{"models": "yes"}', 'models is "yes"\n  expected: true or false'),
    ],
)
def test_a_request_that_cannot_be_used_is_refused_in_three_parts(
    comfy: Client, body: bytes, text: str
) -> None:
    status, said, _ = _ask(comfy, "POST", "/holdfast/free", body, **JSON)
    assert status == 400
    assert said["error"] == text + '\n  try: {"models": true, "caches": true}'


def test_a_query_that_cannot_be_used_is_refused(comfy: Client) -> None:
    status, said, _ = _ask(comfy, "GET", "/holdfast/live?since=yesterday")
    assert status == 400
    assert said["what"] == "since is 'yesterday'"
    assert _ask(comfy, "GET", "/holdfast/peaks?of=everything")[0] == 400


def test_a_form_of_another_page_frees_nothing(comfy: Client) -> None:
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    assert _ask(comfy, "POST", "/holdfast/free", b"models=true", **form)[0] == 415
    assert _ask(comfy, "POST", "/holdfast/free", b"{}", **{"Content-Type": "text/plain"})[0] == 415
    away = {**JSON, "Origin": "http://evil.example"}
    assert _ask(comfy, "POST", "/holdfast/free", b"{}", **away)[0] == 403


def test_a_long_body_is_not_read(comfy: Client) -> None:
    body = b" " * (MOST_BODY_BYTES + 1)
    assert _ask(comfy, "POST", "/holdfast/free", body, **JSON)[0] == 413
    assert comfy.get("/holdfast/live")["ram"]

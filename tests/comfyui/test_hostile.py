"""Workflows that nobody means well with: refused with a text, and ComfyUI stays up.

What ComfyUI can see before the run is refused there; what only the run can know is an error of the
node in Holdfast's words.
"""

from __future__ import annotations

import http.client
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import pytest

import holdfast
from holdfast.nodes import NODE_CLASS_MAPPINGS
from holdfast.nodes.host.server import MOST_BODY_BYTES
from holdfast.pipeline.model.sources import BUILT_IN
from tests.comfyui import hostile, models, server
from tests.comfyui.client import Client, Failed, Refused
from tests.comfyui.hostile import ALLOCATION, IMAGE, NAN, handed
from tests.comfyui.models import node

MB = 10**6
FLUX: dict[str, Any] = {"height": 0, "width": 0, "steps": 1, "guidance": -1.0, "seed": 1}


@pytest.fixture(scope="module")
def info(comfy: Client) -> dict[str, Any]:
    models.install(models.make(), comfy.server.base)
    return comfy.object_info()


@pytest.fixture(scope="module", autouse=True)
def nothing_outside(comfy: Client) -> Iterator[None]:
    """No file beside ComfyUI's folder comes, goes or changes."""
    before = files(comfy.server.base)
    yield
    assert files(comfy.server.base) == before


def files(base: Path) -> dict[str, tuple[int, int]]:
    """Size and time of each file beside `base` and in ComfyUI's program, but compiled code."""
    found = {}
    for root in (base.parent, server.APP):
        for folder, folders, names in os.walk(root):
            folders[:] = [one for one in folders if one != "__pycache__" and one != base.name]
            for name in names:
                path = Path(folder, name)
                if not path.is_symlink():
                    found[str(path)] = (path.stat().st_size, path.stat().st_mtime_ns)
    return found


@pytest.fixture(autouse=True)
def stays_up(comfy: Client) -> Iterator[None]:
    """ComfyUI answers after each test, and is the process that it was."""
    yield
    comfy.idle()
    assert comfy.get("/system_stats")["system"]["comfyui_version"] == "0.3.75"
    assert comfy.server.running


def fails(comfy: Client, prompt: hostile.Prompt, **more: Any) -> str:
    """What the node says that fails, in Holdfast's words."""
    with pytest.raises(Failed) as caught:
        comfy.run(prompt, **more)
    document = caught.value.document
    assert not isinstance(caught.value, Refused), str(caught.value)
    assert document["exception_type"].startswith("holdfast.base.errors."), document
    said = document["exception_message"].strip()
    assert "\n  expected: " in said, said
    return said


def told(comfy: Client, prompt: hostile.Prompt) -> str:
    """Why it does not go, in Holdfast's words, whether that is seen before or in the run."""
    with pytest.raises(Failed) as caught:
        comfy.run(prompt)
    said = str(caught.value)
    if not isinstance(caught.value, Refused):
        assert caught.value.document["exception_type"].startswith("holdfast.base.errors."), said
    assert "\n  expected: " in said, said
    return said


def refused(comfy: Client, prompt: hostile.Prompt) -> dict[str, list[str]]:
    """What is said about each node of a workflow that does not even begin."""
    with pytest.raises(Refused) as caught:
        comfy.queue(prompt)
    assert caught.value.status == 400
    return caught.value.errors()


def shown(comfy: Client, prompt: hostile.Prompt, source: str, slot: int = 1) -> str:
    """An output of a run that goes through, as text."""
    prompt = {**prompt, "shown": node("PreviewAny", source=[source, slot])}
    return comfy.run(prompt)["shown"]["text"][0]


# ---- every input of every node


def at_the_run(name: str, key: str, value: Any, about: Any) -> bool:
    """Whether it is told by the node when it runs: the TPU nodes look at what they are given."""
    type_ = next(type_ for one, type_, _, _ in hostile.inputs_of(about) if one == key)
    linked = isinstance(value, list) or value is ...
    unseen = type_ in ("CONDITIONING", "LATENT") or (type_ == "FLOAT" and str(value) == "nan")
    return NODE_CLASS_MAPPINGS[name].CATEGORY.startswith("TPU/") and unseen and not linked


@pytest.mark.parametrize("name", NODE_CLASS_MAPPINGS)
def test_no_input_takes_a_value_that_it_cannot_mean(
    name: str, comfy: Client, info: dict[str, Any]
) -> None:
    nodes, cases = hostile.all_wrong(name, info[name])
    late = {one for one, case in cases.items() if at_the_run(name, *case, info[name])}
    with pytest.raises(Refused) as caught:
        comfy.queue({key: one for key, one in nodes.items() if key.split(" shown")[0] not in late})
    found = caught.value.errors()
    assert {one: cases[one] for one in cases if one not in found and one not in late} == {}
    assert all(all(texts) for texts in found.values())
    assert max(len(text) for texts in found.values() for text in texts) < 30_000
    assert caught.value.status == 400
    for one in sorted(late)[:: len(late) // 4 or 1]:
        prompt = {key: it for key, it in nodes.items() if not key.startswith(("bad", "without"))}
        prompt |= {key: it for key, it in nodes.items() if key.split(" shown")[0] == one}
        told(comfy, prompt)


def test_every_number_has_an_end(info: dict[str, Any]) -> None:
    for name in NODE_CLASS_MAPPINGS:
        for key, type_, options, _ in hostile.inputs_of(info[name]):
            if type_ in ("INT", "FLOAT"):
                assert {"min", "max"} <= set(options), (name, key)


def test_nodes_in_a_circle_are_refused(comfy: Client) -> None:
    circle = {"1": handed(["2", 0]), "2": handed(["1", 0])}
    with pytest.raises(Refused) as caught:
        comfy.queue(circle)
    assert caught.value.status == 400
    itself = node("CustomPyTorchActivation", tensor=["1", 0], activation_type="relu")
    with pytest.raises(Refused):
        comfy.queue({"1": itself, "2": node("PreviewAny", source=["1", 0])})


# ---- pointers

FORGED = ["0x7fff00000000", 0x7FFF00000000, {"address": 4096, "size": 1 << 40}]


@pytest.mark.parametrize("value", FORGED, ids=repr)
def test_a_pointer_that_nobody_made_is_never_followed(comfy: Client, value: Any) -> None:
    pointer = {"1": handed(value)}  # over a link, which ComfyUI lets through
    freed = {**pointer, "2": node("SVMMemoryCleanupNode", memory_pointer=["1", 0])}
    assert shown(comfy, freed, "2").splitlines()[1:] == [
        "  expected: the handle that alloc() returned; a number, from a file for example, is "
        "never taken for an address",
        "  try: connect the memory_pointer of an allocation of this run",
    ]
    moving = node("SVMMemoryMigrationNode", memory_pointer=["1", 0], from_domain=0, to_domain=1)
    assert " is no allocation of this process\n" in shown(comfy, {**pointer, "2": moving}, "2")
    metrics = node("SVMTopologyMetricsNode", memory_pointer=["1", 0])
    assert " is no allocation of this process\n" in fails(comfy, {**pointer, "2": metrics})


def test_a_pointer_is_of_no_use_after_its_cleanup(comfy: Client) -> None:
    cleanup = node("SVMMemoryCleanupNode", memory_pointer=["1", 0])
    prompt = {"1": ALLOCATION, "2": cleanup}
    again = node("SVMMemoryCleanupNode", memory_pointer=["1", 0], after=["2", 0])
    assert " was freed before\n  expected: " in shown(comfy, {**prompt, "3": again}, "3")
    metrics = node("SVMTopologyMetricsNode", memory_pointer=["1", 0], after=["2", 0])
    assert " was freed and cannot be used\n" in fails(comfy, {**prompt, "3": metrics})
    moved = node(
        "SVMMemoryMigrationNode",
        memory_pointer=["1", 0], from_domain=0, to_domain=0, after=["2", 0],
    )  # fmt: skip
    assert "was freed" in shown(comfy, {**prompt, "3": moved}, "3")


def test_the_next_run_gets_a_pointer_of_its_own(comfy: Client) -> None:
    cleanup = node("SVMMemoryCleanupNode", memory_pointer=["1", 0])
    prompt = {"1": ALLOCATION, "2": cleanup}
    first, second = shown(comfy, prompt, "2"), shown(comfy, prompt, "2")
    for said in (first, second):
        assert said.startswith("freed 1MiB at 0x")
        assert "in use now: 0 B in 0 allocations" in said
    assert first.rpartition("total ")[2] != second.rpartition("total ")[2]  # one more was made
    alive = {"1": ALLOCATION, "2": node("SVMTopologyMetricsNode", memory_pointer=["1", 0])}
    assert shown(comfy, alive, "2")


def test_a_domain_that_is_not_there_is_told(comfy: Client) -> None:
    moving = node("SVMMemoryMigrationNode", memory_pointer=["1", 0], from_domain=0, to_domain=1023)
    said = shown(comfy, {"1": ALLOCATION, "2": moving}, "2")
    assert " has no domain 1023\n  expected: one of 0 (" in said
    assert said.endswith("\n  try: topology_info of SVM Topology Discovery lists the domains")


# ---- sizes


def highest(comfy: Client) -> int:
    status = Path(f"/proc/{comfy.server.process.pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


def linear(**more: Any) -> models.Node:
    return node(
        "CustomPyTorchLinear",
        **{"tensor": ["1", 0], "in_features": 3, "out_features": 1 << 16, "use_bias": True, **more},
    )


def window(**more: Any) -> models.Node:
    sizes = {"in_channels": 3, "out_channels": 3, "kernel_size": 3, "stride": 1, "padding": 1}
    inputs = {"image": ["1", 0], **sizes, "use_bias": True, **more}
    return node("CustomPyTorchConv2D", **inputs)


PICTURE = {**IMAGE, "inputs": {**IMAGE["inputs"], "width": 2048, "height": 2048}}
BOMBS = {
    "16 TiB": ({"2": {**ALLOCATION, "inputs": {"size_mb": 1 << 24, "set_affinity": False}}}, "2"),
    "a wide layer": ({"1": PICTURE, "2": linear()}, "2"),
    "a layer after another": (
        {"1": {**IMAGE, "inputs": {**IMAGE["inputs"], "width": 64, "height": 64}}}
        | {"3": linear(out_features=4096)}
        | {"2": linear(tensor=["3", 0], in_features=4096, out_features=1 << 16)}
        | {"1": PICTURE},
        "3",
    ),
    "much padding": ({"1": IMAGE, "2": window(padding=1 << 16)}, "2"),
    "a large window": (
        {"1": IMAGE, "2": window(padding=1 << 15, kernel_size=1024, out_channels=1 << 16)},
        "2",
    ),
}


@pytest.mark.parametrize("name", BOMBS)
def test_an_absurd_size_is_refused_before_anything_is_allocated(name: str, comfy: Client) -> None:
    nodes, who = BOMBS[name]
    if "1" in nodes:  # the picture itself is made before
        comfy.run({"1": nodes["1"], "4": node("PreviewImage", images=["1", 0])})
    Path(f"/proc/{comfy.server.process.pid}/clear_refs").write_text("5")  # the peak begins now
    before = highest(comfy)
    with pytest.raises(Failed) as caught:
        comfy.run({**nodes, "4": node("PreviewAny", source=["2", 0])})
    assert caught.value.node == who
    assert caught.value.document["exception_type"] == "holdfast.base.errors.OutOfMemory"
    assert "\n  try: " in caught.value.document["exception_message"]
    # The picture as the node takes it is 50 MB; what was asked for is a thousand times that.
    assert highest(comfy) - before < 200 * MB


@pytest.mark.parametrize(
    "more",
    [{"height": 8190}, {"width": 4097}, {"steps": 1000, "height": 9}, {"guidance": NAN}],
    ids=repr,
)
def test_what_the_model_cannot_draw_is_told_before_it_draws(
    more: dict[str, Any], comfy: Client
) -> None:
    drawing = node("FluxTPUPipeline", prompt="a handwritten six", **{**FLUX, **more})
    prompt = {"1": drawing, "2": node("PreviewImage", images=["1", 0])}
    assert "cannot " in told(comfy, prompt)


# ---- what comes over a link that fits everywhere


# (what comes over the link, into which types of inputs)
STRANGE = [
    ("x", ("MODEL", "CONDITIONING", "VAE", "DICT", "LATENT", "TENSOR,IMAGE,MASK,LATENT")),
    ({"samples": {"samples": [1]}}, ("LATENT", "TENSOR,IMAGE,MASK,LATENT")),
    (None, ("MODEL", "LATENT")),
]


@pytest.mark.parametrize(("value", "types"), STRANGE, ids=lambda one: repr(one)[:10])
def test_a_value_in_the_place_of_an_object_is_told(
    value: Any, types: tuple[str, ...], comfy: Client, info: dict[str, Any]
) -> None:
    for name in ("HoldfastStreamModel", "HoldfastWillItFit", "SVMTopologyAwareAllocNode",
                 "CustomPyTorchActivation", "FluxTPUSampler", "WanTPUVAEDecoder"):  # fmt: skip
        nodes, inputs = hostile.right(name, info[name])
        inputs.pop("negative", None)
        for key in [key for key, type_, _, _ in hostile.inputs_of(info[name]) if type_ in types]:
            given = {"class_type": name, "inputs": {**inputs, key: ["handed", 0]}}
            prompt = {**nodes, "handed": handed(value), **hostile.seen("it", given, info[name])}
            fails(comfy, prompt)


# ---- paths

TRICKS = [
    *("../../etc/passwd", "/etc", "/etc/passwd", "C:\\\\", "C:\\Windows", "\\\\server\\share"),
    *("file:///", "file:///etc/passwd", "http://127.0.0.1:1/x", "~", "~root/x", "..", "."),
    *("tiny-flux/../../..", "a\0b", "tiny-flux\0", "a\nb", "%2e%2e/etc", "x" * 5000, "\ud800"),
    *("./tiny-flux", "checkpoints", "....//....//etc", "/proc/self/environ", "-rf", "$HOME", "*"),
]


def drawing(model_id: Any, kind: str = "FluxTPUTextEncoder") -> hostile.Prompt:
    made = node(kind, prompt="a handwritten six", model_id=model_id)
    return {"it": made, "shown": node("PreviewAny", source=["it", 0])}


def test_no_name_of_a_model_leads_out_of_comfyuis_folders(comfy: Client) -> None:
    there = BUILT_IN / "tiny-flux"  # a model that would be drawn with, if it were looked at
    assert there.is_dir()
    up = os.path.relpath(there, comfy.server.models / "diffusers")
    for name in [*TRICKS, str(there), f"{there}/", up, f"diffusers/{up}", f"file://{there}"]:
        (texts,) = refused(comfy, drawing(name)).values()
        assert "\n  expected: a built-in model, a folder or file in ComfyUI's" in texts[0], name
        linked = drawing(["name", 0]) | {"name": node("PrimitiveString", value=name)}
        if name == str(there) or "etc" in name:
            assert fails(comfy, linked).startswith("cannot ")


def test_links_that_lead_out_and_to_no_model_are_told(comfy: Client, tmp_path: Path) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("a secret")
    folder = comfy.server.models / "diffusers"
    folder.mkdir(exist_ok=True)
    for name, target in (("file", secret), ("folder", tmp_path), ("nothing", tmp_path / "no")):
        link = folder / f"out-{name}"
        link.symlink_to(target)
        try:
            assert "a secret" not in told(comfy, drawing(link.name))
        finally:
            link.unlink()
    secret.unlink()


def test_a_title_is_no_code_in_the_report(comfy: Client) -> None:
    evil = "<script>alert(1)</script><img src=x onerror=alert(2)>"
    # Nodes that are over in a moment are not seen: one that draws is.
    drawing = node("FluxTPUPipeline", prompt="a six", **{**FLUX, "steps": 20, "seed": 340})
    shouting = {**drawing, "_meta": {"title": evil}}
    timeline = node("HoldfastMemoryTimeline", theme="dark", width=640, after=["2", 0])
    layer = {**linear(tensor=["../<b>", 0], out_features=8), "_meta": {"title": {"a": [evil]}}}
    text = comfy.run({"../<b>": shouting, "2": layer, "3": timeline})["3"]["text"][0]
    assert evil[:20] in text
    page = comfy.read(text.splitlines()[-1].removeprefix("report: ")).decode()
    assert "<script>alert" not in page
    assert "<img src=x" not in page


# ---- what is no workflow


@pytest.mark.parametrize(
    "document",
    [
        {"prompt": None}, {"prompt": [1, 2]}, {"prompt": "x"}, {"prompt": {"1": 5}}, {},
        {"prompt": {"1": {"class_type": ["HoldfastMemoryTimeline"], "inputs": []}}},
        {"prompt": {"1": {"class_type": "HoldfastMemoryTimeline", "inputs": "x"}}},
        {"prompt": {"1": {"class_type": "HoldfastMemoryTimeline"}}, "client_id": {"a": 1}},
        {"prompt": {}, "client_id": 10**30, "extra_data": "x"},
        [], "x", None,
    ],
    ids=repr,
)  # fmt: skip
def test_following_prompts_is_not_disturbed_by_what_is_none(document: Any, comfy: Client) -> None:
    begin = comfy.server.log.stat().st_size
    with pytest.raises(Refused):  # whatever ComfyUI says to it
        comfy._ask("/prompt", json.dumps(document).encode(), {"Content-Type": "application/json"})
    said = comfy.server.log.read_bytes()[begin:].decode()
    assert "on_prompt_handler" not in said
    assert str(Path(holdfast.__file__).parent) not in said  # nothing of ours is in a traceback


# ---- routes

ROUTES = {"/holdfast/live": "GET", "/holdfast/peaks": "GET", "/holdfast/page": "GET"} | {
    "/holdfast/free": "POST"
}
JSON = {"Content-Type": "application/json"}


def ask(
    comfy: Client, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
) -> tuple[int, str]:
    """Status and text of an answer."""
    connection = http.client.HTTPConnection(urlsplit(comfy.url).netloc, timeout=300)
    try:
        connection.request(method, path, body, headers or {})
        answer = connection.getresponse()
        return answer.status, answer.read().decode(errors="replace")
    finally:
        connection.close()


@pytest.mark.parametrize("path", ROUTES)
def test_a_route_answers_one_method_and_no_other_site(path: str, comfy: Client) -> None:
    for method in ("GET", "POST", "PUT", "PATCH", "DELETE"):
        if method != ROUTES[path]:  # what ComfyUI finds for a GET elsewhere is no file
            assert ask(comfy, method, path, b"{}", JSON)[0] == (404 if method == "GET" else 405)
    for below in (path, f"/api{path}"):
        away = {**JSON, "Origin": "http://evil.example", "Sec-Fetch-Site": "cross-site"}
        assert ask(comfy, ROUTES[path], below, None, away)[0] == 403


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"\xff\xfe\x00", 400), (b'{"models": ' * 200, 400), (b"[" * 4000, 400), (b"null", 400),
        (b'{"models": NaN}', 400), (b'{"models": 1e999}', 400), (b'{"models": null}', 400),
        (b'{"__proto__": true}', 400), (b'{"models": true, "path": "/"}', 400),
        (b" " * (MOST_BODY_BYTES + 1), 413), (b"9" * 4000, 400), (b'{"caches": 9' * 300, 400),
    ],
    ids=lambda value: repr(value)[:30],
)  # fmt: skip
def test_a_body_that_cannot_be_meant_frees_nothing(body: bytes, status: int, comfy: Client) -> None:
    found, said = ask(comfy, "POST", "/holdfast/free", body, JSON)
    assert found == status
    document = json.loads(said)
    assert all(document[part] for part in ("what", "expected", "try"))
    assert len(said) < 2000


def test_a_body_without_an_end_is_not_read(comfy: Client) -> None:
    parts = (b" " * 1000 for _ in range(100))  # sent in chunks: no length
    assert ask(comfy, "POST", "/holdfast/free", parts, JSON)[0] == 413


@pytest.mark.parametrize(
    "query",
    ["since=nan", "since=inf", "since=", "since=x", "since=" + "9" * 5000, "other=1", "since=1&a"],
    ids=lambda query: query[:20],
)
def test_a_query_that_cannot_be_meant_is_told(query: str, comfy: Client) -> None:
    found, said = ask(comfy, "GET", f"/holdfast/live?{query}")
    assert found == 400
    assert len(said) < 2000
    assert json.loads(said)["expected"]


PAGES = ["../../etc/passwd", "/etc/passwd", "..", "", "a\0b", "x" * 5000, "comfyui.log"]
MADE_UP = "holdfast_memory_20200101_000000_00000000.html"


@pytest.mark.parametrize("name", [*PAGES, MADE_UP, f"../{MADE_UP}", f"{MADE_UP}/../../x"])
def test_no_name_of_a_page_leads_to_another_file(name: str, comfy: Client) -> None:
    found, said = ask(comfy, "GET", f"/holdfast/page?{urlencode({'name': name})}")
    assert found == 404
    assert json.loads(said)["expected"] == "a page of this session"
    assert len(said) < 2000


# ---- and in the end


def test_a_good_workflow_still_runs(comfy: Client, info: dict[str, Any]) -> None:
    prompt = models.workflow("sd15", [node("HoldfastStreamModel", budget_gb=0.05, pack=True)])
    prompt["drawn"] = node("FluxTPUPipeline", prompt="a handwritten six", **FLUX)
    prompt["window"] = {**window(), "inputs": {**window()["inputs"], "image": ["drawn", 0]}}
    prompt["seen"] = node("PreviewImage", images=["window", 0])
    outputs = comfy.run(prompt)
    assert outputs["save"]["images"]
    assert outputs["seen"]["images"]

"""What `check` says of servers that are no ComfyUI, or that have little of the pack.

The real one is asked in tests/comfyui/test_pack.py.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from holdfast.base.errors import BadInput, OutOfTime, Unsupported
from holdfast.nodes import (
    EXAMPLE_WORKFLOWS,
    LOCALES,
    NODE_CLASS_MAPPINGS,
    WEB,
    checking,
    routes,
)
from holdfast.nodes.checking import check

SYSTEM = {
    "system": {
        "comfyui_version": "0.3.75",
        "python_version": "3.11.2 (main)",
        "pytorch_version": "2.13.0+cpu",
    },
    "devices": [{"name": "cpu", "type": "cpu"}],
}


@contextmanager
def serving(answers: dict[str, Any]) -> Iterator[str]:
    """A server with these answers, by path; what is not bytes goes out as JSON."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = answers.get(self.path)
            body = found if isinstance(found, bytes) else json.dumps(found).encode()
            self.send_response(404 if found is None else 200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def files(folder: Path) -> dict[str, bytes]:
    return {
        f.relative_to(folder).as_posix(): f.read_bytes() for f in folder.rglob("*") if f.is_file()
    }


def whole() -> dict[str, Any]:
    """The answers of a ComfyUI that has all of the pack, under another name of its folder."""
    info = {
        name: checking.expected(name) | {"python_module": "custom_nodes.comfyui-holdfast"}
        for name in NODE_CLASS_MAPPINGS
    }
    texts: dict[str, dict[str, Any]] = {}
    for name, data in files(LOCALES).items():
        language, _, file = name.partition("/")
        kind, words = file.removesuffix(".json"), json.loads(data)
        texts.setdefault(language, {}).update(words if kind == "main" else {kind: words})
    web = {f"/extensions/comfyui-holdfast/{name}": data for name, data in files(WEB).items()}
    templates = {
        f"/api/workflow_templates/comfyui-holdfast/{name}": data
        for name, data in files(EXAMPLE_WORKFLOWS).items()
    }
    names = [name.removesuffix(".json") for name in files(EXAMPLE_WORKFLOWS) if ".json" in name]
    return {
        "/system_stats": SYSTEM,
        "/object_info": info,
        "/extensions": [path for path in web if path.endswith(".js")],
        "/i18n": texts,
        "/api/workflow_templates": {"comfyui-holdfast": names},
        routes.LIVE: {},
        routes.PEAKS: [],
        **web,
        **templates,
    }


def told(error: pytest.ExceptionInfo[Any]) -> str:
    return str(error.value)


def test_all_of_it_is_found_whatever_its_folder_is_called() -> None:
    with serving(whole()) as url:
        found = check(url)
    assert found.ok, found
    assert found.comfyui == "ComfyUI 0.3.75, Python 3.11.2, torch 2.13.0+cpu, cpu"
    assert [part.name for part in found.parts] == [
        *("nodes", "web", "translations", "templates", "routes")
    ]
    assert found.parts[0].found == f"all {len(NODE_CLASS_MAPPINGS)}"


def test_without_the_pack_it_says_how_to_get_it() -> None:
    with serving({"/system_stats": SYSTEM, "/object_info": {"KSampler": {}}}) as url:
        found = check(url)
    assert not found.ok
    (nodes,) = found.parts  # the rest cannot be there
    assert (nodes.state, nodes.found) == ("missing", "none of them")
    assert nodes.advice == (
        "holdfast comfy install DIR (ComfyUI's folder), then start ComfyUI again"
    )


def test_an_older_version_is_told_by_its_differences() -> None:
    answers = whole()
    node = answers["/object_info"]["SVMTopologyAwareAllocNode"]
    node["input"]["required"]["size_mb"][1]["default"] = 512
    node["output_name"] = ["pointer"]
    (script,) = (path for path in answers if path.endswith("/holdfast.js"))
    answers[script] = b"// old"
    with serving(answers) as url:
        nodes, web, *rest = check(url).parts
    assert nodes.state == "different"
    assert nodes.advice == (
        "start ComfyUI again: it runs another version of Holdfast than this command"
    )
    assert nodes.problems[0] == (
        "SVMTopologyAwareAllocNode: output_name is ['pointer'], not "
        "['memory_pointer', 'alloc_info', 'memory_stats']"
    )
    assert nodes.problems[1].startswith(
        "SVMTopologyAwareAllocNode: input required size_mb is ['INT', {'default': 512, "
    )
    assert (web.state, web.problems) == ("different", ("holdfast.js: not as in this version",))
    assert {part.state for part in rest} == {"ok"}


def test_many_problems_are_not_all_told() -> None:
    answers = whole()
    for name in list(NODE_CLASS_MAPPINGS)[:10]:
        del answers["/object_info"][name]
    with serving(answers) as url:
        nodes = check(url).parts[0]
    assert len(nodes.problems) == checking.SHOWN + 1
    assert nodes.problems[-1] == "and 2 more"
    assert nodes.found == f"{len(NODE_CLASS_MAPPINGS) - 10} of {len(NODE_CLASS_MAPPINGS)}"


def test_choices_may_be_files_of_that_comfyui() -> None:
    ours = checking.expected("SVMMemoryCleanupNode")
    ours["input"]["optional"]["after"] = [["a"], {}]
    assert checking._same([["a.safetensors"], {}], [["b.safetensors"], {}])
    assert not checking._same([["a"], {"tooltip": "x"}], [["a"], {"tooltip": "y"}])


def test_translations_and_templates_that_are_missing_are_named() -> None:
    answers = whole()
    del answers["/i18n"]["zh-TW"]["nodeDefs"]
    answers["/api/workflow_templates"] = {}
    with serving(answers) as url:
        _, _, translations, templates, _ = check(url).parts
    assert translations.problems == ("zh-TW/nodeDefs.json: not there",)
    assert templates.state == "missing"
    assert templates.found.startswith("0 of ")


# ---- no ComfyUI


def test_nobody_there_is_told_with_the_way_to_start_it() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
        with pytest.raises(Unsupported) as caught:
            check(url)
    assert told(caught) == (
        f"no ComfyUI answers at {url}: Connection refused\n"
        "  expected: the address of a ComfyUI that runs\n"
        "  try: python main.py --listen 127.0.0.1 --port 8188    (in ComfyUI's folder)"
    )


@pytest.mark.parametrize("answers", [{}, {"/system_stats": b"<html>"}, {"/system_stats": 3}])
def test_another_server_is_told(answers: dict[str, Any]) -> None:
    with serving(answers) as url, pytest.raises(Unsupported) as caught:
        check(url)
    assert told(caught) == (
        f"what answers at {url} is no ComfyUI: it has no /system_stats\n"
        "  expected: the address that ComfyUI prints when it starts"
    )


def test_a_server_that_does_not_answer_is_not_waited_for() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(OutOfTime) as caught:
            check(url, timeout_s=0.1)
    assert told(caught) == (
        f"ComfyUI at {url} has not answered /system_stats in 0.1 s\n"
        "  expected: an answer within --timeout\n"
        "  try: --timeout 0.2, when it is not busy"
    )


@pytest.mark.parametrize(
    "url", ["ftp://x", "http://", "file:///etc/passwd", "http://[::1", "x:abc", ""]
)
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(BadInput) as caught:
        check(url)
    assert told(caught) == (
        f"cannot ask {url!r}: it is no address of a server\n"
        "  expected: a URL such as http://127.0.0.1:8188"
    )


def test_an_address_may_be_short_and_this_machine_is_asked_without_a_proxy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    with serving(whole()) as url:
        found = check(url.removeprefix("http://") + "/")
    assert found.url == url
    assert found.ok

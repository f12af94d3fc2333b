"""A small server that speaks ComfyUI's API, as ComfyUI 0.3.75 does, without computing anything.

It checks that every node of a workflow is known and every link leads to an output, and answers with
ComfyUI's own documents. Issue 10 runs the same scripts against the real one.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit


@dataclass
class Fake:
    """What the server knows and what it was asked."""

    nodes: set[str]
    picture: bytes
    polls: int = 2  # questions after the history until the run is over
    error: Mapping[str, Any] | None = None  # what the run fails with
    url: str = ""
    workflow: dict[str, Any] = field(default_factory=dict)
    posted: list[tuple[str, Any]] = field(default_factory=list)

    def get(self, path: str, query: Mapping[str, list[str]]) -> tuple[int, bytes]:
        first, *rest = path.strip("/").split("/")
        if first == "object_info":
            known = self.nodes if not rest else self.nodes & set(rest)
            return _json({node: {"name": node, "input": {}} for node in known})
        if first == "history":
            return _json(self._history(rest[0]))
        if first == "queue":
            return _json({"queue_running": [[0, "the-number", {}]], "queue_pending": []})
        if first == "view" and query.get("filename") == ["a_00001_.png"]:
            return 200, self.picture
        return 404, b"404: Not Found"

    def _history(self, number: str) -> dict[str, Any]:
        if number != "the-number" or self.polls < 0:
            return {}
        if self.polls:
            self.polls -= 1
            return {}
        messages: list[Any] = [["execution_start", {"prompt_id": number}]]
        if self.error is not None:
            messages.append(["execution_error", self.error])
        picture = {"filename": "a_00001_.png", "subfolder": "", "type": "output"}
        outputs = {"4": {"images": [picture]}} if self.error is None else {}
        said = "success" if self.error is None else "error"
        status = {"status_str": said, "completed": self.error is None, "messages": messages}
        return {number: {"outputs": outputs, "status": status}}

    def post(self, path: str, document: Any) -> tuple[int, bytes]:
        self.posted.append((path, document))
        if path != "/prompt":
            return 200, b""
        self.workflow = document["prompt"]
        refused = self._refused()
        if refused is not None:
            return _json(refused, 400)
        return _json({"prompt_id": "the-number", "number": 0, "node_errors": {}})

    def _refused(self) -> dict[str, Any] | None:
        for number, node in self.workflow.items():
            kind = node["class_type"]
            if kind not in self.nodes:
                return _refusal("invalid_prompt", f"Cannot execute because node {kind} is unknown")
            for value in node["inputs"].values():
                if isinstance(value, list) and value[0] not in self.workflow:
                    return _refusal("invalid_prompt", f"node {number} has a link to nothing")
            if node["inputs"].get("steps", 0) > 1000:
                found = _refusal("prompt_outputs_failed_validation", "Prompt outputs failed")
                error = {"type": "value_bigger_than_max", "message": "Value bigger than max"}
                error |= {"details": "steps", "extra_info": {}}
                entry = {"errors": [error], "dependent_outputs": ["4"], "class_type": kind}
                return found | {"node_errors": {number: entry}}
        return None


def _refusal(kind: str, message: str) -> dict[str, Any]:
    error = {"type": kind, "message": message, "details": "", "extra_info": {}}
    return {"error": error, "node_errors": {}}


def _json(document: Any, status: int = 200) -> tuple[int, bytes]:
    return status, json.dumps(document).encode()


@contextmanager
def serving(fake: Fake) -> Iterator[Fake]:
    """The server on a free port of this machine, for as long as the block lasts."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            at = urlsplit(self.path)
            self._answer(lambda: fake.get(at.path, parse_qs(at.query)))

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            self._answer(lambda: fake.post(self.path, json.loads(body)))

        def _answer(self, work: Callable[[], tuple[int, bytes]]) -> None:
            status, body = work()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        fake.url = f"http://127.0.0.1:{server.server_address[1]}"
        yield fake
    finally:
        server.shutdown()
        thread.join()
        server.server_close()

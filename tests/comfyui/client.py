"""ComfyUI's API for the tests, with the standard library alone (pictures: Pillow).

Covers: what nodes there are, running workflows in API form, interrupts, pictures, events.
Leaves to others: starting ComfyUI (server), workflows as they are saved (workflows).
Promise: a run that ComfyUI refuses, that fails or that is interrupted is an error with ComfyUI's
own words, and no run is left behind by one that took too long.
"""

from __future__ import annotations

import io
import json
import time
import urllib.error
import urllib.parse
import urllib.request
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.comfyui.events import Events
from tests.comfyui.server import Server

if TYPE_CHECKING:
    from PIL.Image import Image

Prompt = Mapping[str, Mapping[str, Any]]
Outputs = dict[str, dict[str, Any]]


class Failed(Exception):
    """ComfyUI did not do it. `node` is the node that failed, `document` what ComfyUI answered."""

    def __init__(self, text: str, node: str | None = None, document: Any = None) -> None:
        super().__init__(text)
        self.node = node
        self.document = document


class Refused(Failed):
    """The workflow was not valid: nothing has run. `status` is the HTTP status."""

    def __init__(self, text: str, status: int, document: Any) -> None:
        super().__init__(text, document=document)
        self.status = status

    def errors(self) -> dict[str, list[str]]:
        """The texts of the errors by node."""
        found = (self.document or {}).get("node_errors", {})
        return {node: [_message(one) for one in its["errors"]] for node, its in found.items()}


class Interrupted(Failed):
    """Somebody stopped the run."""


class Client:
    """One client of a running ComfyUI; `server` where the tests have started it."""

    def __init__(self, url: str, server: Server | None = None) -> None:
        self.url = url.rstrip("/")
        self.id = uuid.uuid4().hex
        self._server = server

    @property
    def server(self) -> Server:
        assert self._server is not None, "somebody else has started this ComfyUI"
        return self._server

    # ---- asking

    def get(self, path: str, **query: str) -> Any:
        """The JSON of an answer."""
        return json.loads(self.read(path, **query))

    def read(self, path: str, **query: str) -> bytes:
        """The bytes of an answer. Raises Refused for every status but 200."""
        return self._ask(path + ("?" + urllib.parse.urlencode(query) if query else ""))

    def post(
        self, path: str, document: Any = None, headers: Mapping[str, str] | None = None
    ) -> Any:
        """The JSON of the answer to a document, None where it is empty."""
        body = json.dumps({} if document is None else document).encode()
        said = self._ask(path, body, {"Content-Type": "application/json", **(headers or {})})
        return json.loads(said) if said else None

    def _ask(
        self, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> bytes:
        request = urllib.request.Request(self.url + path, body, dict(headers or {}))
        try:
            with urllib.request.urlopen(request, timeout=300) as answer:
                return answer.read()
        except urllib.error.HTTPError as exc:
            with exc:
                raise _refused(exc.code, exc.read()) from exc

    # ---- nodes

    def object_info(self, node: str | None = None) -> dict[str, Any]:
        """What ComfyUI knows of every node, or of one."""
        return self.get("/object_info") if node is None else self.get(f"/object_info/{node}")[node]

    # ---- running

    def queue(self, prompt: Prompt, **more: Any) -> str:
        """Have a workflow in API form run; its id. Raises Refused where it is not valid.

        ComfyUI runs what is valid of a workflow and leaves out the rest: that is cancelled here.
        """
        answer = self.post("/prompt", {"prompt": prompt, "client_id": self.id, **more})
        if answer["node_errors"]:
            self.cancel(answer["prompt_id"])
            document = {"error": {"message": "Parts of the workflow are not valid"}, **answer}
            raise _refused(200, json.dumps(document).encode())
        return answer["prompt_id"]

    def run(self, prompt: Prompt, timeout: float = 300, **more: Any) -> Outputs:
        """Run a workflow to its end: what its nodes show, by node id. Raises Failed."""
        return self.wait(self.queue(prompt, **more), timeout)

    def wait(self, prompt_id: str, timeout: float = 300) -> Outputs:
        """Wait for the end of a run; what its nodes show, by node id. Raises Failed."""
        entry = self.finished(prompt_id, timeout)
        for kind, message in entry["status"]["messages"]:
            if kind == "execution_error":
                text = f"{message['exception_type']}: {message['exception_message'].strip()}"
                text = f"node {message['node_id']} ({message['node_type']}) failed: {text}"
                raise Failed(text, message["node_id"], message)
            if kind == "execution_interrupted":
                raise Interrupted("the run was interrupted", message["node_id"], message)
        assert entry["status"]["status_str"] == "success", entry
        return entry["outputs"]

    def finished(self, prompt_id: str, timeout: float = 300) -> dict[str, Any]:
        """The history's entry of a run, when it is over; cancelled where that takes too long."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            entry = self.history(prompt_id)
            if entry is not None:
                return entry
            time.sleep(0.05)
        self.cancel(prompt_id)
        raise Failed(f"the run is not over after {timeout:g} s")

    def history(self, prompt_id: str) -> dict[str, Any] | None:
        """What is kept of a run that is over."""
        return self.get(f"/history/{prompt_id}").get(prompt_id)

    def cached(self, prompt_id: str) -> set[str]:
        """The nodes of a finished run that were not run again."""
        entry = self.history(prompt_id)
        assert entry is not None
        messages = dict(entry["status"]["messages"])
        return set(messages.get("execution_cached", {}).get("nodes", ()))

    def interrupt(self, prompt_id: str | None = None) -> None:
        """Press the button to stop."""
        self.post("/interrupt", {} if prompt_id is None else {"prompt_id": prompt_id})

    def cancel(self, prompt_id: str) -> None:
        """Leave ComfyUI without this run, whether it has begun or not."""
        self.post("/queue", {"delete": [prompt_id]})
        self.interrupt(prompt_id)

    def idle(self, timeout: float = 300) -> None:
        """Wait until nothing runs and nothing waits."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            queue = self.get("/queue")
            if not queue["queue_running"] and not queue["queue_pending"]:
                return
            time.sleep(0.05)
        raise Failed(f"ComfyUI is still busy after {timeout:g} s")

    def free(self) -> None:
        """ComfyUI's own way of unloading models and forgetting results; heard before a next run."""
        self.post("/free", {"unload_models": True, "free_memory": True})

    # ---- pictures and files

    def view(self, image: Mapping[str, str]) -> Image:
        """A picture of a run's outputs: {"filename", "subfolder", "type"}."""
        from PIL import Image

        with Image.open(io.BytesIO(self.file(image))) as opened:
            opened.load()
            return opened.copy()

    def file(self, file: Mapping[str, str]) -> bytes:
        """The bytes of a file of a run's outputs."""
        return self.read("/view", **{key: file.get(key, "") for key in _FILE})

    def upload(self, image: Image | Path | bytes, name: str = "picture.png") -> str:
        """Put a picture among ComfyUI's inputs; the name that LoadImage takes."""
        if isinstance(image, Path):
            name, data = image.name, image.read_bytes()
        elif isinstance(image, bytes):
            data = image
        else:
            file = io.BytesIO()
            image.save(file, "PNG")
            data = file.getvalue()
        edge = uuid.uuid4().hex
        body = _part(edge, 'name="overwrite"', b"true")
        body += _part(edge, f'name="image"; filename="{name}"', data) + f"--{edge}--\r\n".encode()
        kind = {"Content-Type": f"multipart/form-data; boundary={edge}"}
        return json.loads(self._ask("/upload/image", body, kind))["name"]

    # ---- events

    @contextmanager
    def events(self, timeout: float = 300) -> Iterator[Events]:
        """What ComfyUI tells this client while its runs go on; open it before queueing.

        An event is (type, data), such as ("progress", {"value": 1, "max": 4, "node": "3", ...});
        a preview is ("preview", bytes of the picture), a text beside the bar is ("text", {"node",
        "text"}). Waiting longer than `timeout` seconds for
        the next one is a TimeoutError.
        """
        with Events(self.url, self.id, timeout) as events:
            yield events


_FILE = ("filename", "subfolder", "type")


def _part(edge: str, about: str, data: bytes) -> bytes:
    head = f"--{edge}\r\nContent-Disposition: form-data; {about}\r\n\r\n"
    return head.encode() + data + b"\r\n"


def _refused(status: int, body: bytes) -> Refused:
    try:
        document = json.loads(body)
        lines = [_message(document["error"])]
        for node, its in document.get("node_errors", {}).items():
            lines += [f"node {node} ({its['class_type']}): {_message(e)}" for e in its["errors"]]
        return Refused("\n".join(lines), status, document)
    except (ValueError, KeyError, TypeError):
        text = body[:2000].decode(errors="replace")
        return Refused(f"status {status}: {text}", status, None)


def _message(error: Mapping[str, Any]) -> str:
    details = error.get("details")
    return error["message"] + (f" ({details})" if details else "")

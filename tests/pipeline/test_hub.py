"""A hub on this machine: the part of the Hugging Face Hub's protocol that downloads need."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import cast

import numpy as np
import pytest
import torch
from huggingface_hub import constants
from safetensors.torch import save_file

from holdfast.base.errors import HoldfastError, NotFound, Unsupported
from holdfast.pipeline import Pipeline
from holdfast.pipeline.model import hub, single_file
from tests.pipeline import original_layout, random_models

COMMIT = "0123456789abcdef0123456789abcdef01234567"
MODEL = "some-org/some-model"
NOT_NEEDED = (
    "huge.safetensors",
    "README.md",
    "unet/diffusion_pytorch_model.fp16.safetensors",
    "unet/diffusion_pytorch_model.bin",
    "unet/model.onnx",
    "vae/diffusion_flax_model.msgpack",
    "another_folder/diffusion_pytorch_model.safetensors",
)
WEIGHTS = (
    "text_encoder/model.safetensors",
    "text_encoder_2/model.safetensors",
    "unet/diffusion_pytorch_model.safetensors",
    "vae/diffusion_pytorch_model.safetensors",
)


class Hub(ThreadingHTTPServer):
    """Serves one folder as MODEL. `refusal` answers every request; `cut` breaks off one file."""

    daemon_threads = True

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.folder = folder
        self.refusal: tuple[int, str | None] | None = None
        self.cut: str | None = None
        self.sent: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def files(self) -> dict[str, Path]:
        files = [file for file in sorted(self.folder.rglob("*")) if file.is_file()]
        return {file.relative_to(self.folder).as_posix(): file for file in files}


class Handler(BaseHTTPRequestHandler):
    @property
    def hub(self) -> Hub:
        return cast("Hub", self.server)

    def do_HEAD(self) -> None:
        self._answer(send=False)

    def do_GET(self) -> None:
        self._answer(send=True)

    def log_message(self, format: str, *args: object) -> None:
        pass

    def _answer(self, *, send: bool) -> None:
        path = self.path.split("?")[0]
        if self.hub.refusal is not None:
            self._refuse(*self.hub.refusal)
        elif path.startswith(f"/api/models/{MODEL}/tree/"):
            self._json([_entry(*file) for file in self.hub.files().items()])
        elif path.startswith(f"/api/models/{MODEL}"):
            self._json({"id": MODEL, "sha": COMMIT, "siblings": []})
        elif match := re.fullmatch(f"/{MODEL}/resolve/[^/]+/(.+)", path):
            self._file(match[1], send)
        else:
            self._refuse(404, "RepoNotFound")

    def _refuse(self, status: int, code: str | None) -> None:
        self.send_response(status)
        if code is not None:
            self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _json(self, value: object) -> None:
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _file(self, name: str, send: bool) -> None:
        if name not in self.hub.files():
            self._refuse(404, "EntryNotFound")
            return
        body = self.hub.files()[name].read_bytes()
        begin = int(re.sub(r"\D", "", self.headers.get("Range", "")) or 0)
        broken = name == self.hub.cut
        self.send_response(206 if begin else 200)
        self.send_header("ETag", f'"{name.replace("/", "-")}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("Content-Length", str(len(body) - begin))
        self.end_headers()
        if send:
            self.hub.sent.append(name)
            self.wfile.write(body[begin : len(body) // 2 if broken else None])


def _entry(name: str, file: Path) -> dict[str, object]:
    return {"type": "file", "path": name, "size": file.stat().st_size, "oid": "0" * 40}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_models.sdxl(tmp_path_factory.mktemp("hub") / "model")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """More of them would wait for each other: the models are that small."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def served(folder: Path, tmp_path: Path) -> Path:
    copy = Path(shutil.copytree(folder, tmp_path / "served"))
    for name in NOT_NEEDED:
        (copy / name).parent.mkdir(exist_ok=True)
        (copy / name).write_bytes(b"not needed")
    return copy


@pytest.fixture
def ask(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], None]:
    """Says which hub is asked; what comes from it goes to a place of the test's own."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)

    def set_endpoint(url: str) -> None:
        template = url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "ENDPOINT", url)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)

    return set_endpoint


@pytest.fixture
def server(served: Path, ask: Callable[[str], None]) -> Iterator[Hub]:
    with Hub(served) as found:
        threading.Thread(target=found.serve_forever, args=(0.01,), daemon=True).start()
        ask(found.url)
        yield found
        found.shutdown()


def stop(server: Hub) -> None:
    server.shutdown()
    server.server_close()


def error(model: str, kind: type[HoldfastError]) -> str:
    begin = time.monotonic()
    with pytest.raises(kind) as caught:
        hub.fetch(model)
    assert time.monotonic() - begin < 60  # it does not wait for what will not come
    return str(caught.value)


def draw(model: str) -> np.ndarray:
    pipe = Pipeline.load(model, device="cpu", precision="fp32")
    return pipe("a handwritten seven", steps=2, seed=3, height=32, width=32).frames


def test_a_model_is_fetched_with_the_needed_files_alone_and_once(server: Hub, folder: Path) -> None:
    expected = draw(str(folder))
    np.testing.assert_array_equal(draw(MODEL), expected)
    assert sorted(server.sent) == sorted(server.files().keys() - set(NOT_NEEDED))
    server.sent.clear()
    hub.fetch(MODEL)
    assert server.sent == []
    stop(server)
    np.testing.assert_array_equal(draw(MODEL), expected)


def test_without_weights_only_small_files_are_fetched(server: Hub) -> None:
    found = hub.fetch(MODEL, weights=False)
    assert (found / "unet" / "config.json").is_file()
    assert not [name for name in server.sent if not name.endswith((".json", ".txt"))]


@pytest.mark.slow
def test_a_whole_checkpoint_is_completed_by_small_files(
    server: Hub, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(single_file.REPOSITORIES, ("sdxl", (16, 4)), MODEL)
    tensors = original_layout.sdxl(folder)
    file = tmp_path / "model.safetensors"
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, file)
    np.testing.assert_array_equal(draw(str(file)), draw(str(folder)))
    assert not [name for name in server.sent if name.endswith(".safetensors")]


def test_configurations_alone_do_not_pass_for_a_model_that_was_fetched(server: Hub) -> None:
    hub.fetch(MODEL, weights=False)
    stop(server)
    assert hub.fetch(MODEL, weights=False).is_dir()
    assert error(MODEL, NotFound).startswith(f"cannot get model {MODEL!r}: it is not here, and")


def test_an_unknown_repository_is_not_found(server: Hub) -> None:
    assert error("some-org/none", NotFound) == (
        "cannot find model 'some-org/none' on the hub\n"
        "  expected: a repository that exists and that you may read\n"
        "  try: check the spelling; for a private model run: hf auth login"
    )


@pytest.mark.parametrize("status", [401, 403])
def test_a_gated_model_names_the_page_with_its_terms(server: Hub, status: int) -> None:
    server.refusal = (status, "GatedRepo")
    assert error(MODEL, NotFound) == (
        f"cannot get model {MODEL!r}: the hub gives it only to people it knows\n"
        f"  expected: an account that has accepted the terms at {server.url}/{MODEL}\n"
        "  try: hf auth login"
    )


@pytest.mark.parametrize("status", [403, 429, 500, 503])
def test_a_hub_that_refuses_is_quoted(server: Hub, status: int) -> None:
    server.refusal = (status, None)
    assert error(MODEL, NotFound) == (
        f"cannot get model {MODEL!r}: it is not here, and the hub answered {status}\n"
        "  expected: a network, or a model that was downloaded before\n"
        "  try: a built-in model such as tiny-flux, or the path of a folder"
    )


def test_a_repository_of_another_kind_is_refused(server: Hub, served: Path) -> None:
    (served / "model_index.json").unlink()
    assert error(MODEL, Unsupported) == (
        f"cannot draw with {MODEL!r}: there is no model_index.json in its repository\n"
        "  expected: a repository in diffusers layout"
    )


def test_a_hub_that_is_down_is_told_at_once(server: Hub) -> None:
    stop(server)
    text = re.sub(r"\[Errno \d+\]", "[Errno]", error(MODEL, NotFound))
    assert text == (
        f"cannot get model {MODEL!r}: it is not here, and the hub at {server.url} did not answer "
        "(ConnectError: [Errno] Connection refused)\n"
        "  expected: a network, or a model that was downloaded before\n"
        "  try: a built-in model such as tiny-flux, or the path of a folder"
    )


def test_a_hub_that_is_silent_is_asked_once(
    ask: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "_ASK_S", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        ask(f"http://127.0.0.1:{silent.getsockname()[1]}")
        assert error(MODEL, NotFound).startswith(
            f"cannot get model {MODEL!r}: it is not here, and the hub at {constants.ENDPOINT} "
            "did not answer (ReadTimeout"
        )


@pytest.mark.slow
def test_a_download_that_breaks_off_goes_on_at_the_next_try(
    server: Hub, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.file_download.time.sleep", lambda _: None)
    server.cut = "unet/diffusion_pytorch_model.safetensors"
    size = (folder / server.cut).stat().st_size
    assert error(MODEL, NotFound) == (
        f"cannot get model {MODEL!r}: the download broke off (RemoteProtocolError: peer closed "
        "connection without sending complete message body "
        f"(received {size // 2} bytes, expected {size}))\n"
        "  expected: a network, and room on the disk, until everything is here\n"
        "  try: the same again: what has arrived is kept"
    )
    server.cut = None
    server.sent.clear()
    found = hub.fetch(MODEL)
    assert "text_encoder/model.safetensors" not in server.sent
    for name in WEIGHTS:
        assert (found / name).read_bytes() == (folder / name).read_bytes()


@pytest.mark.slow
def test_a_download_that_broke_off_is_not_taken_for_a_model(
    server: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.file_download.time.sleep", lambda _: None)
    server.cut = "unet/diffusion_pytorch_model.safetensors"
    error(MODEL, NotFound)
    stop(server)
    assert error(MODEL, NotFound).startswith(f"cannot get model {MODEL!r}: it is not here, and")


def test_the_hub_is_not_asked_when_the_user_is_offline(
    server: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert error(MODEL, NotFound) == (
        f"cannot get model {MODEL!r}: it is not here, and HF_HUB_OFFLINE forbids asking the hub\n"
        "  expected: a network, or a model that was downloaded before\n"
        "  try: a built-in model such as tiny-flux, or the path of a folder"
    )
    assert server.sent == []


@pytest.mark.slow
def test_the_variables_of_the_hub_are_honoured(server: Hub, tmp_path: Path) -> None:
    home = tmp_path / "home"
    first = fetched_elsewhere(HF_ENDPOINT=server.url, HF_HOME=str(home))
    assert first.is_relative_to(home)
    stop(server)
    assert fetched_elsewhere(HF_HOME=str(home), HF_HUB_OFFLINE="1") == first


def fetched_elsewhere(**variables: str) -> Path:
    code = f"from holdfast.pipeline.model import hub; print(hub.fetch({MODEL!r}))"
    others = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=others | variables,
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    return Path(done.stdout.strip())

"""What the nodes use of ComfyUI while they run: nothing without it, its own parts with it."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from PIL import Image

from holdfast.nodes import host


class Stopped(Exception):
    """Stands for ComfyUI's exception."""


class Bar:
    """Stands for comfy.utils.ProgressBar."""

    made: list[Bar]

    def __init__(self, total: int) -> None:
        self.told: list[Any] = [total]
        self.previews: list[Any] = []
        Bar.made.append(self)

    def update_absolute(self, value: int, total: int, preview: Any = None) -> None:
        self.told.append((value, total))
        self.previews.append(preview)


@pytest.fixture
def comfy(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The modules that ComfyUI would have loaded; `stop` presses its button."""
    state = SimpleNamespace(stop=False, said=[], context=None)

    def throw() -> None:
        if state.stop:
            raise Stopped

    def module(name: str, **parts: Any) -> None:
        made = ModuleType(name)
        vars(made).update(parts)
        monkeypatch.setitem(sys.modules, name, made)

    Bar.made = []
    server = SimpleNamespace(last_node_id="7", client_id="me")
    server.send_progress_text = lambda text, node, client: state.said.append((text, node, client))
    state.server = server
    module(
        "comfy.model_management",
        throw_exception_if_processing_interrupted=throw,
        InterruptProcessingException=Stopped,
    )
    module("comfy.utils", ProgressBar=Bar)
    module("comfy.cli_args", args=SimpleNamespace(preview_size=256))
    module("comfy_execution.utils", get_executing_context=lambda: state.context)
    module("server", PromptServer=SimpleNamespace(instance=server))
    return state


def test_without_comfyui_nothing_happens() -> None:
    host.check()
    host.progress()(1, 2)
    host.progress()(1, 2, Image.new("RGB", (4, 4)))
    host.text("nobody reads this")
    assert host.node_id() is None
    assert not host.has_screen()
    assert not host.is_stop(Stopped())
    assert host.model_roots() is None
    assert host.rgb_factors("flux", 16) is None


def test_one_bar_moves_however_often_its_end_changes(comfy: SimpleNamespace) -> None:
    show = host.progress()
    assert Bar.made == []
    show(1, 4)
    show(2, 4)
    show(1, 10)
    (bar,) = Bar.made
    assert bar.told == [4, (1, 4), (2, 4), (1, 10)]
    assert bar.previews == [None] * 3


def test_a_preview_goes_along_in_the_size_that_comfyui_wants(comfy: SimpleNamespace) -> None:
    picture = Image.new("RGB", (4, 4))
    host.progress()(1, 4, picture)
    assert Bar.made[0].previews == [("JPEG", picture, 256)]


def test_a_step_ends_where_somebody_wants_to_stop(comfy: SimpleNamespace) -> None:
    show = host.progress()
    show(1, 4)
    comfy.stop = True
    with pytest.raises(Stopped) as caught:
        show(2, 4)
    assert host.is_stop(caught.value)
    assert not host.is_stop(ValueError())


def test_the_node_is_that_of_the_thread_else_the_last_that_began(comfy: SimpleNamespace) -> None:
    assert host.node_id() == "7"
    comfy.context = SimpleNamespace(node_id="12")
    assert host.node_id() == "12"


def test_a_text_goes_to_who_asked_for_the_run(comfy: SimpleNamespace) -> None:
    host.text("compiling")
    comfy.server.client_id = None  # a run over the API: nobody looks
    host.text("drawing")
    assert comfy.said == [("compiling", "7", "me")]


def test_previews_are_for_who_looks(comfy: SimpleNamespace) -> None:
    assert host.has_screen()
    comfy.server.client_id = None
    assert not host.has_screen()


def test_models_are_in_comfyuis_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    made: Any = ModuleType("folder_paths")
    made.models_dir = "/c/models"
    made.folder_names_and_paths = {"diffusers": None, "checkpoints": None}
    known = {"diffusers": ["/c/models/diffusers", "/more"], "checkpoints": ["/more"]}
    made.get_folder_paths = lambda kind: known[kind]
    monkeypatch.setitem(sys.modules, "folder_paths", made)
    assert host.model_roots() == (Path("/c/models/diffusers"), Path("/more"), Path("/c/models"))


def test_colours_are_those_of_latents_with_as_many_channels(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Wan21:
        latent_channels = 16
        latent_rgb_factors = "16 x 3"
        latent_rgb_factors_bias = None

    class Wan22(Wan21):
        latent_channels = 48
        latent_rgb_factors = "48 x 3"
        latent_rgb_factors_bias = "3"

    made = ModuleType("comfy.latent_formats")
    vars(made).update(Wan21=Wan21, Wan22=Wan22)
    monkeypatch.setitem(sys.modules, "comfy.latent_formats", made)
    assert host.rgb_factors("wan", 16) == ("16 x 3", [0.0, 0.0, 0.0])
    assert host.rgb_factors("wan", 48) == ("48 x 3", "3")
    assert host.rgb_factors("wan", 8) is None
    assert host.rgb_factors("flux", 16) is None

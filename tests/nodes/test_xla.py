"""The TPU nodes in Python, as ComfyUI calls them. Most run in torch: XLA has tests of its own."""

from __future__ import annotations

import dataclasses
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("diffusers")
import torch

from holdfast.base.errors import BadInput, HoldfastError, NotFound, OutOfMemory, Unsupported
from holdfast.nodes import xla
from holdfast.nodes.xla import models as xla_models
from holdfast.nodes.xla import steps as xla_steps
from holdfast.nodes.xla.sockets import MARK
from holdfast.pipeline import Pipeline
from holdfast.pipeline.model.sources import BUILT_IN
from holdfast.xla.scaffold.names import name_parts
from tests.pipeline.conftest import judge

pytestmark = pytest.mark.slow  # they load models

__all__ = ["judge"]  # a fixture

CPU = "cpu (torch)"
SEVEN = "a handwritten seven"
QUICK: dict[str, Any] = {"steps": 2, "seed": 3}
NODES = {
    "flux": (xla.FluxTPUTextEncoder, xla.FluxTPUSampler, xla.FluxTPUVAEDecoder),
    "wan": (xla.WanTPUTextEncoder, xla.WanTPUSampler, xla.WanTPUVAEDecoder),
}
WHOLE: dict[str, Any] = {"flux": xla.FluxTPUPipeline, "wan": xla.WanTPUPipeline}


@pytest.fixture(autouse=True)
def as_comfyui_runs_nodes() -> Iterator[None]:
    with torch.inference_mode():
        yield


@pytest.fixture(scope="module", autouse=True)
def nothing_is_left() -> Iterator[None]:
    yield
    xla.unload()


def read(family: str = "flux", prompt: str = SEVEN, **more: Any) -> Any:
    return NODES[family][0]().encode(prompt, device=CPU, **more)[0]


def drawn(family: str = "flux", **more: Any) -> dict[str, Any]:
    return NODES[family][1]().sample(read(family), **(QUICK | more))[0]


def decoded(latent: Any, family: str = "flux", **more: Any) -> torch.Tensor:
    return NODES[family][2]().decode(latent, **more)[0]


def without_mark(latent: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in latent.items() if name != MARK}


# ---- what ComfyUI sees


@pytest.mark.parametrize("name", xla.NODE_CLASS_MAPPINGS)
def test_every_node_says_what_it_is_and_every_input_what_it_is_for(name: str) -> None:
    node: Any = xla.NODE_CLASS_MAPPINGS[name]
    family = "Flux" if name.startswith("Flux") else "Wan"
    assert f"TPU/{family}" == node.CATEGORY
    assert node.DESCRIPTION
    assert callable(getattr(node, node.FUNCTION))
    sizes = {len(part) for part in (node.RETURN_TYPES, node.RETURN_NAMES, node.OUTPUT_TOOLTIPS)}
    assert len(sizes) == 1
    for group in node.INPUT_TYPES().values():
        for _, options in group.values():
            assert options["tooltip"].endswith(".")
    assert xla.NODE_DISPLAY_NAME_MAPPINGS[name].startswith(family)


def test_no_name_is_that_of_a_node_of_a_scaffolded_pack() -> None:
    ours = set(xla.NODE_CLASS_MAPPINGS)
    assert not ours & {node for name in ("Flux", "Wan") for node in name_parts(name).nodes}


# ---- drawing


def test_the_pipeline_draws_what_it_is_asked_for(judge: ModuleType) -> None:
    (picture,) = xla.FluxTPUPipeline().generate(SEVEN, device=CPU, steps=8, seed=1)
    assert (picture.dtype, list(picture.shape)) == (torch.float32, [1, 128, 128, 3])
    assert 0 <= picture.min() < picture.max() <= 1
    assert judge.recognise((picture * 255).round().byte().numpy())[0] == 7


@pytest.mark.parametrize("family", ["flux", "wan"])
def test_three_stages_are_the_pipeline_to_the_bit(family: str) -> None:
    whole = WHOLE[family]().generate(SEVEN, device=CPU, **QUICK)
    stages = decoded(drawn(family), family)
    assert torch.equal(stages, whole[0])
    with torch.inference_mode(False):
        frames = Pipeline.load(f"tiny-{family}", device="cpu")(SEVEN, **QUICK).frames
    assert torch.equal(stages, torch.from_numpy(frames).float() / 255)
    assert whole[1:] == ((8.0,) if family == "wan" else ())


def test_a_negative_prompt_is_that_of_the_pipeline() -> None:
    conditioning, away = read("wan"), read("wan", "a six")
    (latent,) = xla.WanTPUSampler().sample(conditioning, away, **QUICK)
    stages = decoded(latent, "wan")
    node = xla.WanTPUPipeline()
    whole = node.generate(SEVEN, negative_prompt="a six", device=CPU, **QUICK)[0]
    assert torch.equal(stages, whole)
    assert not torch.equal(stages, node.generate(SEVEN, device=CPU, **QUICK)[0])


@pytest.mark.slow
def test_xla_draws_and_says_that_it_may_compile(
    judge: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr("holdfast.nodes.host.text", said.append)
    node = xla.FluxTPUPipeline()
    (picture,) = node.generate(SEVEN, device="xla:0", steps=6, seed=1)
    assert judge.recognise((picture * 255).round().byte().numpy())[0] == 7
    assert [text for text in said if "compiling" in text] == [
        *("text: compiling, if new", "denoise: compiling, if new", "decode: compiling, if new")
    ]


# ---- CONDITIONING


def test_conditioning_is_in_comfyuis_form() -> None:
    ((tokens, extras),) = read()
    assert (tokens.ndim, extras["pooled_output"].ndim) == (3, 2)
    assert extras[MARK].prompt == SEVEN
    ((_, extras),) = read("wan")
    assert set(extras) == {MARK}


def test_what_conditioning_nodes_do_to_the_tensors_is_drawn() -> None:
    """As Conditioning (Average) and (Concat) do: the extras are copied, the tensors are new."""
    plain = drawn()["samples"]
    ((tokens, extras),) = read()
    halved = [[tokens * 0.5, extras.copy()]]
    longer = [[torch.cat((tokens, tokens), 1), extras.copy()]]
    for changed in (halved, longer):
        found = xla.FluxTPUSampler().sample(changed, **QUICK)[0]["samples"]
        assert found.shape == plain.shape
        assert not torch.equal(found, plain)


def test_the_guidance_of_flux_guidance_is_taken_unless_the_node_has_one() -> None:
    ((tokens, extras),) = read()
    guided = [[tokens, extras | {"guidance": 1.5}]]
    sample = xla.FluxTPUSampler().sample
    wanted = drawn(guidance=1.5)["samples"]
    assert torch.equal(sample(guided, **QUICK)[0]["samples"], wanted)
    assert torch.equal(sample(guided, guidance=-1.0, **QUICK)[0]["samples"], wanted)
    other = sample(guided, guidance=4.0, **QUICK)[0]["samples"]
    assert torch.equal(other, drawn(guidance=4.0)["samples"])
    assert not torch.equal(other, wanted)


ENCODER = (
    "  expected: the conditioning of Flux Text Encoder (TPU)\n"
    "  try: connect Flux Text Encoder (TPU), with the model that is to draw"
)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ([[torch.zeros(1, 2, 3), {}]], "cannot use positive: it is of another text encoder"),
        ([], "cannot use positive: it is no CONDITIONING"),
        ("a seven", "cannot use positive: it is no CONDITIONING"),
        ([[torch.zeros(1, 2, 3)]], "cannot use positive: it is no CONDITIONING"),
    ],
)
def test_conditioning_from_elsewhere_is_refused(given: Any, told: str) -> None:
    with pytest.raises(BadInput) as caught:
        xla.FluxTPUSampler().sample(given, **QUICK)
    assert str(caught.value) == f"{told}\n{ENCODER}"


def test_conditioning_of_the_other_family_is_refused() -> None:
    with pytest.raises(BadInput) as caught:
        xla.FluxTPUSampler().sample(read("wan"), **QUICK)
    assert str(caught.value) == (f"cannot use positive: it is of Wan Text Encoder (TPU)\n{ENCODER}")


def test_prompts_that_are_combined_and_areas_are_refused() -> None:
    one = read()
    with pytest.raises(BadInput) as caught:
        xla.FluxTPUSampler().sample(one + one, **QUICK)
    assert str(caught.value) == (
        "cannot use positive: it is 2 prompts combined\n"
        "  expected: one prompt\n"
        "  try: Conditioning (Concat) or Conditioning (Average) makes one of them"
    )
    ((tokens, extras),) = one
    neutral = {"strength": 1.0, "start_percent": 0.0, "end_percent": 1.0, "control": None}
    xla.FluxTPUSampler().sample([[tokens, extras | neutral]], **QUICK)
    with pytest.raises(BadInput) as caught:
        xla.FluxTPUSampler().sample([[tokens, extras | {"area": (8, 8, 0, 0)}]], **QUICK)
    assert str(caught.value) == (
        "cannot use positive with 'area': this sampler draws the whole picture with one prompt\n"
        "  expected: a prompt without areas, masks, time ranges, control nets and hooks\n"
        "  try: connect Flux Text Encoder (TPU) to it directly"
    )


def test_two_models_cannot_have_read_the_prompts(tmp_path: Path) -> None:
    folder = str(shutil.copytree(BUILT_IN / "tiny-wan", tmp_path / "mine"))
    with pytest.raises(BadInput) as caught:
        xla.WanTPUSampler().sample(read("wan"), read("wan", model_id=folder), **QUICK)
    assert str(caught.value) == (
        f"cannot use negative: {folder!r} on 'cpu (torch)' has read it, and 'tiny-wan' on "
        "'cpu (torch)' the positive one\n"
        "  expected: one model and one device for both\n"
        "  try: give both text encoders the same model_id and device"
    )


def test_a_negative_prompt_that_would_do_nothing_is_refused() -> None:
    with pytest.raises(BadInput, match="cannot use a negative prompt: this model has its guidance"):
        xla.FluxTPUSampler().sample(read(), read(prompt="a six"), **QUICK)


# ---- LATENT


@pytest.mark.parametrize(("family", "shape"), [("flux", [1, 8, 16, 16]), ("wan", [1, 8, 3, 8, 8])])
def test_latents_are_those_that_an_autoencoder_takes(family: str, shape: list[int]) -> None:
    """As ComfyUI has them: a VAE that knows nothing of us decodes them."""
    latent = drawn(family)
    samples = latent["samples"]
    assert (list(samples.shape), samples.dtype) == (shape, torch.float32)
    held = xla.TPUNode._models.held
    assert held is not None
    decode: Any = held.pipe.decode
    plain = decode._vae.decode(samples, return_dict=False)[0]
    frames = plain.permute(0, 2, 3, 1) if family == "flux" else plain[0].permute(1, 2, 3, 0)
    wanted = (frames / 2 + 0.5).clamp(0, 1)
    assert (decoded(latent, family) - wanted).abs().max() < 1.5 / 255


def test_latents_survive_comfyuis_nodes_for_latents() -> None:
    latent = drawn()
    plain = decoded(latent)
    repeated = latent.copy()  # as RepeatLatentBatch does
    repeated["samples"] = latent["samples"].repeat(2, 1, 1, 1)
    two = decoded(repeated)
    assert two.shape == (2, 128, 128, 3)
    assert (two - plain).abs().max() <= 1 / 255
    larger = latent.copy()  # as LatentUpscale does
    larger["samples"] = torch.nn.functional.interpolate(latent["samples"], size=(12, 24))
    assert decoded(larger).shape == (1, 96, 192, 3)
    flipped = latent | {"samples": latent["samples"].flip(3)}
    assert (decoded(flipped).flip(2) - plain).abs().mean() < 0.1
    assert not torch.equal(decoded(flipped), plain)


def test_latents_from_elsewhere_need_the_name_of_a_model() -> None:
    latent = drawn()
    with pytest.raises(BadInput) as caught:
        decoded(without_mark(latent))
    assert str(caught.value) == (
        "cannot decode these latents: they do not say which model drew them\n"
        "  expected: latents of Flux Sampler (TPU), or a model_id\n"
        "  try: connect Flux Sampler (TPU), or set model_id"
    )
    named = decoded(without_mark(latent), model_id="tiny-flux")
    assert (named - decoded(latent)).abs().max() <= 2 / 255  # on XLA: no device was named


@pytest.mark.parametrize("shape", [(1, 4, 16, 16), (1, 8, 16, 15), (1, 8, 3, 16, 16), (0, 8, 4, 4)])
def test_latents_that_do_not_fit_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(BadInput) as caught:
        decoded(drawn() | {"samples": torch.zeros(shape)})
    assert str(caught.value) == (
        f"cannot decode latents of {list(shape)} with 'tiny-flux'\n"
        "  expected: [batch, 8, even height, even width]\n"
        "  try: connect Flux Sampler (TPU), or name the model of them"
    )


def test_what_is_no_latent_is_refused() -> None:
    with pytest.raises(BadInput) as caught:
        decoded({"samples": [1, 2]})
    assert str(caught.value) == (
        "cannot decode what is no LATENT\n"
        '  expected: a dict with "samples", as samplers give it\n'
        "  try: connect a sampler"
    )


# ---- which model


@pytest.fixture
def comfyui(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a ComfyUI, with a model in models/diffusers."""
    made: Any = ModuleType("folder_paths")
    base = tmp_path / "ComfyUI"
    made.models_dir = str(base / "models")
    made.folder_names_and_paths = {"diffusers": None}
    made.get_folder_paths = lambda kind: [str(base / "models" / kind)]
    shutil.copytree(BUILT_IN / "tiny-flux", base / "models" / "diffusers" / "mine")
    shutil.copytree(BUILT_IN / "tiny-flux", tmp_path / "outside")
    (base / "custom_nodes" / "evil").mkdir(parents=True)
    (base / "models" / "diffusers" / "linked").symlink_to(tmp_path / "outside")
    monkeypatch.setitem(sys.modules, "folder_paths", made)
    monkeypatch.chdir(base)
    return base


def test_names_mean_models_of_comfyuis_folders(comfyui: Path) -> None:
    mine = comfyui / "models" / "diffusers" / "mine"
    assert xla_models.find("tiny-flux") == "tiny-flux"
    for name in ("mine", "diffusers/mine", str(mine), " mine "):
        assert Path(xla_models.find(name)) == mine
    assert xla_models.find("linked") == str(mine.with_name("linked"))  # the user's own link
    assert xla_models.find("black-forest-labs/FLUX.1-dev") == "black-forest-labs/FLUX.1-dev"
    assert xla.FluxTPUTextEncoder.VALIDATE_INPUTS(model_id="mine") is True
    assert xla.FluxTPUVAEDecoder.VALIDATE_INPUTS(model_id="") is True
    xla.FluxTPUPipeline().generate(SEVEN, model_id="mine", device=CPU, **QUICK)


@pytest.mark.parametrize(
    "name",
    [
        *("../outside", "models/../../outside", "..", "mine/../../../../outside", "~/model"),
        *("/etc", "/etc/passwd", "{base}/../outside", "{base}/custom_nodes/evil", "..\\outside"),
    ],
)
def test_a_workflow_reads_nothing_outside_of_comfyuis_folders(name: str, comfyui: Path) -> None:
    name = name.replace("{base}", str(comfyui))
    told = (
        f"cannot load model {name!r}: it is outside of ComfyUI's models folders\n"
        "  expected: a built-in model, a folder or file in ComfyUI's models folder, or a hub id\n"
        "  try: a link to it in models/diffusers, or extra_model_paths.yaml"
    )
    assert xla.FluxTPUPipeline.VALIDATE_INPUTS(model_id=name) == told
    with pytest.raises(BadInput) as caught:
        xla.FluxTPUPipeline().generate(SEVEN, model_id=name, device=CPU)
    assert str(caught.value) == told


@pytest.mark.parametrize("name", ["custom_nodes/evil", "models/nothing/there", "nothing", "models"])
def test_what_is_in_the_current_folder_is_no_model(name: str, comfyui: Path) -> None:
    with pytest.raises(NotFound) as caught:
        xla_models.find(name)
    assert str(caught.value) == (
        f"cannot find model {name!r}\n"
        "  expected: a built-in model, a folder or file in ComfyUI's models folder, or a hub id\n"
        "  try: tiny-flux or tiny-wan, a name such as FLUX.1-dev in models/diffusers"
    )


@pytest.mark.parametrize("name", ["", "a\0b", "x" * 2000])
def test_a_name_that_is_none_is_refused_short(name: str) -> None:
    with pytest.raises(BadInput, match="cannot use model_id=") as caught:
        xla_models.find(name)
    assert len(str(caught.value)) < 500


def test_a_model_of_another_family_is_refused() -> None:
    with pytest.raises(Unsupported) as caught:
        read("flux", model_id="tiny-wan")
    assert str(caught.value) == (
        "cannot draw with 'tiny-wan' in a node for Flux: it is a model of Wan\n"
        "  expected: a model of Flux, such as tiny-flux\n"
        "  try: the nodes of TPU/Wan"
    )
    with pytest.raises(Unsupported, match="it is a model of SDXL"):
        read("wan", model_id="tiny-sdxl")


@pytest.mark.slow
def test_without_jax_the_extra_is_named() -> None:
    program = (
        "import sys; sys.modules['jax'] = None\n"
        "from holdfast.nodes import xla\n"
        "try: xla.FluxTPUPipeline().generate('a seven')\n"
        "except ImportError as exc: print(exc)"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "  try: pip install 'holdfast[xla]'"


# ---- the model that is kept


def test_one_model_is_kept_and_another_takes_its_place() -> None:
    read()
    ((name, flux),) = xla.list_loaded()
    assert (name, flux > 10**6) == ("tiny-flux", True)
    first = xla.TPUNode._models.held
    drawn()
    assert xla.TPUNode._models.held is first
    read("wan")
    ((name, wan),) = xla.list_loaded()
    assert (name, wan != flux) == ("tiny-wan", True)


def test_what_was_unloaded_is_loaded_again() -> None:
    latent = drawn()
    wanted = decoded(latent)
    ((_, size),) = xla.list_loaded()
    assert xla.unload() == size
    assert (xla.unload(), xla.list_loaded()) == (None, [])
    assert torch.equal(decoded(latent), wanted)
    assert xla.list_loaded()


def test_a_file_that_has_changed_is_seen(tmp_path: Path) -> None:
    folder = shutil.copytree(BUILT_IN / "tiny-flux", tmp_path / "mine")
    node, name = xla.FluxTPUTextEncoder, str(folder)
    before = node.IS_CHANGED(prompt=SEVEN, model_id=name)
    assert node.IS_CHANGED(prompt="other", model_id=name) == before
    read(model_id=name)
    first = xla.TPUNode._models.held
    os.utime(folder / "vae" / "config.json", ns=(1, 1))
    assert node.IS_CHANGED(prompt=SEVEN, model_id=name) != before
    read(model_id=name)
    assert xla.TPUNode._models.held is not first
    assert math.isnan(node.IS_CHANGED(prompt=SEVEN))  # the name may come over a link
    assert xla.FluxTPUSampler.IS_CHANGED(positive=None) == ""
    assert xla.FluxTPUVAEDecoder.IS_CHANGED(model_id="") == ""


def test_the_model_goes_with_the_nodes_that_comfyui_forgets(comfyui: Path) -> None:
    xla.unload()
    xla.TPUNode._models._users.clear()
    first, second = xla.FluxTPUTextEncoder(), xla.FluxTPUTextEncoder()
    for node in (first, second):
        node.encode(SEVEN, device=CPU)
    del first, node
    assert xla.list_loaded()
    del second
    assert xla.list_loaded() == []


def test_in_plain_python_the_model_stays() -> None:
    xla.FluxTPUTextEncoder().encode(SEVEN, device=CPU)
    assert xla.list_loaded()


# ---- stopping, failing, showing


class Stopped(Exception):
    """Stands for ComfyUI's exception."""


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A ComfyUI that shows bars; `stop_at` is the bar's place where somebody stops it."""
    state = SimpleNamespace(told=[], stop_at=None)

    class Bar:
        def __init__(self, total: int) -> None:
            pass

        def update_absolute(self, done: int, total: int, preview: Any = None) -> None:
            state.told.append((done, total, preview))

    def throw() -> None:
        if state.told and state.told[-1][:2] == state.stop_at:
            raise Stopped

    for name, parts in {
        "comfy.utils": {"ProgressBar": Bar},
        "comfy.model_management": {
            "throw_exception_if_processing_interrupted": throw,
            "InterruptProcessingException": Stopped,
        },
    }.items():
        made = ModuleType(name)
        vars(made).update(parts)
        monkeypatch.setitem(sys.modules, name, made)
    return state


def test_every_step_is_shown(screen: SimpleNamespace) -> None:
    conditioning = read()
    screen.told.clear()
    xla.FluxTPUSampler().sample(conditioning, steps=3, seed=1)
    assert [one[:2] for one in screen.told] == [(1, 3), (2, 3), (3, 3)]


@pytest.mark.parametrize("place", [(3, 7), (2, 5)])
def test_a_run_that_was_stopped_can_be_run_again(
    place: tuple[int, int], screen: SimpleNamespace
) -> None:
    """While the seven parts of the model are loaded, and in the second of five steps."""
    node = xla.FluxTPUPipeline()
    wish = {"device": CPU, "steps": 5, "seed": 1}
    wanted = node.generate(SEVEN, **wish)[0]
    xla.unload()
    screen.told.clear()
    screen.stop_at = place
    with pytest.raises(Stopped):
        node.generate(SEVEN, **wish)
    screen.stop_at = None
    assert torch.equal(node.generate(SEVEN, **wish)[0], wanted)


def test_a_failure_of_the_model_is_told_in_three_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    read()
    held = xla.TPUNode._models.held
    assert held is not None

    def broken(*_: Any) -> Any:
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied\nmore")

    monkeypatch.setattr(held.pipe, "decode", broken)
    with pytest.raises(HoldfastError) as caught:
        decoded(drawn())
    assert str(caught.value) == (
        "'tiny-flux' failed in 'decode': RuntimeError: mat1 and mat2 shapes cannot be multiplied\n"
        "  expected: a model whose parts and settings fit together\n"
        "  try: other settings, or another copy of the model"
    )


def test_settings_that_the_model_cannot_draw_are_told_before_it_works() -> None:
    with pytest.raises(BadInput) as caught:
        xla.FluxTPUPipeline().generate(SEVEN, device=CPU, height=100)
    assert str(caught.value) == (
        "cannot draw height=100\n  expected: a multiple of 16 from 16 to 8192\n  try: height 96"
    )


@pytest.mark.parametrize("family", ["flux", "wan"])
def test_a_picture_that_no_memory_would_hold_is_refused_before_it_is_drawn(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = {"flux": xla.FluxTPUPipeline, "wan": xla.WanTPUPipeline}[family]()
    held = node._get_or_create_model(f"tiny-{family}", CPU)
    monkeypatch.setattr(held.pipe.devices["decode"], "free_bytes", lambda: 1_000_000)
    with pytest.raises(OutOfMemory) as caught:
        node.generate(SEVEN, device=CPU, height=1024, width=2048)
    said = str(caught.value).splitlines()
    assert said[0].startswith("cannot draw 2048 x 1024: to decode it takes about ")
    assert said[0].endswith(" GB on cpu")
    assert said[1:] == [
        "  expected: at most the 1.0 MB that are free there",
        "  try: a smaller height and width",
    ]


def test_values_in_place_of_links_are_refused_before_the_run() -> None:
    assert xla.FluxTPUSampler.VALIDATE_INPUTS(positive="a seven") == (
        "positive is 'a seven', a value of the workflow file\n"
        "  expected: a link to an output of type CONDITIONING\n"
        "  try: connect the node that makes the positive"
    )
    assert xla.WanTPUVAEDecoder.VALIDATE_INPUTS(samples=[1, 2]) == (
        "samples is [1, 2], a value of the workflow file\n"
        "  expected: a link to an output of type LATENT\n"
        "  try: connect the node that makes the samples"
    )
    assert xla.FluxTPUPipeline.VALIDATE_INPUTS(model_id="tiny-flux") is True


def test_a_preview_is_drawn_where_somebody_sees_it(screen: SimpleNamespace) -> None:
    latent = drawn()
    held, mark = xla.TPUNode._models.held, latent[MARK]
    assert held is not None
    settings = dataclasses.replace(mark.settings, steps=3)
    steps = xla_steps.Steps(held.pipe, held.layout, settings)
    screen.told.clear()
    for done in (1, 2, 3):
        steps.latents(lambda: mark.latents)
        steps(done)
    (_, _, (kind, picture, _)), (_, _, none), (_, _, last) = screen.told
    assert (kind, picture.size, none) == ("JPEG", (128, 128), None)  # the second came too soon
    assert last is not None  # it stays when the node is done
    assert (picture.getpixel((0, 0)), picture.mode) != ((0, 0, 0), "L")


@pytest.mark.parametrize("device", [CPU, pytest.param("xla:0", marks=pytest.mark.slow)])
@pytest.mark.parametrize("family", ["flux", "wan"])
def test_the_picture_is_seen_to_become_clear(
    family: str, device: str, screen: SimpleNamespace
) -> None:
    node = WHOLE[family]()
    shown = node.generate(SEVEN, device=device, steps=6, seed=1)[0]
    previews = [one for _, _, one in screen.told if one is not None]
    assert previews
    assert {(kind, picture.mode) for kind, picture, _ in previews} == {("JPEG", "RGB")}
    assert previews[0][1].size == (shown.shape[2], shown.shape[1])


def test_without_comfyui_no_preview_is_drawn() -> None:
    latent = drawn()
    held = xla.TPUNode._models.held
    assert held is not None
    steps = xla_steps.Steps(held.pipe, held.layout, latent[MARK].settings)

    def refuse() -> torch.Tensor:
        raise AssertionError

    steps.latents(refuse)


def test_latents_as_colours() -> None:
    video = torch.zeros(1, 4, 3, 2, 5)
    video[0, 0, 1] = 1.0
    red = xla_steps.mix_colours(video, ([[2, 0, 0], [0, 1, 0], [0, 0, 1], [0, 0, 0]], [0, 0, -1]))
    assert (red.size, red.getpixel((8, 8))) == ((40, 16), (255, 128, 0))
    assert xla_steps.mix_colours(video, None).getpixel((8, 8)) == (255, 0, 0)

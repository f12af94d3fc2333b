from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from holdfast.base.errors import BadInput, OutOfMemory, Unsupported
from holdfast.base.registry import Entry
from holdfast.pipeline import Event, Pipeline
from holdfast.pipeline.devices.device import DEVICES
from holdfast.pipeline.devices.torch_devices import Cpu
from holdfast.pipeline.model.sources import BUILT_IN
from holdfast.pipeline.run.progress import STAGES
from holdfast.pipeline.run.stages import to_bytes

PROMPT = "a handwritten seven"
QUICK = {"steps": 3, "seed": 1, "height": 64, "width": 64}


@pytest.fixture(scope="module")
def pipe() -> Pipeline:
    return Pipeline.load("tiny-flux", device="cpu")


def test_the_same_seed_draws_the_same_picture(pipe: Pipeline) -> None:
    first, again = (pipe(PROMPT, **QUICK).frames for _ in range(2))
    np.testing.assert_array_equal(first, again)
    other = pipe(PROMPT, **(QUICK | {"seed": 2})).frames
    assert (first != other).any()


def test_a_random_seed_is_told_and_draws_the_same_again(pipe: Pipeline) -> None:
    drawn = pipe(PROMPT, steps=2, height=64, width=64)
    again = pipe(PROMPT, steps=2, height=64, width=64, seed=drawn.settings["seed"])
    np.testing.assert_array_equal(drawn.frames, again.frames)


def test_the_settings_of_a_result_are_complete(pipe: Pipeline) -> None:
    result = pipe(PROMPT, **QUICK)
    assert result.settings == {
        "model": "tiny-flux",
        "family": "flux",
        "prompt": PROMPT,
        "negative": None,
        "height": 64,
        "width": 64,
        "steps": 3,
        "seed": 1,
        "guidance": pipe.limits.guidance,
        "num_frames": 1,
        "device": "cpu",
        "precision": "fp32",
        "holdfast": result.settings["holdfast"],
    }
    assert result.frames.shape == (1, 64, 64, 3)
    assert result.frames.dtype == np.uint8
    assert result.image.size == (64, 64)


def test_a_run_tells_what_it_cost(pipe: Pipeline) -> None:
    cost = pipe(PROMPT, **QUICK).cost
    assert len(cost.step_ms) == 3
    assert min(cost.step_ms) > 0
    assert cost.total_ms >= sum(cost.step_ms)
    assert cost.peak_bytes["cpu"] > 50_000_000
    assert set(cost.to_dict()) >= {"text_ms", "step_ms", "mean_step_ms", "decode_ms", "peak_bytes"}


def test_every_stage_and_step_is_heard_of_in_order(pipe: Pipeline) -> None:
    heard: list[Event] = []
    pipe(PROMPT, **QUICK, progress=heard.append)
    assert heard == [
        Event("text", 0, 1),
        Event("text", 1, 1),
        *[Event("denoise", done, 3) for done in range(4)],
        Event("decode", 0, 1),
        Event("decode", 1, 1),
    ]


def test_loading_names_each_component() -> None:
    heard: list[Event] = []
    Pipeline.load("tiny-flux", device="cpu", progress=heard.append)
    labels = [event.label for event in heard if event.total]
    assert labels == [
        "tokenizer",
        "tokenizer_2",
        "text_encoder",
        "text_encoder_2",
        "transformer",
        "scheduler",
        "vae",
        None,
    ]


@pytest.mark.parametrize("stage", STAGES)
def test_a_listener_can_stop_a_run_and_the_pipeline_goes_on(pipe: Pipeline, stage: str) -> None:
    def stop(event: Event) -> None:
        if event.stage == stage and event.done == 1:
            raise KeyboardInterrupt

    before = pipe(PROMPT, **QUICK).frames
    with pytest.raises(KeyboardInterrupt):
        pipe(PROMPT, **QUICK, progress=stop)
    np.testing.assert_array_equal(pipe(PROMPT, **QUICK).frames, before)


def test_bad_settings_are_refused_before_any_work(pipe: Pipeline) -> None:
    heard: list[Event] = []
    with pytest.raises(BadInput, match="cannot use steps=0"):
        pipe(PROMPT, steps=0, progress=heard.append)
    assert heard == []


def test_half_precision_draws_nearly_the_same(pipe: Pipeline) -> None:
    full = pipe(PROMPT, **QUICK).frames.astype(float)
    half = Pipeline.load("tiny-flux", device="cpu", precision="bf16")
    assert half.precision == "bf16"
    drawn = half(PROMPT, **QUICK)
    assert drawn.settings["precision"] == "bf16"
    assert np.abs(drawn.frames - full).mean() < 12


@pytest.mark.parametrize("model", ["tiny-sdxl", "tiny-wan"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_other_families_draw_in_both_precisions(model: str, precision: str) -> None:
    pipe = Pipeline.load(model, device="cpu", precision=precision)
    result = pipe(PROMPT, steps=2, seed=1)
    assert result.frames.shape[0] == pipe.limits.num_frames
    assert result.frames.std() > 1


class Elsewhere(Cpu):
    """The CPU under another name, which sees what crosses its border."""

    kind = "cpu"
    crossings: list[str]

    def __init__(self, index: int | None = None) -> None:
        super().__init__()
        self.crossings = []

    @property
    def name(self) -> str:
        return "elsewhere"

    def put(self, tensor: torch.Tensor) -> torch.Tensor:
        self.crossings.append("in")
        return super().put(tensor)

    def fetch(self, tensor: torch.Tensor) -> torch.Tensor:
        self.crossings.append("out")
        return super().fetch(tensor)


@pytest.fixture
def elsewhere() -> Iterator[None]:
    DEVICES.register("elsewhere", Entry(f"{__name__}:Elsewhere"))
    yield
    del DEVICES._entries["elsewhere"]
    DEVICES._loaded.pop("elsewhere", None)


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize("stage", STAGES)
def test_each_stage_can_live_on_another_device(pipe: Pipeline, stage: str) -> None:
    split = Pipeline.load("tiny-flux", device=dict.fromkeys(STAGES, "cpu") | {stage: "elsewhere"})
    drawn = split(PROMPT, **QUICK)
    np.testing.assert_array_equal(drawn.frames, pipe(PROMPT, **QUICK).frames)
    device: Any = split.devices[stage]
    assert device.crossings
    assert drawn.settings["device"][stage] == "elsewhere"
    assert set(drawn.cost.peak_bytes) == {"cpu", "elsewhere"}
    assert f"{stage} on elsewhere" in split.why


def test_an_unknown_stage_is_refused() -> None:
    with pytest.raises(BadInput) as caught:
        Pipeline.load("tiny-flux", device={"denoising": "cpu"})
    assert str(caught.value) == (
        "unknown stage 'denoising'\n  expected: one of text, denoise, decode"
    )


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"precision": "fp4"},
            "unknown precision 'fp4'\n  expected: one of auto, fp32, bf16, fp16",
        ),
        (
            {"budget": "lots"},
            "cannot read 'lots' as a size in bytes\n"
            '  expected: a size such as "2GB", "512MiB" or "80%"',
        ),
    ],
)
def test_options_that_mean_nothing_are_refused(options: Mapping[str, Any], text: str) -> None:
    with pytest.raises(BadInput) as caught:
        Pipeline.load("tiny-flux", **options)
    assert str(caught.value) == text


@pytest.mark.parametrize(("budget", "said"), [("6GB", "6.0 GB"), ("1MB", "1.0 MB")])
def test_a_budget_on_the_cpu_is_refused_not_ignored(budget: str, said: str) -> None:
    with pytest.raises(Unsupported, match=f"cannot keep a run on the CPU under {said}"):
        Pipeline.load("tiny-flux", device="cpu", budget=budget)


class Roomy(Elsewhere):
    """A device that keeps a budget."""

    limits: ClassVar[list[int | None]] = []

    def limit(self, budget_bytes: int | None) -> None:
        self.limits.append(budget_bytes)


def test_a_budget_below_the_weights_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(DEVICES._loaded, "xpu", Roomy)
    monkeypatch.setattr(Roomy, "limits", [])
    with pytest.raises(Unsupported) as caught:
        Pipeline.load("tiny-flux", device="xpu", budget="1MB")
    text = str(caught.value)
    assert text.startswith("cannot run 'tiny-flux' under a budget of 1.0 MB: ")
    assert "of weights have to stay on elsewhere\n  expected: a budget of at least" in text
    assert Roomy.limits == [1_000_000, None]


def test_a_budget_counts_what_is_on_the_device_and_ends_with_the_next_load(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(DEVICES._loaded, "xpu", Roomy)
    Pipeline.load("tiny-flux", device="text=xpu,denoise=xpu,decode=xpu", budget="30MB")
    Pipeline.load("tiny-flux", device="text=xpu,denoise=xpu,decode=xpu")
    assert Roomy.limits == [30_000_000, None]
    with pytest.raises(Unsupported, match="cannot keep a run on the CPU"):
        Pipeline.load("tiny-flux", device="text=cpu,denoise=xpu,decode=xpu", budget="30MB")


def test_settings_are_checked_before_the_weights_are_loaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    prepared = Pipeline.prepare("tiny-flux", device="cpu")
    assert prepared.check(PROMPT, seed=1).height == 128
    with pytest.raises(BadInput, match="cannot use steps=0"):
        prepared.check(PROMPT, steps=0)


def test_values_that_are_no_numbers_are_no_picture(
    pipe: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipe, "decode", lambda *_: to_bytes(np.full((1, 2, 2, 3), np.nan)))
    with pytest.raises(Unsupported) as caught:
        pipe(PROMPT, **QUICK)
    assert str(caught.value) == (
        "the model computed NaN or infinity: this precision is too narrow for it\n"
        "  expected: a picture\n"
        "  try: --precision bf16 or fp32"
    )


def test_running_out_of_memory_says_where_and_what_to_try(
    pipe: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_memory(*args: Any) -> Any:
        torch.empty(2**60, dtype=torch.uint8)

    monkeypatch.setattr(pipe, "decode", no_memory)
    with pytest.raises(OutOfMemory) as caught:
        pipe(PROMPT, **QUICK)
    text = str(caught.value)
    assert text.startswith("ran out of memory on cpu while running 'decode': ")
    assert text.endswith(
        "\n  expected: a picture and a model that fit together"
        "\n  try: a smaller --height and --width, --precision bf16, or another --device"
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(BUILT_IN / "tiny-flux", tmp_path / "model"))


def rewrite(file: Path, **entries: object) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | entries))


def test_weights_that_do_not_belong_to_their_configuration_name_the_component(
    folder: Path,
) -> None:
    rewrite(folder / "vae" / "config.json", latent_channels=3)
    with pytest.raises(BadInput) as caught:
        Pipeline.load(str(folder), device="cpu")
    text = str(caught.value)
    assert text.startswith(f"cannot load 'vae' of {str(folder)!r}: ")
    assert "files that belong together" in text


@pytest.mark.parametrize(
    ("entries", "text"),
    [
        ({"vae": [None, None]}, "its model_index.json names no 'vae'"),
        ({"tokenizer_2": None}, "its model_index.json names no 'tokenizer_2'"),
        ({"vae": ["diffusers"]}, "its model_index.json says ['diffusers'] for 'vae'"),
        ({"vae": ["diffusers", "logging"]}, "diffusers has no 'logging'"),
        ({"vae": ["transformers", "T5Config"]}, "cannot load 'vae'"),
    ],
)
def test_a_broken_index_is_told(folder: Path, entries: dict[str, Any], text: str) -> None:
    rewrite(folder / "model_index.json", **entries)
    with pytest.raises(BadInput) as caught:
        Pipeline.load(str(folder), device="cpu")
    assert text in str(caught.value)


@pytest.mark.parametrize("file", ["holdfast.json", "vae/config.json"])
def test_a_configuration_that_is_no_object_is_told(folder: Path, file: str) -> None:
    (folder / file).write_text("[]")
    with pytest.raises(BadInput, match="it holds no JSON object"):
        Pipeline.load(str(folder), device="cpu")


def test_weights_that_are_there_in_half_precision_alone_are_used(
    folder: Path, pipe: Pipeline
) -> None:
    for file in folder.rglob("*.safetensors"):
        file.rename(file.with_suffix(".fp16.safetensors"))
    drawn = Pipeline.load(str(folder), device="cpu")(PROMPT, **QUICK)
    np.testing.assert_array_equal(drawn.frames, pipe(PROMPT, **QUICK).frames)


def test_weights_of_another_network_are_not_filled_up_with_random_numbers(folder: Path) -> None:
    shutil.copy(folder / "text_encoder_2/model.safetensors", folder / "text_encoder")
    with pytest.raises(BadInput) as caught:
        Pipeline.load(str(folder), device="cpu")
    text = str(caught.value)
    assert text.startswith(f"cannot load 'text_encoder' of {str(folder)!r}: its weights have no ")


def test_a_tokenizer_without_words_is_refused(folder: Path) -> None:
    (folder / "tokenizer/tokenizer.json").unlink()
    with pytest.raises(BadInput, match=r"it has none of tokenizer\.json, vocab\.json"):
        Pipeline.load(str(folder), device="cpu")


def test_a_scheduler_of_another_kind_is_told_when_it_fails(folder: Path) -> None:
    rewrite(folder / "model_index.json", scheduler=["diffusers", "DDIMScheduler"])
    pipe = Pipeline.load(str(folder), device="cpu")
    with pytest.raises(Unsupported) as caught:
        pipe(PROMPT, **QUICK)
    text = str(caught.value)
    assert text.startswith(f"{str(folder)!r} failed in 'denoise': TypeError: ")
    assert text.endswith("another copy of the model, or HOLDFAST_DEBUG=1 to see where")


def test_a_configuration_of_another_family_is_told(folder: Path) -> None:
    (folder / "vae" / "config.json").write_text("{}")
    with pytest.raises(BadInput) as caught:
        Pipeline.load(str(folder), device="cpu")
    assert str(caught.value) == (
        f"cannot understand the configuration of {str(folder)!r}: KeyError: 'block_out_channels'\n"
        "  expected: that of a flux model\n"
        "  try: copy or download the whole model again"
    )


def test_what_a_listener_raises_comes_out_as_it_is(pipe: Pipeline) -> None:
    def stop(event: Event) -> None:
        raise LookupError("enough")

    with pytest.raises(LookupError, match="enough"):
        pipe(PROMPT, **QUICK, progress=stop)


def test_a_prompt_that_is_too_long_is_noted_and_nothing_is_printed(
    pipe: Pipeline, capfd: pytest.CaptureFixture[str]
) -> None:
    result = pipe("a handwritten seven " * 30, **QUICK)
    assert re.fullmatch(r"only the first 32 of \d+ tokens of the prompt were read", *result.notes)
    assert pipe(PROMPT, **QUICK).notes == ()
    assert capfd.readouterr() == ("", "")

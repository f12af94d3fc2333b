"""Every model on XLA gives what it gives on torch, in both formats, on one device and on eight.

Generated over all tiny models: every `*Transformer*Model` of diffusers (`test_tiny` fails for a
class without one), its autoencoders and UNets, CLIP, T5 and UMT5. `make test` takes some of them,
`make test-all` all. No model has an operator of its own: what torchax lacks is mended for all of
them (`compat`), and the one class that is rewritten is named below.
"""

from __future__ import annotations

import os

import pytest

pytest.importorskip("torch")
pytest.importorskip("jax")
pytest.importorskip("diffusers")
pytest.importorskip("transformers")

import torch

from holdfast.base.errors import NotFound
from holdfast.xla import tiny
from holdfast.xla.check.check import check
from holdfast.xla.check.comparison import distance, floats, on_torch
from tests.tolerance import no_worse

pytestmark = [pytest.mark.xla, pytest.mark.filterwarnings("ignore")]  # the models' own

FEW = (
    "diffusers:FluxTransformer2DModel",
    "diffusers:WanTransformer3DModel",
    "diffusers:QwenImageTransformer2DModel",
    "diffusers:SD3Transformer2DModel",
    "diffusers:HunyuanVideo15Transformer3DModel",  # with constants
    "diffusers:AutoencoderKL",
    "diffusers:AutoencoderKLWan",
    "transformers:CLIPTextModel",
    "transformers:T5EncoderModel",
    "transformers:UMT5EncoderModel",
    "diffusers:UNet2DConditionModel",
)
ALL = bool(os.environ.get("HOLDFAST_TEST_ALL"))  # see `make test-all`
QUICK, *LONGER = FEW
NAMES = [QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in LONGER)]
if ALL:
    NAMES = sorted(tiny.tiny_models())

# Models that torch's CPU does not run in bfloat16: there is no error of its own to compare with.
MOST_WITHOUT_REFERENCE = 0.03
WITHOUT_REFERENCE = {
    "diffusers:AutoencoderKLCosmos": "NotImplementedError",  # torch has no avg_pool3d for it
    "diffusers:Kandinsky5Transformer3DModel": "RuntimeError",  # embeds the time in float32
    "diffusers:SanaWMTransformer3DModel": "ValueError",  # refuses the CPU by name
}
# forward rounds to bytes and goes on in float32, whatever the weights are: neither side can.
REFUSED = {"diffusers:AutoencoderTiny": "RuntimeError"}
# Inputs that are constants of the program, because shapes or branches follow from their numbers.
STATIC = {
    "diffusers:BriaFibo2Transformer2DModel": ("encoder_attention_mask",),
    "diffusers:GlmImageTransformer2DModel": ("prior_token_drop",),
    "diffusers:HunyuanVideo15Transformer3DModel": (
        "encoder_attention_mask",
        "encoder_attention_mask_2",
        "image_embeds",
    ),
    "diffusers:HunyuanVideoFramepackTransformer3DModel": ("encoder_attention_mask",),
    "diffusers:Lumina2Transformer2DModel": ("encoder_attention_mask",),
    "diffusers:MochiTransformer3DModel": ("encoder_attention_mask",),
    "diffusers:OmniGenTransformer2DModel": ("position_ids",),
    "diffusers:QwenImage21Transformer2DModel": ("img_mask",),
    "diffusers:WanAnimate2Transformer3DModel": ("offset_grid_sizes",),
}
# Bounds in float32 that are not 1e-4, and those between eight devices and one that are not 1e-5.
BOUNDS = {"diffusers:SanaWMTransformer3DModel": 1e-3}  # attends in bfloat16 whatever it is given
APART = {"diffusers:Kandinsky3UNet": 5e-5}  # torch and XLA are 1e-5 off float64
# Classes of which a method is rewritten (`compat.experts`): token counts of experts are shapes.
REWRITTEN = ("diffusers:HiDreamImageTransformer2DModel",)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_it_is_that_of_torch_in_f32_on_one_device_and_on_eight(name: str) -> None:
    found = check(name, 8, ("f32",))
    assert found.failure is None
    assert found.error_f32 is not None
    assert found.error_sharded is not None
    assert found.error_f32 <= tiny.tiny_models()[name].bound
    assert found.error_sharded <= tiny.tiny_models()[name].apart


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_bf16_is_as_near_as_torchs_own(name: str) -> None:
    found = check(name, 1, ("bf16",))
    if name in REFUSED | WITHOUT_REFERENCE:
        half = tiny.make(name)
        half.module.to(torch.bfloat16)
        with pytest.raises(Exception, match="") as caught:  # noqa: PT011  its class is compared
            on_torch(half, torch.bfloat16)
        reason = f"{type(caught.value).__name__}: {caught.value}".splitlines()[0]
        assert reason.startswith((REFUSED | WITHOUT_REFERENCE)[name])
        if name in REFUSED:
            assert str(found.failure).startswith(reason)
            return
    assert found.failure is None
    assert found.error_bf16 is not None
    if name in WITHOUT_REFERENCE:
        assert found.torch_bf16_error is None
        assert found.error_bf16 <= MOST_WITHOUT_REFERENCE
        return
    assert found.torch_bf16_error is not None
    assert no_worse(found.error_bf16, found.torch_bf16_error, "bfloat16")


# ---- what is out of the ordinary is named here


def test_constants_and_bounds_are_those_named_here() -> None:
    models = tiny.tiny_models()
    assert {name: one.static for name, one in models.items() if one.static} == STATIC
    assert {name: one.bound for name, one in models.items() if one.bound != 1e-4} == BOUNDS
    assert {name: one.apart for name, one in models.items() if one.apart != 1e-5} == APART
    assert set(REWRITTEN) <= set(models)


@pytest.mark.parametrize("name", [*STATIC, *BOUNDS, *APART])
def test_what_is_out_of_the_ordinary_has_its_reason(name: str) -> None:
    assert tiny.tiny_models()[name].notes


@pytest.mark.parametrize("name", STATIC if ALL else ["diffusers:GlmImageTransformer2DModel"])
def test_constants_are_needed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    made = tiny.make(name)
    free = replace(made, tiny=replace(made.tiny, static=()))
    monkeypatch.setattr("holdfast.xla.check.check.make", lambda *_: free)
    failure = check(name, 1, ("f32",)).failure
    assert failure is not None
    assert "concrete" in failure


# ---- comparing itself


def test_a_model_that_fails_says_why_and_where(monkeypatch: pytest.MonkeyPatch) -> None:
    made = tiny.make("transformers:T5EncoderModel")
    monkeypatch.setattr(made.module, "forward", lambda **_: 1 / 0)
    monkeypatch.setattr("holdfast.xla.check.check.make", lambda *_: made)
    found = check("transformers:T5EncoderModel", 1, ("f32",))
    assert found.error_f32 is None
    assert found.failure is not None
    assert found.failure.startswith("ZeroDivisionError: division by zero (")


def test_a_class_without_a_tiny_model_is_an_error() -> None:
    with pytest.raises(NotFound):
        check("diffusers:NoSuchModel")


def test_distance_is_relative_to_the_largest_and_infinite_for_what_is_no_answer() -> None:
    import numpy as np

    one = [np.array([1.0, -4.0]), np.zeros(2)]
    assert distance(one, one) == 0
    assert distance([np.array([1.0, -3.0]), np.zeros(2)], one) == 0.25
    assert distance([np.array([1.0, -4.0]), np.array([0.0, 0.5])], one) == 0.5
    assert distance([np.array([1.0, float("nan")]), np.zeros(2)], one) == float("inf")
    assert distance(one[:1], one) == float("inf")
    assert distance([], []) == float("inf")
    assert floats({"b": [np.ones(1)], "a": (np.zeros(2), None, 3, np.arange(2))})[0].size == 2

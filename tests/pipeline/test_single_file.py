"""Models in one safetensors file, as people download them."""

from __future__ import annotations

import functools
import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers.loaders.single_file_model import SINGLE_FILE_LOADABLE_CLASSES
from diffusers.models.transformers.transformer_flux import FluxTransformer2DModel
from diffusers.models.transformers.transformer_wan import WanTransformer3DModel
from diffusers.models.unets.unet_2d_condition import UNet2DConditionModel
from huggingface_hub import constants
from safetensors.torch import save_file

from holdfast.base.errors import BadInput, HoldfastError, NotFound, Unsupported
from holdfast.pipeline import Pipeline
from holdfast.pipeline.model import components
from holdfast.pipeline.model.sources import locate, require_weights
from tests.pipeline import original_layout, random_models

TINY_FLUX = random_models.TINY_FLUX
PREFIX = "model.diffusion_model."
SDXL_UNET = {
    "block_out_channels": (320, 640, 1280),
    "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
    "up_block_types": ("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
    "attention_head_dim": (5, 10, 20),
    "transformer_layers_per_block": (1, 2, 10),
    "use_linear_projection": True,
    "addition_embed_type": "text_time",
    "addition_time_embed_dim": 256,
    "projection_class_embeddings_input_dim": 2816,
    "cross_attention_dim": 2048,
}


@pytest.fixture(scope="module")
def sdxl(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_models.sdxl(tmp_path_factory.mktemp("sdxl") / "model")


@pytest.fixture(scope="module")
def wan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_models.wan(tmp_path_factory.mktemp("wan") / "model")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """More of them would wait for each other: the models are that small."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def no_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))


def save(file: Path, tensors: Mapping[str, torch.Tensor], prefix: str = "") -> Path:
    save_file({prefix + name: tensor.contiguous() for name, tensor in tensors.items()}, file)
    return file


def draw(model: Path, config: Path | None = None) -> np.ndarray:
    completed = None if config is None else str(config)
    pipe = Pipeline.load(str(model), device="cpu", precision="fp32", config=completed)
    frames = 5 if pipe.source.family == "wan" else None
    drawn = pipe("a seven", height=32, width=32, steps=2, seed=3, num_frames=frames).frames
    assert drawn.std() > 0  # a picture of one colour would prove nothing
    return drawn


def network(
    model: Path, name: str, config: object = None, dtype: torch.dtype = torch.float32
) -> dict[str, torch.Tensor]:
    """The parameters of one network, loaded as a pipeline does."""
    source = locate(str(model), None if config is None else str(config))
    require_weights(source)
    return components.load(source, name, dtype).state_dict()


def assert_same(ours: Mapping[str, torch.Tensor], theirs: Mapping[str, torch.Tensor]) -> None:
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        assert tensor.dtype == theirs[name].dtype
        assert torch.equal(tensor, theirs[name]), name


def error(file: Path, kind: type[HoldfastError], config: object = None) -> str:
    with pytest.raises(kind) as caught:
        network(file, "transformer", config)
    return str(caught.value)


def wan_tensors(folder: Path) -> dict[str, torch.Tensor]:
    return original_layout.wan(original_layout.weights(folder / "transformer"))


def without_weights(folder: Path, to: Path) -> Path:
    """What a whole checkpoint needs: configurations and tokenizers."""
    return Path(shutil.copytree(folder, to, ignore=shutil.ignore_patterns("*.safetensors")))


# What is drawn


def test_a_whole_sdxl_checkpoint_draws_what_the_folder_does(sdxl: Path, tmp_path: Path) -> None:
    file = save(tmp_path / "model.safetensors", original_layout.sdxl(sdxl))
    config = without_weights(sdxl, tmp_path / "config")
    np.testing.assert_array_equal(draw(file, config), draw(sdxl))


def test_what_an_sdxl_checkpoint_lacks_comes_from_the_folder(sdxl: Path, tmp_path: Path) -> None:
    tensors = original_layout.sdxl(sdxl)
    kept = {name: t for name, t in tensors.items() if not name.startswith("first_stage_model.")}
    file = save(tmp_path / "model.safetensors", kept)
    source = locate(str(file), str(sdxl))
    assert source.in_single == ("unet", "text_encoder", "text_encoder_2")
    assert source.components["vae"].weights[0].is_relative_to(sdxl)


@pytest.mark.parametrize("prefix", ["", PREFIX])
def test_an_sdxl_denoiser_alone_is_the_one_of_the_folder(
    prefix: str, sdxl: Path, tmp_path: Path
) -> None:
    unet = original_layout.sdxl_unet(original_layout.weights(sdxl / "unet"))
    file = save(tmp_path / "unet.safetensors", unet, prefix)
    assert locate(str(file), str(sdxl)).in_single == ("unet",)
    assert_same(network(file, "unet", sdxl), network(sdxl, "unet"))


def test_a_wan_denoiser_draws_what_the_folder_does(wan: Path, tmp_path: Path) -> None:
    file = save(tmp_path / "wan.safetensors", wan_tensors(wan))
    np.testing.assert_array_equal(draw(file, wan), draw(wan))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("prefix", ["", PREFIX])
def test_a_wan_denoiser_is_the_one_of_the_folder_in_every_precision(
    prefix: str, dtype: torch.dtype, wan: Path, tmp_path: Path
) -> None:
    file = save(tmp_path / "wan.safetensors", wan_tensors(wan), prefix)
    ours, theirs = (network(f, "transformer", c, dtype) for f, c in ((file, wan), (wan, None)))
    assert_same(ours, theirs)


def test_a_flux_denoiser_draws_what_the_folder_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = json.loads((TINY_FLUX / "transformer" / "config.json").read_text())
    converter = original_layout.flux_converter(
        config["num_attention_heads"] * config["attention_head_dim"]
    )
    entry = SINGLE_FILE_LOADABLE_CLASSES["FluxTransformer2DModel"]
    monkeypatch.setitem(entry, "checkpoint_mapping_fn", converter)
    transformer = original_layout.flux(original_layout.weights(TINY_FLUX / "transformer"))
    file = save(tmp_path / "flux.safetensors", transformer)
    np.testing.assert_array_equal(draw(file, TINY_FLUX), draw(TINY_FLUX))
    prefixed = save(tmp_path / "prefixed.safetensors", transformer, PREFIX)
    assert_same(network(prefixed, "transformer", TINY_FLUX), network(TINY_FLUX, "transformer"))


def test_the_layouts_of_these_tests_are_those_of_the_published_files() -> None:
    """Names and shapes taken from flux1-dev, sd_xl_base_1.0 and wan2.1_t2v_1.3B."""
    found = {name: tensors for name, (tensors, _) in real_sizes().items()}
    assert found["flux"]["double_blocks.18.img_attn.norm.key_norm.scale"].shape == (128,)
    assert found["flux"]["single_blocks.37.linear1.weight"].shape == (21504, 3072)
    assert found["sdxl"]["input_blocks.4.1.transformer_blocks.1.attn2.to_k.weight"].shape == (
        (640, 2048)
    )
    assert found["sdxl"]["output_blocks.2.2.conv.weight"].shape == (1280, 1280, 3, 3)
    assert found["sdxl"]["output_blocks.8.0.skip_connection.weight"].shape == (320, 640, 1, 1)
    assert found["wan"]["blocks.29.cross_attn.norm_q.weight"].shape == (1536,)
    assert found["wan"]["head.modulation"].shape == (1, 2, 1536)


def test_diffusers_converts_them_in_their_real_size() -> None:
    for tensors, model in real_sizes().values():
        entry = SINGLE_FILE_LOADABLE_CLASSES[type(model).__name__]
        prefixed = {PREFIX + name: tensor for name, tensor in tensors.items()}
        found = entry["checkpoint_mapping_fn"](checkpoint=prefixed, config=dict(model.config))
        wanted = model.state_dict()
        assert {name: tensor.shape for name, tensor in found.items()} == {
            name: tensor.shape for name, tensor in wanted.items()
        }


@functools.cache
def real_sizes() -> dict[str, tuple[dict[str, torch.Tensor], Any]]:
    """The denoisers of the published models, without numbers, in the layout of their makers."""
    with torch.device("meta"):
        flux = FluxTransformer2DModel(guidance_embeds=True)
        wan = WanTransformer3DModel(num_attention_heads=12, ffn_dim=8960, num_layers=30)
        unet: Any = UNet2DConditionModel.from_config(SDXL_UNET)
        return {
            "flux": (original_layout.flux(flux.state_dict()), flux),
            "sdxl": (original_layout.sdxl_unet(unet.state_dict(), layers=2), unet),
            "wan": (original_layout.wan(wan.state_dict()), wan),
        }


def test_a_denoiser_in_diffusers_layout_is_loaded_as_it_is(tmp_path: Path) -> None:
    weights = TINY_FLUX / "transformer" / "diffusion_pytorch_model.safetensors"
    file = Path(shutil.copy(weights, tmp_path / "flux.safetensors"))
    assert_same(network(file, "transformer", "tiny-flux"), network(TINY_FLUX, "transformer"))


def test_a_file_in_a_diffusers_folder_is_completed_by_it(
    wan: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file_name = "diffusion_pytorch_model.safetensors"
    inside = wan / "transformer" / file_name
    assert locate(str(inside)).in_single == ("transformer",)
    for name in ("transformer", "vae", "text_encoder"):
        assert_same(network(inside, name), network(wan, name))
    monkeypatch.chdir(wan / "transformer")
    assert locate(file_name).components["vae"].folder == wan / "vae"
    cached = Path(shutil.copytree(wan, tmp_path / "cached"))
    (cached / "transformer" / file_name).rename(tmp_path / "blob")
    (cached / "transformer" / file_name).symlink_to(tmp_path / "blob")
    assert locate(str(cached / "transformer" / file_name)).folder == cached


def test_the_second_transformer_of_wan_is_told_by_its_folder(tmp_path: Path) -> None:
    folder = random_models.wan(tmp_path / "model", two=True)
    for name in ("transformer", "transformer_2"):
        file = folder / name / "diffusion_pytorch_model.safetensors"
        assert locate(str(file)).in_single == (name,)


def test_the_second_transformer_of_wan_is_told_by_its_name(wan: Path, tmp_path: Path) -> None:
    two = random_models.wan(tmp_path / "two", two=True)
    for noise, component in (("high", "transformer"), ("low", "transformer_2")):
        file = save(tmp_path / f"wan2.2_t2v_{noise}_noise_14B.safetensors", wan_tensors(wan))
        assert locate(str(file), str(two)).in_single == (component,)
        assert error(file, Unsupported).startswith(
            f"cannot complete {str(file)!r}: it is one of the two transformers of a Wan 2.2\n"
        )
    file = save(tmp_path / "wan.safetensors", wan_tensors(wan))
    assert error(file, BadInput, two) == (
        f"cannot tell which of transformer and transformer_2 {str(file)!r} is\n"
        "  expected: a name that says high_noise or low_noise\n"
        "  try: wan_high_noise.safetensors, or …_low_noise…"
    )


def test_tensors_of_other_networks_in_the_file_are_left_alone(wan: Path, tmp_path: Path) -> None:
    tensors = {PREFIX + name: tensor for name, tensor in wan_tensors(wan).items()}
    file = save(tmp_path / "all.safetensors", tensors | {"text_encoders.x": torch.ones(3)})
    assert_same(network(file, "transformer", wan), network(wan, "transformer"))


# Eight bits


@pytest.mark.parametrize("scaled", [None, "scale_weight", "weight_scale", "by row"])
def test_weights_in_eight_bits_are_widened(scaled: str | None, wan: Path, tmp_path: Path) -> None:
    """As ComfyUI has them: matrices in fp8, plain or with a scale beside each."""
    transformer = wan_tensors(wan)
    stored: dict[str, torch.Tensor] = {"scaled_fp8": torch.zeros(2).to(torch.float8_e4m3fn)}
    widened = dict(transformer)
    for name, tensor in transformer.items():
        stored[name] = tensor
        if name.startswith("blocks.") and tensor.dim() == 2 and name.endswith(".weight"):
            rows = len(tensor) if scaled == "by row" else 1
            scale = torch.ones(1) if scaled is None else torch.linspace(0.5, 2, rows)
            stored[name] = (tensor / scale.view(-1, 1)).to(torch.float8_e4m3fn)
            widened[name] = stored[name].float() * scale.view(-1, 1)
            if scaled is not None:
                word = "weight_scale" if scaled == "by row" else scaled
                stored[name.removesuffix("weight") + word] = scale.squeeze()
    expected = save(tmp_path / "fp32.safetensors", widened)
    file = save(tmp_path / "fp8.safetensors", stored, PREFIX)
    assert_same(network(file, "transformer", wan), network(expected, "transformer", wan))


def test_weights_scaled_block_by_block_are_refused(wan: Path, tmp_path: Path) -> None:
    transformer = wan_tensors(wan)
    name = "blocks.0.self_attn.q.weight"
    transformer[name] = transformer[name].to(torch.float8_e4m3fn)
    transformer["blocks.0.self_attn.q.weight_scale"] = torch.ones(24, 3)
    file = save(tmp_path / "blocks.safetensors", transformer)
    assert error(file, BadInput, wan) == (
        f"cannot load 'transformer' of {str(file)!r}: "
        "its weights in eight bits are scaled block by block\n"
        "  expected: files that belong together: configuration, weights, vocabulary\n"
        "  try: copy or download the whole model again"
    )


def test_packed_weights_are_refused(wan: Path, tmp_path: Path) -> None:
    transformer = wan_tensors(wan)
    transformer["blocks.0.self_attn.q.weight"] = torch.zeros(288, 1, dtype=torch.uint8)
    file = save(tmp_path / "packed.safetensors", transformer)
    assert error(file, Unsupported, wan) == (
        f"cannot load {str(file)!r}: its 'blocks.0.self_attn.q.weight' is packed as U8\n"
        "  expected: weights in fp32, bf16, fp16 or fp8\n"
        "  try: the same model in one of these dtypes"
    )


# Files that cannot be used


def test_a_file_that_is_cut_off_is_refused(tmp_path: Path) -> None:
    file = save(tmp_path / "model.safetensors", {"x": torch.zeros(1_000_000)})
    file.write_bytes(file.read_bytes()[:-2_000_000])
    assert error(file, BadInput) == (
        f"cannot read weights {str(file)!r}: it ends after 2.0 MB of 4.0 MB\n"
        "  expected: a whole safetensors file\n"
        "  try: download or copy it again"
    )


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    file.write_text("<html>You must log in to download this model</html>")
    assert error(file, BadInput) == (
        f"cannot read weights {str(file)!r}: it is not a safetensors file\n"
        "  expected: a file that begins with a safetensors header\n"
        "  try: convert the file with the safetensors package, or download it again"
    )


def test_a_file_that_may_not_be_read_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = save(tmp_path / "model.safetensors", {"x": torch.zeros(1)})

    plainly = Path.open

    def refuse(path: Path, *args: Any, **options: Any) -> Any:
        if path == file:
            raise PermissionError(13, "Permission denied")
        return plainly(path, *args, **options)

    monkeypatch.setattr(Path, "open", refuse)  # a mode of 0 does not stop the superuser
    assert error(file, BadInput) == (
        f"cannot read weights {str(file)!r}: Permission denied\n  expected: a readable file"
    )


OTHERS = {
    "it is a LoRA, which changes a model and is none": (
        "lora_unet_double_blocks_0_img_attn_qkv.lora_down.weight",
        "lora_unet_double_blocks_0_img_attn_qkv.alpha",
    ),
    "it is an autoencoder alone": ("encoder.conv_in.weight", "decoder.mid.attn_1.q.weight"),
    "it is a text encoder alone": (
        "shared.weight",
        "encoder.block.0.layer.0.SelfAttention.q.weight",
    ),
    "its tensors are of no kind that Holdfast knows": ("a", "b.weight"),
}


@pytest.mark.parametrize("what", OTHERS)
@pytest.mark.parametrize("config", [None, "tiny-flux"])
def test_a_file_of_another_kind_is_refused(what: str, config: str | None, tmp_path: Path) -> None:
    file = save(tmp_path / "other.safetensors", {name: torch.zeros(2) for name in OTHERS[what]})
    assert error(file, Unsupported, config) == (
        f"cannot draw with {str(file)!r}: {what}\n"
        "  expected: a FLUX.1, SDXL or Wan text-to-video checkpoint"
    )


def test_a_model_that_needs_more_than_a_text_is_refused(wan: Path, tmp_path: Path) -> None:
    transformer = wan_tensors(wan)
    transformer["vace_blocks.0.after_proj.bias"] = torch.zeros(2)
    file = save(tmp_path / "vace.safetensors", transformer)
    assert error(file, Unsupported, wan).startswith(f"cannot draw with {str(file)!r}: its tensors")


def test_one_of_several_files_is_refused(wan: Path, tmp_path: Path) -> None:
    transformer = original_layout.weights(wan / "transformer")
    file = save(tmp_path / "diffusion_pytorch_model-00001-of-00002.safetensors", transformer)
    assert error(file, BadInput, wan) == (
        f"cannot load {str(file)!r}: it is one of several files of a network\n"
        "  expected: a network in one file\n"
        "  try: the folder of the whole model"
    )


# What does not fit together


def test_a_config_of_another_family_is_refused(wan: Path, tmp_path: Path) -> None:
    file = save(tmp_path / "wan.safetensors", original_layout.weights(wan / "transformer"))
    assert error(file, BadInput, "tiny-flux") == (
        f"cannot complete {str(file)!r} from 'tiny-flux': that is a flux model\n"
        "  expected: the folder of a wan model, as the file is"
    )


def test_a_config_that_is_a_file_is_refused(wan: Path, tmp_path: Path) -> None:
    file = save(tmp_path / "wan.safetensors", original_layout.weights(wan / "transformer"))
    assert error(file, BadInput, wan / "model_index.json") == (
        f"cannot complete {str(file)!r} from {str(wan / 'model_index.json')!r}: that is a file\n"
        "  expected: a diffusers folder, a built-in model or a hub id"
    )


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (
            {"text_dim": 8},
            "its 'condition_embedder.text_embedder.linear_1.weight' is 24 x 16, not 24 x 8",
        ),
        ({"num_layers": 3}, "it has no 'blocks.2.attn1.norm_k.weight'"),
        ({"num_layers": 1}, "the network has no 'blocks.1.attn1.norm_k.weight'"),
    ],
)
def test_a_config_of_another_size_names_the_first_difference(
    change: dict[str, int], what: str, wan: Path, tmp_path: Path
) -> None:
    transformer = wan_tensors(wan)
    file = save(tmp_path / "wan.safetensors", transformer)
    config = Path(shutil.copytree(wan, tmp_path / "config"))
    place = config / "transformer" / "config.json"
    place.write_text(json.dumps(json.loads(place.read_text()) | change))
    assert error(file, BadInput, config) == (
        f"cannot load 'transformer' of {str(file)!r}: {what}\n"
        f"  expected: weights that belong to the configuration in {str(place.parent)!r}\n"
        "  try: name the folder of the same model: --config FOLDER"
    )


def test_a_layout_that_diffusers_cannot_read_is_told(tmp_path: Path) -> None:
    transformer = original_layout.flux(original_layout.weights(TINY_FLUX / "transformer"))
    del transformer["time_in.in_layer.weight"]
    file = save(tmp_path / "flux.safetensors", transformer)
    assert error(file, BadInput, TINY_FLUX) == (
        f"cannot load 'transformer' of {str(file)!r}: it has no 'time_in.in_layer.weight'\n"
        "  expected: files that belong together: configuration, weights, vocabulary\n"
        "  try: copy or download the whole model again"
    )


def test_a_folder_without_weights_completes_no_denoiser(wan: Path, tmp_path: Path) -> None:
    file = save(tmp_path / "wan.safetensors", original_layout.weights(wan / "transformer"))
    config = without_weights(wan, tmp_path / "config")
    assert error(file, BadInput, config) == (
        f"cannot load {str(file)!r}: its 'text_encoder' has no weights\n"
        f"  expected: a .safetensors file in {str(config / 'text_encoder')!r}\n"
        "  try: copy or download the whole model again"
    )


# Completed from the hub


PUBLISHED = {
    "black-forest-labs/FLUX.1-dev": (
        {"img_in.weight": (3072, 64)},
        ("double_blocks.0.img_attn.qkv.weight", "single_blocks.0.linear1.weight", "guidance_in.x"),
    ),
    "black-forest-labs/FLUX.1-schnell": (
        {"img_in.weight": (3072, 64)},
        ("double_blocks.0.img_attn.qkv.weight", "single_blocks.0.linear1.weight"),
    ),
    "stabilityai/stable-diffusion-xl-base-1.0": (
        {"input_blocks.0.0.weight": (320, 4, 3, 3)},
        ("label_emb.0.0.weight", "out.2.weight"),
    ),
    "Wan-AI/Wan2.1-T2V-1.3B-Diffusers": (
        {"patch_embedding.weight": (1536, 16, 1, 2, 2)},
        ("blocks.0.self_attn.q.weight", "head.modulation"),
    ),
}


@pytest.mark.parametrize("repository", PUBLISHED)
def test_a_hub_that_is_not_there_leads_to_the_option_config(
    repository: str, tmp_path: Path
) -> None:
    first, others = PUBLISHED[repository]
    tensors = {name: torch.zeros(size, dtype=torch.float8_e4m3fn) for name, size in first.items()}
    file = save(tmp_path / "x.safetensors", tensors | {name: torch.zeros(1) for name in others})
    assert error(file, NotFound) == (
        f"cannot complete {str(file)!r}: cannot get model {repository!r}: "
        "it is not here, and HF_HUB_OFFLINE forbids asking the hub\n"
        "  expected: a network, or a model that was downloaded before\n"
        "  try: name a folder that has the rest of the model: --config FOLDER"
    )


def test_a_model_that_was_never_published_needs_a_config(wan: Path, tmp_path: Path) -> None:
    file = save(tmp_path / "wan.safetensors", original_layout.weights(wan / "transformer"))
    assert error(file, Unsupported) == (
        f"cannot complete {str(file)!r}: no published wan model begins with 24 x 16 elements\n"
        "  expected: a folder that has the rest of the model\n"
        "  try: name it: --config FOLDER"
    )

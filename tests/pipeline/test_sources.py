from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from holdfast.base.errors import BadInput, HoldfastError, NotFound, Unsupported
from holdfast.pipeline.model.sources import BUILT_IN, built_in, locate, require_weights


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(BUILT_IN / "tiny-flux", tmp_path / "model"))


def error(model: str, kind: type[HoldfastError], config: str | None = None) -> str:
    with pytest.raises(kind) as caught:
        require_weights(locate(model, config))
    return str(caught.value)


def test_every_built_in_model_is_whole_and_small() -> None:
    assert {"tiny-flux", "tiny-sdxl", "tiny-wan"} <= set(built_in())
    for name in built_in():
        source = locate(name)
        require_weights(source)
        assert sum(file.stat().st_size for file in source.folder.rglob("*")) < 12_000_000
        assert source.defaults["prompt"]


def test_a_folder_is_read_as_the_built_in_one_is(folder: Path) -> None:
    source = locate(str(folder))
    assert source.family == "flux"
    assert source.elements() == locate("tiny-flux").elements()
    assert set(source.configs()) == {"text_encoder", "text_encoder_2", "transformer", "vae"}


def test_a_name_that_is_nothing_gets_a_suggestion() -> None:
    text = error("tiny-fluks", NotFound)
    assert text.startswith("cannot find model 'tiny-fluks'\n  expected: one of tiny-flux")
    assert text.endswith("a diffusers folder, a .safetensors file or a hub id\n  try: tiny-flux")


def test_a_path_that_is_not_there_is_no_hub_id(tmp_path: Path) -> None:
    for path in (str(tmp_path / "none"), "models/none.safetensors"):
        text = error(path, NotFound)
        assert text.startswith(f"cannot find model {path!r}: there is no such file or folder\n")


def test_a_folder_without_an_index_names_the_file_in_it(tmp_path: Path) -> None:
    assert error(str(tmp_path), BadInput) == (
        f"cannot load {str(tmp_path)!r}: there is no model_index.json in it\n"
        "  expected: a folder in diffusers layout"
    )
    file = tmp_path / "flux.safetensors"
    file.touch()
    assert error(str(tmp_path), BadInput).endswith(f"\n  try: the file itself: {file}")


def test_a_component_without_a_configuration_is_named(folder: Path) -> None:
    (folder / "vae" / "config.json").unlink()
    assert error(str(folder), BadInput) == (
        f"cannot load {str(folder)!r}: its 'vae' has no configuration\n"
        "  expected: one of config.json, scheduler_config.json, tokenizer_config.json in "
        f"{str(folder / 'vae')!r}\n"
        "  try: copy or download the whole model again"
    )


def test_a_network_without_weights_is_named(folder: Path) -> None:
    (folder / "vae" / "diffusion_pytorch_model.safetensors").unlink()
    text = error(str(folder), BadInput)
    assert text.startswith(f"cannot load {str(folder)!r}: its 'vae' has no weights\n")
    (folder / "vae" / "diffusion_pytorch_model.bin").touch()
    assert error(str(folder), BadInput).endswith(
        "try: convert diffusion_pytorch_model.bin to safetensors; "
        "pickled weights can run code and are not loaded"
    )


def test_a_truncated_file_is_found_before_anything_is_loaded(folder: Path) -> None:
    file = folder / "transformer" / "diffusion_pytorch_model.safetensors"
    file.write_bytes(file.read_bytes()[:100_000])
    assert error(str(folder), BadInput).startswith(f"cannot read weights {str(file)!r}: it ends")


def test_a_shard_that_is_missing_is_named(folder: Path) -> None:
    place = folder / "transformer"
    (place / "diffusion_pytorch_model.safetensors").unlink()
    index = {"weight_map": {"x": "part-1.safetensors"}}
    (place / "diffusion_pytorch_model.safetensors.index.json").write_text(json.dumps(index))
    text = error(str(folder), BadInput)
    assert text.startswith(f"cannot read weights {str(place / 'part-1.safetensors')!r}: No such")


def test_an_index_that_is_broken_says_where(folder: Path) -> None:
    file = folder / "model_index.json"
    file.write_text(file.read_text()[:50])
    assert error(str(folder), BadInput).startswith(f"cannot read {str(file)!r}: it is not JSON (")
    file.write_text("[]")
    assert error(str(folder), BadInput) == (
        f"cannot read {str(file)!r}: it holds no JSON object\n  try: copy or download it again"
    )


def test_a_model_of_another_kind_is_refused(folder: Path) -> None:
    rewrite(folder, _class_name="StableCascadeDecoderPipeline")
    assert error(str(folder), Unsupported) == (
        f"cannot draw with {str(folder)!r}: its pipeline is 'StableCascadeDecoderPipeline'\n"
        "  expected: one of FluxPipeline, StableDiffusionXLPipeline, WanPipeline"
    )


def test_a_model_cannot_name_code_of_its_own(folder: Path) -> None:
    rewrite(folder, vae=["os", "system"])
    assert error(str(folder), Unsupported) == (
        f"cannot load 'vae' of {str(folder)!r}: it wants code from 'os'\n"
        "  expected: components from diffusers and transformers alone"
    )


def test_a_config_belongs_to_a_single_file_only() -> None:
    assert error("tiny-flux", BadInput, "tiny-sdxl") == (
        "cannot use config='tiny-sdxl' with 'tiny-flux': it is complete by itself\n"
        "  expected: a config only with a single safetensors file"
    )


def rewrite(folder: Path, **entries: object) -> None:
    file = folder / "model_index.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | entries))


@pytest.mark.parametrize("model", ["a prompt " * 40, "~nobody-here/x", "zero\0byte"])
def test_strange_text_is_no_model(model: str) -> None:
    assert error(model, NotFound).startswith("cannot find model ")

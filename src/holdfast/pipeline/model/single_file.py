"""Recognize single .safetensors files and find the folder that completes them.

A file holds the denoiser alone (FLUX, Wan) or a whole SDXL checkpoint. Text encoders, tokenizers
and configurations come from the diffusers folder around it, from a named one, or from the hub.
Only headers are read; needs no torch.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Mapping
from pathlib import Path

from holdfast.base.errors import BadInput, NotFound, Unsupported
from holdfast.pipeline.model import hub, sources
from holdfast.pipeline.model.sources import Source
from holdfast.residency.files.checkpoint import TensorInfo, read_header

# Where the components of a checkpoint are; a denoiser alone often has no prefix.
DENOISER = "model.diffusion_model."
_DENOISERS = ("transformer", "transformer_2", "unet")
_WHOLE_SDXL = {
    "vae": ("first_stage_model.", "vae."),
    "text_encoder": ("conditioner.embedders.0.transformer.",),
    "text_encoder_2": ("conditioner.embedders.1.model.",),
}

# Tensors that only this family has: in its original layout, and in that of diffusers.
_MARKERS = {
    "flux": (
        ("img_in.weight", "double_blocks.0.img_attn.qkv.weight", "single_blocks.0.linear1.weight"),
        ("x_embedder.weight", "single_transformer_blocks.0.proj_mlp.weight"),
    ),
    "sdxl": (
        ("input_blocks.0.0.weight", "label_emb.0.0.weight", "out.2.weight"),
        ("conv_in.weight", "add_embedding.linear_1.weight", "up_blocks.0.resnets.0.conv1.weight"),
    ),
    "wan": (
        ("patch_embedding.weight", "blocks.0.self_attn.q.weight", "head.modulation"),
        ("patch_embedding.weight", "blocks.0.attn1.to_q.weight", "scale_shift_table"),
    ),
}
# Tensors of related models that need more inputs than a text.
_RELATIVES = re.compile(r"distilled_guidance_layer|vace_|motion_encoder|face_|img_emb|image_emb")
# Other kinds of files: every tensor name matches the pattern.
_OTHERS = {
    "a LoRA, which changes a model and is none": re.compile(
        r".*(lora_|lokr_|hada_|\.alpha$)", re.I
    ),
    "an autoencoder alone": re.compile(r"(first_stage_model\.|vae\.)?((de|en)coder|.*conv\d?)\."),
    "a text encoder alone": re.compile(r"(text_model|text_projection|encoder|shared)\."),
}

# The repository with the rest of a model, by family and shape of its first marker tensor.
REPOSITORIES: dict[tuple[str, tuple[int, ...]], str] = {
    ("flux", (3072, 64)): "black-forest-labs/FLUX.1-dev",
    ("sdxl", (320, 4)): "stabilityai/stable-diffusion-xl-base-1.0",
    ("wan", (1536, 16)): "Wan-AI/Wan2.1-T2V-1.3B-Diffusers",
    ("wan", (5120, 16)): "Wan-AI/Wan2.1-T2V-14B-Diffusers",
    ("wan", (3072, 48)): "Wan-AI/Wan2.2-TI2V-5B-Diffusers",
}
_WITHOUT_GUIDANCE = {"black-forest-labs/FLUX.1-dev": "black-forest-labs/FLUX.1-schnell"}

# File names distinguish the two transformers of Wan 2.2.
_NOISE = re.compile(r"(high|low)[-_ ]?noise", re.IGNORECASE)
_PART = re.compile(r".*-\d{5}-of-\d{5}")
_DTYPES = ("F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2")


def locate(file: Path, config: str | None) -> Source:
    """Return the source of `file`, completed from `config`, the folder around it, or the hub.

    Raises BadInput for a file that cannot be used, Unsupported for a model of another kind,
    NotFound if nothing completes it.
    """
    tensors = read_header(file)
    if _PART.fullmatch(file.stem):
        raise BadInput(
            f"cannot load {str(file)!r}: it is one of several files of a network",
            expected="a network in one file",
            hint="the folder of the whole model",
        )
    family, first = _family(file, tensors)
    for name, tensor in tensors.items():
        if name.endswith(".weight") and tensor.dtype not in _DTYPES:
            raise Unsupported(
                f"cannot load {str(file)!r}: its {name!r} is packed as {tensor.dtype}",
                expected="weights in fp32, bf16, fp16 or fp8",
                hint="the same model in one of these dtypes",
            )
    base = _companion(file, tensors, config, family, first)
    if base.family != family:
        raise BadInput(
            f"cannot complete {str(file)!r} from {base.model!r}: that is a {base.family} model",
            expected=f"the folder of a {family} model, as the file is",
        )
    others = _WHOLE_SDXL if family == "sdxl" else ()
    held = [n for n in others if n in base.components and select_tensors(n, tensors)]
    return dataclasses.replace(
        base,
        model=str(file),
        single=file,
        in_single=(_denoiser(file, base), *held),
        completed_from=base.model,
    )


def select_tensors(component: str, names: Collection[str]) -> list[str]:
    """The names among `names` that belong to `component`."""
    if component not in _DENOISERS:
        return [name for name in names if name.startswith(_WHOLE_SDXL[component])]
    return [name for name in names if name.startswith(DENOISER)] or list(names)


def _family(file: Path, tensors: Mapping[str, TensorInfo]) -> tuple[str, TensorInfo]:
    """The family of a denoiser, and its first marker tensor."""
    names = {name.removeprefix(DENOISER): name for name in select_tensors("transformer", tensors)}
    for family, layouts in _MARKERS.items():
        for marks in layouts:
            if names.keys() >= set(marks) and not any(map(_RELATIVES.search, names)):
                return family, tensors[names[marks[0]]]
    kinds = (k for k, one in _OTHERS.items() if tensors and all(map(one.match, tensors)))
    kind = next(kinds, None)
    why = f"it is {kind}" if kind else "its tensors are of no kind that Holdfast knows"
    raise Unsupported(
        f"cannot draw with {str(file)!r}: {why}",
        expected="a FLUX.1, SDXL or Wan text-to-video checkpoint",
    )


def _companion(
    file: Path,
    tensors: Mapping[str, TensorInfo],
    config: str | None,
    family: str,
    first: TensorInfo,
) -> Source:
    if config is not None:
        if Path(config).expanduser().is_file():
            raise BadInput(
                f"cannot complete {str(file)!r} from {config!r}: that is a file",
                expected="a diffusers folder, a built-in model or a hub id",
            )
        return sources.locate(config)
    place = file.absolute().parent  # symlinks are not resolved: the hub's cache uses them
    if place.name in _DENOISERS and (place.parent / "model_index.json").is_file():
        return sources.read_folder(place.parent, str(place.parent))
    whole = family == "sdxl" and all(select_tensors(name, tensors) for name in _WHOLE_SDXL)
    repository = _repository(file, tensors, family, first)
    try:
        return sources.read_folder(hub.fetch(repository, weights=not whole), repository)
    except NotFound as exc:
        raise NotFound(
            f"cannot complete {str(file)!r}: {exc.what}",
            expected=exc.expected,
            hint="name a folder that has the rest of the model: --config FOLDER",
        ) from exc


def _repository(
    file: Path, tensors: Mapping[str, TensorInfo], family: str, first: TensorInfo
) -> str:
    found = REPOSITORIES.get((family, first.shape[:2]))
    if family == "wan" and _NOISE.search(file.name):
        raise Unsupported(
            f"cannot complete {str(file)!r}: it is one of the two transformers of a Wan 2.2",
            expected="a folder that has the other one and the rest of the model",
            hint="name it: --config FOLDER",
        )
    if found is None:
        raise Unsupported(
            f"cannot complete {str(file)!r}: no published {family} model begins with "
            f"{' x '.join(map(str, first.shape[:2]))} elements",
            expected="a folder that has the rest of the model",
            hint="name it: --config FOLDER",
        )
    guided = any("guidance" in name for name in tensors)
    return found if guided else _WITHOUT_GUIDANCE.get(found, found)


def _denoiser(file: Path, base: Source) -> str:
    """Which denoiser of a model a file is: Wan 2.2 has two of the same shape."""
    denoisers = [name for name in _DENOISERS if name in base.components]
    here = file.absolute().parent.name
    if len(denoisers) == 1 or here in denoisers:
        return here if here in denoisers else denoisers[0]
    noise = _NOISE.search(file.name)
    if noise is None:
        raise BadInput(
            f"cannot tell which of {' and '.join(denoisers)} {str(file)!r} is",
            expected="a name that says high_noise or low_noise",
            hint=f"{file.stem}_high_noise{file.suffix}, or …_low_noise…",
        )
    return "transformer" if noise[1].lower() == "high" else "transformer_2"

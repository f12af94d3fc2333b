"""Networks out of a single file, in the layout of their makers or in that of diffusers.

Covers: names and shapes of tensors, weights in eight bits, one copy of each in memory.
Leaves to others: which file holds what (single_file).
Promise: every place of a network is filled from the file, or it is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from accelerate import init_empty_weights
from diffusers.loaders.single_file_model import SINGLE_FILE_LOADABLE_CLASSES
from diffusers.loaders.single_file_utils import (
    convert_ldm_clip_checkpoint,
    convert_open_clip_checkpoint,
)
from safetensors import safe_open

from holdfast.base.errors import BadInput
from holdfast.pipeline.single_file import DENOISER, belonging
from holdfast.pipeline.sources import Component, Source

_EIGHT_BITS = (torch.float8_e4m3fn, torch.float8_e5m2)
# Tensors that are no parameters: the scales of weights in eight bits, and what models count up to.
_BESIDE_WEIGHTS = (
    ".position_ids",
    ".scale_weight",
    ".weight_scale",
    ".scale_input",
    ".input_scale",
    ".comfy_quant",
    "scaled_fp8",
)


def network(source: Source, component: Component, cls: Any, dtype: torch.dtype) -> Any:
    """Component `component` of a model, out of the file that holds it.

    Raises BadInput with the first tensor that does not fit, ValueError for a layout that nobody
    can read.
    """
    with init_empty_weights():
        if component.library == "diffusers":
            model = cls.from_config(cls.load_config(component.folder))
        else:
            model = cls(cls.config_class.from_pretrained(component.folder))
    weights = _in_diffusers_layout(model, component, _read_single(source, component, dtype))
    misfit = _misfit(model.state_dict(), weights)
    if misfit:
        raise BadInput(
            f"cannot load {component.name!r} of {source.model!r}: {misfit}",
            expected=f"weights that belong to the configuration in {str(component.folder)!r}",
            hint="name the folder of the same model: --config FOLDER",
        )
    _assign(model, weights, dtype)
    return model


def _assign(model: Any, weights: dict[str, Any], dtype: torch.dtype) -> None:
    """As from_pretrained does it; one tensor after the other, so that there is one copy of each."""
    full = getattr(model, "_keep_in_fp32_modules", None) or ()
    for name in weights:
        kept = any(module in name.split(".") for module in full)
        weights[name] = weights[name].to(torch.float32 if kept else dtype).contiguous()
    model.load_state_dict(weights, assign=True)


def _read_single(source: Source, component: Component, dtype: torch.dtype) -> dict[str, Any]:
    """The tensors of `component` under the names they have in the file, not yet in memory.

    Those in eight bits are read, and multiplied by the scale that some files have beside them.
    """
    with safe_open(str(source.single), framework="pt") as file:
        names = belonging(component.name, file.keys())
        found = {name: file.get_tensor(name) for name in names}
    beside = {name: found.pop(name) for name in names if name.endswith(_BESIDE_WEIGHTS)}
    for name, tensor in found.items():
        if tensor.dtype in _EIGHT_BITS:
            place = name.removesuffix("weight")
            scale = beside.get(f"{place}scale_weight", beside.get(f"{place}weight_scale"))
            found[name] = tensor.to(dtype) if scale is None else _scaled(tensor, scale).to(dtype)
    return found


def _scaled(tensor: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """By one number for all, or one for each row."""
    if scale.numel() not in (1, len(tensor)):
        raise ValueError("its weights in eight bits are scaled block by block")
    by_row = scale.reshape(-1, *[1] * (tensor.dim() - 1))
    return tensor.to(torch.float32) * by_row.to(torch.float32)


def _in_diffusers_layout(
    model: Any, component: Component, weights: dict[str, Any]
) -> dict[str, Any]:
    wanted = model.state_dict().keys()
    if len(wanted & weights.keys()) > len(wanted) / 2:
        return weights
    try:
        if component.library != "diffusers":
            return _text_encoder(model, component, weights)
        convert = SINGLE_FILE_LOADABLE_CLASSES[component.class_name]["checkpoint_mapping_fn"]
        if component.name == "unet" and not any(name.startswith(DENOISER) for name in weights):
            weights = {DENOISER + name: tensor for name, tensor in weights.items()}
        return convert(checkpoint=weights, config=dict(model.config))
    except KeyError as exc:
        raise ValueError(f"it has no {exc}") from exc
    except (IndexError, AttributeError) as exc:
        raise ValueError(f"diffusers cannot read its layout ({exc})") from exc


def _text_encoder(model: Any, component: Component, weights: dict[str, Any]) -> dict[str, Any]:
    """The first one of SDXL was written down by OpenAI, the second one by OpenCLIP."""
    if component.name == "text_encoder":
        found = convert_ldm_clip_checkpoint(weights)
    else:
        prefix = "conditioner.embedders.1.model."
        found = convert_open_clip_checkpoint(model, weights, prefix=prefix)
    if hasattr(model, "text_model"):
        return found
    return {name.removeprefix("text_model."): tensor for name, tensor in found.items()}


def _misfit(wanted: Mapping[str, torch.Tensor], found: Mapping[str, torch.Tensor]) -> str | None:
    """The first difference between what a network has places for and what a file holds."""
    for name in sorted(wanted.keys() & found.keys()):
        if wanted[name].shape != found[name].shape:
            return f"its {name!r} is {_sizes(found[name])}, not {_sizes(wanted[name])}"
    for name in sorted(wanted.keys() - found.keys()):
        return f"it has no {name!r}"
    for name in sorted(found.keys() - wanted.keys()):
        return f"there is no place for its {name!r}"
    return None


def _sizes(tensor: torch.Tensor) -> str:
    return " x ".join(map(str, tensor.shape)) or "one number"

"""Build a network from a single file, in its original layout or in that of diffusers.

Each weight is in memory once. Every tensor of the network comes from the file, or BadInput.
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

from holdfast.base.errors import BadInput
from holdfast.pipeline.model.single_file import DENOISER, select_tensors
from holdfast.pipeline.model.sources import Component, Source
from holdfast.residency.files.tensors import open_tensors

_FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)
# Tensors that are not parameters: scales of float8 weights, and position ids.
_BESIDE_WEIGHTS = (
    ".position_ids",
    ".scale_weight",
    ".weight_scale",
    ".scale_input",
    ".input_scale",
    ".comfy_quant",
    "scaled_fp8",
)


def load_network(source: Source, component: Component, cls: Any, dtype: torch.dtype) -> Any:
    """Load `component` from the single file of `source`.

    Raises BadInput with the first tensor that does not fit, ValueError for an unknown layout.
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
    """Cast as from_pretrained does, one tensor at a time so that no second copy of all exists."""
    full = getattr(model, "_keep_in_fp32_modules", None) or ()
    for name in weights:
        kept = any(module in name.split(".") for module in full)
        weights[name] = weights[name].to(torch.float32 if kept else dtype).contiguous()
    model.load_state_dict(weights, assign=True)


def _read_single(source: Source, component: Component, dtype: torch.dtype) -> dict[str, Any]:
    """The tensors of `component` by their names in the file, memory-mapped.

    Float8 tensors are read and multiplied by the scale that some files store beside them.
    """
    assert source.single is not None
    file = open_tensors(source.single)
    names = select_tensors(component.name, file.keys())
    found = {name: file.get_tensor(name) for name in names}
    beside = {name: found.pop(name) for name in names if name.endswith(_BESIDE_WEIGHTS)}
    for name, tensor in found.items():
        if tensor.dtype in _FLOAT8:
            place = name.removesuffix("weight")
            scale = beside.get(f"{place}scale_weight", beside.get(f"{place}weight_scale"))
            found[name] = (
                tensor.to(dtype) if scale is None else _apply_scale(tensor, scale).to(dtype)
            )
    return found


def _apply_scale(tensor: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
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
    """SDXL's first text encoder is in OpenAI's CLIP layout, the second in OpenCLIP's."""
    if component.name == "text_encoder":
        found = convert_ldm_clip_checkpoint(weights)
    else:
        prefix = "conditioner.embedders.1.model."
        found = convert_open_clip_checkpoint(model, weights, prefix=prefix)
    if hasattr(model, "text_model"):
        return found
    return {name.removeprefix("text_model."): tensor for name, tensor in found.items()}


def _misfit(wanted: Mapping[str, torch.Tensor], found: Mapping[str, torch.Tensor]) -> str | None:
    for name in sorted(wanted.keys() & found.keys()):
        if wanted[name].shape != found[name].shape:
            return f"its {name!r} is {_sizes(found[name])}, not {_sizes(wanted[name])}"
    for name in sorted(wanted.keys() - found.keys()):
        return f"it has no {name!r}"
    for name in sorted(found.keys() - wanted.keys()):
        return f"the network has no {name!r}"
    return None


def _sizes(tensor: torch.Tensor) -> str:
    return " x ".join(map(str, tensor.shape)) or "a scalar"

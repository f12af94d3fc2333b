"""Open the folder of one network in diffusers layout, to read its weights shard by shard.

Missing weights are an error before anything is read. A shard reads no more of a file than it holds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import nn

from holdfast.base.errors import BadInput, HoldfastError
from holdfast.residency.files.checkpoint import read_header
from holdfast.residency.files.loading import build_empty
from holdfast.residency.files.tensors import open_tensors
from holdfast.residency.predict.networks import dtype_of, find_weight_files
from holdfast.residency.predict.shadow import shadow
from holdfast.xla.tiny import class_of

Reader = Callable[[str, tuple[slice, ...]], torch.Tensor]  # of a part of a weight, by its name
PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def open_network(name: str, network: str, folder: Path, precision: str) -> tuple[nn.Module, Reader]:
    """The network of the port `name` without memory, and what reads its weights. Raises BadInput.

    `network` is a class, as library:ClassName.
    """
    if precision not in PRECISIONS:
        raise BadInput(
            f"unknown precision {precision!r}", expected=f"one of {', '.join(PRECISIONS)}"
        )
    files = find_weight_files(folder)
    if not (folder / "config.json").is_file() or not files:
        raise BadInput(
            f"cannot load {name!r} from {str(folder)!r}: it has no config.json or no "
            ".safetensors file",
            expected="the folder of one network, such as FLUX.1-dev/transformer",
        )
    dtype = PRECISIONS[precision]
    headers = [read_header(file) for file in files]  # a broken file is an error of ours
    opened = [open_tensors(file) for file in files]
    where = {path: one for one, header in zip(opened, headers, strict=True) for path in header}
    shapes = {path: info.shape for header in headers for path, info in header.items()}
    module = _cast(_build(name, network, folder, dtype), dtype)
    _require_all(name, folder, module, shapes)

    def read(path: str, index: tuple[slice, ...]) -> torch.Tensor:
        if path in where:
            return where[path].get_slice(path)[index] if index else where[path].get_tensor(path)
        owner, _, last = path.rpartition(".")  # what the constructor computed
        return getattr(module.get_submodule(owner), last)[index]

    return module, read


def _build(name: str, network: str, folder: Path, dtype: torch.dtype) -> nn.Module:
    """The network without memory, by its config.json. Raises BadInput."""
    library, _, class_name = network.partition(":")
    cls = class_of(network)
    try:
        return build_empty(library, cls, folder, dtype).eval().requires_grad_(False)
    except HoldfastError:
        raise
    except Exception as exc:  # whatever a constructor makes of wrong values
        reason = str(exc).partition("\n")[0]
        raise BadInput(
            f"cannot load {name!r} from {str(folder)!r}: its config.json does not make a "
            f"{class_name}: {type(exc).__name__}: {reason}",
            expected=f"the configuration of a {class_name}",
            hint="the port of that model (holdfast port list), or copy the whole model again",
        ) from exc


def _cast(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Cast parameters as the library would; some classes keep a few in float32."""
    wanted = dtype_of(module, dtype)
    assert wanted is not None

    def tensor(path: str, old: torch.Tensor) -> torch.Tensor:
        return old.to(wanted(path, old))

    return shadow(module, tensor)


def _require_all(
    name: str, folder: Path, module: nn.Module, shapes: Mapping[str, tuple[int, ...]]
) -> None:
    for path, one in (*module.named_parameters(), *module.named_buffers()):
        found = shapes.get(path)
        if one.is_meta and found != tuple(one.shape):
            what = "is missing" if found is None else f"has shape {list(found)}"
            raise BadInput(
                f"cannot load {name!r} from {str(folder)!r}: {path!r} {what}",
                expected=f"a weight of shape {list(one.shape)}, as the configuration says",
                hint="copy or download the whole model again",
            )

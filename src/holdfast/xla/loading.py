"""From safetensors into shards, one weight after the other.

Covers: a folder of one network in diffusers layout, parts of weights, the format they get.
Leaves to others: where they go (placed, rules), whole models (holdfast.pipeline).
Promise: files are read outside of torchax, and a shard reads no more of a file than it holds;
weights that are missing are told before anything is placed.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import safe_open
from torch import nn

from holdfast.base.errors import BadInput, HoldfastError
from holdfast.residency.files.checkpoint import read_header
from holdfast.residency.files.empty import empty
from holdfast.residency.prediction.networks import dtype_of, weights_in
from holdfast.residency.prediction.shadow import shadow
from holdfast.xla.tiny import class_of

if TYPE_CHECKING:
    from jax.sharding import Mesh

    from holdfast.xla.placed import Placed, Progress
    from holdfast.xla.port import Port

PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class Files:
    """The weights of one network, in one file or many."""

    def __init__(self, files: tuple[Path, ...]) -> None:
        headers = [read_header(file) for file in files]  # a broken file is an error of ours
        self._opened = [safe_open(file, framework="pt") for file in files]
        self._where = {
            name: opened
            for opened, header in zip(self._opened, headers, strict=True)
            for name in header
        }
        self.shapes = {name: info.shape for header in headers for name, info in header.items()}

    def read(self, name: str, index: tuple[slice, ...]) -> torch.Tensor:
        """A part of one weight."""
        if not index:
            return self._where[name].get_tensor(name)
        return self._where[name].get_slice(name)[index]


def load(
    port: Port, folder: Path, mesh: Mesh | None, precision: str, progress: Progress | None
) -> Placed:
    """A port's network from a folder. Raises BadInput."""
    if precision not in PRECISIONS:
        raise BadInput(
            f"unknown precision {precision!r}", expected=f"one of {', '.join(PRECISIONS)}"
        )
    files = weights_in(folder)
    if not (folder / "config.json").is_file() or not files:
        raise BadInput(
            f"cannot load {port.name!r} from {str(folder)!r}: it has no config.json or no "
            ".safetensors file",
            expected="the folder of one network, such as FLUX.1-dev/transformer",
        )
    dtype = PRECISIONS[precision]
    opened = Files(files)
    module = _in_format(_built(port, folder, dtype), dtype)
    _require_all(port, folder, module, opened)

    def read(name: str, index: tuple[slice, ...]) -> torch.Tensor:
        if name in opened.shapes:
            return opened.read(name, index)
        owner, _, last = name.rpartition(".")  # what the constructor computed
        return getattr(module.get_submodule(owner), last)[index]

    return port.place(module, mesh=mesh, read=read, progress=progress)


def _built(port: Port, folder: Path, dtype: torch.dtype) -> nn.Module:
    """The network without memory, as its configuration says. Raises BadInput."""
    library, _, name = port.network.partition(":")
    cls = class_of(port.network)
    try:
        return empty(library, cls, folder, dtype).eval().requires_grad_(False)
    except HoldfastError:
        raise
    except Exception as exc:  # whatever a constructor makes of wrong values
        reason = str(exc).partition("\n")[0]
        raise BadInput(
            f"cannot load {port.name!r} from {str(folder)!r}: its config.json does not make a "
            f"{name}: {type(exc).__name__}: {reason}",
            expected=f"the configuration of a {name}",
            hint="the port of that model (holdfast port list), or copy the whole model again",
        ) from exc


def _in_format(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Parameters as the library would load them; some classes keep a few in float32."""
    wanted = dtype_of(module, dtype)
    assert wanted is not None

    def tensor(path: str, old: torch.Tensor) -> torch.Tensor:
        return old.to(wanted(path, old))

    return shadow(module, tensor)


def _require_all(port: Port, folder: Path, module: nn.Module, files: Files) -> None:
    on_meta: dict[str, Any] = {
        name: one
        for name, one in (*module.named_parameters(), *module.named_buffers())
        if one.is_meta
    }
    for name, one in on_meta.items():
        found = files.shapes.get(name)
        if found != tuple(one.shape):
            what = "is missing" if found is None else f"has shape {list(found)}"
            raise BadInput(
                f"cannot load {port.name!r} from {str(folder)!r}: {name!r} {what}",
                expected=f"a weight of shape {list(one.shape)}, as the configuration says",
                hint="copy or download the whole model again",
            )

"""`save(module, path)` and `load(path)`: weights as safetensors, which torch and JAX read as well.

A file is written completely or not at all. Dtypes are preserved.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy

from holdfast.base.errors import BadInput, MissingDependency
from holdfast.compute import dtype as dtypes
from holdfast.compute.nn.convert import to_host
from holdfast.compute.nn.module import Module
from holdfast.compute.ops.schema import describe
from holdfast.compute.tensors.custom_tensor import CustomTensor
from holdfast.compute.tensors.device import device as as_device

_KINDS = {"BOOL": "bool", "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
_KINDS |= {f"I{bits}": f"int{bits}" for bits in (64, 32, 16, 8)}
_KINDS |= {f"U{bits}": f"uint{bits}" for bits in (64, 32, 16, 8)}
_KINDS |= {"F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "C64": "complex64"}


def _safetensors() -> Any:
    try:
        import safetensors.numpy
    except ImportError as exc:
        raise MissingDependency(
            f"saving and loading weights needs safetensors: {exc}",
            expected="the package safetensors",
            hint="pip install 'holdfast[compute]'",
        ) from exc
    return safetensors


def save(
    of: Module | Mapping[str, Any], path: str | os.PathLike[str], metadata: Any = None
) -> None:
    """Write a module's state, or a state_dict, as safetensors. Raises BadInput."""
    library = _safetensors()
    state = of.state_dict() if isinstance(of, Module) else of
    if not isinstance(state, Mapping):
        raise BadInput(
            f"a {type(of).__name__} cannot be saved", expected="a module or its state_dict()"
        )
    arrays = {}
    for name, value in state.items():
        # Copied, because safetensors rejects tied parameters, which share memory.
        arrays[name] = numpy.array(to_host(value), order="C", copy=True)
        if not isinstance(name, str) or arrays[name].dtype.name not in _KINDS.values():
            raise BadInput(
                f"{name!r}, {describe(arrays[name])}, cannot be saved",
                expected=f"a name, and one of {', '.join(_KINDS.values())}",
            )
    target = Path(path)
    beside = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        beside.write_bytes(library.numpy.save(arrays, metadata))
        beside.replace(target)
    except OSError as exc:
        raise BadInput(f"cannot write {target}: {exc}", expected="a path to write to") from exc
    except TypeError as exc:
        raise BadInput(
            f"cannot write metadata={metadata!r}: {exc}", expected="a mapping from text to text"
        ) from exc
    finally:
        beside.unlink(missing_ok=True)


def load(path: str | os.PathLike[str], device: Any = None) -> OrderedDict[str, CustomTensor]:
    """Read a state_dict from safetensors. Raises BadInput for an invalid file."""
    library = _safetensors()
    source, place = Path(path), as_device(device)
    state: OrderedDict[str, CustomTensor] = OrderedDict()
    try:
        # Not library.numpy.load: it knows no bfloat16.
        for name, entry in library.deserialize(source.read_bytes()):
            kind = dtypes.dtype(_KINDS[entry["dtype"]])
            array = numpy.frombuffer(entry["data"], kind).reshape(entry["shape"])
            state[name] = CustomTensor(array, place, kind)
    except (OSError, library.SafetensorError, KeyError) as exc:
        raise BadInput(f"cannot read {source}: {exc}", expected="a safetensors file") from exc
    return state

"""Import torchax where a plain import fails: torch 2.13 lacks overloads that it names.

torch is unchanged once the import is over; a failed import leaves nothing half done.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import sys
import threading
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import torch

from holdfast.base.errors import MissingDependency

# What names an overload that torch may have dropped, and is imported when first used otherwise.
_FILES = ("ops.jaten", "ops.jtorch", "ops.jc10d", "ops.jtorchvision_nms", "decompositions")
_UNNAMED = "privateuseone"
_lock = threading.RLock()


class Dropped:
    """Stands for an overload that torch no longer has, while torchax writes its tables."""

    def __init__(self, name: str) -> None:
        self.name = name


def torchax() -> Any:
    """Import torchax with the corrections. Raises MissingDependency."""
    with _lock:
        return _import()


def device_name() -> str:
    """What torch calls the device of torchax's tensors in this process."""
    torchax()
    return torch._C._get_privateuse1_backend_name()


@functools.cache
def _import() -> Any:
    before = set(sys.modules)
    try:
        with tolerate_missing():
            made = importlib.import_module("torchax")
            for name in _FILES:
                importlib.import_module(f"torchax.{name}")
    except (ImportError, AttributeError) as exc:
        for name in {one for one in sys.modules if one.partition(".")[0] == "torchax"} - before:
            del sys.modules[name]
        raise MissingDependency(
            f"XLA needs jax and torchax: {exc}",
            expected="jax and a torchax that imports with this torch",
            hint="pip install 'holdfast[xla]'",
        ) from exc
    _forget_dropped(made)
    importlib.import_module("holdfast.xla.compat.tensors").mend()
    importlib.import_module("holdfast.xla.compat.flex").detour()
    importlib.import_module("holdfast.xla.compat.vmap").detour()
    return made


@contextlib.contextmanager
def tolerate_missing() -> Iterator[list[Dropped]]:
    """Inside, missing overloads get placeholders, and a renamed device keeps its name."""
    missing: list[Dropped] = []
    packet: Any = torch._ops.OpOverloadPacket
    find, register = packet.__getattr__, torch._register_device_module
    utils: Any = torch.utils
    rename = utils.rename_privateuse1_backend

    def find_or_stub(self: Any, key: str) -> Any:
        try:
            return find(self, key)
        except AttributeError:
            if key.startswith("__"):
                raise
            missing.append(Dropped(f"{self}.{key}"))
            return missing[-1]

    def rename_if_free(name: str) -> None:
        if torch._C._get_privateuse1_backend_name() in (_UNNAMED, name):
            rename(name)

    def register_if_free(name: str, module: Any) -> None:
        if torch._C._get_privateuse1_backend_name() == name and not hasattr(torch, name):
            register(name, module)

    with (
        patch.object(packet, "__getattr__", find_or_stub),
        patch.object(utils, "rename_privateuse1_backend", rename_if_free),
        patch.object(torch, "_register_device_module", register_if_free),
    ):
        yield missing


def _forget_dropped(made: Any) -> None:
    registry = importlib.import_module("torchax.ops.ops_registry")
    decompositions = importlib.import_module("torchax.decompositions")
    ours = (registry.all_aten_ops, registry.all_torch_functions)
    for table in (*ours, decompositions.DECOMPOSITIONS):
        for key in [key for key in table if isinstance(key, Dropped)]:
            del table[key]

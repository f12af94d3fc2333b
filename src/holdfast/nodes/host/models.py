"""ComfyUI's loaded models, the results it keeps, and its folders.

Covers: models as values, unloading, results of nodes that are kept for the next run, files for a
node to show.  Leaves to others: which node runs (following), memory of the process (sampling).
Promise: public functions of ComfyUI alone; files are made in its temp folder under names made
here, nowhere else. Without ComfyUI there are no models, and files go into a new folder of the
system's temp folder.
"""

from __future__ import annotations

import gc
import re
import secrets
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from holdfast.nodes.host import following

ALL = 1e30  # bytes, as ComfyUI itself asks for everything

PAGE = "/holdfast/page"
_PAGE_NAME = re.compile(r"holdfast_[a-z]+_[0-9]{8}_[0-9]{6}_[0-9a-f]{8}\.html")


@dataclass(frozen=True, slots=True)
class Model:
    """A model that ComfyUI has loaded. Sizes are of its weights."""

    name: str
    device: str  # where it computes
    total_bytes: int
    on_device_bytes: int
    offloaded_bytes: int  # the rest, on the offload device
    offload_device: str


@dataclass(frozen=True, slots=True)
class Kept:
    """What ComfyUI keeps of one node for the next run."""

    node: str
    kind: str | None  # the node's class
    outputs: list[Any]  # the results themselves: let go of them soon


@dataclass(frozen=True, slots=True)
class File:
    """A file that a node made, and how a browser gets it. Outside of ComfyUI `link` is the path."""

    path: Path
    link: str
    shown: dict[str, str] | None  # for "ui"; None without ComfyUI


# ---- models


def patchers() -> list[Any]:
    """ComfyUI's own objects for its loaded models."""
    ask = getattr(_management(), "loaded_models", None)
    return [one for one in ask() if one is not None] if ask is not None else []


def loaded() -> list[Model]:
    """The models that ComfyUI has loaded, the largest first."""
    return sorted(map(_model, patchers()), key=lambda one: -one.total_bytes)


def _model(patcher: Any) -> Model:
    total = int(patcher.model_size())
    here = min(int(patcher.loaded_size()), total)
    return Model(
        name=type(patcher.model).__name__,
        device=str(patcher.load_device),
        total_bytes=total,
        on_device_bytes=here,
        offloaded_bytes=total - here,
        offload_device=str(patcher.offload_device),
    )


def pinned_bytes() -> int:
    """Host memory that ComfyUI has locked."""
    return int(getattr(_management(), "TOTAL_PINNED_MEMORY", 0) or 0)


def unload() -> None:
    """Have ComfyUI unload every model, on whichever device, and empty torch's cache.

    For the thread that runs the prompt: what runs on a model elsewhere would lose it.
    """
    management = _management()
    if management is None:
        return
    for device in {one.load_device for one in patchers()}:
        management.free_memory(ALL, device)
    management.unload_all_models()
    management.soft_empty_cache()


def unload_between_prompts(wait_s: float) -> bool:
    """Have ComfyUI unload its models when no prompt runs; whether it has, within `wait_s`."""
    queue = getattr(following.server(), "prompt_queue", None)
    if queue is None:
        return False
    queue.set_flag("unload_models", True)
    end_s = time.monotonic() + wait_s
    taken = _taken(queue, end_s)
    while taken and _unloadable() and time.monotonic() < end_s:
        time.sleep(0.02)
    return taken and not _unloadable()


def _unloadable() -> list[Any]:
    """The models on ComfyUI's own device: it leaves those elsewhere, such as on the CPU, alone."""
    device = _management().get_torch_device() if patchers() else None
    return [one for one in patchers() if one.load_device == device]


def _taken(queue: Any, end_s: float) -> bool:
    """Whether ComfyUI's worker takes all flags until then.

    It may have been about to wait when it was woken for one: so they are set again.
    """
    looks = 0
    while flags := queue.get_flags(reset=False):
        if time.monotonic() >= end_s:
            return False
        time.sleep(0.02)
        looks += 1
        if looks % 10 == 0:
            name, value = next(iter(flags.items()))
            queue.set_flag(name, value)
    return True


def forget_outputs(wait_s: float) -> bool:
    """Have ComfyUI forget the results of nodes when the prompt is over; whether it can be asked.

    Its models stay: that is another wish. Waits until ComfyUI knows, at most that long.
    """
    queue = getattr(following.server(), "prompt_queue", None)
    if queue is None:
        return False
    if "unload_models" not in queue.get_flags(reset=False):
        queue.set_flag("unload_models", False)
    queue.set_flag("free_memory", True)
    _taken(queue, time.monotonic() + wait_s)
    return True


def in_a_node() -> bool:
    """Whether this thread runs a node of a prompt."""
    ask = getattr(sys.modules.get("comfy_execution.utils"), "get_executing_context", None)
    return ask is not None and ask() is not None


# ---- results that are kept


def kept() -> Iterator[Kept]:
    """The results of nodes that ComfyUI keeps for the next run.

    The cache belongs to the thread of the prompts and is found among Python's objects; where it is
    of a kind that cannot be asked there is nothing.
    """
    caching = sys.modules.get("comfy_execution.caching")
    basic = getattr(caching, "BasicCache", None)
    if basic is None:
        return
    for cache in [one for one in gc.get_objects() if issubclass(type(one), basic)]:
        if getattr(cache, "initialized", False) and hasattr(cache, "get"):
            yield from _entries(cache)


def _entries(cache: Any) -> Iterator[Kept]:
    for node in sorted(cache.all_node_ids(), key=str):
        outputs = getattr(cache.get(node), "outputs", None)
        if outputs is not None:
            prompt = cache.dynprompt
            about = prompt.get_node(node) if prompt.has_node(node) else {}
            yield Kept(str(node), about.get("class_type"), list(outputs))


# ---- files


def new_file(name: str, suffix: str) -> File:
    """A place for a file of a node: `name` is ours, never a workflow's."""
    paths: Any = sys.modules.get("folder_paths")
    unique = f"{name}_{time.strftime('%Y%m%d_%H%M%S')}_{secrets.token_hex(4)}{suffix}"
    if paths is None:
        path = Path(tempfile.mkdtemp(prefix="holdfast-")) / unique
        return File(path, str(path), None)
    folder = Path(paths.get_temp_directory())
    folder.mkdir(parents=True, exist_ok=True)
    shown = {"filename": unique, "subfolder": "", "type": "temp"}
    link = f"/view?filename={quote(unique)}&type=temp"
    if suffix == ".html":  # ComfyUI has pages downloaded, and never shows them
        link = f"{PAGE}?name={quote(unique)}"
    return File(folder / unique, link, shown)


def page(name: str) -> str | None:
    """A page that a node made in this session; None for any other name."""
    paths: Any = sys.modules.get("folder_paths")
    if paths is None or not _PAGE_NAME.fullmatch(name):
        return None
    file = Path(paths.get_temp_directory()) / name
    return file.read_text(encoding="utf-8") if file.is_file() and not file.is_symlink() else None


def _management() -> Any:
    return sys.modules.get("comfy.model_management")

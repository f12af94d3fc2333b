"""ComfyUI's loaded models, the results it keeps between runs, and files for a node to show.

Uses public functions of ComfyUI only. Files go into its temp folder under names made here; without
ComfyUI, into a new folder in the system's temp folder.
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

ALL = 1e30  # bytes, ComfyUI's own number for everything

PAGE = "/holdfast/page"
_PAGE_NAME = re.compile(r"holdfast_[a-z]+_[0-9]{8}_[0-9]{6}_[0-9a-f]{8}\.html")


@dataclass(frozen=True, slots=True)
class Model:
    """A model loaded by ComfyUI. Sizes are those of its weights."""

    name: str
    device: str  # where it computes
    total_bytes: int
    on_device_bytes: int
    offloaded_bytes: int  # the rest, on the offload device
    offload_device: str


@dataclass(frozen=True, slots=True)
class KeptResult:
    """What ComfyUI keeps of one node for the next run."""

    node: str
    kind: str | None  # the node's class
    outputs: list[Any]  # the results themselves: drop them soon


@dataclass(frozen=True, slots=True)
class File:
    """A file of a node, and the link for a browser. Without ComfyUI `link` is the path."""

    path: Path
    link: str
    shown: dict[str, str] | None  # for "ui"; None without ComfyUI


# ---- models


def patchers() -> list[Any]:
    """ComfyUI's own objects for its loaded models."""
    ask = getattr(_management(), "loaded_models", None)
    return [one for one in ask() if one is not None] if ask is not None else []


def list_loaded() -> list[Model]:
    """The models that ComfyUI has loaded, largest first."""
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
    """Host memory that ComfyUI has pinned."""
    return int(getattr(_management(), "TOTAL_PINNED_MEMORY", 0) or 0)


def unload() -> None:
    """Have ComfyUI unload every model on every device, and empty torch's cache.

    Only for the thread that runs the prompt: in another one a running model would be unloaded.
    """
    management = _management()
    if management is None:
        return
    for device in {one.load_device for one in patchers()}:
        management.free_memory(ALL, device)
    management.unload_all_models()
    management.soft_empty_cache()


def unload_between_prompts(wait_s: float) -> bool:
    """Have ComfyUI unload its models when no prompt runs; True if done within `wait_s`."""
    queue = getattr(following.server(), "prompt_queue", None)
    if queue is None:
        return False
    queue.set_flag("unload_models", True)
    end_s = time.monotonic() + wait_s
    done = _wait_for_flags(queue, end_s)
    while done and _unloadable() and time.monotonic() < end_s:
        time.sleep(0.02)
    return done and not _unloadable()


def _unloadable() -> list[Any]:
    """The models on ComfyUI's own device; it does not unload others, on the CPU for example."""
    device = _management().get_torch_device() if patchers() else None
    return [one for one in patchers() if one.load_device == device]


def _wait_for_flags(queue: Any, end_s: float) -> bool:
    """Wait until ComfyUI's worker has read all flags; False if not by `end_s`.

    A flag set just before the worker waits does not wake it, so they are set again.
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
    """Have ComfyUI drop the kept results of nodes after the prompt; False without ComfyUI.

    Its models stay. Waits at most `wait_s` until ComfyUI has read the request.
    """
    queue = getattr(following.server(), "prompt_queue", None)
    if queue is None:
        return False
    if "unload_models" not in queue.get_flags(reset=False):
        queue.set_flag("unload_models", False)
    queue.set_flag("free_memory", True)
    _wait_for_flags(queue, time.monotonic() + wait_s)
    return True


def is_in_node() -> bool:
    """Whether this thread runs a node of a prompt."""
    ask = getattr(sys.modules.get("comfy_execution.utils"), "get_executing_context", None)
    return ask is not None and ask() is not None


# ---- kept results


def list_kept() -> Iterator[KeptResult]:
    """The results of nodes that ComfyUI keeps for the next run.

    The cache is local to the thread of the prompts, so it is searched among all Python objects.
    Caches of unknown types are skipped.
    """
    caching = sys.modules.get("comfy_execution.caching")
    basic = getattr(caching, "BasicCache", None)
    if basic is None:
        return
    for cache in [one for one in gc.get_objects() if issubclass(type(one), basic)]:
        if getattr(cache, "initialized", False) and hasattr(cache, "get"):
            yield from _entries(cache)


def _entries(cache: Any) -> Iterator[KeptResult]:
    for node in sorted(cache.all_node_ids(), key=str):
        outputs = getattr(cache.get(node), "outputs", None)
        if outputs is not None:
            prompt = cache.dynprompt
            about = prompt.get_node(node) if prompt.has_node(node) else {}
            yield KeptResult(str(node), about.get("class_type"), list(outputs))


# ---- files


def new_file(name: str, suffix: str) -> File:
    """A path for a file of a node. `name` must not come from a workflow."""
    paths: Any = sys.modules.get("folder_paths")
    unique = f"{name}_{time.strftime('%Y%m%d_%H%M%S')}_{secrets.token_hex(4)}{suffix}"
    if paths is None:
        path = Path(tempfile.mkdtemp(prefix="holdfast-")) / unique
        return File(path, str(path), None)
    folder = Path(paths.get_temp_directory())
    folder.mkdir(parents=True, exist_ok=True)
    shown = {"filename": unique, "subfolder": "", "type": "temp"}
    link = f"/view?filename={quote(unique)}&type=temp"
    if suffix == ".html":  # ComfyUI serves HTML only as a download
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

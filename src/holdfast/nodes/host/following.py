"""Which prompt and which node ComfyUI is running, and which prompts wait.

Only reads from the modules that ComfyUI has loaded; patches nothing. Without ComfyUI nothing runs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

LONGEST = 80  # characters of a title; a workflow may contain anything
LONGEST_TEXT = 500  # characters of a text prompt
_MODELS = ("ckpt_name", "unet_name", "model_name", "model")  # inputs that name a model
_TEXTS = ("text", "prompt")


@dataclass(frozen=True, slots=True)
class Running:
    """What ComfyUI is doing. None is nothing, or unknown."""

    prompt: str | None = None
    node: str | None = None  # the id that the user sees, also if another node made it
    kind: str | None = None  # its class


NOTHING = Running()


@dataclass(frozen=True, slots=True)
class Moment:
    """The running prompt for an observer."""

    prompt: str
    sent_s: float | None  # since 1970
    model: str  # "" if no node names one
    text: str  # the text prompt, "" if unknown
    node: str | None
    name: str | None  # the title of the node, or its class
    done: int
    total: int | None  # None if the node does not report it


def running() -> Running:
    """The running prompt and its node; of several nodes, the one that began last."""
    prompt = running_prompt()
    if prompt is None:
        return NOTHING
    registry = _registry()
    if registry is None or registry.prompt_id != prompt:
        return Running(prompt)  # its nodes have not begun yet
    last = _last_running(registry)
    if last is None:
        return Running(prompt)
    shown = registry.dynprompt.get_display_node_id(last[0])
    return Running(prompt, shown, _kind(registry.dynprompt, shown))


def moment() -> Moment | None:
    """The running prompt, its node and the progress of that; None if nothing runs."""
    item = next(iter(_queue()[0]), None)
    if item is None:
        return None
    now = running()
    value, most = (step() if now.node is not None else None) or (0.0, 0.0)
    counted = most > 1  # 0 of 1 is what ComfyUI begins with
    inputs = _inputs(item[2])
    sent = item[3].get("create_time") if isinstance(item[3], Mapping) else None
    return Moment(
        prompt=str(item[1]),
        sent_s=sent / 1000 if isinstance(sent, int | float) else None,
        model=_first(inputs, _MODELS)[:LONGEST],
        text=_first(inputs, _TEXTS)[:LONGEST_TEXT],
        node=now.node,
        name=names().get(now.node or ""),
        done=int(value) if counted else 0,
        total=int(most) if counted else None,
    )


def server() -> Any:
    """ComfyUI's server; None if it is not loaded or not started yet."""
    made = getattr(sys.modules.get("server"), "PromptServer", None)
    return getattr(made, "instance", None)


def running_prompt() -> str | None:
    """The id of the running prompt."""
    return next((str(item[1]) for item in _queue()[0]), None)


def has_server() -> bool:
    """Whether ComfyUI runs in this process."""
    return server() is not None


def names() -> dict[str, str]:
    """The title or class of each node of the running prompt, by the node's id."""
    found: dict[str, str] = {}
    for item in _queue()[0]:
        for node, about in item[2].items():
            meta = about.get("_meta")
            title = meta.get("title") if isinstance(meta, Mapping) else None
            named = title if isinstance(title, str) and title.strip() else about.get("class_type")
            found[str(node)] = str(named)[:LONGEST]
    return found


def is_queued(kind: str) -> bool:
    """Whether a prompt that runs or waits has a node of this class."""
    return any(
        about.get("class_type") == kind
        for items in _queue()
        for item in items
        for about in item[2].values()
    )


def watch(handler: Callable[[Mapping[str, Any]], None], given: Any = None) -> bool:
    """Call `handler` with each prompt that is sent, to read it; False without ComfyUI."""
    target = given if given is not None else server()
    if target is None:
        return False

    def on_prompt(data: Mapping[str, Any]) -> Mapping[str, Any]:
        if isinstance(data, Mapping):  # ComfyUI rejects anything else afterwards
            handler(data)
        return data

    target.add_on_prompt_handler(on_prompt)
    return True


def _queue() -> tuple[list[Any], list[Any]]:
    queue = getattr(server(), "prompt_queue", None)
    ask = getattr(queue, "get_current_queue_volatile", None)
    return ask() if ask is not None else ([], [])


def _registry() -> Any:
    ask = getattr(sys.modules.get("comfy_execution.progress"), "get_progress_state", None)
    return ask() if ask is not None else None


def _last_running(registry: Any) -> tuple[str, Any] | None:
    """The node that began last of those that run, and its entry."""
    entries = registry.nodes.copy() if registry is not None else {}  # the prompt's thread adds some
    for node, entry in reversed(entries.items()):
        if getattr(entry["state"], "value", None) == "running":
            return str(node), entry
    return None


def step() -> tuple[float, float] | None:
    """(done, total) of the running node, of several the one that began last; None if none."""
    found = _last_running(_registry())
    return None if found is None else (float(found[1]["value"]), float(found[1]["max"]))


def _inputs(nodes: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The inputs of all nodes, those linked to an input `positive` first."""
    every = {node: about.get("inputs") or {} for node, about in nodes.items()}
    links = [inputs.get("positive") for inputs in every.values()]
    wanted = [every.get(str(link[0]), {}) for link in links if isinstance(link, list) and link]
    return [*wanted, *every.values()]


def _first(inputs: Iterable[Mapping[str, Any]], keys: Iterable[str]) -> str:
    """The first of these inputs that is a non-empty text."""
    found = (one.get(key) for one in inputs for key in keys)
    return next((text for text in found if isinstance(text, str) and text.strip()), "")


def _kind(prompt: Any, node: str) -> str | None:
    about = prompt.get_node(node) if prompt.has_node(node) else {}
    return about.get("class_type")

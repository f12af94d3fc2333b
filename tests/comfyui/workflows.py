"""Workflows as ComfyUI's browser saves them, in the form that its API takes.

Covers: links, widgets in their order, extra widgets of the browser, inputs made of widgets, nodes
that only the browser knows, muted and bypassed nodes.
Leaves to others: running them (client). Subgraphs are refused.
Promise: a workflow that does not fit the nodes is an error, never one with values in wrong places.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

Saved = Mapping[str, Any]
Prompt = dict[str, dict[str, Any]]
Info = Mapping[str, Any]

_WIDGETS = ("INT", "FLOAT", "STRING", "BOOLEAN", "COMBO")
_UPLOADS = ("image_upload", "video_upload", "audio_upload", "animated_image_upload")
_ONLY_SHOWN = ("Note", "MarkdownNote")
_MUTED, _BYPASSED = 2, 4  # modes of a node


def to_api(saved: Saved, info: Info) -> Prompt:
    """The nodes that run, by id: what each is, and its inputs. `info` is /object_info.

    Raises ValueError for what does not fit.
    """
    if saved.get("definitions", {}).get("subgraphs"):
        raise ValueError("the workflow has subgraphs")
    nodes = {node["id"]: node for node in saved["nodes"]}
    links = {number: (source, slot) for number, source, slot, *_ in map(_link, saved["links"])}
    prompt: Prompt = {}
    for node in saved["nodes"]:
        if node["type"] in (*_ONLY_SHOWN, "Reroute", "PrimitiveNode"):
            continue
        if node.get("mode", 0) in (_MUTED, _BYPASSED):
            continue
        if node["type"] not in info:
            raise ValueError(f"node {node['id']}: there is no {node['type']}")
        inputs = _values(node, info[node["type"]])
        inputs |= dict(_connected(node, info[node["type"]], nodes, links))
        prompt[str(node["id"])] = {
            "class_type": node["type"],
            "inputs": inputs,
            "_meta": {"title": node.get("title", node["type"])},
        }
    return prompt


def _link(link: Any) -> tuple[Any, ...]:
    """A link is a list, or in newer files a dict."""
    if isinstance(link, dict):
        return link["id"], link["origin_id"], link["origin_slot"]
    return tuple(link)


# ---- links


def _connected(
    node: Saved, info: Info, nodes: Mapping[int, Saved], links: Mapping[int, tuple[int, int]]
) -> Iterator[tuple[str, Any]]:
    known = {name for _, name, _ in _inputs(info)}
    for socket in node.get("inputs", ()):
        if socket["name"] not in known:
            raise ValueError(f"node {node['id']} ({node['type']}) has no input {socket['name']}")
        if socket.get("link") is None:
            continue
        found = _source(*links[socket["link"]], nodes, links)
        if found is not None:
            yield socket["name"], found


def _source(
    number: int, slot: int, nodes: Mapping[int, Saved], links: Mapping[int, tuple[int, int]]
) -> Any:
    """[node, output] or the value itself; through nodes that do not run. None where nothing is."""
    node = nodes[number]
    if node["type"] == "PrimitiveNode":
        return node["widgets_values"][0]
    if node.get("mode", 0) == _MUTED:
        return None
    if node["type"] != "Reroute" and node.get("mode", 0) != _BYPASSED:
        return [str(number), slot]
    kind = node["outputs"][slot]["type"]
    through = node["inputs"] if node["type"] == "Reroute" else _of_type(node, kind)
    link = next((socket["link"] for socket in through if socket.get("link") is not None), None)
    return None if link is None else _source(*links[link], nodes, links)


def _of_type(node: Saved, kind: str) -> list[Any]:
    return [socket for socket in node.get("inputs", ()) if socket["type"] == kind]


# ---- widgets


def _values(node: Saved, info: Info) -> dict[str, Any]:
    """What the widgets are set to. One that is missing at the end is left to its default."""
    saved = node.get("widgets_values") or []
    names = list(_widgets(info))
    if isinstance(saved, dict):
        return {name: saved[name] for name in names if name in saved}
    ours = str(info.get("python_module", "")).startswith("custom_nodes.")
    if len(saved) > len(names) and ours:  # ComfyUI's own may have widgets that only show
        raise ValueError(
            f"node {node['id']} ({node['type']}) has {len(saved)} values for {names}: {saved}"
        )
    found = {name: value for name, value in zip(names, saved, strict=False) if name}
    for _, name, spec in _inputs(info):
        if name in names and name not in found:
            found[name] = _default(spec)
    return found


def _widgets(info: Info) -> Iterator[str]:
    """Inputs that are widgets; "" for a widget that the browser adds and keeps a value of."""
    for _, name, spec in _inputs(info):
        options = spec[1] if len(spec) > 1 else {}
        choice = isinstance(spec[0], list)
        if not (choice or spec[0] in _WIDGETS) or options.get("forceInput"):
            continue
        yield name
        numbered = spec[0] == "INT" and name in ("seed", "noise_seed")
        if options.get("control_after_generate", numbered):
            yield ""
        if any(options.get(upload) for upload in _UPLOADS):
            yield ""


def _inputs(info: Info) -> Iterator[tuple[str, str, Any]]:
    """(required or optional, name, spec) in the order in which the browser shows them."""
    for kind in ("required", "optional"):
        for name, spec in info["input"].get(kind, {}).items():
            yield kind, name, spec


def _default(spec: Any) -> Any:
    options = spec[1] if len(spec) > 1 else {}
    if "default" in options:
        return options["default"]
    if isinstance(spec[0], list):
        return spec[0][0]
    return {"INT": 0, "FLOAT": 0.0, "STRING": "", "BOOLEAN": False}.get(spec[0])

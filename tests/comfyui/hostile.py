"""Values that nobody means well with, for every input of every node.

Covers: a workflow around one node that is right, and values that are wrong in one place.
Leaves to others: sending them (test_hostile).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tests.comfyui.models import Node, node

Prompt = dict[str, Node]
Info = Mapping[str, Any]

NAN, INFINITY = float("nan"), float("inf")
WIDGETS = ("INT", "FLOAT", "STRING", "BOOLEAN")
IMAGE = node("EmptyImage", width=8, height=8, batch_size=1, color=0)
ALLOCATION = node("SVMTopologyAwareAllocNode", size_mb=1, set_affinity=False)
LATENT = node("EmptyLatentImage", width=64, height=64, batch_size=1)
MODEL = node("CheckpointLoaderSimple", ckpt_name="tiny-sd15.safetensors")
SOURCES = {
    "POINTER": ("pointer", ALLOCATION),
    "DICT": ("topology", node("SVMTologyDiscoveryNode")),
    "IMAGE": ("image", IMAGE),
    "TENSOR,IMAGE,MASK,LATENT": ("image", IMAGE),
    "MODEL": ("model", MODEL),
    "LATENT": ("latent", LATENT),
    "VAE": ("vae", node("VAELoader", vae_name="taesd")),
}
CONDITIONING = ("text", node("FluxTPUTextEncoder", prompt="a handwritten six"))


def _nested(depth: int) -> Any:
    return {"a": _nested(depth - 1)} if depth else 1


FORGED = [
    *("0x7fff00000000", 0x7FFF00000000, 4096, 1, {"address": 4096, "size": 1 << 40}),
    *({"__value__": [4096, 1 << 40]}, "<Allocation 1 of 1.0 MB by opencl at 0x7f0000000000>"),
]
NO_NUMBERS = [
    *("x", "", None, {}, {"a": 1}, {"__value__": [1, 2, 3]}, _nested(100)),
    *("0x7f", "9" * 5000, "y" * 10_000, "../../etc/passwd", "nan", "1;2"),
]
NO_FINITE_NUMBERS = [NAN, INFINITY, -INFINITY, 10**30, -(10**30), 1e308, "-inf"]
NO_CHOICES = ["x", "", None, True, 0, -1, {}, _nested(3), "../../etc", "y" * 10_000, NAN]
NO_SOCKETS = [*FORGED, True, -1, 1e308, NAN, "x", "", {}, {"samples": 1}, _nested(50), "y" * 10_000]
NO_LINKS = [
    *([], [1], [1, 2, 3], ["nowhere", 0], ["other", 99], ["other", "0"], ["other", None]),
    *([["other"], 0], [{"a": 1}, 0], [None, 0], ["../../etc", 0], [_nested(20), _nested(20)]),
]


def inputs_of(about: Info) -> Iterator[tuple[str, Any, Mapping[str, Any], bool]]:
    """(name, type, options, whether it is required) of each input of a node."""
    for kind in ("required", "optional"):
        for name, (type_, *options) in about["input"].get(kind, {}).items():
            yield name, type_, options[0] if options else {}, kind == "required"


def right(name: str, about: Info) -> tuple[Prompt, dict[str, Any]]:
    """Nodes that a node needs, and its inputs, with which it is right."""
    nodes: Prompt = {}
    inputs: dict[str, Any] = {}
    for key, type_, options, _ in inputs_of(about):
        if isinstance(type_, list):
            inputs[key] = type_[0]
        elif type_ in WIDGETS:
            inputs[key] = options["default"]
        elif type_ != "*":
            source = SOURCES.get(type_, CONDITIONING)
            if source is CONDITIONING and name.startswith("Wan"):
                source = "text", node("WanTPUTextEncoder", prompt="a handwritten six")
            nodes[source[0]] = source[1]
            inputs[key] = [source[0], 0]
    return nodes, inputs


def wrong(about: Info) -> Iterator[tuple[str, Any]]:
    """(input, value) of all that has to be refused, one at a time."""
    for key, type_, options, _ in inputs_of(about):
        values = list(NO_LINKS)
        if isinstance(type_, list):
            values += NO_CHOICES
        elif type_ in ("INT", "FLOAT"):
            values += [*NO_NUMBERS, *NO_FINITE_NUMBERS]
            values += [options["min"] - 1, options["max"] + 1]
        elif type_ not in (*WIDGETS, "*"):
            values += NO_SOCKETS
        if type_ != "*":
            values.append(["stranger", 0])  # an output of another type
        for value in values:
            yield key, value


def stranger(type_: Any) -> Node:
    """A node whose output does not fit into an input."""
    return ALLOCATION if "IMAGE" in type_ else IMAGE


def all_wrong(name: str, about: Info) -> tuple[Prompt, dict[str, tuple[str, Any]]]:
    """One workflow with the node once for each wrong value; (input, value) by the node's id."""
    nodes, inputs = right(name, about)
    nodes["other"] = IMAGE
    types = {key: type_ for key, type_, _, _ in inputs_of(about)}
    cases: dict[str, tuple[str, Any]] = {}
    for number, (key, value) in enumerate(wrong(about)):
        if value == ["stranger", 0]:
            nodes[f"stranger {key}"] = stranger(types[key])
            value = [f"stranger {key}", 0]
        cases[f"bad {number}"] = key, value
    for key, _, _, required in inputs_of(about):
        if required:
            cases[f"without {key}"] = key, ...
    for identity, (key, value) in cases.items():
        given = {**inputs, key: value}
        if value is ...:
            del given[key]
        nodes |= seen(identity, {"class_type": name, "inputs": given}, about)
    return nodes, cases


def seen(identity: str, one: Node, about: Info) -> Prompt:
    """A node, and one that shows its output where it is not shown by itself."""
    nodes = {identity: one}
    if not about["output_node"]:
        nodes[f"{identity} shown"] = node("PreviewAny", source=[identity, 0])
    return nodes


def handed(anything: Any) -> Node:
    """A value of a workflow that comes over a link: this node's output fits into every input."""
    return node(
        "HoldfastFreeMemory",
        models=False, caches=False, forget_outputs=False, anything=anything,
    )  # fmt: skip

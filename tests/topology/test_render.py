"""Pictures hold every part of a machine, and every text stays in its box."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest

from holdfast.base.config import Config
from holdfast.topology import Measurement, Topology, discover, svg, tree
from holdfast.topology.render import words
from holdfast.topology.render.canvas import fit, wrap
from tests.topology import trees

SVG = "{http://www.w3.org/2000/svg}"


def _machine(name: str, machine_root: Callable[[str], Path]) -> Topology:
    if name in trees.MACHINES:
        return discover(config=Config.load({}, root=machine_root(name)))
    return discover(config=Config.load({}, simulate=name))


def test_the_tree_of_a_simulated_machine() -> None:
    machine = discover(config=Config.load({}, simulate="1x16GB:gpu=24GB,1x64GB:far"))
    assert tree(machine, width=90) + "\n" == TREE


TREE = """\
SIMULATED · simulated · 80.0 GB
├── package 0  simulated CPU · 4 cores
│   ├── caches  L3 32 MiB
│   └── node 0  ░░░░░░░░░░░░░░░░ 16.0 GB of 16.0 GB free · CPUs 0-3
│       └── gpu 0  ░░░░░░░░░░░░░░░░ simulated 24.0 GB GPU · virtual · 24.0 GB of 24.0 GB
│           free · PCIe 16 GT/s × 16, 31.5 GB/s · 0000:01:00.0
├── node 1 (CXL memory)  ░░░░░░░░░░░░░░░░ 64.0 GB of 64.0 GB free
└── links
    ├── node 0 – node 1  numa distance 30
    └── node 0 – gpu 0  PCIe × 16 31.5 GB/s on paper
"""


def test_the_tree_shows_what_was_measured_and_when() -> None:
    machine = discover(config=Config.load({}, simulate="1x16GB:gpu=24GB"))
    timed = Measurement(
        source="node:0",
        target="gpu:0",
        mode="pinned",
        bandwidth_gb_s=55.03,
        method="copies through torch",
        measured_at="2026-11-15T03:00:00+00:00",
    )
    assert tree(machine.replace(measurements=(timed,))).splitlines()[-2:] == [
        "└── measured 2026-11-15",
        "    └── node 0 → gpu 0  pinned  55 GB/s  copies through torch",
    ]


def test_names_with_square_brackets_are_not_taken_for_markup() -> None:
    machine = discover(config=Config.load({}, simulate="1x1GB"))
    machine = machine.replace(hostname="box[bold]1", cpu_model="Navi 31 [/radeon]")
    text = tree(machine)
    assert text.startswith("SIMULATED · box[bold]1")
    assert "Navi 31 [/radeon]" in text


MACHINES = [*trees.MACHINES, "2x16GB:gpu=24GB,1x64GB:far", "16x1TB:cpus=64", "1x1GB:cpus=0"]


@pytest.mark.parametrize("name", MACHINES)
def test_the_picture_of_every_machine_is_sound(
    name: str, machine_root: Callable[[str], Path]
) -> None:
    machine = _machine(name, machine_root)
    picture = ElementTree.fromstring(svg(machine))
    width, height = float(picture.get("width", 0)), float(picture.get("height", 0))
    for shape in picture.iter(f"{SVG}rect"):
        x, y = float(shape.get("x", 0)), float(shape.get("y", 0))
        assert 0 <= x <= x + float(shape.get("width", 0)) <= width
        assert 0 <= y <= y + float(shape.get("height", 0)) <= height
    texts = [text.text or "" for text in picture.iter(f"{SVG}text")]
    for node in machine.nodes:
        assert any(text.startswith(words.node_title(node)) for text in texts)
    for gpu in machine.gpus:
        assert any(text.startswith(f"gpu {gpu.id}  ") for text in texts)
    tips = [tip.text or "" for tip in picture.iter(f"{SVG}title")]
    shown = [tip for tip in tips if tip.startswith("core ")]
    assert len(shown) == len(machine.cores)
    assert "None" not in " ".join(texts)


def test_the_picture_prefers_what_was_measured() -> None:
    machine = discover(config=Config.load({}, simulate="1x16GB:gpu=24GB"))
    both = [
        Measurement(source=a, target=b, mode="pinned", bandwidth_gb_s=rate)
        for a, b, rate in (("node:0", "gpu:0", 25.3), ("gpu:0", "node:0", 26.1))
    ]
    text = svg(machine.replace(measurements=tuple(both)))
    assert "measured ↓ 25.3 ↑ 26.1 GB/s pinned" in text
    assert re.search(r'font-weight="600"[^>]*>25.3<', text)


def test_parts_of_the_picture_say_what_they_are_of() -> None:
    machine = discover(config=Config.load({}, simulate="1x16GB:gpu=24GB,1x64GB:far"))
    (first, *rest) = machine.nodes
    machine = machine.replace(nodes=(dataclasses.replace(first, free_bytes=10**9), *rest))
    shapes = [shape.attrib for shape in ElementTree.fromstring(svg(machine)).iter()]
    named = [
        (shape.get("data-node") or shape.get("data-gpu"), shape["data-part"])
        for shape in shapes
        if "data-part" in shape
    ]
    assert named == [
        ("0", "card"),
        ("0", "bar"),
        ("0", "fill"),
        ("0", "link"),
        ("0", "card"),
        ("0", "bar"),
        ("1", "card"),
        ("1", "bar"),
    ]


def test_a_hostile_name_is_escaped() -> None:
    machine = discover(config=Config.load({}, simulate="1x1GB"))
    text = svg(machine.replace(hostname="<script>alert(1)</script>"))
    assert "<script>" not in text
    ElementTree.fromstring(text)


def test_text_is_fitted_and_wrapped() -> None:
    assert fit("short", 100, 10) == "short"
    assert fit("much too long for this", 58, 10) == "much too…"
    assert wrap("a · b · c", 1000, 10) == ["a · b · c"]
    assert wrap("aaaaaa · bbbbbb", 60, 10) == ["aaaaaa", "bbbbbb"]


def test_numbers_are_grouped_into_ranges() -> None:
    assert words.ranges((0, 1, 2, 3, 8)) == "0-3,8"
    assert words.ranges(()) == ""

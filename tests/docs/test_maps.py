"""The docstring of each package is its map."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.docs.pages import ROOT

SOURCES = ROOT / "src" / "holdfast"
PACKAGES = sorted(file.parent for file in SOURCES.rglob("__init__.py"))
MOST = 16  # modules that a folder shows at one look
LARGER = {"cli", "compute/nn"}  # each gives its reason in its docstring


def modules(package: Path) -> set[str]:
    files = {file.stem for file in package.glob("*.py") if not file.stem.startswith("__")}
    return files | {file.parent.name for file in package.glob("*/__init__.py")}


@pytest.mark.parametrize(
    "package", PACKAGES, ids=lambda p: p.relative_to(SOURCES.parent).as_posix()
)
def test_each_module_is_named_in_the_map_of_its_package(package: Path) -> None:
    tree = ast.parse((package / "__init__.py").read_text())
    text = ast.get_docstring(tree) or ""
    named = set(re.findall(r"^ *(\w+)/? {2,}\S", text, re.MULTILINE))
    assert sorted(modules(package) - named) == []


def test_folders_are_small() -> None:
    large = {
        package.relative_to(SOURCES).as_posix()
        for package in PACKAGES
        if len([name for name in package.glob("*.py") if name.stem != "__init__"]) > MOST
    }
    assert large <= LARGER

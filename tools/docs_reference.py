"""The reference: a page for each module whose names people import.

Covers: which modules those are, the text of each page, the list of them.
Leaves to others: reading the docstrings (mkdocstrings, which runs nothing).
Promise: a name that can be imported from one of these modules is on its page; names that load on
first use are shown where they are written.
"""

from __future__ import annotations

import ast
import importlib
from dataclasses import dataclass
from pathlib import Path

SOURCES = Path(__file__).parents[1] / "src"
FOLDER = "reference"

# In the order in which the layers stand on each other, from the top.
MODULES = (
    "holdfast",
    "holdfast.pipeline",
    "holdfast.pipeline.history",
    "holdfast.residency",
    "holdfast.xla",
    "holdfast.xla.hosts",
    "holdfast.torch",
    "holdfast.compute",
    "holdfast.compute.nn",
    "holdfast.compute.optim",
    "holdfast.compute.quant",
    "holdfast.memory",
    "holdfast.memory.svm",
    "holdfast.topology",
    "holdfast.nodes.memory",
    "holdfast.nodes.residency",
    "holdfast.nodes.svm",
    "holdfast.nodes.tensor",
    "holdfast.nodes.xla",
    "holdfast.dashboard.snapshot",
    "holdfast.dashboard.attaching",
    "holdfast.dashboard.offering",
    "holdfast.dashboard.watching",
    "holdfast.base.config",
    "holdfast.base.errors",
    "holdfast.base.units",
)
# Modules that give more names than tools see: each maps a name to the module it is written in.
_TABLES = {"holdfast": "_LAYER_OF", "holdfast.residency": "_MODULE_OF"}


@dataclass(frozen=True, slots=True)
class Module:
    """A module of the reference."""

    name: str
    summary: str  # the first line of its docstring
    public: tuple[str, ...]  # what `from module import …` is meant to give
    homes: tuple[tuple[str, str], ...]  # of those that tools do not see: name -> where it is
    inside: tuple[str, ...] = ()  # modules of its own among them

    @property
    def uri(self) -> str:
        """Its page."""
        return f"{FOLDER}/{self.name}.md"


def modules() -> list[Module]:
    """Every module of the reference that is there."""
    return [_read(name) for name in MODULES if _file(name) is not None]


def page(module: Module) -> str:
    """The text of a module's page."""
    if module.name == "holdfast":
        return _package(module)
    text = f"# `{module.name}`\n\n::: {module.name}\n    options:\n"
    text += "      show_root_heading: false\n      show_root_toc_entry: false\n"
    if module.inside:
        text += "\n## Modules\n\n"
        text += "".join(f"- {_linked(f'{module.name}.{name}')}\n" for name in module.inside)
    if not module.homes:
        return text
    live = _live(module.name)
    if live:
        text += "\n## Values that are found anew at each look\n\n"
        text += "".join(f"- `{module.name}.{name}`\n" for name in live)
    text += "\n## More names\n\n"
    for name, home in module.homes:
        if name in live:
            continue
        text += f"::: {home}.{name}\n    options:\n      heading_level: 3\n"
        text += f'      heading: "{module.name}.{name}"\n      toc_label: "{name}"\n\n'
    return text


def listing() -> str:
    """The rows of the page that leads to all others."""
    rows = [f"| [`{module.name}`]({module.name}.md) | {module.summary} |\n" for module in modules()]
    return "| module | holds |\n|---|---|\n" + "".join(rows)


def _linked(name: str) -> str:
    return f"[`{name}`]({name}.md)" if name in MODULES else f"`{name}`"


def _live(name: str) -> tuple[str, ...]:
    """Names of a module that are values of this moment, and so are written nowhere."""
    found: dict[str, tuple[str, ...]] = getattr(importlib.import_module(name), "_LIVE", {})
    return tuple(sorted(key for keys in found.values() for key in keys))


def _package(module: Module) -> str:
    text = f"# `{module.name}`\n\n::: holdfast\n    options:\n      members: false\n"
    text += "      show_root_heading: false\n      show_root_toc_entry: false\n\n"
    text += "| name | is |\n|---|---|\n"
    for name, home in module.homes:
        text += f"| `holdfast.{name}` | [`{home}.{name}`][] |\n"
    return text


def _read(name: str) -> Module:
    file = _file(name)
    if file is None:
        raise FileNotFoundError(name)
    tree = ast.parse(file.read_text(encoding="utf-8"))
    summary = (ast.get_docstring(tree) or "").partition("\n")[0]
    seen = _exported(tree)
    homes = {n: home for n, home in _homes(name) if n not in seen}
    homes |= {n: home for n in seen if _is_hidden(n, home := _written_in(name, n))}
    inside = tuple(n for n, home in homes.items() if home.endswith(f".{n}") and not _holds(home, n))
    rest = tuple((n, home) for n, home in homes.items() if n not in inside)
    return Module(name, summary, tuple(dict.fromkeys((*seen, *homes))), rest, inside)


def _written_in(module: str, name: str) -> str:
    """The module that a name is written in, followed through imports; itself if it is a module.

    A function may have the name of the module it is in: tools then see the module.
    """
    file = _file(module)
    tree = ast.parse(file.read_text(encoding="utf-8")) if file is not None else ast.Module([], [])
    if name in _written(tree):
        return module
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and name in (one.name for one in node.names):
            source = node.module or module
            return f"{module}.{name}" if source == module else _written_in(source, name)
    return f"{module}.{name}"


def _is_hidden(name: str, home: str) -> bool:
    """Whether tools do not find a name: a module, in a module of its own name, or not from here."""
    return home.endswith(f".{name}") or not home.startswith("holdfast")


def _holds(module: str, name: str) -> bool:
    file = _file(module)
    return file is not None and name in _written(ast.parse(file.read_text(encoding="utf-8")))


def _file(name: str) -> Path | None:
    path = SOURCES.joinpath(*name.split("."))
    found = (path / "__init__.py", path.with_suffix(".py"))
    return next((file for file in found if file.is_file()), None)


def _exported(tree: ast.Module) -> tuple[str, ...]:
    """`__all__`, else the public classes, functions and constants that are written here."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return tuple(ast.literal_eval(node.value))
    return tuple(name for name in _written(tree) if not name.startswith("_"))


def _written(tree: ast.Module) -> list[str]:
    """Names that a module defines itself."""
    written: list[str] = []
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            written.append(node.targets[0].id)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            written.append(node.target.id)
        elif isinstance(node, ast.ClassDef | ast.FunctionDef):
            written.append(node.name)
    return written


def _homes(name: str) -> list[tuple[str, str]]:
    """Name -> module, by the table of a module whose names load on first use."""
    table = _TABLES.get(name)
    if table is None:
        return []
    found = vars(importlib.import_module(name))[table]
    return [(key, f"{name}.{module}") for key, module in sorted(found.items())]

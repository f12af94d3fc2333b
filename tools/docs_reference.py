"""The reference: a page for each public module, with every name that can be imported from it.

mkdocstrings reads the docstrings without running code, so names that load on first use are listed
here by the module that defines them.
"""

from __future__ import annotations

import ast
import importlib
from dataclasses import dataclass
from pathlib import Path

SOURCES = Path(__file__).parents[1] / "src"
FOLDER = "reference"

# From the top layer down.
MODULES = (
    "holdfast",
    "holdfast.pipeline",
    "holdfast.pipeline.output.history",
    "holdfast.residency",
    "holdfast.xla",
    "holdfast.xla.cluster.hosts",
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
    "holdfast.dashboard.snapshot.snapshot",
    "holdfast.dashboard.ipc.client",
    "holdfast.dashboard.ipc.server",
    "holdfast.dashboard.ipc.watching",
    "holdfast.base.config",
    "holdfast.base.errors",
    "holdfast.base.units",
)
# Tables of modules whose names load on first use: name -> module that defines it.
_TABLES = {"holdfast": "_LAYER_OF", "holdfast.residency": "_MODULE_OF"}


@dataclass(frozen=True, slots=True)
class Module:
    """A module of the reference."""

    name: str
    summary: str  # the first line of its docstring
    public: tuple[str, ...]  # the public names
    homes: tuple[tuple[str, str], ...]  # names that tools do not find: name -> module
    inside: tuple[str, ...] = ()  # sub-modules among the public names

    @property
    def uri(self) -> str:
        """Its page."""
        return f"{FOLDER}/{self.name}.md"


def modules() -> list[Module]:
    """Every module of the reference that exists."""
    return [_read(name) for name in MODULES if _file(name) is not None]


def page(module: Module) -> str:
    """The text of a module's page."""
    if module.name == "holdfast":
        return _package(module)
    text = f"# `{module.name}`\n\n::: {module.name}\n    options:\n"
    text += "      show_root_heading: false\n      show_root_toc_entry: false\n"
    if module.inside:
        text += "\n## Modules\n\n"
        text += "".join(f"- {_link(f'{module.name}.{name}')}\n" for name in module.inside)
    if not module.homes:
        return text
    live = _live(module.name)
    if live:
        text += "\n## Values that are computed at each access\n\n"
        text += "".join(f"- `{module.name}.{name}`\n" for name in live)
    text += "\n## More names\n\n"
    for name, home in module.homes:
        if name in live:
            continue
        text += f"::: {home}.{name}\n    options:\n      heading_level: 3\n"
        text += f'      heading: "{module.name}.{name}"\n      toc_label: "{name}"\n\n'
    return text


def listing() -> str:
    """The table of all modules."""
    rows = [f"| [`{module.name}`]({module.name}.md) | {module.summary} |\n" for module in modules()]
    return "| module | holds |\n|---|---|\n" + "".join(rows)


def _link(name: str) -> str:
    return f"[`{name}`]({name}.md)" if name in MODULES else f"`{name}`"


def _live(name: str) -> tuple[str, ...]:
    """Names of a module that are computed at each access."""
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
    named = {one.name for node in ast.walk(tree) for one in getattr(node, "names", ())}
    named |= set(_defined_names(tree))  # tools miss the names of `import *`
    for seen_name in seen:
        home = _defining_module(name, seen_name)
        if seen_name not in named or _is_hidden(seen_name, home):
            homes[seen_name] = home
    inside = tuple(n for n, home in homes.items() if home.endswith(f".{n}") and not _holds(home, n))
    rest = tuple((n, home) for n, home in homes.items() if n not in inside)
    return Module(name, summary, tuple(dict.fromkeys((*seen, *homes))), rest, inside)


def _defining_module(module: str, name: str) -> str:
    """The module that defines a name, found through imports; the name itself if it is a module.

    Where a function has the name of its module, tools find the module.
    """
    file = _file(module)
    tree = ast.parse(file.read_text(encoding="utf-8")) if file is not None else ast.Module([], [])
    if name in _defined_names(tree):
        return module
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and name in (one.name for one in node.names):
            source = node.module or module
            return f"{module}.{name}" if source == module else _defining_module(source, name)
        if isinstance(node, ast.ImportFrom) and node.names[0].name == "*":
            source = node.module or module
            if name in _exported(ast.parse(_file(source).read_text(encoding="utf-8"))):
                return _defining_module(source, name)
    return f"{module}.{name}"


def _is_hidden(name: str, home: str) -> bool:
    """Whether tools miss a name: a module, a name equal to its module's, or of another package."""
    return home.endswith(f".{name}") or not home.startswith("holdfast")


def _holds(module: str, name: str) -> bool:
    file = _file(module)
    return file is not None and name in _defined_names(ast.parse(file.read_text(encoding="utf-8")))


def _file(name: str) -> Path | None:
    path = SOURCES.joinpath(*name.split("."))
    found = (path / "__init__.py", path.with_suffix(".py"))
    return next((file for file in found if file.is_file()), None)


def _exported(tree: ast.Module) -> tuple[str, ...]:
    """`__all__`, else the public classes, functions and constants of the module."""
    found: list[str] = []
    for node in tree.body:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        if not isinstance(target, ast.Name) or target.id != "__all__":
            continue
        value: ast.expr = node.value
        if isinstance(value, ast.Attribute):  # __all__ += module.__all__
            module = _file(_imported_from(tree, ast.unparse(value.value)))
            found += _exported(ast.parse(module.read_text(encoding="utf-8")))
        else:
            found += ast.literal_eval(value)
    return tuple(found or (name for name in _defined_names(tree) if not name.startswith("_")))


def _imported_from(tree: ast.Module, name: str) -> str:
    """The module that `from package import name` imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and name in (one.name for one in node.names):
            return f"{node.module}.{name}"
    raise LookupError(name)


def _defined_names(tree: ast.Module) -> list[str]:
    """Names that a module defines itself."""
    names: list[str] = []
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            names.append(node.targets[0].id)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.append(node.target.id)
        elif isinstance(node, ast.ClassDef | ast.FunctionDef):
            names.append(node.name)
    return names


def _homes(name: str) -> list[tuple[str, str]]:
    """(name, module) from the table of a module whose names load on first use."""
    table = _TABLES.get(name)
    if table is None:
        return []
    found = vars(importlib.import_module(name))[table]
    return [(key, f"{name}.{module}") for key, module in sorted(found.items())]

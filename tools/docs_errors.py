"""Writes docs/errors.md: every error with a raised example, the exit statuses, the settings.

The texts are those that the library raises when the examples run; only memory addresses and source
lines are replaced by fixed ones.

    python -m tools.docs_errors            # write the page
    python -m tools.docs_errors --print    # show it
"""

from __future__ import annotations

import argparse
import ast
import builtins
import contextlib
import dataclasses
import importlib.abc
import inspect
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

from holdfast.base import errors
from holdfast.base.config import Config, variable_for
from holdfast.base.errors import HoldfastError
from tools.docs_error_examples import EXAMPLES, TO_DO

PAGE = Path(__file__).parents[1] / "docs" / "errors.md"
SOURCES = Path(__file__).parents[1] / "src" / "holdfast"
HEAD = """\
# Errors

<!-- Written by `python -m tools.docs_errors`; a test fails when it is not up to date. -->

Everything Holdfast raises on purpose says three things: what happened, what was expected, what to
try. Each class is also the builtin that a caller would expect to catch, so `except MemoryError` and
`except OutOfMemory` both work, and `except HoldfastError` takes all of them. The classes are in
`holdfast.base.errors`; `error.what`, `error.expected` and `error.hint` are the three parts.

A terminal shows only the text and a status; `HOLDFAST_DEBUG=1` adds the traceback.
"""
SETTINGS = """\
## Settings

Each is an environment variable; an option of a function or command with the same meaning comes
first. `holdfast doctor` lists variables that no setting reads, with the name probably meant.

| variable | when not set | what it is |
|---|---|---|
"""


# ---- the page


def classes() -> list[type[HoldfastError]]:
    """Every class of the tree, in its order."""
    found = (thing for thing in vars(errors).values() if inspect.isclass(thing))
    return [one for one in found if issubclass(one, HoldfastError) and one is not HoldfastError]


def page() -> str:
    """The whole text."""
    tree = textwrap.dedent(_tree())
    parts = [HEAD, f"```text\n{tree}```\n", *map(_section, classes())]
    parts += [_others(), _statuses(), SETTINGS + "".join(_rows())]
    return "\n".join(parts)


def raise_example(kind: type[HoldfastError]) -> str:
    """The text that the example of a class raises; AssertionError for another class, or none."""
    try:
        with _not_installed("pyopencl" if kind is errors.MissingDependency else None):
            EXAMPLES[kind.__name__]()
    except HoldfastError as exc:
        if type(exc) is not kind:
            raise AssertionError(f"{kind.__name__}: another was raised") from exc
        return _normalize(str(exc))
    raise AssertionError(f"{kind.__name__}: nothing was raised")


@contextlib.contextmanager
def _not_installed(package: str | None) -> Iterator[None]:
    """In the block, importing a package fails as if it were not installed."""
    if package is None:
        yield
        return

    class Finder(importlib.abc.MetaPathFinder):
        def find_spec(self, name: str, *_: object) -> None:
            if name == package:
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    finder, there = Finder(), sys.modules.pop(package, None)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        if there is not None:
            sys.modules[package] = there


def _normalize(text: str) -> str:
    text = re.sub(r"0x[0-9a-f]{8,}", "0x7f0000000000", text)
    text = re.sub(r"\bpool \d+", "pool 1", text)
    text = text.replace(f"{Path(__file__).parent}/", "")  # which may contain spaces
    return re.sub(r"\S*docs_error\w+\.py:\d+ in \w+", "train.py:3 in train", text)


def _tree() -> str:
    """The tree in the docstring of the module."""
    lines = (errors.__doc__ or "").splitlines()
    return "".join(f"{line}\n" for line in lines if line.startswith("    "))


def _section(kind: type[HoldfastError]) -> str:
    code = textwrap.dedent("".join(inspect.getsourcelines(EXAMPLES[kind.__name__])[0][1:])).strip()
    code = f"import ctypes\n\n{code}" if "ctypes." in code else code
    also = " and ".join(_builtins(kind))
    return (
        f"## {kind.__name__}\n\n{inspect.getdoc(kind)} Also {also}.\n\n"
        f"```py\n{code}\n```\n\n```text\n{kind.__name__}: {raise_example(kind)}\n```\n\n"
        f"{TO_DO[kind.__name__]}\n"
    )


def _builtins(kind: type[HoldfastError]) -> list[str]:
    """The most specific builtin bases of a class."""
    found = [base for base in kind.__mro__ if base.__module__ == "builtins"]
    found = [base for base in found if issubclass(base, Exception) and base is not Exception]
    return [
        f"{'an' if base.__name__[0] in 'AEIOU' else 'a'} `{base.__name__}`"
        for base in found
        if not any(one is not base and issubclass(one, base) for one in found)
    ]


def _others() -> str:
    """Subclasses that other modules define."""
    known = {HoldfastError.__name__, *(kind.__name__ for kind in classes())}
    rows = []
    for file in sorted(SOURCES.rglob("*.py")):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        for node in (one for one in tree.body if isinstance(one, ast.ClassDef)):
            bases = [base.id for base in node.bases if isinstance(base, ast.Name)]
            module = ".".join(file.relative_to(SOURCES.parent).with_suffix("").parts)
            if known & {*bases} and not node.name.startswith("_") and module != errors.__name__:
                kinds = ", ".join(f"`{base}`" for base in bases if _is_error(base, known))
                meaning = (ast.get_docstring(node) or "").partition("\n")[0]
                rows.append(f"| `{module}.{node.name}` | {kinds} | {meaning} |\n")
    head = "## Kinds of these\n\n| class | is a | meaning |\n|---|---|---|\n"
    return head + "".join(rows)


def _is_error(name: str, known: set[str]) -> bool:
    return name in known or hasattr(builtins, name)


def _statuses() -> str:
    from holdfast.cli import main

    found = re.search(r"Exit status: (.*?)\.\n", main.__doc__ or "", re.DOTALL)
    if found is None:
        raise AssertionError("cli/main.py does not list its exit statuses")
    rows = re.findall(r"(\d+) ([^,]+)", " ".join(found[1].split()))
    text = "".join(f"| {status} | {meaning} |\n" for status, meaning in rows)
    return f"## Exit statuses\n\n| status of `holdfast` | means |\n|---|---|\n{text}"


def _rows() -> Iterator[str]:
    for field in dataclasses.fields(Config):
        about = str(field.metadata["doc"]).replace("|", "\\|")
        yield f"| `{variable_for(field.name)}` | {_default(field)} | {about} |\n"


def _default(field: dataclasses.Field[object]) -> str:
    if field.default is dataclasses.MISSING:
        return "a folder of this user"
    if isinstance(field.default, bool):
        return "on" if field.default else "off"
    if field.default in (None, ""):
        return "–"
    return f"`{field.default}`"


def main() -> int:
    """Write the page, or show it."""
    parser = argparse.ArgumentParser(description="Write docs/errors.md.")
    parser.add_argument("--print", action="store_true", help="show the page, and write nothing")
    text = page()
    if parser.parse_args().print:
        sys.stdout.write(text)
    else:
        PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

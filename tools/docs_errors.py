"""Write docs/errors.md: every error, what it means, what to do, and the settings.

Covers: the tree of base/errors.py with a text of each class that really was raised, the exit
statuses of the command, the settings of base/config.py.
Leaves to others: the examples and what to do (docs_error_examples).
Promise: an example's text is what the library says when its lines run; only addresses in memory and
places in these files are made the same for everybody.

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

At a terminal an error is its text and a status; a traceback is shown with `HOLDFAST_DEBUG=1` alone.
"""
SETTINGS = """\
## Settings

A variable of the environment for each; where a function or a command takes the setting as an
option, the option comes first. `holdfast doctor` tells of variables that no setting reads, with the
one that was probably meant.

| variable | when not set | what it is |
|---|---|---|
"""


# ---- the page


def classes() -> list[type[HoldfastError]]:
    """Every class of the tree, in the order in which it is drawn."""
    found = (thing for thing in vars(errors).values() if inspect.isclass(thing))
    return [one for one in found if issubclass(one, HoldfastError) and one is not HoldfastError]


def page() -> str:
    """The whole text."""
    tree = textwrap.dedent(_drawn())
    parts = [HEAD, f"```text\n{tree}```\n", *map(_section, classes())]
    parts += [_others(), _statuses(), SETTINGS + "".join(_rows())]
    return "\n".join(parts)


def raised(kind: type[HoldfastError]) -> str:
    """What the example of a class raises. AssertionError when that is another class, or none."""
    try:
        with _not_installed("pyopencl" if kind is errors.MissingDependency else None):
            EXAMPLES[kind.__name__]()
    except HoldfastError as exc:
        if type(exc) is not kind:
            raise AssertionError(f"{kind.__name__}: another was raised") from exc
        return _the_same_everywhere(str(exc))
    raise AssertionError(f"{kind.__name__}: nothing was raised")


@contextlib.contextmanager
def _not_installed(package: str | None) -> Iterator[None]:
    """Inside, importing a package fails as where it is not installed."""
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


def _the_same_everywhere(text: str) -> str:
    text = re.sub(r"0x[0-9a-f]{8,}", "0x7f0000000000", text)
    text = re.sub(r"\bpool \d+", "pool 1", text)
    text = text.replace(f"{Path(__file__).parent}/", "")  # which may have spaces in it
    return re.sub(r"\S*docs_error\w+\.py:\d+ in \w+", "train.py:3 in train", text)


def _drawn() -> str:
    """The tree as the module draws it."""
    lines = (errors.__doc__ or "").splitlines()
    return "".join(f"{line}\n" for line in lines if line.startswith("    "))


def _section(kind: type[HoldfastError]) -> str:
    code = textwrap.dedent("".join(inspect.getsourcelines(EXAMPLES[kind.__name__])[0][1:])).strip()
    code = f"import ctypes\n\n{code}" if "ctypes." in code else code
    also = " and ".join(_builtins(kind))
    return (
        f"## {kind.__name__}\n\n{inspect.getdoc(kind)} Also {also}.\n\n"
        f"```py\n{code}\n```\n\n```text\n{kind.__name__}: {raised(kind)}\n```\n\n"
        f"{TO_DO[kind.__name__]}\n"
    )


def _builtins(kind: type[HoldfastError]) -> list[str]:
    """The builtins that an `except` may name, the most exact of each line."""
    found = [base for base in kind.__mro__ if base.__module__ == "builtins"]
    found = [base for base in found if issubclass(base, Exception) and base is not Exception]
    return [
        f"{'an' if base.__name__[0] in 'AEIOU' else 'a'} `{base.__name__}`"
        for base in found
        if not any(one is not base and issubclass(one, base) for one in found)
    ]


def _others() -> str:
    """Kinds of these that one layer has for itself."""
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

    said = re.search(r"Exit status: (.*?)\.\n", main.__doc__ or "", re.DOTALL)
    if said is None:
        raise AssertionError("cli/main.py does not say its exit statuses any more")
    rows = re.findall(r"(\d+) ([^,]+)", " ".join(said[1].split()))
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

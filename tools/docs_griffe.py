"""What the reference says of fields that are described by `about("…")`, and of examples.

Covers: the sentence about a field as its docstring, its default as its value; lines of code in the
docstring of a module as a block of code.
Leaves to others: everything else that is read from the source (griffe, mkdocstrings).
Promise: nothing of the library is imported.
"""

from __future__ import annotations

import ast
import re
from typing import Any

import griffe

_CODE = re.compile(
    r"(?:from [\w.]+ import|import [\w.]+$|\w+(?: = \w+)?(?:\.\w+)*\()", re.MULTILINE
)


class Fields(griffe.Extension):
    """Reads `about("what it is", default=…)` as people do."""

    def on_class_members(self, *, cls: griffe.Class, **_: Any) -> None:
        """The fields of a class whose members are all known."""
        for field in cls.members.values():
            if isinstance(field, griffe.Attribute):
                _explain(field)

    def on_module_members(self, *, mod: griffe.Module, **_: Any) -> None:
        """The example in the docstring of a module."""
        if mod.docstring is not None:
            parts = mod.docstring.value.split("\n\n")
            mod.docstring.value = "\n\n".join(map(_shown, parts))


def _explain(field: griffe.Attribute) -> None:
    call = _called(str(field.value or ""))
    if call is None:
        return
    said = " ".join(str(ast.literal_eval(call.args[0])).split())
    if field.docstring is None:
        field.docstring = griffe.Docstring(said, parent=field)
    defaults = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
    field.value = defaults.get("default")


def _called(value: str) -> ast.Call | None:
    """The call of `about`, or of the name it was imported under."""
    if not value.startswith(("about(", "means(")):
        return None
    node = ast.parse(value, mode="eval").body
    return node if isinstance(node, ast.Call) and node.args else None


def _shown(part: str) -> str:
    """A paragraph; one that begins as code does is indented, which makes it a block of code."""
    if part.startswith(" ") or _CODE.match(part) is None:
        return part
    return "\n".join(f"    {line}" for line in part.splitlines())

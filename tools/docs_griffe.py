"""A griffe extension for the reference: fields described by `about("…")`, and code examples.

The text of `about` becomes the field's docstring, and its default the value. Code in a module's
docstring becomes a code block. Imports nothing of the library.
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
    """Reads `about("description", default=…)` as docstring and default."""

    def on_class_members(self, *, cls: griffe.Class, **_: Any) -> None:
        """Describe the fields of a class."""
        for field in cls.members.values():
            if isinstance(field, griffe.Attribute):
                _explain(field)

    def on_module_members(self, *, mod: griffe.Module, **_: Any) -> None:
        """Indent the examples in the docstring of a module."""
        if mod.docstring is not None:
            parts = mod.docstring.value.split("\n\n")
            mod.docstring.value = "\n\n".join(map(_indent_code, parts))


def _explain(field: griffe.Attribute) -> None:
    call = _about_call(str(field.value or ""))
    if call is None:
        return
    text = " ".join(str(ast.literal_eval(call.args[0])).split())
    if field.docstring is None:
        field.docstring = griffe.Docstring(text, parent=field)
    defaults = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
    field.value = defaults.get("default")


def _about_call(value: str) -> ast.Call | None:
    """The call of `about`, or of the name it was imported under."""
    if not value.startswith(("about(", "means(")):
        return None
    node = ast.parse(value, mode="eval").body
    return node if isinstance(node, ast.Call) and node.args else None


def _indent_code(part: str) -> str:
    """Indent a paragraph that starts like code, which makes it a code block."""
    if part.startswith(" ") or _CODE.match(part) is None:
        return part
    return "\n".join(f"    {line}" for line in part.splitlines())

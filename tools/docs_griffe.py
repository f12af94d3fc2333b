"""A griffe extension for the reference: described fields, bound functions, and code examples.

The text of `about` becomes the field's docstring, and its default the value. A name that is another
function with its first arguments bound becomes a function. Code in a module's docstring becomes a
code block. Imports nothing of the library.
"""

from __future__ import annotations

import ast
import re
from typing import Any

import griffe

_CODE = re.compile(
    r"(?:from [\w.]+ import|import [\w.]+$|\w+(?: = \w+)?(?:\.\w+)*\()", re.MULTILINE
)

_RULES = "residency.model_management.rules"
# Names that are bound functions: their module, how they are bound, the function, and which of its
# parameters are left.
_BOUND = (
    (f"{_RULES}.current", r"_bind\((\w+\.\w+)", f"{_RULES}.%s", slice(2, None)),
    (f"{_RULES}.current", r"functools\.partial\((\w+)", f"{_RULES}.current.%s", slice(-1)),
    (
        "residency.model_management.models.loaded",
        r"_process\.([a-z]\w+)",
        "residency.model_management.models.loaded.Manager.%s",
        slice(1, None),
    ),
)


class Fields(griffe.Extension):
    """Reads `about("description", default=…)` as docstring and default."""

    def on_class_members(self, *, cls: griffe.Class, **_: Any) -> None:
        """Describe the fields of a class."""
        for field in cls.members.values():
            if isinstance(field, griffe.Attribute):
                _explain(field)

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Show bound functions as functions."""
        for where, binding, function, left in _BOUND if pkg.name == "holdfast" else ():
            module = pkg[where]
            for name, member in list(module.members.items()):
                value = str(member.value) if isinstance(member, griffe.Attribute) else ""
                match = re.match(binding, value)
                found = pkg[function % match[1]] if match is not None else None
                if isinstance(found, griffe.Function):
                    parameters = griffe.Parameters(*list(found.parameters)[left])
                    shown = griffe.Function(name, parameters=parameters, returns=found.returns)
                    shown.docstring = found.docstring
                    module.set_member(name, shown)

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
    if (
        re.match(r"(about|means|_(vram|force|unet|vae|text_enc|attention|upcast|alone))\(", value)
        is None
    ):
        return None
    node = ast.parse(value, mode="eval").body
    return node if isinstance(node, ast.Call) and node.args else None


def _indent_code(part: str) -> str:
    """Indent a paragraph that starts like code, which makes it a code block."""
    if part.startswith(" ") or _CODE.match(part) is None:
        return part
    return "\n".join(f"    {line}" for line in part.splitlines())

"""Pointwise ops as expressions in C: where they are put together.

Covers: the table of expressions, finding the one for a call.
Leaves to others: the expressions (`arithmetic`, `comparison`, `activation`, `special`), formats,
strides and loops (`elementwise`), complex numbers (the host).
Promise: expressions for floats go for several numbers at once as well: see `texts`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy

from holdfast.compute.engines.opencl import elementwise
from holdfast.compute.engines.opencl.array import NotHere
from holdfast.compute.engines.opencl.kernels import register
from holdfast.compute.ops.table import OPS, Op

if TYPE_CHECKING:
    from holdfast.compute.engines.opencl.engine import OpenCLEngine

# A text for all kinds of numbers; or by kind: "f" (floats), "i" (whole numbers with a sign), "u"
# (without; as "i" where it is missing), "b" (truth values); or a function of the call's arguments
# and the format, which may raise what the NumPy engine's kernel raises.
Text = str | dict[str, str] | Callable[[dict[str, Any], numpy.dtype[Any]], str | None]

EXPRESSIONS: dict[str, Text] = {}


def add(texts: dict[str, Text], fixed: bool = False) -> None:
    """Let expressions compute ops: each is registered as a kernel of the engine.

    `fixed`: which text it is depends on the numbers that an op is called with.
    """
    for name, text in texts.items():
        EXPRESSIONS[name] = text
        register(name, _computer(OPS[name]))
    if fixed:
        elementwise.FIXED.update(OPS[name] for name in texts)


def each(names: str, overloads: str, text: Text) -> dict[str, Text]:
    """The same expression for several ops: every name with every overload ("-" for none)."""
    return {
        name if overload == "-" else f"{name}.{overload}": text
        for name in names.split()
        for overload in overloads.split()
    }


def _computer(op: Op) -> Callable[..., Any]:
    def compute(engine: OpenCLEngine, *args: Any, **kwargs: Any) -> Any:
        return elementwise.run(engine, op, args, kwargs)

    return compute


def expression_of(op: Op, bound: dict[str, Any], kind: numpy.dtype[Any]) -> tuple[str, bool]:
    """The expression of an op for numbers of a format, and whether it goes for several at once.

    Raises NotHere where there is none.
    """
    text = EXPRESSIONS.get(op.name)
    if callable(text):
        text = text(bound, kind)
    letter = letter_of(kind)
    if isinstance(text, dict):
        text = text.get(letter, text.get("i") if letter == "u" else None)
    if text is None:
        raise NotHere(f"{op.name} of {kind}")
    return text, letter == "f"


def letter_of(kind: numpy.dtype[Any]) -> str:
    """ "f", "i", "u" or "b"; formats NumPy has not itself are floats."""
    return kind.kind if kind.kind in "iub" else "f"

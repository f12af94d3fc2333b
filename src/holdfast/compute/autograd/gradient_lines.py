"""Gradient lines of the op table, compiled, with the arguments and results that each one needs."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType
from typing import Any

from holdfast.compute import dtype as dtypes
from holdfast.compute import functional
from holdfast.compute.ops.table import PACKETS, Op

_META = {"shape", "dtype", "ndim", "layout"}  # layout: (steps, beginning) in the memory


@dataclass(frozen=True, slots=True)
class Line:
    """One gradient line, compiled: its inputs, and which arguments must be kept for it."""

    inputs: tuple[str, ...]
    code: CodeType
    text: str
    whole: frozenset[str]
    meta: frozenset[str]


@dataclass(frozen=True, slots=True)
class Recipe:
    """All gradient lines of an op, and what they need: tensors, shapes, the op's results."""

    lines: tuple[Line, ...]
    inputs: tuple[str, ...]
    whole: frozenset[str]
    meta: frozenset[str]
    results: bool


@functools.cache
def recipe(op: Op, tracked: tuple[str, ...] | None = None) -> Recipe:
    """The compiled gradient lines of an op; only those for the inputs `tracked` if given."""
    if tracked is None:
        found = tuple(read(op, names, text) for names, text in op.gradient.items())
    else:
        found = tuple(r for r in recipe(op).lines if set(tracked).intersection(r.inputs))
    whole: frozenset[str] = frozenset().union(*(line.whole for line in found))
    meta = frozenset().union(*(line.meta for line in found)) - whole
    inputs = tuple(name for line in found for name in line.inputs)
    results = any(name.startswith("result") for name in whole | meta)
    return Recipe(found, inputs, whole, meta, results)


def differentiable(op: Op, place: int, result: Any) -> bool:
    """Whether a result has a gradient: lines name it `grad`, `grads[1]`, or `grads` for all."""
    if result is None or dtypes.category(result.dtype) < dtypes.FLOATING:
        return False
    places = _places(op)
    return places is None or place in places


@functools.cache
def _places(op: Op) -> frozenset[int] | None:
    """The indices of the results whose gradients the lines use; None for all."""
    found: set[int] = set()
    for text in op.gradient.values():
        tree = ast.parse(text, mode="eval")
        single = {
            id(n.value): n.slice.value
            for n in ast.walk(tree)
            if isinstance(n, ast.Subscript) and isinstance(n.slice, ast.Constant)
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Name) and node.id == "grads":
                place = single.get(id(node))
                if not isinstance(place, int):
                    return None
                found.add(place)
            elif isinstance(node, ast.Name) and node.id == "grad":
                found.add(0)
    return frozenset(found or {0})


def read(op: Op, names: str, text: str) -> Line:
    """Compile one gradient line for the inputs `names`, such as "self" or "input, weight"."""
    tree = ast.parse(text, f"<gradient of {op.name}>", "eval")
    used, light = set(), set()
    attributes = {
        id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Attribute) and n.attr in _META
    }
    attributes |= {id(name) for name in _gone_through(tree, attributes)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            (light if id(node) in attributes else used).add(node.id)
    inputs = tuple(name.strip() for name in names.split(","))
    code = compile(tree, f"<gradient of {op.name}>", "eval")
    return Line(inputs, code, text, frozenset(used), frozenset(light - used))


def _gone_through(tree: ast.AST, attributes: set[int]) -> Iterator[ast.expr]:
    """Lists of which only metadata is used: `tensors` in [t.shape for t in tensors]."""
    names = [n for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)]
    for node in ast.walk(tree):
        if isinstance(node, ast.comprehension) and isinstance(node.target, ast.Name):
            item = node.target.id
            if all(id(name) in attributes for name in names if name.id == item):
                yield node.iter


FORMULAS: dict[str, Any] = {}  # filled by `autograd.formulas`


@functools.cache
def formula_names() -> dict[str, Any]:
    """What a gradient formula can call: every op of the table, and the functions of `formulas`."""
    known = {name: functional.packet(name) for name in PACKETS if name.isidentifier()}
    return known | FORMULAS

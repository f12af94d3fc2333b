"""The op table: one `Op` for each overload, by ATen name.

In-place and out= forms are not in the table; they follow from the functional op.

A gradient is a line of code for each input, with the parameter names of the op's signature:

    op("mul.Tensor(Tensor self, Tensor other) -> Tensor", POINTWISE,
       {"self": "grad * conj(other)", "other": "grad * conj(self)"})

`grad` is the gradient of the first result, `grads` the tuple of all; `result` (or `result0`,
`result1` …) is what the op returned. Every other name is an argument, an op of this table, or a
function of `autograd.formulas`. A line for several inputs ("input, weight, bias") returns a
tuple; `mask` says which of them are needed. Sums over broadcast dimensions and casts to the
input's dtype are automatic. A name used only as `x.shape`, `x.dtype` or `x.ndim` does not keep
the tensor alive, nor does a list used only as `[t.shape for t in tensors]`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from holdfast.base.errors import AlreadyRegistered, NotFound
from holdfast.compute.ops.rules import COMPUTED, Rule
from holdfast.compute.ops.schema import Schema, parse


@dataclass(frozen=True, slots=True, eq=False)
class Op:
    """One overload: signature, shape rule, gradient and decomposition."""

    schema: Schema
    rule: Rule
    gradient: Mapping[str, str] = field(default_factory=dict)
    decomposition: Callable[..., Any] | None = None
    effect: bool = False

    @property
    def name(self) -> str:
        return self.schema.name

    @property
    def constant(self) -> bool:
        """Whether results do not depend on the arguments' elements, so that no gradient is
        missing.
        """
        base = self.schema.base
        return (
            self.effect
            or base.startswith(("new_", "detach", "_linalg_check"))
            or (base.endswith(("_like", "_put_impl_")))
        )

    def __repr__(self) -> str:
        return f"<op {self.schema.text}>"


OPS: dict[str, Op] = {}
PACKETS: dict[str, list[Op]] = {}  # "add" -> its overloads, in the order they were written


def op(
    text: str,
    rule: Rule = COMPUTED,
    gradient: Mapping[str, str] | None = None,
    decomposition: Callable[..., Any] | None = None,
    *,
    effect: bool = False,
) -> Op:
    """Add an op to the table.

    `effect`: two calls with the same arguments may return different results (random numbers).
    """
    made = Op(parse(text), rule, gradient or {}, decomposition, effect)
    if made.name in OPS:
        raise AlreadyRegistered(f"op {made.name!r} is in the table twice")
    OPS[made.name] = made
    PACKETS.setdefault(made.schema.base, []).append(made)
    return made


def composite(text: str, gradient: Mapping[str, str] | None = None) -> Callable[..., Any]:
    """Decorator: the function computes the op by other ops of the table."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        op(text, COMPUTED, gradient, function)
        return function

    return decorate


def composites(functions: Mapping[str, Callable[..., Any]]) -> None:
    """Add ops by signature, each computed by other ops of the table."""
    for text, function in functions.items():
        op(text, decomposition=function)


def find(name: str) -> Op:
    """The op of that name. Raises NotFound."""
    found = OPS.get(name)
    if found is None:
        overloads = [o.name for o in PACKETS.get(name.partition(".")[0], [])]
        raise NotFound(
            f"there is no op {name!r} in the table",
            expected=f"one of {', '.join(overloads)}" if overloads else "the ATen name of an op",
        )
    return found

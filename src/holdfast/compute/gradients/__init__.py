"""What gradient lines say beside ops: longer formulas, by family.

Covers: collecting them.  Leaves to others: the lines (`ops`), running them (`autograd`).
Promise: a word has one meaning; `words` raises where two families claim it.
"""

from __future__ import annotations

from typing import Any

from holdfast.base.errors import AlreadyRegistered


def words() -> dict[str, Any]:
    """Every public function of the files beside this one, by name."""
    from holdfast.compute.gradients import (
        attention,
        convolution,
        index,
        linalg,
        loss,
        matrix,
        normalize,
        pointwise,
        reduce,
        shared,
        views,
    )

    found: dict[str, Any] = dict(shared.BORROWED)
    for module in (
        *(shared, attention, convolution, index, linalg, loss, matrix, normalize, pointwise),
        *(reduce, views),
    ):
        for name, value in vars(module).items():
            if name.startswith("_") or getattr(value, "__module__", None) != module.__name__:
                continue
            if name in found:
                raise AlreadyRegistered(f"{name!r} is a word of gradient lines twice")
            found[name] = value
    return found

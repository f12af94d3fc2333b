"""The node Stream Model."""

from __future__ import annotations

import math
from typing import Any

from holdfast.base.errors import BadInput
from holdfast.nodes.node import Node, boolean, declare, link, number
from holdfast.nodes.refusing import check_linked, format_value

CATEGORY = "Holdfast"
GIB = 1 << 30
MOST_GB = 4096.0


class HoldfastStreamModel(Node):
    """A model whose weights are copied to the device while earlier layers compute."""

    CATEGORY = CATEGORY
    RETURN_TYPES = ("MODEL",)
    RETURN_NAMES = ("model",)
    FUNCTION = "stream"
    INPUTS = declare(
        {
            "model": link("MODEL"),
            "budget_gb": number(0.0, 0.0, MOST_GB, 0.1, round=0.01),
            "pack": boolean(True),
        }
    )

    @classmethod
    def VALIDATE_INPUTS(cls, model: object = None, budget_gb: object = None) -> bool | str:
        """Reject a value in place of the model, and a bad budget."""
        try:
            if budget_gb is not None:  # None if linked
                _budget(budget_gb)
        except BadInput as exc:
            return str(exc)
        return check_linked(cls, model=model)

    def stream(self, model: Any, budget_gb: float = 0.0, pack: bool = True) -> tuple[Any]:
        """(model,). Moves nothing yet. Raises BadInput, Unsupported."""
        budget = _budget(budget_gb)
        if not hasattr(model, "clone") or not hasattr(model, "load_device"):
            raise BadInput(
                f"cannot stream a {type(model).__name__}",
                expected="a MODEL of ComfyUI",
                hint="in plain Python: holdfast.residency.manage(module, budget=…)",
            )
        from holdfast.nodes.host.patcher import make_streamed  # needs ComfyUI

        return (make_streamed(model, budget, bool(pack)),)


def _budget(budget_gb: Any) -> int | None:
    """The budget in bytes; None for ComfyUI's own choice."""
    known = isinstance(budget_gb, int | float) and not isinstance(budget_gb, bool)
    if not known or not math.isfinite(budget_gb) or not 0 <= budget_gb <= MOST_GB:
        raise BadInput(
            f"cannot give {format_value(budget_gb)} GiB to the weights of a model",
            expected=f"a number from 0 (ComfyUI's own choice) to {MOST_GB:g}",
        )
    return int(budget_gb * GIB) or None

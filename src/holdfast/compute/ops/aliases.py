"""Other names for ops: what NumPy calls them, `special_` forms, names from before `linalg_`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast.compute import functional as F
from holdfast.compute.ops.table import PACKETS, op

ALIASES = {
    "absolute": "abs",
    "negative": "neg",
    "multiply": "mul",
    "subtract": "sub",
    "divide": "div",
    "fix": "trunc",
    "clip": "clamp",
    **{f"arc{name}": f"a{name}" for name in ("cos", "sin", "tan", "tan2", "cosh", "sinh", "tanh")},
    "greater": "gt",
    "greater_equal": "ge",
    "less": "lt",
    "less_equal": "le",
    "not_equal": "ne",
    "conj_physical": "_conj_physical",
    "ger": "outer",
    "concat": "cat",
    "concatenate": "cat",
    "row_stack": "vstack",
    "argwhere": "nonzero",
    "pdist": "_pdist_forward",
    "adaptive_avg_pool2d": "_adaptive_avg_pool2d",
    "adaptive_avg_pool3d": "_adaptive_avg_pool3d",
    "matrix_power": "linalg_matrix_power",
    "matrix_exp": "linalg_matrix_exp",
    "special_expit": "sigmoid",
    "special_gammaln": "lgamma",
    "special_psi": "digamma",
    "special_gammainc": "igamma",
    "special_gammaincc": "igammac",
    "special_multigammaln": "mvlgamma",
    **{
        f"special_{name}": name
        for name in (
            *("logsumexp", "polygamma", "erf", "erfc", "erfinv", "exp2", "expm1", "log1p"),
            *("digamma", "i0", "sinc", "round", "logit", "xlogy"),
        )
    },
}


def _forward(name: str) -> Callable[..., Any]:
    return lambda *args, **kwargs: F.packet(name)(*args, **kwargs)


def add() -> None:
    """Add the aliases to the table, with all overloads that their ops have."""
    for alias, name in ALIASES.items():
        for one in tuple(PACKETS[name]):
            op(one.schema.text.replace(name, alias, 1), decomposition=_forward(name))
    for text in ("Tensor(Tensor self, Tensor other)", "Scalar(Tensor self, Scalar other)"):
        op(f"true_divide.{text} -> Tensor", decomposition=_forward("div"))

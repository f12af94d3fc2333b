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
    "arccos": "acos",
    "arcsin": "asin",
    "arctan": "atan",
    "arctan2": "atan2",
    "arccosh": "acosh",
    "arcsinh": "asinh",
    "arctanh": "atanh",
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
    "special_logsumexp": "logsumexp",
    "special_polygamma": "polygamma",
    "special_expit": "sigmoid",
    "special_erf": "erf",
    "special_erfc": "erfc",
    "special_erfinv": "erfinv",
    "special_exp2": "exp2",
    "special_expm1": "expm1",
    "special_log1p": "log1p",
    "special_gammaln": "lgamma",
    "special_digamma": "digamma",
    "special_psi": "digamma",
    "special_i0": "i0",
    "special_sinc": "sinc",
    "special_round": "round",
    "special_logit": "logit",
    "special_gammainc": "igamma",
    "special_gammaincc": "igammac",
    "special_xlogy": "xlogy",
    "special_multigammaln": "mvlgamma",
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

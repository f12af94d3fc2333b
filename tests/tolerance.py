"""How far apart two right answers may be: one rule for every comparison of floats.

A rounding to a dtype with machine epsilon eps is off by at most `eps / 2`, and by 0.29 eps on
average. So a sum of `terms` is off by at most `terms * eps / 2` times what is added (Higham,
Accuracy and Stability of Numerical Algorithms, 3.1), and roundings that know nothing of each other
err like a random walk: `sqrt(terms)` takes the place of `terms`. That holds for any order of
summing, any number of threads, vectors of any width, with or without fused multiply-add. So the
rule is

    |one - other| <= FACTOR * eps(dtype) * sqrt(terms) * magnitude

- `dtype`: the least precise that rounds on the way.
- `terms`: roundings one behind another: the length of the sum, times the layers for a network.
- `magnitude`: of what is added, not of the result, which may have cancelled.

FACTOR is 4: two sides, four standard deviations for the worst of many elements, and as much again.
What a test found on the machine of its author is no reason for a bound, neither for a tighter nor
for a wider one.

- `rounded`: where float32 adds, and values are rounded to a narrow dtype a known number of times.
- `no_worse`: for whole networks, whose layers magnify what comes in. The measure is torch's own
  error against float64, with the same weights.

`tools/try_instruction_sets.py` tries tests with other instruction sets and numbers of threads.
"""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy

FACTOR = 4.0
# Of torch's own error: rounding is random, and torch may have been lucky on this machine.
MOST_OF_REFERENCE = 4.0


def eps(dtype: Any) -> float:
    """Of a dtype of NumPy, ml_dtypes or torch, or of its name."""
    return float(ml_dtypes.finfo(numpy.dtype(str(dtype).removeprefix("torch."))).eps)


def bound(dtype: Any, terms: int = 1, magnitude: float = 1.0) -> float:
    """How far apart two right answers may be, absolutely."""
    return FACTOR * eps(dtype) * math.sqrt(max(terms, 1)) * magnitude


def rounded(dtype: Any, times: int = 1, terms: int = 1) -> float:
    """How far a result may be from the exact one, relatively, if float32 adds `terms`.

    `times`: how often values are rounded to `dtype` on the way to the result, and there.
    """
    return times * eps(dtype) / 2 + bound("float32", terms)


def assert_near(found: Any, wanted: Any, dtype: Any, terms: int = 1, where: str = "") -> None:
    """Every element within the rule, in scale with the largest that is wanted.

    `dtype`: the one that was rounded to on the way. Raises AssertionError.
    """
    found, wanted = _wide(found), _wide(wanted)
    assert found.shape == wanted.shape, where
    most = bound(dtype, terms, _largest(wanted))
    numpy.testing.assert_allclose(found, wanted, rtol=0, atol=most, err_msg=where)


def distance(found: Any, truth: Any) -> float:
    """The largest error, as a part of the largest element of the truth."""
    found, truth = _wide(found), _wide(truth)
    return _largest(found - truth) / (_largest(truth) or 1.0)


def no_worse(ours: float, reference: float, dtype: Any, terms: int = 1) -> bool:
    """Whether an error is that of rounding, given the error of a reference: both relative."""
    return ours <= MOST_OF_REFERENCE * reference + bound(dtype, terms)


def _wide(values: Any) -> Any:
    if hasattr(values, "detach"):  # of torch, which has no bfloat16 in common with NumPy
        values = values.detach().cpu().double().numpy()
    return numpy.asarray(values).astype(numpy.float64)


def _largest(values: Any) -> float:
    return float(numpy.abs(values).max(initial=0.0))

"""How much of what it allows each comparison of floats uses: `pytest -p tests.harness.margins`.

Writes a line of JSON for each place in the tests that compares, into the folder that
HOLDFAST_TEST_MARGINS names: {"place", "share", "test"}, with the largest share and the test that
had it. A share of 1 is the bound. With `-o enable_assertion_pass_hook=true` also `assert a < b`
counts, where b is below 1; assertions then hold on to objects, which tests of memory notice.
`tools/try_instruction_sets.py` puts runs side by side.
"""

from __future__ import annotations

import functools
import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest

from tests import tolerance

_TESTS = Path(__file__).parents[1]
_FOLDER = Path(os.environ.get("HOLDFAST_TEST_MARGINS", "out/margins"))  # tests lose the variable
_NUMBER = re.compile(r"(?:np\.float\d+|tensor|array)\(")
_COMPARISON = re.compile(r"^(\(?[-+*/ ().e\d]+?) <=? ([-+*/ ().e\d]+)$")
_worst: dict[str, tuple[float, str]] = {}


def pytest_configure(config: pytest.Config) -> None:
    import torch

    _wrap(numpy.testing, "assert_allclose", 1e-7, 0.0)
    _wrap(numpy, "allclose", 1e-5, 1e-8)
    _wrap(torch, "allclose", 1e-5, 1e-8)
    pair: Any = torch.testing._comparison.TensorLikePair
    compare = pair._compare_regular_values_close

    def compared(self: Any, one: Any, other: Any, *, rtol: float, atol: float, **more: Any) -> Any:
        if not one.is_sparse:
            _record(one, other, rtol, atol)
        return compare(self, one, other, rtol=rtol, atol=atol, **more)

    pair._compare_regular_values_close = compared
    scalar: Any = type(pytest.approx(1.0))
    equal = scalar.__eq__

    def equals(self: Any, other: Any) -> bool:
        if isinstance(other, float) and isinstance(self.expected, float):
            _record(other, self.expected, 0.0, self.tolerance)
        return equal(self, other)

    scalar.__eq__ = equals
    no_worse = tolerance.no_worse

    def noted(ours: float, reference: float, dtype: Any, terms: int = 1) -> bool:
        most = tolerance.MOST_OF_REFERENCE * reference + tolerance.bound(dtype, terms)
        _record(ours, 0.0, 0.0, most)
        return no_worse(ours, reference, dtype, terms)

    tolerance.no_worse = noted


def pytest_assertion_pass(item: Any, lineno: int, orig: str, expl: str) -> None:
    shown = _NUMBER.sub("(", expl.split("\n", 1)[0])
    if (found := _COMPARISON.match(shown)) is None:
        return
    try:
        left, right = (float(eval(side)) for side in found.groups())
    except (SyntaxError, TypeError, ZeroDivisionError, ValueError):
        return
    if 0 < right < 1 and left >= 0:
        _keep(f"{item.nodeid.split('::')[0]}:{lineno}", left / right)


def pytest_sessionfinish() -> None:
    _FOLDER.mkdir(parents=True, exist_ok=True)
    lines = [
        json.dumps({"place": place, "share": share, "test": test})
        for place, (share, test) in sorted(_worst.items())
    ]
    (_FOLDER / f"{os.getpid()}.jsonl").write_text("\n".join(lines))


def _wrap(module: Any, name: str, rtol: float, atol: float) -> None:
    plain: Callable[..., Any] = getattr(module, name)

    @functools.wraps(plain)
    def wrapped(one: Any, other: Any, *args: Any, **named: Any) -> Any:
        given = dict(zip(("rtol", "atol"), args, strict=False)) | named
        _record(one, other, given.get("rtol", rtol), given.get("atol", atol))
        return plain(one, other, *args, **named)

    setattr(module, name, wrapped)


def _record(one: Any, other: Any, rtol: Any, atol: Any) -> None:
    share = _share(_wide(one), _wide(other), float(rtol), float(atol))
    if share is not None:
        _keep(_place(), share)


def _share(one: Any, other: Any, rtol: float, atol: float) -> float | None:
    """Where both are finite and a difference is allowed at all."""
    if one is None or other is None or (rtol == 0 and atol == 0):
        return None
    with numpy.errstate(all="ignore"):
        try:
            off, allowed = numpy.abs(one - other), atol + rtol * numpy.abs(other)
        except ValueError:
            return None
        shares = (off / allowed)[numpy.isfinite(off) & (allowed > 0)]
    return float(shares.max(initial=0.0))


def _wide(values: Any) -> Any:
    try:
        if hasattr(values, "detach"):
            values = values.detach().resolve_conj().cpu()
            values = values if values.is_complex() else values.double()
            values = values.numpy()
        array = numpy.asarray(values)
        return array if array.dtype.kind == "c" else array.astype(numpy.float64)
    except (TypeError, ValueError, RuntimeError):
        return None


def _place() -> str:
    frame: Any = sys._getframe(1)
    while frame is not None:
        file = Path(frame.f_code.co_filename)
        if file.is_relative_to(_TESTS) and file.parent.name != "harness":
            return f"{file.relative_to(_TESTS.parent)}:{frame.f_lineno}"
        frame = frame.f_back
    return "elsewhere"


def _keep(place: str, share: float) -> None:
    test = os.environ.get("PYTEST_CURRENT_TEST", "").rsplit(" ", 1)[0]
    key = f"{place} in {test.split('[')[0]}"
    if share > _worst.get(key, (-1.0, ""))[0]:
        _worst[key] = share, test

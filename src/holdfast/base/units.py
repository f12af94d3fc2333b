"""Byte counts as text ("2GB", "512MiB", "80%") and back; seconds as text.

GB is 10**9 and GiB is 2**30. A single letter ("2G") is binary, as in `ulimit`, Docker and Java.
Case and spaces do not matter. `parse_bytes(format_bytes(n, exact=True)) == n` for 0 <= n < 2**200;
larger counts can be formatted but not parsed.
"""

from __future__ import annotations

import re
from fractions import Fraction

from holdfast.base.errors import BadInput

_DECIMAL = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "PB": 10**15}
_BINARY = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40, "PiB": 2**50}
_FACTORS = (
    {"": 1}
    | {name.lower(): factor for name, factor in (_DECIMAL | _BINARY).items()}
    | {name[0].lower(): factor for name, factor in _BINARY.items()}
)
_TEXT = re.compile(r"\s*(?P<number>\d[\d_]*(?:\.\d+)?|\.\d+)\s*(?P<unit>[a-zA-Z]*|%)\s*")
_LIMIT = 2**200  # more than any machine has, and below the limits of floats and of int()
_EXPECTED = 'a size such as "2GB", "512MiB" or "80%"'


def parse_bytes(size: str | int, *, of: int | None = None) -> int:
    """The bytes in `size`, rounded down; a percentage is relative to `of`.

    Raises BadInput for other text, negative sizes, 2**200 bytes or more, and a percentage
    without `of`.
    """
    if isinstance(size, bool) or not isinstance(size, (str, int)):
        raise BadInput(f"cannot read {size!r} as a size in bytes", expected=_EXPECTED)
    return _check(size if isinstance(size, int) else _read(size, of))


def _check(count: int) -> int:
    if count < 0:
        shown = f": {count}" if count > -_LIMIT else ""
        raise BadInput(f"a size cannot be negative{shown}", expected=_EXPECTED)
    if count >= _LIMIT:
        raise BadInput("a size cannot be 2**200 bytes or more", expected=_EXPECTED)
    return count


def _read(size: str, of: int | None) -> int:
    match = _TEXT.fullmatch(size)
    if match is None:
        raise BadInput(f"cannot read {size!r} as a size in bytes", expected=_EXPECTED)
    number, unit = _number(match["number"].replace("_", "")), match["unit"]
    if unit == "%":
        return _percentage(size, number, of)
    if unit.lower() not in _FACTORS:
        raise BadInput(
            f"cannot read {size!r} as a size in bytes: unknown unit {unit!r}",
            expected=f"one of {', '.join([*_DECIMAL, *_BINARY])} or %",
        )
    return int(number * _FACTORS[unit.lower()])


def _number(digits: str) -> Fraction:
    try:
        return Fraction(digits)
    except ValueError as exc:  # int() accepts some thousand digits at most
        raise BadInput(
            f"cannot read a number of {len(digits)} digits as a size in bytes", expected=_EXPECTED
        ) from exc


def _percentage(size: str, number: Fraction, of: int | None) -> int:
    if of is None:
        raise BadInput(
            f"cannot read {size!r} as a size in bytes: a percentage has no total here",
            expected='an absolute size such as "2GB" or "512MiB"',
        )
    if number > 100:
        raise BadInput(f"cannot take {size!r} of {format_bytes(of)}", expected="at most 100%")
    return int(number / 100 * of)


def format_bytes(count: int, *, binary: bool = False, exact: bool = False) -> str:
    """`count` as "23.8 GB", or as "22.2 GiB" when `binary`.

    `exact` does not round: it takes the largest unit that divides the count. Counts from 2**200 on
    are given by the power of two below: "2**300 B or more".
    """
    if count < 0:
        return "-" + format_bytes(-count, binary=binary, exact=exact)
    if count >= _LIMIT:
        return f"2**{int(count).bit_length() - 1} B or more"
    if exact:
        return _format_exactly(count)
    units = {"B": 1} | _BINARY if binary else _DECIMAL
    name, factor = max(
        ((n, f) for n, f in units.items() if f <= max(count, 1)), key=lambda item: item[1]
    )
    value = count / factor
    digits = 0 if name == "B" or value >= 99.95 else 1
    return f"{value:.{digits}f} {name}"


def _format_exactly(count: int) -> str:
    units = sorted((_DECIMAL | _BINARY).items(), key=lambda item: -item[1])
    name, factor = next((n, f) for n, f in units if f == 1 or (count and count % f == 0))
    return f"{count // factor}{name}"


def format_seconds(seconds: float) -> str:
    """Seconds as "0.8 s", "53 s", "4 min", "2 h 10 min"."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"

"""What an endpoint is, and how requests are read and checked by that description.

The OpenAPI document reads the same table, so it says what is checked. Unknown parameters and fields
are errors.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from holdfast.base.errors import BadInput, NotFound
from holdfast.dashboard.web.refusals import Unreadable, Unusable

if TYPE_CHECKING:
    from holdfast.dashboard.web.sources import Sources

BODY_BYTES = 64 * 1024
MOST_PID = 2**31 - 1
Method = Literal["GET", "POST", "PUT"]
_DIGITS = re.compile(r"[0-9]{1,15}")


@dataclass(frozen=True, slots=True)
class Number:
    """An integer in the query, with its bounds."""

    name: str
    about: str
    default: int
    least: int
    most: int


@dataclass(frozen=True, slots=True)
class ApiCall:
    """A request, checked by the description of its endpoint."""

    sources: Sources
    path: Mapping[str, str]
    numbers: Mapping[str, int]
    body: Any

    @property
    def pid(self) -> int:
        """The pid in the path. Raises NotFound for an invalid one."""
        text = self.path["pid"]
        if _DIGITS.fullmatch(text) and 0 < int(text) <= MOST_PID:
            return int(text)
        raise NotFound(
            f"there is no process {text[:80]!r}", expected="the number of a process of Holdfast"
        )


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An endpoint: how it is checked, called and described."""

    name: str
    method: Method
    path: str
    about: str
    answer: type | str  # a dataclass, or a media type of its own
    does: Callable[[ApiCall], Awaitable[Any]]
    query: tuple[Number, ...] = ()
    body: Body | None = None
    errors: tuple[int, ...] = ()
    open: bool = False

    @property
    def in_path(self) -> tuple[str, ...]:
        """Names of the path parameters."""
        return tuple(re.findall(r"{(\w+)}", self.path))


@dataclass(frozen=True, slots=True)
class Body:
    """A request body: its schema, and a parser that raises BadInput."""

    schema: Mapping[str, Any]
    read: Callable[[Any], Any]


def numbers(wanted: Sequence[Number], given: Sequence[tuple[str, str]]) -> dict[str, int]:
    """Parse the query. Raises Unreadable."""
    known = {one.name: one for one in wanted}
    found: dict[str, int] = {}
    for name, text in given:
        if name not in known or name in found:
            expected = ", ".join(known) or "none"
            twice = "comes twice" if name in found else "is unknown"
            raise Unreadable(f"the parameter {name[:80]!r} {twice}", expected=expected)
        found[name] = _number(known[name], text)
    return {one.name: found.get(one.name, one.default) for one in wanted}


def _number(wanted: Number, text: str) -> int:
    if _DIGITS.fullmatch(text) and wanted.least <= int(text) <= wanted.most:
        return int(text)
    raise Unreadable(
        f"cannot use {wanted.name}={text[:80]!r}",
        expected=f"an integer from {wanted.least} to {wanted.most}",
    )


def body(wanted: Body, data: bytes) -> Any:
    """Parse a body. Raises Unreadable for invalid JSON, Unusable for wrong fields."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as exc:
        raise Unreadable("cannot read the body as JSON", expected="a JSON object") from exc
    try:
        return wanted.read(value)
    except BadInput as exc:
        raise Unusable(exc.what, expected=exc.expected, hint=exc.hint) from exc

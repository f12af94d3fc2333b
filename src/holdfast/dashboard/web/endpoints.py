"""What an endpoint is, and reading a request by that description.

Covers: numbers in the query and the path, JSON bodies.  Leaves to others: the endpoints themselves
(table), their description for programs (openapi), HTTP (application).
Promise: what the description says is what is checked, since both read the same table. Unknown
parameters and fields are refused, rather than left unseen.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from holdfast.base.codec import decode
from holdfast.base.errors import BadInput, NotFound
from holdfast.dashboard.web.refusals import Unreadable, Unusable

if TYPE_CHECKING:
    from holdfast.dashboard.web.sources import Sources

BODY_BYTES = 64 * 1024
MOST_PID = 2**31 - 1
_DIGITS = re.compile(r"[0-9]{1,15}")


@dataclass(frozen=True, slots=True)
class Number:
    """A whole number in the query, with its bounds."""

    name: str
    about: str
    default: int
    least: int
    most: int


@dataclass(frozen=True, slots=True)
class Call:
    """A request that was read by its endpoint's description."""

    sources: Sources
    path: Mapping[str, str]
    numbers: Mapping[str, int]
    body: Any

    @property
    def pid(self) -> int:
        """The process in the path. Raises NotFound for what cannot be one."""
        text = self.path["pid"]
        if _DIGITS.fullmatch(text) and 0 < int(text) <= MOST_PID:
            return int(text)
        raise NotFound(
            f"there is no process {text[:80]!r}", expected="the number of a process of Holdfast"
        )


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One way to ask, as it is checked, called and described."""

    name: str
    method: Literal["GET", "POST", "PUT"]
    path: str
    about: str
    answer: type | str  # a dataclass, or a media type of its own
    does: Callable[[Call], Awaitable[Any]]
    query: tuple[Number, ...] = ()
    body: Body | None = None
    errors: tuple[int, ...] = ()
    open: bool = False

    @property
    def in_path(self) -> tuple[str, ...]:
        """Names of what varies in the path."""
        return tuple(re.findall(r"{(\w+)}", self.path))


@dataclass(frozen=True, slots=True)
class Body:
    """What a request has to bring: its schema, and how it is read from JSON. Raises BadInput."""

    schema: Mapping[str, Any]
    read: Callable[[Any], Any]


def numbers(wanted: Sequence[Number], given: Sequence[tuple[str, str]]) -> dict[str, int]:
    """The numbers of a query. Raises Unreadable."""
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
        expected=f"a whole number from {wanted.least} to {wanted.most}",
    )


def body(wanted: Body, data: bytes) -> Any:
    """What a body says. Raises Unreadable for what is no JSON, Unusable for wrong fields."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as exc:
        raise Unreadable("cannot read the body as JSON", expected="a JSON object") from exc
    try:
        return wanted.read(value)
    except BadInput as exc:
        raise Unusable(exc.what, expected=exc.expected, hint=exc.hint) from exc


def fields_of(cls: type) -> Callable[[Any], Any]:
    """Read a body as a dataclass."""
    return lambda value: decode(cls, value)

"""HTTP errors: the status of every error class, and the error in its three parts as JSON.

An answer never contains a traceback.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from holdfast.base.codec import about
from holdfast.base.errors import HoldfastError, NotFound, OutOfMemory, OutOfTime


class Refused(HoldfastError):
    """Base of errors that only the server raises."""

    status: ClassVar[int]

    def __init_subclass__(cls, status: int) -> None:
        cls.status = status


class Unreadable(Refused, status=400):
    """Invalid JSON, an invalid number or an unknown parameter."""


class Unauthorized(Refused, status=401):
    """No token, or a wrong one."""


class Forbidden(Refused, status=403):
    """A request for another host, or from another site."""


class NoSuchPage(Refused, status=404):
    """An unknown path."""


class WrongMethod(Refused, status=405):
    """A known path with another method."""


class TooLarge(Refused, status=413):
    """A body above the size limit."""


class WrongType(Refused, status=415):
    """A body without the JSON content type."""


class Unusable(Refused, status=422):
    """A JSON body with invalid fields."""


class Busy(Refused, status=503):
    """Too many requests at once, or a timeout."""


@dataclass(frozen=True, slots=True)
class Parts:
    """The three parts of an error."""

    kind: str = about("its class, for programs")
    what: str = about("what happened")
    expected: str | None = about("what was expected")
    hint: str | None = about("what to try")


@dataclass(frozen=True, slots=True)
class Failure:
    """The body of every error answer."""

    error: Parts = about("what went wrong")


def failure(error: HoldfastError) -> Failure:
    """Encode an error."""
    return Failure(Parts(type(error).__name__, error.what, error.expected, error.hint))


_BUSY = (OutOfTime, OutOfMemory)


def status_of(error: HoldfastError) -> int:
    """The HTTP status of an error: 404 not found, 409 wrong state, 503 busy."""
    if isinstance(error, Refused):
        return error.status
    return 404 if isinstance(error, NotFound) else 503 if isinstance(error, _BUSY) else 409

"""HTTP errors: the status of every error class, and the error in its three parts as JSON.

An answer never contains a traceback.
"""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.base.codec import about
from holdfast.base.errors import HoldfastError, NotFound, OutOfMemory, OutOfTime


class Refused(HoldfastError):
    """Base of errors that only the server raises."""

    status = 400


class Unreadable(Refused):
    """Invalid JSON, an invalid number or an unknown parameter."""


class Unauthorized(Refused):
    """No token, or a wrong one."""

    status = 401


class Forbidden(Refused):
    """A request for another host, or from another site."""

    status = 403


class NoSuchPage(Refused):
    """An unknown path."""

    status = 404


class WrongMethod(Refused):
    """A known path with another method."""

    status = 405


class TooLarge(Refused):
    """A body above the size limit."""

    status = 413


class WrongType(Refused):
    """A body without the JSON content type."""

    status = 415


class Unusable(Refused):
    """A JSON body with invalid fields."""

    status = 422


class Busy(Refused):
    """Too many requests at once, or a timeout."""

    status = 503


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


def status_of(error: HoldfastError) -> int:
    """The HTTP status of an error: 404 not found, 409 wrong state, 503 busy."""
    if isinstance(error, Refused):
        return error.status
    if isinstance(error, NotFound):
        return 404
    if isinstance(error, (OutOfTime, OutOfMemory)):
        return 503
    return 409

"""Requests that are not met: which status, and the error in its three parts as JSON.

Covers: refusals that only a server makes, and the status of every error of the house.
Leaves to others: sending (application), saying which endpoint may answer what (endpoints).
Promise: an answer never holds a traceback; its parts are those a terminal shows.
"""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.base.codec import about
from holdfast.base.errors import HoldfastError, NotFound, OutOfMemory, OutOfTime


class Refused(HoldfastError):
    """A request that this server does not take as it is."""

    status = 400


class Unreadable(Refused):
    """A request that cannot be read: no JSON, no number, an unknown parameter."""


class Unauthorized(Refused):
    """No token, or a wrong one."""

    status = 401


class Forbidden(Refused):
    """A request for another host, or from another site."""

    status = 403


class NoSuchPage(Refused):
    """A path that leads nowhere."""

    status = 404


class WrongMethod(Refused):
    """A path that is asked in another way."""

    status = 405


class TooLarge(Refused):
    """A body of more bytes than anything here needs."""

    status = 413


class WrongType(Refused):
    """A body that does not say that it is JSON."""

    status = 415


class Unusable(Refused):
    """A body that is JSON, with fields that cannot be used."""

    status = 422


class Busy(Refused):
    """Too many ask at once, or somebody else takes too long."""

    status = 503


@dataclass(frozen=True, slots=True)
class Parts:
    """An error, as a terminal shows it."""

    kind: str = about("its class, for programs")
    what: str = about("what happened")
    expected: str | None = about("what was expected")
    hint: str | None = about("what to try")


@dataclass(frozen=True, slots=True)
class Failure:
    """What every request gets that is not met."""

    error: Parts = about("what went wrong")


def failure(error: HoldfastError) -> Failure:
    """The error, as it is sent."""
    return Failure(Parts(type(error).__name__, error.what, error.expected, error.hint))


def status_of(error: HoldfastError) -> int:
    """Who could not do it: nobody there 404, the process as it is now 409, all too busy 503."""
    if isinstance(error, Refused):
        return error.status
    if isinstance(error, NotFound):
        return 404
    if isinstance(error, (OutOfTime, OutOfMemory)):
        return 503
    return 409

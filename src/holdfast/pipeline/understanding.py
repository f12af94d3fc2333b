"""What a library or a network stumbles over, in Holdfast's words."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from holdfast.base.errors import BadInput, HoldfastError
from holdfast.pipeline.sources import Source


@contextlib.contextmanager
def understood(source: Source) -> Iterator[None]:
    """A configuration that says something else than its family expects is told as such."""
    try:
        yield
    except (KeyError, TypeError, AttributeError, IndexError, ValueError, ArithmeticError) as exc:
        if isinstance(exc, HoldfastError):
            raise
        raise BadInput(
            f"cannot understand the configuration of {source.model!r}: {first_line(exc)}",
            expected=f"that of a {source.family} model",
            hint="copy or download the whole model again",
        ) from exc


def first_line(exc: BaseException) -> str:
    """The kind of an exception and the first line of its text."""
    text = str(exc).strip().partition("\n")[0]
    return f"{type(exc).__name__}: {text}" if text else type(exc).__name__

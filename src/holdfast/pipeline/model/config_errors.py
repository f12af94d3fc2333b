"""Turn errors about a model's configuration into BadInput."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from holdfast.base.errors import BadInput, HoldfastError
from holdfast.pipeline.model.sources import Source


@contextlib.contextmanager
def explain_config_errors(source: Source) -> Iterator[None]:
    """Raise BadInput where the configuration is not what the model family expects."""
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

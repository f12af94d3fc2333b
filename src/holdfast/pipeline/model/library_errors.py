"""Turn errors of other libraries into ours: a wrong configuration, a device that is full."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from holdfast.base.errors import BadInput, HoldfastError, OutOfMemory
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


@contextlib.contextmanager
def explain_out_of_memory(doing: str, device: str) -> Iterator[None]:
    """Raise OutOfMemory where torch runs out of memory; other errors pass unchanged."""
    try:
        yield
    except RuntimeError as exc:
        if not is_out_of_memory(exc):
            raise
        raise OutOfMemory(
            f"ran out of memory on {device} while {doing}: {str(exc).strip().splitlines()[0]}",
            expected="a picture and a model that fit together",
            hint="a smaller --height and --width, --precision bf16, or another --device",
        ) from exc


def is_out_of_memory(exc: BaseException) -> bool:
    """Whether torch raised `exc` because memory ran out."""
    # The CPU allocator raises a plain RuntimeError; devices raise torch.OutOfMemoryError.
    says_so = "DefaultCPUAllocator" in str(exc) or "out of memory" in str(exc)
    is_named_so = any(cls.__name__ == "OutOfMemoryError" for cls in type(exc).__mro__)
    return isinstance(exc, RuntimeError) and (says_so or is_named_so)


def first_line(exc: BaseException) -> str:
    """The kind of an exception and the first line of its text."""
    text = str(exc).strip().partition("\n")[0]
    return f"{type(exc).__name__}: {text}" if text else type(exc).__name__

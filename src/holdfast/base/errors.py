"""The exceptions of Holdfast. Each says what happened, what was expected and what to try.

    HoldfastError
    ├── BadInput            ValueError       a value, text or file that cannot be used
    ├── NotFound            LookupError      a name that is not in a registry
    ├── AlreadyRegistered   ValueError       a name that is already in a registry
    ├── MissingDependency   ImportError      an optional package is absent or broken
    ├── Unsupported         RuntimeError     this machine cannot do it
    │   └── Absent                           this machine has no such bus, driver or runtime
    ├── OutOfTime           TimeoutError     a time limit was exceeded
    ├── OutOfMemory         MemoryError      a byte limit was exceeded
    └── Misuse              RuntimeError     memory was misused
        ├── DoubleFree                       a block was freed twice
        ├── ForeignPointer                   an address was freed that this pool did not allocate
        ├── InUse           BufferError      a block was freed while a view of it exists
        ├── Overrun                          data was written past the end of a block
        └── UseAfterFree                     a freed block was used

Each class is also the builtin named beside it, and keeps its three parts when pickled.
"""

from __future__ import annotations

from typing import Any


class HoldfastError(Exception):
    """An error in three parts: `what` happened, what was `expected`, a `hint` what to try."""

    def __init__(self, what: str, *, expected: str | None = None, hint: str | None = None) -> None:
        super().__init__(what)
        self.what = what
        self.expected = expected
        self.hint = hint

    def __str__(self) -> str:
        lines = [self.what]
        if self.expected:
            lines.append(f"  expected: {self.expected}")
        if self.hint:
            lines.append(f"  try: {self.hint}")
        return "\n".join(lines)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.what, self.expected, self.hint)


def _rebuild(
    cls: type[HoldfastError], what: str, expected: str | None, hint: str | None
) -> HoldfastError:
    return cls(what, expected=expected, hint=hint)


class BadInput(HoldfastError, ValueError):
    """A value, text or file of the caller cannot be used."""


class NotFound(HoldfastError, LookupError):
    """A name is not in a registry."""


class AlreadyRegistered(HoldfastError, ValueError):
    """A name is already in a registry."""


class MissingDependency(HoldfastError, ImportError):
    """An optional package is not installed, or is installed and does not import."""


class Unsupported(HoldfastError, RuntimeError):
    """This machine, or this description of one, cannot do what was asked."""


class Absent(Unsupported):
    """This machine has no such bus, driver or runtime."""


class OutOfTime(HoldfastError, TimeoutError):
    """A time limit was exceeded."""


class OutOfMemory(HoldfastError, MemoryError):
    """A byte limit was exceeded."""


class Misuse(HoldfastError, RuntimeError):
    """Memory was misused; the subclasses say how."""


class DoubleFree(Misuse):
    """A block was freed twice."""


class ForeignPointer(Misuse):
    """An address was freed that this pool did not allocate."""


class InUse(Misuse, BufferError):
    """A block was freed while an array, tensor or memoryview still views it."""


class Overrun(Misuse):
    """Data was written past the end of a block."""


class UseAfterFree(Misuse):
    """A freed block was written to or used."""

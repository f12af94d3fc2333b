"""Everything Holdfast raises on purpose.

Every error says three things: what happened, what was expected, what to try.

    HoldfastError
    ├── BadInput            ValueError       a value, text or file that cannot be used
    ├── NotFound            LookupError      a name that is not in a registry
    ├── AlreadyRegistered   ValueError       a name that is in it already
    ├── MissingDependency   ImportError      an optional package is absent or broken
    ├── Unsupported         RuntimeError     this machine cannot do it
    │   └── Absent                           there is nothing to ask on this machine
    ├── OutOfTime           TimeoutError     a limit in seconds ran out
    ├── OutOfMemory         MemoryError      a limit in bytes ran out
    └── Misuse              RuntimeError     memory was used against its rules
        ├── DoubleFree                       a block was given back twice
        ├── ForeignPointer                   an address that no pool handed out was given back
        ├── InUse           BufferError      a block was given back while somebody looks at it
        ├── Overrun                          somebody wrote past the end of a block
        └── UseAfterFree                     a block was used that had been given back

Promise: each class is also the builtin a caller would expect to catch, and
survives pickling with all three parts.
"""

from __future__ import annotations

from typing import Any


class HoldfastError(Exception):
    """An error in three parts: `what` happened, what was `expected`, what to `hint` at trying."""

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
    """A value, text or file given by the caller cannot be used."""


class NotFound(HoldfastError, LookupError):
    """A name is not in a registry."""


class AlreadyRegistered(HoldfastError, ValueError):
    """A name is in a registry already."""


class MissingDependency(HoldfastError, ImportError):
    """An optional package is not installed, or is installed and does not import."""


class Unsupported(HoldfastError, RuntimeError):
    """This machine, or this description of one, cannot do what was asked."""


class Absent(Unsupported):
    """There is nothing to ask: no such bus, driver or runtime on this machine."""


class OutOfTime(HoldfastError, TimeoutError):
    """A time limit ran out."""


class OutOfMemory(HoldfastError, MemoryError):
    """A byte limit ran out."""


class Misuse(HoldfastError, RuntimeError):
    """Memory was used against its rules."""


class DoubleFree(Misuse):
    """A block was given back that had been given back before."""


class ForeignPointer(Misuse):
    """An address was given back that this pool never handed out."""


class InUse(Misuse, BufferError):
    """A block was given back while an array, a tensor or a memoryview looks at it."""


class Overrun(Misuse):
    """Somebody wrote past the end of a block."""


class UseAfterFree(Misuse):
    """Somebody wrote into a block that was given back, or wanted to use it."""

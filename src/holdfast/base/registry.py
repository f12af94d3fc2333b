"""Names of objects that are imported on first use: probes, engines, providers, ports, commands.

Listing and describing entries imports nothing. Ctrl-C does not interrupt the import of an optional
package. A package that is absent or fails to import raises MissingDependency.
"""

from __future__ import annotations

import difflib
import functools
import importlib
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from holdfast.base.errors import AlreadyRegistered, HoldfastError, MissingDependency, NotFound
from holdfast.base.interrupts import is_interrupt, run_uninterrupted

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Entry:
    """Where an object is ("package.module:attribute") and which extra installs its packages."""

    target: str
    summary: str = ""
    extra: str | None = None


class Registry(Mapping[str, T], Generic[T]):
    """A mapping from names to objects that are imported on first access.

    `kind` is the noun in errors ("probe"). A duplicate name raises `AlreadyRegistered`, an
    unknown one `NotFound`, a missing package `MissingDependency` with the extra to install.
    """

    def __init__(self, kind: str, entries: Mapping[str, Entry] | None = None) -> None:
        self.kind = kind
        self._entries: dict[str, Entry] = dict(entries or {})
        self._loaded: dict[str, T] = {}

    def register(self, name: str, entry: Entry) -> None:
        """Add `name`. Raises AlreadyRegistered, and changes nothing, if it is taken."""
        if name in self._entries:
            raise AlreadyRegistered(
                f"cannot register {self.kind} {name!r}: the name is taken by "
                f"{self._entries[name].target}",
                expected=f"a {self.kind} name not among {', '.join(self._entries)}",
            )
        self._entries[name] = entry

    def entry(self, name: str) -> Entry:
        """The entry for `name`, without importing it."""
        if name not in self._entries:
            raise self._unknown(name)
        return self._entries[name]

    def __getitem__(self, name: str) -> T:
        if name not in self._loaded:
            self._loaded[name] = self._load(name, self.entry(name))
        return self._loaded[name]

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def _load(self, name: str, entry: Entry) -> T:
        module_name, _, attribute = entry.target.partition(":")
        try:
            load = functools.partial(importlib.import_module, module_name)
            module = load() if entry.extra is None else run_uninterrupted(load)
        except (HoldfastError, MemoryError):
            raise
        except ImportError as exc:
            raise self._missing(name, entry, exc) from exc
        except Exception as exc:
            if entry.extra is None or is_interrupt(exc):
                raise
            package = _being_imported(exc) or module_of(entry)
            reason = f"{type(exc).__name__}: {exc}"
            raise self._broken(name, package, entry.extra, reason) from exc
        loaded: Any = getattr(module, attribute) if attribute else module
        return loaded

    def _missing(self, name: str, entry: Entry, exc: ImportError) -> Exception:
        package = (exc.name or "").partition(".")[0]
        if entry.extra is None or package == "holdfast":
            return exc  # a bug of ours, not a missing package
        if isinstance(exc, ModuleNotFoundError):
            return MissingDependency(
                f"cannot load {self.kind} {name!r}: the package {package!r} is not installed",
                expected=f"the packages of the extra {entry.extra!r}",
                hint=f"pip install 'holdfast[{entry.extra}]'",
            )
        return self._broken(name, package or module_of(entry), entry.extra, str(exc))

    def _broken(self, name: str, package: str, extra: str, reason: str) -> MissingDependency:
        return MissingDependency(
            f"cannot load {self.kind} {name!r}: importing {package!r} failed: {reason}",
            expected=f"a working installation of the extra {extra!r}",
            hint=f"pip install 'holdfast[{extra}]' --force-reinstall",
        )

    def _unknown(self, name: str) -> NotFound:
        close = difflib.get_close_matches(name, self._entries, n=1)
        return NotFound(
            f"unknown {self.kind} {name!r}",
            expected=f"one of {', '.join(self._entries)}",
            hint=close[0] if close else None,
        )


def module_of(entry: Entry) -> str:
    """The module part of an entry's target."""
    return entry.target.partition(":")[0]


def _being_imported(exc: Exception) -> str | None:
    """The package whose module code ran last when an import failed; None for Holdfast itself."""
    package = None
    for frame, _ in traceback.walk_tb(exc.__traceback__):
        if frame.f_code.co_name == "<module>":
            package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
    return None if package == __name__.partition(".")[0] else package
